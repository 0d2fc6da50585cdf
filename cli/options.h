/*
 * options.h: long options from a table. A verb lists its options once, with the place of the value and the help text;
 * parsing, --help and the environment's defaults follow from that table.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "verbs.h"

enum option_kind {
    OPTION_FLAG,    /* int: 1 when given; in the environment 0 or 1 */
    OPTION_TEXT,    /* const char * */
    OPTION_LIST,    /* struct text_list: may be given again */
    OPTION_COUNT,   /* uint32_t */
    OPTION_SIZE,    /* uint64_t, bytes: 4MiB, 1G, 500kB, 4096 */
    OPTION_SECONDS, /* uint64_t, nanoseconds: 0.5 */
    OPTION_ROUTE    /* uint32_t, enum hr_route */
};

struct option {
    const char *name;       /* without the dashes */
    const char *value_name; /* in the help; NULL for flags */
    enum option_kind kind;
    void *target;         /* keeps its value when the option is not given */
    const char *variable; /* of the environment, which counts when the option is not given; or NULL */
    const char *help;
};

/* A row; it looks like a call so that tables are laid out like calls. */
#define OPTION(name, value_name, kind, target, variable, help) \
    {                                                          \
        name, value_name, kind, target, variable, help         \
    }
/* Every verb has it. */
#define JSON_OPTION(flag) OPTION("json", NULL, OPTION_FLAG, &(flag), NULL, "print JSON")

struct text_list {
    const char **texts; /* borrowed from the arguments; the array is for free() */
    size_t count;
};

struct operand_count {
    size_t least, most;
};

/*
 * Fills the targets and the operands. 1: go on; 0: leave with *ret_exit_code, since help was printed or the usage is
 * wrong. `options` ends with an option without a name; --help need not be listed.
 */
int options_parse(const struct verb *verb, const struct option *options, int argument_count, char **arguments,
                  struct operand_count allowed, struct text_list *ret_operands, int *ret_exit_code);

/* Whether --json stands among the arguments, whatever else is wrong with them: errors are objects then. */
int wants_json(int argument_count, char **arguments);

/* 1 and the value, or 0 when the text is not of that form or out of range. */
int parse_count(const char *text, uint32_t *ret_count);
int parse_size(const char *text, uint64_t *ret_bytes);
int parse_seconds(const char *text, uint64_t *ret_ns);

void text_list_add(struct text_list *list, const char *text);
void text_list_release(struct text_list *list);

/* The candidate that is at most a few typing errors away, or NULL; `name_at` gives the i-th, NULL behind the last. */
const char *nearest_name(const char *text, const char *(*name_at)(const void *context, size_t index),
                         const void *context);

#endif
