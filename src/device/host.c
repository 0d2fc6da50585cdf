/*
 * host.c: small blocks come from the allocator, over-allocated by hand; larger ones are mappings of their own, so
 * that freeing one gives its pages back at once and fresh ones need no clearing by us.
 *
 * Invariant: which of the two a block is follows from its size alone.
 */
#include "device/host.h"

#include <headrace/headrace.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"

/* Below this a mapping costs more than the copy that it could save, and wastes up to a page. */
#define MAP_BYTES_MIN (64u << 10)
#define HUGE_PAGE_BYTES (2u << 20)

static uint64_t round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

static uint64_t mapping_bytes(uint64_t bytes)
{
    return round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
}

/* The allocator's own pointer stands in the bytes before the block: alignment leaves room for it. */
static void *small_alloc(size_t bytes)
{
    char *base = hr_sys->alloc(bytes + HR_TENSOR_ALIGNMENT + sizeof(void *));
    if (!base)
        return NULL;
    char *block = (char *)round_up((uintptr_t)base + sizeof(void *), HR_TENSOR_ALIGNMENT);
    memcpy(block - sizeof(void *), &base, sizeof base);
    return block;
}

static void small_free(void *block)
{
    void *base;
    memcpy(&base, (char *)block - sizeof(void *), sizeof base);
    hr_free(base);
}

static void *map_pages(uint64_t bytes)
{
    return hr_sys->map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Maps one huge page more than needed and trims both ends. Trimming needs no memory that could be lacking. */
static void *map_huge(uint64_t bytes)
{
    char *begin = map_pages(bytes + HUGE_PAGE_BYTES);
    if (!begin)
        return NULL;
    char *block = (char *)round_up((uintptr_t)begin, HUGE_PAGE_BYTES);
    size_t head_bytes = (size_t)(block - begin);
    if (head_bytes)
        hr_sys->unmap(begin, head_bytes);
    if (head_bytes < HUGE_PAGE_BYTES)
        hr_sys->unmap(block + bytes, HUGE_PAGE_BYTES - head_bytes);
    hr_sys->advise(block, bytes, MADV_HUGEPAGE); /* without huge pages it is only slower */
    return block;
}

int hr_host_alloc(uint64_t bytes, void **ret_memory)
{
    void *memory;
    if (bytes > PTRDIFF_MAX - 2 * (uint64_t)HUGE_PAGE_BYTES)
        return HR_EOUT_OF_MEMORY;
    if (bytes < MAP_BYTES_MIN)
        memory = small_alloc(bytes);
    else if (bytes < HUGE_PAGE_BYTES)
        memory = map_pages(mapping_bytes(bytes));
    else
        memory = map_huge(mapping_bytes(bytes));
    if (!memory)
        return HR_EOUT_OF_MEMORY;
    *ret_memory = memory;
    return 0;
}

void hr_host_free(void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    if (bytes < MAP_BYTES_MIN)
        small_free(memory);
    else
        hr_sys->unmap(memory, mapping_bytes(bytes));
}
