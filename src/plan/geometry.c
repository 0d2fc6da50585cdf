/*
 * geometry.c: ranges and strides become runs.
 *
 * Lengths are counted in units: bytes, or bits for dtypes whose elements are smaller than a byte. The dimensions
 * are taken innermost first; one that continues the run, or the dim before it, both in the file and in the
 * destination, is merged into it at once, so that a whole tensor of any rank is one run and needs no dims. Where dtypes
 * are converted, lengths in the file are those of stored elements, and in the destination those of the others.
 */
#include "plan/geometry.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"

/* The runs in the making: dims innermost first, everything in units; a run is `run` in the file, and there. */
struct canon {
    struct hr_plan_dim dims[HR_RANK_MAX];
    uint32_t dim_count;
    uint64_t run, target_run, first;
};

size_t hr_geometry_words(const struct hr_tensor *tensor, const struct hr_item *item)
{
    size_t dim_count = tensor->rank < HR_RANK_MAX ? tensor->rank : HR_RANK_MAX;
    if (!item->ranges && !item->into_strides && !item->shard_world)
        dim_count = 0;
    return (size_t)tensor->rank * 2 + dim_count * (sizeof(struct hr_plan_dim) / sizeof(uint64_t));
}

static uint64_t magnitude(int64_t value)
{
    return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

static int fail_overflow(size_t item_index, struct hr_error *err)
{
    return hr_fail(err, HR_EVALIDATION_OVERFLOW, "item %zu: the tensor's shape overflows 64 bits", item_index);
}

static uint64_t range_step(const struct hr_item *item, uint32_t d)
{
    return item->ranges && item->ranges[d].step ? item->ranges[d].step : 1;
}

/* How many elements the item's range leaves of a dimension. */
static uint64_t range_count(const struct hr_tensor *tensor, const struct hr_item *item, uint32_t d)
{
    if (!item->ranges)
        return tensor->shape[d];
    const struct hr_range *range = &item->ranges[d];
    return range->stop == range->start ? 0 : (range->stop - range->start - 1) / range_step(item, d) + 1;
}

/* Which of those are the item's own: all, or the block of its shard. */
static struct hr_range own_range(const struct hr_tensor *tensor, const struct hr_item *item, uint32_t d)
{
    struct hr_range own = {0, range_count(tensor, item, d), 1};
    if (item->shard_world && d == item->shard_dim)
        hr_shard_range(own.stop, item->shard_rank, item->shard_world, &own);
    return own;
}

static uint64_t range_start(const struct hr_tensor *tensor, const struct hr_item *item, uint32_t d)
{
    return (item->ranges ? item->ranges[d].start : 0) + own_range(tensor, item, d).start * range_step(item, d);
}

static int check_shard(const struct hr_tensor *tensor, const struct hr_item *item, size_t item_index,
                       struct hr_error *err)
{
    if (item->shard_world == 0)
        return 0;
    if (item->shard_rank >= item->shard_world)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: shard rank %u is not below the world's size, %u",
                       item_index, item->shard_rank, item->shard_world);
    if (item->shard_dim >= tensor->rank)
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "item %zu: it is sharded along dimension %u, but the tensor has %u dimension(s)", item_index,
                       item->shard_dim, tensor->rank);
    return 0;
}

/* The extents of the slice or of its shard; ranges are checked here. */
static int slice_shape(const struct hr_tensor *tensor, const struct hr_item *item, size_t item_index, uint64_t *shape,
                       struct hr_error *err)
{
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint64_t extent = tensor->shape[d];
        uint64_t start = item->ranges ? item->ranges[d].start : 0, stop = item->ranges ? item->ranges[d].stop : extent;
        if (start > stop || stop > extent)
            return hr_fail(err, HR_EINVALID_ARGUMENT,
                           "item %zu: dimension %u has %llu elements, its range is %llu to %llu; give start <= stop <= "
                           "%llu",
                           item_index, d, (unsigned long long)extent, (unsigned long long)start,
                           (unsigned long long)stop, (unsigned long long)extent);
        struct hr_range own = own_range(tensor, item, d);
        shape[d] = own.stop - own.start;
    }
    return 0;
}

/* Bits of all elements. As in the format, extents are multiplied in order, so that a leading 0 allows any others. */
static int slice_bits(const uint64_t *shape, uint32_t rank, uint32_t element_bits, size_t item_index,
                      uint64_t *ret_bits, struct hr_error *err)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < rank; d++)
        if (shape[d] == 0) {
            *ret_bits = 0;
            return 0;
        }
    for (uint32_t d = 0; d < rank; d++)
        if (__builtin_mul_overflow(count, shape[d], &count))
            return fail_overflow(item_index, err);
    if (__builtin_mul_overflow(count, element_bits, &count))
        return fail_overflow(item_index, err);
    *ret_bits = count;
    return 0;
}

/*
 * Row-major strides in bytes. Those of sub-byte elements are rounded down. In tensors without elements extents of
 * 0 count as 1, and strides that no longer fit are 0: nothing is addressed by them.
 */
