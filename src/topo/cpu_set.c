/*
 * cpu_set.c: see cpu_set.h.
 */
#include "topo/cpu_set.h"

#include <string.h>

#define WORD_COUNT (sizeof((struct hr_cpu_set *)0)->words / sizeof(uint64_t))

/* A decimal number; *text moves behind it. -1 when there is none; what is too large to matter stays large. */
static int64_t parse_number(const char **text)
{
    int64_t value = 0;
    if (**text < '0' || **text > '9')
        return -1;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        if (value < INT32_MAX)
            value = value * 10 + (**text - '0');
    return value;
}

/* One "5" or "5-7". */
static int parse_range(const char **text, uint64_t *words, uint32_t limit)
{
    int64_t first = parse_number(text), last = first;
    if (first >= 0 && **text == '-') {
        (*text)++;
        last = parse_number(text);
    }
    if (first < 0 || last < first)
        return -1;
    for (int64_t i = first; i <= last && i < limit; i++)
        words[i / 64] |= UINT64_C(1) << i % 64;
    return 0;
}

int hr_list_parse(const char *text, uint64_t *words, uint32_t limit)
{
    memset(words, 0, (limit + 63) / 64 * sizeof *words);
    if (*text == '\n' || *text == '\0')
        return 0;
    while (parse_range(&text, words, limit) == 0) {
        if (*text == '\n' || *text == '\0')
            return 0;
        if (*text++ != ',')
            return -1;
    }
    return -1;
}

void hr_cpu_set_add(struct hr_cpu_set *set, uint32_t cpu)
{
    set->words[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

int hr_cpu_set_has(const struct hr_cpu_set *set, uint32_t cpu)
{
    return set->words[cpu / 64] >> cpu % 64 & 1;
}

uint32_t hr_cpu_set_count(const struct hr_cpu_set *set)
{
    uint32_t count = 0;
    for (size_t i = 0; i < WORD_COUNT; i++)
        count += (uint32_t)__builtin_popcountll(set->words[i]);
    return count;
}

void hr_cpu_set_intersect(struct hr_cpu_set *set, const struct hr_cpu_set *other)
{
    for (size_t i = 0; i < WORD_COUNT; i++)
        set->words[i] &= other->words[i];
}
