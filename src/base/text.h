/*
 * text.h: text that grows, and JSON written into it. A failed allocation is remembered in `failed`; further
 * writes then do nothing, so that callers check once, at the end.
 */
#ifndef HR_BASE_TEXT_H
#define HR_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct hr_text {
    char *bytes; /* NUL-terminated once something was written */
    size_t size, capacity;
    int failed;
    int need_comma; /* JSON: a value was written at this level */
};

void hr_text_release(struct hr_text *text);
void hr_text_add(struct hr_text *text, const char *bytes, size_t size);
void hr_text_printf(struct hr_text *text, const char *format, ...) HR_PRINTF(2, 3);
/* The finished text, which the caller frees with hr_free(), or NULL when memory ran out. Resets `text`. */
char *hr_text_take(struct hr_text *text);

/* JSON: commas are put where they belong. `key` is NULL inside arrays. */
void hr_json_open(struct hr_text *text, const char *key, char bracket); /* '{' or '[' */
void hr_json_close(struct hr_text *text, char bracket);                 /* '}' or ']' */
void hr_json_string(struct hr_text *text, const char *key, const char *value, size_t value_size);
void hr_json_u64(struct hr_text *text, const char *key, uint64_t value);
void hr_json_i64(struct hr_text *text, const char *key, int64_t value);
void hr_json_bool(struct hr_text *text, const char *key, int value);
void hr_json_null(struct hr_text *text, const char *key);

#endif
