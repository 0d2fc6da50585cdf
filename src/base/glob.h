/*
 * glob.h: shell patterns over tensor names. `*` crosses dots and slashes; case matters; names may hold any bytes.
 */
#ifndef HR_BASE_GLOB_H
#define HR_BASE_GLOB_H

#include <stddef.h>

/* 1 when all of `text` matches `pattern`: `*`, `?` (one character), `[a-z]`, `[!a-z]`, `\` quotes the next. */
int hr_glob_match(const char *pattern, const char *text, size_t text_size);

#endif
