/*
 * block.c: reference-counted destination memory. Each source of memory frees its own kind.
 */
#include "engine/block.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "device/host.h"

enum block_source { BLOCK_HOST, BLOCK_HOOK, BLOCK_MAP };

struct hr_block {
    atomic_size_t references; /* every holder's unref is ordered before the free by the last one */
    enum block_source source;
    void *memory;
    struct hr_allocator allocator; /* BLOCK_HOOK */
    struct hr_allocation allocation;
};

static struct hr_block *block_new(enum block_source source, uint64_t bytes)
{
    struct hr_block *block = hr_alloc(sizeof *block);
    if (!block)
        return NULL;
    atomic_init(&block->references, 1);
    block->source = source;
    block->allocation.bytes = bytes;
    return block;
}

static int block_fill(struct hr_block *block)
{
    if (block->source == BLOCK_HOST)
        return hr_host_alloc(block->allocation.bytes, &block->memory);
    block->memory = block->allocator.alloc(block->allocator.context, &block->allocation);
    return block->memory ? 0 : -ENOMEM;
}

int hr_block_alloc(const struct hr_allocator *allocator, const struct hr_allocation *allocation,
                   struct hr_block **ret_block, struct hr_error *err)
{
    struct hr_block *block = block_new(allocator->alloc ? BLOCK_HOOK : BLOCK_HOST, allocation->bytes);
    if (!block)
        return hr_fail_memory(err, sizeof *block, "a memory block");
    block->allocator = *allocator;
    block->allocation = *allocation;
    block->allocation.size = sizeof block->allocation;
    if (block_fill(block) < 0) {
        hr_free(block);
        return hr_fail_memory(err, allocation->bytes,
                              allocator->alloc ? "tensors, by the caller's allocator" : "tensors");
    }
    *ret_block = block;
    return 0;
}

int hr_block_map(int fd, uint64_t bytes, const char *path, struct hr_block **ret_block, struct hr_error *err)
{
    struct hr_block *block = block_new(BLOCK_MAP, bytes);
    if (!block)
        return hr_fail_memory(err, sizeof *block, "a memory block");
    block->memory = hr_sys->map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (!block->memory) {
        hr_free(block);
        hr_fail(err, HR_EIO_ERROR, "the file of %llu bytes cannot be mapped; use another route",
                (unsigned long long)bytes);
        hr_error_in_file(err, path);
        return HR_EIO_ERROR;
    }
    *ret_block = block;
    return 0;
}

void *hr_block_memory(const struct hr_block *block)
{
    return block->memory;
}

void hr_block_ref(struct hr_block *block)
{
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
}

void hr_block_unref(struct hr_block *block)
{
    if (!block || atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1)
        return;
    if (block->source == BLOCK_HOST)
        hr_host_free(block->memory, block->allocation.bytes);
    else if (block->source == BLOCK_MAP)
        hr_sys->unmap(block->memory, block->allocation.bytes);
    else if (block->allocator.free)
        block->allocator.free(block->allocator.context, block->memory, &block->allocation);
    hr_free(block);
}