static void strides_compact(const uint64_t *shape, uint32_t rank, uint32_t element_bits, int64_t *strides)
{
    uint64_t bits = element_bits;
    for (uint32_t d = rank; d-- > 0;) {
        strides[d] = (int64_t)(bits / 8);
        if (__builtin_mul_overflow(bits, shape[d] ? shape[d] : 1, &bits))
            bits = 0;
    }
}

/* The caller's strides: taken when no element lies on its neighbour; all dimensions together: check_overlap(). */
static int strides_given(const struct hr_item *item, const uint64_t *shape, uint32_t rank, uint32_t element_bits,
                         size_t item_index, int64_t *strides, struct hr_error *err)
{
    if (!item->into)
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "item %zu: it has into_strides without into; memory of ours is always compact", item_index);
    for (uint32_t d = 0; d < rank; d++) {
        int64_t stride = item->into_strides[d];
        if (shape[d] > 1 && element_bits < 8 && stride != strides[d])
            return hr_fail(err, HR_EUNSUPPORTED,
                           "item %zu: dimension %u has a stride of %lld bytes; elements of %u bits can only be "
                           "loaded compact, with %lld",
                           item_index, d, (long long)stride, element_bits, (long long)strides[d]);
        if (shape[d] > 1 && magnitude(stride) < element_bits / 8)
            return hr_fail(err, HR_EINVALID_ARGUMENT,
                           "item %zu: dimension %u has a stride of %lld bytes, so that its %llu elements of %u bytes "
                           "overlap; give a stride of at least the element's size",
                           item_index, d, (long long)stride, (unsigned long long)shape[d], element_bits / 8);
    }
    memcpy(strides, item->into_strides, rank * sizeof *strides);
    return 0;
}

/* Takes the next dimension outwards, of at least 2 elements: so 64 bits of elements never need HR_RANK_MAX dims. */
static void canon_add(struct canon *canon, uint64_t count, uint64_t source_stride, int64_t target_stride)
{
    struct hr_plan_dim *top = canon->dim_count ? &canon->dims[canon->dim_count - 1] : NULL;
    if (!top && source_stride == canon->run && target_stride >= 0 && (uint64_t)target_stride == canon->target_run) {
        canon->run *= count;
        canon->target_run *= count;
        return;
    }
    int64_t target_next;
    uint64_t source_next;
    if (top && !__builtin_mul_overflow(top->source_stride, top->count, &source_next) &&
        !__builtin_mul_overflow(top->target_stride, (int64_t)top->count, &target_next) &&
        source_next == source_stride && target_next == target_stride) {
        top->count *= count;
        return;
    }
    assert(canon->dim_count < HR_RANK_MAX);
    canon->dims[canon->dim_count++] = (struct hr_plan_dim){count, source_stride, target_stride};
}

/* Only for items with elements: every extent is at least 1, and lengths in the file stay below the tensor's. */
static int canon_make(struct canon *canon, const struct hr_tensor *tensor, const struct hr_item *item,
                      const uint64_t *shape, const int64_t *strides, uint32_t element_bits, uint32_t target_bits,
                      size_t item_index, struct hr_error *err)
{
    int sub_byte = element_bits < 8;
    uint64_t source = sub_byte ? element_bits : element_bits / 8;
    uint64_t target = sub_byte ? target_bits : target_bits / 8; /* compact */
    canon->dim_count = 0;
    canon->first = 0;
    canon->run = source;
    canon->target_run = target;
    for (uint32_t d = tensor->rank; d-- > 0;) {
        canon->first += range_start(tensor, item, d) * source;
        int64_t target_stride = sub_byte ? (int64_t)target : strides[d];
        if (shape[d] > 1)
            canon_add(canon, shape[d], source * range_step(item, d), target_stride);
        target *= shape[d];
        if (__builtin_mul_overflow(source, tensor->shape[d], &source))
            return fail_overflow(item_index, err);
    }
    return 0;
}

/* Sub-byte elements: from bits to bytes, where every run begins and ends on a byte. */
static int canon_to_bytes(struct canon *canon, uint32_t element_bits, size_t item_index, struct hr_error *err)
{
    if (canon->first % 8)
        return hr_fail(err, HR_EUNSUPPORTED,
                       "item %zu: the slice begins at bit %llu of the tensor, inside a byte; with elements of %u bits "
                       "start where the bits are a multiple of 8",
                       item_index, (unsigned long long)canon->first, element_bits);
    if (canon->run % 8)
        return hr_fail(err, HR_EUNSUPPORTED,
                       "item %zu: a contiguous run of the slice has %llu bits and ends inside a byte; with elements "
                       "of %u bits stop where the bits are a multiple of 8",
                       item_index, (unsigned long long)canon->run, element_bits);
    for (uint32_t i = 0; i < canon->dim_count; i++) {
        struct hr_plan_dim *dim = &canon->dims[i];
        if (dim->source_stride % 8)
            return hr_fail(err, HR_EUNSUPPORTED,
                           "item %zu: neighbouring runs of the slice begin %llu bits apart, the second inside a byte; "
                           "with elements of %u bits rows must fill whole bytes",
                           item_index, (unsigned long long)dim->source_stride, element_bits);
        dim->source_stride /= 8;
        dim->target_stride /= 8;
    }
    canon->first /= 8;
    canon->run /= 8;
    canon->target_run /= 8;
    return 0;
}

