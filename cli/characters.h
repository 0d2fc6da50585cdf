/*
 * characters.h: where characters end. The command sees arbitrary bytes in paths, and in names under --compat.
 */
#ifndef CLI_CHARACTERS_H
#define CLI_CHARACTERS_H

#include <stddef.h>

/* Bytes of the well-formed character at `text`, or 0 when there is none. */
size_t utf8_char_size(const char *text, size_t size);
/* Columns that a terminal needs, taking each character as one. */
size_t utf8_columns(const char *text);

#endif
