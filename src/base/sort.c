/*
 * sort.c: a bottom-up merge sort.
 */
#include "base/sort.h"

#include <string.h>

/* Merges two sorted runs; of equals the left one goes first. */
static void runs_merge(const struct hr_sort_key *left, const struct hr_sort_key *middle,
                       const struct hr_sort_key *right_end, struct hr_sort_key *out)
{
    const struct hr_sort_key *right = middle;
    while (left < middle && right < right_end) {
        int is_right = right->major < left->major || (right->major == left->major && right->minor < left->minor);
        *out++ = is_right ? *right++ : *left++;
    }
    memcpy(out, left, (size_t)(middle - left) * sizeof *out);
    memcpy(out + (middle - left), right, (size_t)(right_end - right) * sizeof *out);
}

const struct hr_sort_key *hr_sort_keys(struct hr_sort_key *keys, size_t count)
{
    struct hr_sort_key *spare = keys + count;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = middle + width < count ? middle + width : count;
            runs_merge(keys + start, keys + middle, keys + end, spare + start);
        }
        struct hr_sort_key *sorted = spare;
        spare = keys;
        keys = sorted;
    }
    return keys;
}
