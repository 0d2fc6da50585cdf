/*
 * output.h: everything the command prints. Results go to stdout as text, as aligned tables or as JSON; errors go to
 * stderr. Text from a file is escaped in human output (control characters and what is not UTF-8 as \xNN), exact in JSON.
 * Write errors of stdout are not looked at one by one: output_finish() does it, once, at the end.
 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PRINTF_LIKE(format_index, first_index) __attribute__((format(printf, format_index, first_index)))

/* Zeroed memory for free(). The command ends here, with EXIT_FAULT, when there is none. */
void *allocate(size_t count, size_t size);

/* The text as a terminal may see it, for free(). */
char *escape(const char *text, size_t size);
void print_escaped(FILE *file, const char *text, size_t size);

/* "15.6 MiB", "24 bytes". Returns `out`. */
char *human_bytes(char out[32], uint64_t bytes);
/* "3 tensors", "1 tensor". Returns `out`. */
char *human_count(char out[64], uint64_t count, const char *noun);
/* "[2,3]" with extents of a tensor, for free(). */
char *shape_text(const uint64_t *shape, uint32_t rank);
double gigabytes_per_second(uint64_t bytes, uint64_t elapsed_ns);

/* ---------------------------------------------------------------------------------------------- errors */

/* One line on stderr: "headrace VERB: ...". What is formatted is escaped, here, below and in error_set(). */
void complain(const char *verb, const char *format, ...) PRINTF_LIKE(2, 3);
/* The same for wrong usage, with `as_json` as an object on stdout too. Returns EXIT_USAGE. */
int complain_of_usage(const char *verb, int as_json, const char *format, ...) PRINTF_LIKE(3, 4);
/* Fills an error as the library does, for what the command itself finds. Returns `code`. */
int error_set(struct hr_error *err, int code, const char *format, ...) PRINTF_LIKE(3, 4);
/* What an error means for the exit code. */
int error_exit_code(const struct hr_error *err);
/* Whether the message has the file's path in it already. A bare word as a path may be any word of the message. */
int message_names_file(const struct hr_error *err);
/* The error as a line on stderr, with `as_json` as an object on stdout too. Returns the exit code. */
int error_report(const char *verb, int as_json, const struct hr_error *err);
/* " (tensor 'x', offset 8)" with what is known and the message does not say; or nothing. */
void error_print_place(FILE *file, const struct hr_error *err);
/* Flushes stdout. Returns `code`, or EXIT_FAULT when something could not be written. */
int output_finish(const char *verb, int code);

/* ------------------------------------------------------------------------------------------------ JSON */

/*
 * Written as it goes to `file`, stdout where that is NULL. Commas are put where they belong; `key` is NULL inside
 * arrays and at the top.
 */
struct json {
    int need_comma;
    FILE *file;
};

void json_open(struct json *json, const char *key, char bracket); /* '{' or '[' */
void json_close(struct json *json, char bracket);                 /* '}' or ']' */
void json_string(struct json *json, const char *key, const char *value, size_t value_size);
void json_pair(struct json *json, const char *key, size_t key_size, const char *value, size_t value_size);
void json_text(struct json *json, const char *key, const char *value); /* null for "" and NULL */
void json_u64(struct json *json, const char *key, uint64_t value);
void json_i64(struct json *json, const char *key, int64_t value);
void json_real(struct json *json, const char *key, double value, int decimals);
void json_bool(struct json *json, const char *key, int value);
void json_shape(struct json *json, const char *key, const uint64_t *shape, uint32_t rank);
void json_offset(struct json *json, const char *key, uint64_t offset); /* null for HR_NO_OFFSET */
void json_end(struct json *json);                                      /* closes the line */

/* ---------------------------------------------------------------------------------------------- tables */

/* Cells are kept until the table is printed, since widths depend on all of them. */
struct table {
    const char *alignment; /* a letter per column: 'l' or 'r' */
    size_t column_count, cell_count, capacity;
    char **cells;
};

void table_init(struct table *table, const char *alignment);
/* The next cell, row by row; the table owns `text`, which free() can free. */
void table_add(struct table *table, char *text);
void table_addf(struct table *table, const char *format, ...) PRINTF_LIKE(2, 3);
/* Two cells: the name, and "24" or "1056 (1.0 KiB)". */
void table_add_bytes(struct table *table, const char *name, uint64_t bytes);
/* Prints and empties the table. */
void table_print(struct table *table, FILE *file);

#endif
