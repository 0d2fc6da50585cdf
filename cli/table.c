/*
 * table.c: tables whose columns line up. Columns are two spaces apart; the last one is not padded.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "characters.h"
#include "output.h"

void table_init(struct table *table, const char *alignment)
{
    *table = (struct table){.alignment = alignment, .column_count = strlen(alignment)};
}

void table_add(struct table *table, char *text)
{
    if (table->cell_count == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 64;
        char **cells = allocate(capacity, sizeof *cells);
        if (table->cell_count)
            memcpy(cells, table->cells, table->cell_count * sizeof *cells);
        free(table->cells);
        table->cells = cells;
        table->capacity = capacity;
    }
    table->cells[table->cell_count++] = text;
}

void table_addf(struct table *table, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, arguments);
    char *text = allocate((size_t)size + 1, 1);
    vsnprintf(text, (size_t)size + 1, format, again);
    va_end(again);
    va_end(arguments);
    table_add(table, text);
}

static void print_row(const struct table *table, char **cells, const size_t *widths, FILE *file)
{
    size_t count = table->column_count;
    while (count > 1 && *cells[count - 1] == '\0') /* no blanks at the end of lines */
        count--;
    for (size_t column = 0; column < count; column++) {
        int padding = (int)(widths[column] - utf8_columns(cells[column]));
        int is_last = column + 1 == count;
        if (table->alignment[column] == 'r')
            fprintf(file, "%*s%s", padding, "", cells[column]);
        else
            fprintf(file, "%s%*s", cells[column], is_last ? 0 : padding, "");
        fputs(is_last ? "\n" : "  ", file);
    }
}

void table_add_bytes(struct table *table, const char *name, uint64_t bytes)
{
    char text[32];
    table_addf(table, "%s", name);
    if (bytes < 1024)
        table_addf(table, "%llu", (unsigned long long)bytes);
    else
        table_addf(table, "%llu (%s)", (unsigned long long)bytes, human_bytes(text, bytes));
}

void table_print(struct table *table, FILE *file)
{
    size_t *widths = allocate(table->column_count, sizeof *widths);
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t width = utf8_columns(table->cells[i]);
        if (width > widths[i % table->column_count])
            widths[i % table->column_count] = width;
    }
    for (size_t i = 0; i < table->cell_count; i += table->column_count)
        print_row(table, table->cells + i, widths, file);
    for (size_t i = 0; i < table->cell_count; i++)
        free(table->cells[i]);
    free(table->cells);
    free(widths);
    table_init(table, table->alignment);
}
