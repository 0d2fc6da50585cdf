/*
 * utf8.h: strict UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing over U+10FFFF).
 */
#ifndef HR_BASE_UTF8_H
#define HR_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the character at `text`, 1 to 4, or 0 when it is not valid within `size` bytes. */
size_t hr_utf8_char_size(const unsigned char *text, size_t size);

/* Position of the first byte that is not part of valid UTF-8, or `size`. */
size_t hr_utf8_valid_prefix(const unsigned char *text, size_t size);

#endif
