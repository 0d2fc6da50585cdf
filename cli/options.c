/*
 * options.c: reads options by a table. It knows the forms of values, but no verb and no option by name except --help.
 */
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "output.h"

void text_list_add(struct text_list *list, const char *text)
{
    if ((list->count & (list->count - 1)) == 0) { /* full: capacities are powers of two */
        const char **texts = allocate(list->count ? list->count * 2 : 1, sizeof *texts);
        if (list->count)
            memcpy(texts, list->texts, list->count * sizeof *texts);
        free(list->texts);
        list->texts = texts;
    }
    list->texts[list->count++] = text;
}

void text_list_release(struct text_list *list)
{
    free(list->texts);
    *list = (struct text_list){0};
}

/* ---------------------------------------------------------------------------------------------- values */

/* Decimal digits only: strtoull would take signs and white space. */
static int parse_digits(const char *text, uint64_t *ret_value, const char **ret_end)
{
    char *end;
    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    *ret_value = strtoull(text, &end, 10);
    *ret_end = end;
    return errno == 0;
}

int parse_count(const char *text, uint32_t *ret_count)
{
    uint64_t value;
    const char *end;
    if (!parse_digits(text, &value, &end) || *end || value > UINT32_MAX)
        return 0;
    *ret_count = (uint32_t)value;
    return 1;
}

int parse_size(const char *text, uint64_t *ret_bytes)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"K", 1ull << 10},
                 {"KiB", 1ull << 10},
                 {"kB", 1000},
                 {"M", 1ull << 20},
                 {"MiB", 1ull << 20},
                 {"MB", 1000000},
                 {"G", 1ull << 30},
                 {"GiB", 1ull << 30},
                 {"GB", 1000000000},
                 {"T", 1ull << 40},
                 {"TiB", 1ull << 40},
                 {"TB", 1000000000000}};
    uint64_t value;
    const char *end;
    if (!parse_digits(text, &value, &end))
        return 0;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(end, units[i].name) == 0)
            return !__builtin_mul_overflow(value, units[i].bytes, ret_bytes);
    return 0;
}

int parse_seconds(const char *text, uint64_t *ret_ns)
{
    char *end;
    if (strspn(text, "0123456789.") != strlen(text))
        return 0;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 1e-9 && seconds <= 1e9))
        return 0;
    *ret_ns = (uint64_t)(seconds * 1e9);
    return 1;
}

static int parse_route(const char *text, uint32_t *ret_route)
{
    int route = hr_route_find(text);
    if (route < 0)
        return 0;
    *ret_route = (uint32_t)route;
    return 1;
}

static const char *kind_form(enum option_kind kind)
{
    switch (kind) {
    case OPTION_COUNT:
        return "a number from 0 to 4294967295";
    case OPTION_SIZE:
        return "a size such as 4MiB, 1G or 4096";
    case OPTION_FLAG:
        return "0 or 1";
    case OPTION_SECONDS:
        return "seconds such as 0.5, greater than 0";
    default:
        return "auto, pread, uring, mmap or gds";
    }
}

/* 1 when the text has the option's form. A flag has a text only in the environment. */
static int option_store(const struct option *option, const char *text)
{
    switch (option->kind) {
    case OPTION_FLAG:
        *(int *)option->target = !text || *text == '1';
        return !text || strcmp(text, "0") == 0 || strcmp(text, "1") == 0;
    case OPTION_TEXT:
        *(const char **)option->target = text;
        return 1;
    case OPTION_LIST:
        text_list_add(option->target, text);
        return 1;
    case OPTION_COUNT:
        return parse_count(text, option->target);
    case OPTION_SIZE:
        return parse_size(text, option->target);
    case OPTION_SECONDS:
        return parse_seconds(text, option->target);
    case OPTION_ROUTE:
        return parse_route(text, option->target);
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ help */

static void print_usage(const struct verb *verb, FILE *file)
{
    fprintf(file, "usage: headrace %s [OPTION]...%s%s\n", verb->name, *verb->operands ? " " : "", verb->operands);
}

static void print_help(const struct verb *verb, const struct option *options)
{
    struct table table;
    print_usage(verb, stdout);
    printf("%s\n\noptions:\n", verb->summary);
    table_init(&table, "ll");
    for (; options->name; options++) {
        table_addf(&table, "  --%s%s%s", options->name, options->value_name ? " " : "",
                   options->value_name ? options->value_name : "");
        table_addf(&table, "%s%s%s%s", options->help, options->variable ? " [" : "",
                   options->variable ? options->variable : "", options->variable ? "]" : "");
    }
    table_addf(&table, "  --help");
    table_addf(&table, "print this text");
    table_print(&table, stdout);
}

/* Levenshtein distance, for texts short enough to be names of options and verbs. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { LENGTH_MAX = 32 };
    size_t a_size = strlen(a), b_size = strlen(b);
    size_t row[LENGTH_MAX + 1];
    if (a_size > LENGTH_MAX || b_size > LENGTH_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= b_size; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_size; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_size; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < least ? change : least;
        }
    }
    return row[b_size];
}

const char *nearest_name(const char *text, const char *(*name_at)(const void *context, size_t index),
                         const void *context)
{
    const char *nearest = NULL;
    size_t best = strlen(text) / 3 + 2; /* farther ones are no typing errors */
    const char *name;
    for (size_t i = 0; (name = name_at(context, i)); i++) {
        size_t distance = edit_distance(text, name);
        if (distance < best) {
            best = distance;
            nearest = name;
        }
    }
    return nearest;
}

static const char *option_name_at(const void *context, size_t index)
{
    return ((const struct option *)context)[index].name;
}

/* --------------------------------------------------------------------------------------------- parsing */

static const struct option *option_find(const struct option *options, const char *name, size_t name_size)
{
    for (; options->name; options++)
        if (strlen(options->name) == name_size && memcmp(options->name, name, name_size) == 0)
            return options;
    return NULL;
}

/* What is read, and how to complain of it. */
struct command_line {
    const struct verb *verb;
    const struct option *options;
    int as_json;
};

static void complain_of_unknown(const struct command_line *line, const char *argument)
{
    char name[64];
    const char *start = argument + strspn(argument, "-"), *verb = line->verb->name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(start, "="), start);
    const char *nearest = nearest_name(name, option_name_at, line->options);
    if (nearest)
        complain_of_usage(verb, line->as_json, "unknown option '%s'; did you mean --%s?", argument, nearest);
    else
        complain_of_usage(verb, line->as_json, "unknown option '%s'; 'headrace %s --help' lists the options", argument,
                          verb);
}

