/*
 * characters.c: well-formed UTF-8 by the table of the Unicode standard: no overlong forms, no surrogates, no
 * character beyond U+10FFFF.
 */
#include "characters.h"

static int is_continuation(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

size_t utf8_char_size(const char *text, size_t size)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t length = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;
    if (length > size)
        return 0;
    for (size_t i = 1; i < length; i++)
        if (!is_continuation(c[i]))
            return 0;
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf0 && c[1] < 0x90) ||
        (c[0] == 0xf4 && c[1] > 0x8f))
        return 0;
    return length;
}

size_t utf8_columns(const char *text)
{
    size_t columns = 0;
    for (; *text; text++)
        columns += !is_continuation((unsigned char)*text);
    return columns;
}
