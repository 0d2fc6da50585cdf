/*
 * names.h: a hash table from names to positions in an array whose elements begin with a name (struct
 * hr_json_string): hr_tensor, hr_metadata_pair, hr_index_entry, lists of paths. The array stays the caller's and must outlive the
 * table. The table is sized once and holds 32-bit positions: half full at most, open addressing.
 *
 * Hashes are seeded per process, so that nobody can prepare names that collide.
 */
#ifndef HR_FORMAT_NAMES_H
#define HR_FORMAT_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "format/json.h"

struct hr_names {
    uint32_t *slots; /* position + 1, or 0 */
    size_t mask;
};

#define HR_NAMES_COUNT_MAX 0xfffffff0u /* positions are 32-bit; headers and indexes are far too short to reach it */
#define HR_NAMES_NONE SIZE_MAX

/* A seed for hashes that stays the same within the process. */
uint64_t hr_names_seed(void);
uint64_t hr_names_hash(const char *name, size_t name_size, uint64_t seed);

/* Room for `count` names; 0 or HR_EOUT_OF_MEMORY. */
int hr_names_init(struct hr_names *names, size_t count);
void hr_names_release(struct hr_names *names);

/* An array of `stride` bytes an element and the hashes of its names. */
struct hr_named {
    const void *elements;
    size_t stride;
    const uint64_t *hashes;
};

/* Adds array[position], or returns the position that the same name has already. */
size_t hr_names_add(struct hr_names *names, const struct hr_named *array, size_t position);
/*
 * Adds positions 0 to count - 1 in turn. Returns the first position whose name was there already, with the earlier
 * one in *ret_earlier, or HR_NAMES_NONE.
 */
size_t hr_names_add_all(struct hr_names *names, const struct hr_named *array, size_t count, size_t *ret_earlier);
/*
 * Of equal names keeps only the last: moves the others out of the array and of its hashes, the order kept. Returns
 * how many remain. `names` must be empty and is of no use afterwards.
 */
size_t hr_names_keep_last(struct hr_names *names, void *elements, size_t stride, uint64_t *hashes, size_t count);
size_t hr_names_find(const struct hr_names *names, const struct hr_named *array, const char *name, size_t name_size);

/* Sorts elements that begin with a name by its bytes. At most HR_NAMES_STRIDE_MAX bytes an element. */
#define HR_NAMES_STRIDE_MAX 64u
void hr_names_sort(void *elements, size_t stride, size_t count);

#endif
