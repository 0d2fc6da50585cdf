/*
 * sort.h: sorts pairs of numbers that carry an index. The C library's qsort() may allocate behind the seam and is not
 * stable.
 */
#ifndef HR_BASE_SORT_H
#define HR_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

struct hr_sort_key {
    uint64_t major, minor;
    size_t index; /* of what is sorted */
};

/*
 * Sorts by (major, minor); equals keep their order. `keys` has room for 2 * count of them, the second half is scratch.
 * Returns whichever half holds the result.
 */
const struct hr_sort_key *hr_sort_keys(struct hr_sort_key *keys, size_t count);

#endif
