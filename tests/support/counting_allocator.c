/*
 * counting_allocator.c: see counting_allocator.h. A mark before each block holds its size.
 */
#include "support/counting_allocator.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MARK UINT64_C(0x6865616472616365)

struct mark {
    uint64_t magic, bytes;
};

static void *counting_alloc(void *context, const struct hr_allocation *allocation)
{
    struct counting_allocator *counting = context;
    long number = atomic_fetch_add(&counting->alloc_count, 1) + 1;
    if (counting->fail_at && number >= counting->fail_at)
        return NULL;
    size_t alignment = (size_t)allocation->alignment;
    size_t bytes = (size_t)allocation->bytes;
    char *base = aligned_alloc(alignment, (alignment + bytes + alignment - 1) / alignment * alignment);
    if (!base)
        return NULL;
    *(struct mark *)base = (struct mark){MARK, allocation->bytes};
    memset(base + alignment, 0xdb, bytes);
    long live = atomic_fetch_add(&counting->live_bytes, (long)bytes) + (long)bytes;
    long peak = atomic_load(&counting->peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&counting->peak_bytes, &peak, live))
        continue;
    atomic_fetch_add(&counting->live_count, 1);
    return base + alignment;
}

static void counting_free(void *context, void *memory, const struct hr_allocation *allocation)
{
    struct counting_allocator *counting = context;
    char *base = (char *)memory - allocation->alignment;
    struct mark *mark = (struct mark *)base;
    if (mark->magic != MARK || mark->bytes != allocation->bytes)
        abort();
    mark->magic = 0;
    atomic_fetch_sub(&counting->live_bytes, (long)allocation->bytes);
    atomic_fetch_sub(&counting->live_count, 1);
    free(base);
}

struct hr_allocator counting_hook(struct counting_allocator *counting)
{
    return (struct hr_allocator){.context = counting, .alloc = counting_alloc, .free = counting_free};
}