/* Reads the option at arguments[0]. Returns how many arguments it took, or 0 after a complaint. */
static int parse_option(const struct command_line *line, int argument_count, char **arguments)
{
    const char *argument = arguments[0], *verb = line->verb->name;
    size_t name_size = strcspn(argument + 2, "=");
    const char *value = argument[2 + name_size] ? argument + 2 + name_size + 1 : NULL;
    const struct option *option =
        strncmp(argument, "--", 2) == 0 ? option_find(line->options, argument + 2, name_size) : NULL;
    int wants_value = option && option->kind != OPTION_FLAG, taken = 1;
    if (wants_value && !value && argument_count > 1) {
        value = arguments[1];
        taken = 2;
    }
    if (!option)
        complain_of_unknown(line, argument);
    else if (!wants_value && value)
        complain_of_usage(verb, line->as_json, "option --%s takes no value", option->name);
    else if (wants_value && !value)
        complain_of_usage(verb, line->as_json, "option --%s wants a value: %s", option->name, option->value_name);
    else if (!option_store(option, value))
        complain_of_usage(verb, line->as_json, "option --%s: '%s' is not %s", option->name, value,
                          kind_form(option->kind));
    else
        return taken;
    return 0;
}

/* What the environment says stands first, so that options overwrite it. */
static int read_environment(const struct command_line *line)
{
    for (const struct option *option = line->options; option->name; option++) {
        const char *value = option->variable ? getenv(option->variable) : NULL;
        if (value && *value && !option_store(option, value)) {
            complain_of_usage(line->verb->name, line->as_json, "environment variable %s: '%s' is not %s",
                              option->variable, value, kind_form(option->kind));
            return 0;
        }
    }
    return 1;
}

static int has_flag(int argument_count, char **arguments, const char *flag)
{
    for (int i = 0; i < argument_count && strcmp(arguments[i], "--") != 0; i++)
        if (strcmp(arguments[i], flag) == 0)
            return 1;
    return 0;
}

int wants_json(int argument_count, char **arguments)
{
    return has_flag(argument_count, arguments, "--json");
}

static int parse_all(const struct command_line *line, int argument_count, char **arguments, struct text_list *operands)
{
    int only_operands = 0;
    for (int i = 0; i < argument_count;) {
        if (!only_operands && strcmp(arguments[i], "--") == 0) {
            only_operands = 1;
            i++;
        } else if (only_operands || arguments[i][0] != '-' || arguments[i][1] == '\0') {
            text_list_add(operands, arguments[i++]);
        } else {
            int taken = parse_option(line, argument_count - i, arguments + i);
            if (!taken)
                return 0;
            i += taken;
        }
    }
    return 1;
}

int options_parse(const struct verb *verb, const struct option *options, int argument_count, char **arguments,
                  struct operand_count allowed, struct text_list *ret_operands, int *ret_exit_code)
{
    const struct command_line line = {verb, options, wants_json(argument_count, arguments)};
    struct text_list operands = {0};
    if (has_flag(argument_count, arguments, "--help") || has_flag(argument_count, arguments, "-h")) {
        print_help(verb, options);
        *ret_exit_code = EXIT_YES;
        return 0;
    }
    *ret_exit_code = EXIT_USAGE;
    if (!read_environment(&line) || !parse_all(&line, argument_count, arguments, &operands)) {
        text_list_release(&operands);
        return 0;
    }
    if (operands.count < allowed.least || operands.count > allowed.most) {
        complain_of_usage(verb->name, line.as_json,
                          operands.count < allowed.least ? "an argument is missing" : "too many arguments");
        print_usage(verb, stderr);
        text_list_release(&operands);
        return 0;
    }
    *ret_operands = operands;
    return 1;
}
