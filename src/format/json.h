/*
 * json.h: a strict pull scanner over a buffer that it may write to. No tree, no allocation, no recursion.
 *
 * It accepts what serde_json accepts (RFC 8259; numbers that overflow a double and nesting of HR_JSON_DEPTH_MAX are
 * errors), because verdicts on headers must agree with the reference reader. Strings are unescaped in place and
 * NUL-terminated over their closing quote. UTF-8 is not checked here: the owner of the buffer has done it.
 * After a failure the scanner must not be used again; `err` of the scanner holds the reason with its offset.
 */
#ifndef HR_FORMAT_JSON_H
#define HR_FORMAT_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct hr_json {
    char *text;     /* text[size] is NUL: it ends every loop */
    char *at;       /* the next byte */
    char *end;      /* text + size */
    uint64_t base;  /* added to positions in errors */
    int code;       /* of errors */
    unsigned depth; /* open containers */
    int is_first;   /* nothing was read yet in the innermost container */
    struct hr_error *err;
};

/* A string of the text. As hr_tensor and hr_metadata_pair begin with the same two members, see names.h. */
struct hr_json_string {
    const char *bytes; /* NUL-terminated; may contain NUL */
    size_t size;
};

struct hr_json_number {
    double value;
    uint64_t integer; /* the value, when is_integer */
    int is_integer;   /* unsigned plain decimal that fits 64 bits */
};

/* `text` has `size` bytes and one more, which is written. Errors get `code` and offsets counted from `base`. */
void hr_json_init(struct hr_json *json, char *text, size_t size, uint64_t base, int code, struct hr_error *err);

/* Fails at the byte `at` of the text. */
int hr_json_fail(struct hr_json *json, const char *at, const char *format, ...) HR_PRINTF(3, 4);

/* The next byte that is not white space, not consumed; NUL at the end of the text (or where a NUL stands). */
char hr_json_peek(struct hr_json *json);
/* Consumes an opening bracket, '{' or '['; `what` says in the error what should have been there. */
int hr_json_enter(struct hr_json *json, char bracket, const char *what);
/* 1: an element (in objects: a key) follows; 0: the closing bracket was consumed; negative: an error. */
int hr_json_more(struct hr_json *json, char closing_bracket);
/* A key and its colon. */
int hr_json_key(struct hr_json *json, struct hr_json_string *ret_key);
int hr_json_text(struct hr_json *json, struct hr_json_string *ret_text, const char *what);
int hr_json_number(struct hr_json *json, struct hr_json_number *ret_number);
/* An unsigned plain decimal of at most 64 bits: no sign, fraction, exponent or leading zero. */
int hr_json_unsigned(struct hr_json *json, uint64_t *ret_value);
int hr_json_null_value(struct hr_json *json);
/* Any value, checked and dropped. */
int hr_json_skip(struct hr_json *json);
/* Nothing but white space may follow. */
int hr_json_finish(struct hr_json *json);

#endif
