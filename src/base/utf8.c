/*
 * utf8.c: strict UTF-8 checking; long runs of ASCII are passed over 32 bytes at a time.
 */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

/* Length by first byte, and the range that the second byte must lie in (RFC 3629, section 4). */
static size_t second_byte_range(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef) {
        if (first == 0xe0)
            *low = 0xa0;
        if (first == 0xed)
            *high = 0x9f;
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if (first == 0xf0)
            *low = 0x90;
        if (first == 0xf4)
            *high = 0x8f;
        return 4;
    }
    return 0;
}

size_t hr_utf8_char_size(const unsigned char *text, size_t size)
{
    unsigned char low, high;
    if (size == 0)
        return 0;
    if (text[0] < 0x80)
        return 1;
    size_t length = second_byte_range(text[0], &low, &high);
    if (length == 0 || length > size || text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (text[i] < 0x80 || text[i] > 0xbf)
            return 0;
    return length;
}

size_t hr_utf8_valid_prefix(const unsigned char *text, size_t size)
{
    size_t i = 0;
    while (i < size) {
        uint64_t words[4];
        while (size - i >= sizeof words) {
            memcpy(words, text + i, sizeof words);
            if ((words[0] | words[1] | words[2] | words[3]) & UINT64_C(0x8080808080808080))
                break;
            i += sizeof words;
        }
        if (i == size)
            break;
        size_t length = hr_utf8_char_size(text + i, size - i);
        if (length == 0)
            return i;
        i += length;
    }
    return size;
}
