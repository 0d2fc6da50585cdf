/*
 * glob.c: matching with one point of return (the last `*`), so that no pattern takes more than
 * pattern x text steps.
 */
#include "base/glob.h"

#include "base/utf8.h"

/* Matches the set at `pattern` ("[...]"); *ret_end is behind it, or NULL when it is not closed. */
static int set_match(const char *pattern, unsigned char c, const char **ret_end)
{
    const char *p = pattern + 1;
    int negated = *p == '!' || *p == '^';
    int found = 0;
    p += negated;
    for (int first = 1; *p && (first || *p != ']'); first = 0) {
        if (*p == '\\' && p[1])
            p++;
        unsigned char low = (unsigned char)*p++, high = low;
        if (*p == '-' && p[1] && p[1] != ']') {
            p++;
            if (*p == '\\' && p[1])
                p++;
            high = (unsigned char)*p++;
        }
        found |= low <= c && c <= high;
    }
    *ret_end = *p == ']' ? p + 1 : NULL;
    return found != negated;
}

/* Matches one unit of the pattern; *ret_next is behind it. Returns bytes of text used, 0 for no match. */
static size_t unit_match(const char *pattern, const char *text, size_t text_size, const char **ret_next)
{
    if (*pattern == '?') {
        size_t length = hr_utf8_char_size((const unsigned char *)text, text_size);
        *ret_next = pattern + 1;
        return length ? length : 1;
    }
    if (*pattern == '[') {
        int matched = set_match(pattern, (unsigned char)*text, ret_next);
        if (*ret_next)
            return matched ? 1 : 0;
    }
    if (*pattern == '\\' && pattern[1])
        pattern++;
    *ret_next = pattern + 1;
    return *pattern == *text ? 1 : 0;
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
        pattern = star;
        i = ++star_at;
    }
}
