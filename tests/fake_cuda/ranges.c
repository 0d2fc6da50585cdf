/*
 * ranges.c: the table of all memory that the driver knows, sorted by address. Addresses of a GPU lie in address space
 * without access, so that host code that touches one crashes; the bytes are elsewhere. Address space that was given
 * back stays reserved for a while, so that what still uses an old address does not meet new memory by chance.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver_state.h"

#define PAGE_BYTES 4096u
#define QUARANTINE 64

static struct fake_range **ranges;
static size_t range_count, range_capacity;

static struct {
    char *memory;
    size_t bytes;
} quarantine[QUARANTINE];
static unsigned quarantine_next;
#define LARGE_PAGE_BYTES (UINT64_C(2) << 20)
#define NEIGHBOURS_BYTES (UINT64_C(4) << 30)

/* The number of ranges that begin at or before the address. */
static size_t upper_bound(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct fake_range *fake_find(uint64_t address, uint64_t bytes)
{
    size_t index = upper_bound(address);
    if (!index)
        return NULL;
    struct fake_range *range = ranges[index - 1];
    uint64_t offset = address - range->begin;
    return offset < range->bytes && bytes <= range->bytes - offset ? range : NULL;
}

int fake_overlaps(uint64_t address, uint64_t bytes)
{
    size_t index = upper_bound(address + bytes - 1);
    return index && ranges[index - 1]->begin + ranges[index - 1]->bytes > address;
}

struct fake_range *fake_range_add(const struct fake_range *range)
{
    if (range_count == range_capacity) {
        size_t capacity = range_capacity ? 2 * range_capacity : 64;
        struct fake_range **grown = realloc(ranges, capacity * sizeof(*grown));
        if (!grown)
            return NULL;
        ranges = grown;
        range_capacity = capacity;
    }
    struct fake_range *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    *copy = *range;
    size_t index = upper_bound(range->begin);
    memmove(ranges + index + 1, ranges + index, (range_count - index) * sizeof(*ranges));
    ranges[index] = copy;
    range_count++;
    return copy;
}

/*
 * Device memory of whole large pages follows without a gap on what was made before, as a GPU's often does: a copy that
 * goes on into the neighbour must be refused, not crash. 0 when there is no room.
 */
static char *reserve_neighbour(uint64_t bytes)
{
    static char *next;
    static uint64_t left;
    if (bytes % LARGE_PAGE_BYTES || bytes > NEIGHBOURS_BYTES)
        return NULL;
    if (left < bytes) {
        char *memory = mmap(NULL, NEIGHBOURS_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return NULL;
        next = memory;
        left = NEIGHBOURS_BYTES;
    }
    left -= bytes;
    next += bytes;
    return next - bytes;
}

int fake_reserve(struct fake_range *range, uint64_t bytes)
{
    static unsigned turn;
    char *neighbour = range->memory == FAKE_DEVICE_MEMORY ? reserve_neighbour(bytes) : NULL;
    if (neighbour) {
        range->reserved = neighbour;
        range->reserved_bytes = bytes;
        range->begin = (uint64_t)(uintptr_t)neighbour;
        return 1;
    }
    size_t whole = (bytes + 4 * PAGE_BYTES) & ~(size_t)(PAGE_BYTES - 1);
    char *memory = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    range->reserved = memory;
    range->reserved_bytes = whole;
    /* What a GPU gives out is aligned to 512 bytes and often to no more. */
    range->begin = (uint64_t)(uintptr_t)memory + PAGE_BYTES;
    if (range->memory == FAKE_DEVICE_MEMORY)
        range->begin += 512 * (turn++ % 8);
    return 1;
}

static void retire(char *memory, size_t bytes)
{
    unsigned slot = quarantine_next++ % QUARANTINE;
    if (quarantine[slot].memory)
        munmap(quarantine[slot].memory, quarantine[slot].bytes);
    quarantine[slot].memory = memory;
    quarantine[slot].bytes = bytes;
}

static void release(struct fake_range *range)
{
    while (range->pin_count)
        pthread_cond_wait(&fake_progress, &fake_lock);
    if (range->memory == FAKE_DEVICE_MEMORY) {
        munmap(range->storage, range->bytes);
        range->context->used_bytes -= (long)range->bytes;
    } else if (range->memory == FAKE_PINNED) {
        munmap(range->storage, range->bytes);
    }
    if (range->reserved)
        retire(range->reserved, range->reserved_bytes);
    free(range);
}

void fake_range_remove(uint64_t begin)
{
    size_t index = upper_bound(begin) - 1;
    struct fake_range *range = ranges[index];
    range_count--;
    memmove(ranges + index, ranges + index + 1, (range_count - index) * sizeof(*ranges));
    uint64_t alias = range->alias;
    release(range);
    if (alias)
        fake_range_remove(alias);
}

void fake_ranges_drop(struct fake_context *context)
{
    for (size_t i = 0; i < range_count;) {
        if (ranges[i]->context == context && ranges[i]->memory != FAKE_MAPPED) {
            fake_range_remove(ranges[i]->begin);
            i = 0;
        } else {
            i++;
        }
    }
}

void fake_ranges_count(const struct fake_context *context, struct fake_cuda_live *live)
{
    for (size_t i = 0; i < range_count; i++) {
        const struct fake_range *range = ranges[i];
        if (context && range->context != context)
            continue;
        live->allocation_count += range->memory == FAKE_DEVICE_MEMORY;
        live->allocation_bytes += range->memory == FAKE_DEVICE_MEMORY ? (long)range->bytes : 0;
        live->registered_bytes += range->memory == FAKE_REGISTERED ? (long)range->bytes : 0;
        live->pinned_count += range->memory == FAKE_PINNED;
    }
}
