/*
 * glob.c: matching with one point of return (the last `*`), so that no pattern takes more than
 * pattern x text steps.
 */
#include "base/glob.h"

#include <stdint.h>

#include "base/utf8.h"

/* The character at `text` and its size; a byte that is no valid UTF-8 is a character of its own, past all others. */
static size_t char_next(const char *text, size_t size, uint32_t *ret_code)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length = hr_utf8_char_size(bytes, size);
    if (length < 2) {
        *ret_code = length ? bytes[0] : 0x110000u + bytes[0];
        return 1;
    }
    uint32_t code = bytes[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (bytes[i] & 0x3fu);
    *ret_code = code;
    return length;
}

/* The same in a pattern, which its NUL ends before anything behind it is looked at; a backslash quotes. */
static const char *pattern_char_next(const char *pattern, uint32_t *ret_code)
{
    if (*pattern == '\\' && pattern[1])
        pattern++;
    return pattern + char_next(pattern, 4, ret_code);
}

/* Matches the set at `pattern` ("[...]"); *ret_end is behind it, or NULL when it is not closed. */
static int set_match(const char *pattern, uint32_t code, const char **ret_end)
{
    const char *p = pattern + 1;
    int negated = *p == '!' || *p == '^';
    int found = 0;
    p += negated;
    for (int first = 1; *p && (first || *p != ']'); first = 0) {
        uint32_t low, high;
        p = pattern_char_next(p, &low);
        high = low;
        if (*p == '-' && p[1] && p[1] != ']')
            p = pattern_char_next(p + 1, &high);
        found |= low <= code && code <= high;
    }
    *ret_end = *p == ']' ? p + 1 : NULL;
    return found != negated;
}

/* A character that stands for itself, in one byte, as most of most patterns. */
static int is_plain(char c)
{
    return c > 0 && c < 0x7f && c != '*' && c != '?' && c != '[' && c != '\\';
}

/* Matches one unit of the pattern; *ret_next is behind it. Returns bytes of text used, 0 for no match. */
static size_t unit_match(const char *pattern, const char *text, size_t text_size, const char **ret_next)
{
    uint32_t code, wanted;
    if (is_plain(*pattern)) {
        *ret_next = pattern + 1;
        return *text == *pattern;
    }
    size_t used = char_next(text, text_size, &code);
    if (*pattern == '?') {
        *ret_next = pattern + 1;
        return used;
    }
    if (*pattern == '[') {
        int matched = set_match(pattern, code, ret_next);
        if (*ret_next)
            return matched ? used : 0;
    }
    *ret_next = pattern_char_next(pattern, &wanted);
    return wanted == code ? used : 0;
}

int hr_glob_match(const char *pattern, const char *text, size_t text_size)
{
    const char *star = NULL;
    size_t i = 0, star_at = 0;
    for (;;) {
        if (*pattern == '*') {
            star = ++pattern;
            star_at = i;
            continue;
        }
        if (i == text_size && *pattern == '\0')
            return 1;
        const char *next;
        size_t used = i < text_size && *pattern ? unit_match(pattern, text + i, text_size - i, &next) : 0;
        if (used) {
            i += used;
            pattern = next;
            continue;
        }
        if (!star || star_at >= text_size)
            return 0;
        uint32_t skipped;
        star_at += char_next(text + star_at, text_size - star_at, &skipped);
        pattern = star;
        i = star_at;
    }
}
