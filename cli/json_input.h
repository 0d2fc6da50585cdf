/*
 * json_input.h: reads JSON piece by piece from memory, for files that the command wrote itself. Whoever reads knows the
 * order of brackets; every function returns 1, or 0 once something was not as asked for, and then `at` stays there.
 */
#ifndef CLI_JSON_INPUT_H
#define CLI_JSON_INPUT_H

#include <stddef.h>
#include <stdint.h>

struct json_input {
    const char *text; /* need not end in NUL */
    size_t size, at;
};

/* The next character behind blanks is this one, and is taken. */
int json_take(struct json_input *input, char character);
/* As json_take(), for what a comma or the closing bracket ends: *ret_more is whether another element follows. */
int json_take_end(struct json_input *input, char bracket, int *ret_more);
/* A string that fits with its NUL, or null, which is "". */
int json_take_text(struct json_input *input, char *ret_text, size_t capacity);
/* A whole number. */
int json_take_u64(struct json_input *input, uint64_t *ret_value);
/* Any value. */
int json_skip(struct json_input *input);

#endif
