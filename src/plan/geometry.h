/*
 * geometry.h: one item of a request as canonical runs. Takes a tensor's place in its file, ranges and target
 * strides; gives the shape, the bytes, and the fewest dims that say where each run lies in the file and in the
 * destination. Knows nothing of groups, chunks and ways.
 *
 * Dims of a geometry: source strides are positive and nest (row-major order is file order), target strides nest
 * too once sorted, so that no two elements share a byte. All positions fit 63 bits.
 */
#ifndef HR_PLAN_GEOMETRY_H
#define HR_PLAN_GEOMETRY_H

#include "plan/plan.h"

/* Words of the pool that an item takes at most: its shape, its strides, its dims. */
size_t hr_geometry_words(const struct hr_tensor *tensor, const struct hr_item *item);

/*
 * Fills bytes, units, source_offset, source_end, run_bytes, dims, dtypes, rank, shape and strides of *ret_item, taking
 * memory from *pool, which advances. Errors name the item by `item_index`; the caller adds the tensor.
 */
int hr_geometry_make(const struct hr_tensor *tensor, const struct hr_item *item, size_t item_index, uint64_t **pool,
                     struct hr_plan_item *ret_item, struct hr_error *err);

#endif
