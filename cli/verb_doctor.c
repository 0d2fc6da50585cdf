/*
 * verb_doctor.c: what the library can use here. It answers a question about the machine, so "no" is no failure.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "output.h"

static void print_json(const struct hr_capability *capabilities, size_t count)
{
    struct json json = {0};
    json_open(&json, NULL, '{');
    json_text(&json, "version", hr_version());
    json_open(&json, "capabilities", '[');
    for (size_t i = 0; i < count; i++) {
        json_open(&json, NULL, '{');
        json_string(&json, "name", capabilities[i].name, strlen(capabilities[i].name));
        json_bool(&json, "usable", capabilities[i].usable);
        json_string(&json, "detail", capabilities[i].detail, strlen(capabilities[i].detail));
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
    json_end(&json);
}

static void print_text(const struct hr_capability *capabilities, size_t count)
{
    struct table table;
    table_init(&table, "lll");
    for (size_t i = 0; i < count; i++) {
        table_addf(&table, "%s", capabilities[i].name);
        table_addf(&table, "%s", capabilities[i].usable ? "yes" : "no");
        table_add(&table, escape(capabilities[i].detail, strlen(capabilities[i].detail)));
    }
    printf("headrace %s\n", hr_version());
    table_print(&table, stdout);
}

int doctor_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct text_list operands;
    int as_json = 0, code;
    const struct option options[] = {JSON_OPTION(as_json), {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){0, 0}, &operands, &code))
        return code;
    size_t count = hr_capabilities(NULL, 0);
    struct hr_capability *capabilities = allocate(count, sizeof *capabilities);
    size_t found = hr_capabilities(capabilities, count);
    if (found < count)
        count = found;
    if (as_json)
        print_json(capabilities, count);
    else
        print_text(capabilities, count);
    free(capabilities);
    text_list_release(&operands);
    return EXIT_YES;
}