/* Refuses destinations whose elements may share bytes: strides must nest, as those of every view of a tensor do. */
static int check_overlap(const struct canon *canon, size_t item_index, struct hr_error *err)
{
    struct hr_plan_dim sorted[HR_RANK_MAX];
    for (uint32_t i = 0; i < canon->dim_count; i++) {
        uint32_t at = i;
        for (; at > 0 && magnitude(sorted[at - 1].target_stride) > magnitude(canon->dims[i].target_stride); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = canon->dims[i];
    }
    uint64_t span = canon->target_run;
    for (uint32_t i = 0; i < canon->dim_count; i++) {
        uint64_t stride = magnitude(sorted[i].target_stride);
        uint64_t reach;
        if (stride < span)
            return hr_fail(err, HR_EINVALID_ARGUMENT,
                           "item %zu: elements of the destination overlap: a stride of %llu bytes steps into blocks "
                           "of %llu bytes; give strides that leave each element its own bytes",
                           item_index, (unsigned long long)stride, (unsigned long long)span);
        if (__builtin_mul_overflow(stride, sorted[i].count - 1, &reach) || __builtin_add_overflow(span, reach, &span) ||
            span > INT64_MAX)
            return hr_fail(err, HR_EINVALID_ARGUMENT,
                           "item %zu: the destination spans more than 63 bits: %llu steps of %llu bytes", item_index,
                           (unsigned long long)sorted[i].count, (unsigned long long)stride);
    }
    return 0;
}

/* Writes the runs into the item, dims outermost first. */
static void canon_store(const struct canon *canon, const struct hr_tensor *tensor, uint64_t **pool,
                        struct hr_plan_item *item)
{
    struct hr_plan_dim *dims = (struct hr_plan_dim *)*pool;
    uint64_t span = canon->run;
    for (uint32_t i = 0; i < canon->dim_count; i++) {
        dims[canon->dim_count - 1 - i] = canon->dims[i];
        span += canon->dims[i].source_stride * (canon->dims[i].count - 1);
    }
    *pool = (uint64_t *)(dims + canon->dim_count);
    item->run_bytes = canon->run;
    item->dim_count = canon->dim_count;
    item->dims = canon->dim_count ? dims : NULL;
    item->source_offset = tensor->offset + canon->first;
    item->source_end = item->source_offset + span;
}

int hr_geometry_make(const struct hr_tensor *tensor, const struct hr_item *item, size_t item_index, uint64_t **pool,
                     struct hr_plan_item *ret_item, struct hr_error *err)
{
    uint32_t rank = tensor->rank;
    uint32_t dtype = item->dtype == HR_DTYPE_NONE ? tensor->dtype : item->dtype;
    uint32_t element_bits = hr_dtype_bits(tensor->dtype), target_bits = hr_dtype_bits(dtype);
    uint64_t *shape = *pool;
    int64_t *strides = (int64_t *)(shape + rank);
    uint64_t bits = 0, bits_there = 0;
    int code = check_shard(tensor, item, item_index, err);
    if (!code)
        code = slice_shape(tensor, item, item_index, shape, err);
    if (!code)
        code = slice_bits(shape, rank, element_bits, item_index, &bits, err);
    if (!code)
        code = slice_bits(shape, rank, target_bits, item_index, &bits_there, err);
    if (code)
        return code;
    strides_compact(shape, rank, target_bits, strides);
    if (item->into_strides && bits)
        code = strides_given(item, shape, rank, target_bits, item_index, strides, err);
    struct canon canon; /* its dims are written before they are read */
    canon.dim_count = 0;
    canon.first = canon.run = canon.target_run = 0;
    if (!code && bits)
        code = canon_make(&canon, tensor, item, shape, strides, element_bits, target_bits, item_index, err);
    if (!code && bits && element_bits < 8)
        code = canon_to_bytes(&canon, element_bits, item_index, err);
    if (!code && bits)
        code = check_overlap(&canon, item_index, err);
    if (code)
        return code;
    *pool = (uint64_t *)(strides + rank);
    ret_item->bytes = bits / 8;
    ret_item->target_bytes = bits_there / 8;
    ret_item->source_dtype = tensor->dtype;
    ret_item->dtype = dtype;
    ret_item->source_unit = dtype == tensor->dtype ? 1 : element_bits / 8;
    ret_item->target_unit = dtype == tensor->dtype ? 1 : target_bits / 8;
    ret_item->rank = rank;
    ret_item->shape = shape;
    ret_item->strides = strides;
    canon_store(&canon, tensor, pool, ret_item);
    return 0;
}
