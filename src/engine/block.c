/*
 * block.c: reference-counted destination memory. Each source of memory frees its own kind.
 */
#include "engine/block.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/limits.h"
#include "base/sys.h"

enum block_source { BLOCK_DEVICE, BLOCK_HOOK, BLOCK_MAP };

struct hr_block {
    atomic_size_t references; /* every holder's unref is ordered before the free by the last one */
    enum block_source source;
    struct hr_device *device; /* BLOCK_DEVICE */
    int fork_generation;
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
    block->fork_generation = hr_fork_generation();
    block->allocation.bytes = bytes;
    return block;
}

static int block_fill(struct hr_block *block, struct hr_device *device, struct hr_error *err)
{
    uint64_t bytes = block->allocation.bytes;
    if (block->source == BLOCK_HOOK) {
        block->memory = block->allocator.alloc(block->allocator.context, &block->allocation);
        return block->memory ? 0 : hr_fail_memory(err, bytes, "tensors, by the caller's allocator");
    }
    int code = hr_device_alloc(device, bytes, &block->memory, err);
    if (code < 0)
        return code;
    block->device = device;
    hr_device_ref(device);
    return 0;
}

int hr_block_alloc(struct hr_device *device, const struct hr_allocator *allocator,
                   const struct hr_allocation *allocation, struct hr_block **ret_block, struct hr_error *err)
{
    struct hr_block *block = block_new(allocator->alloc ? BLOCK_HOOK : BLOCK_DEVICE, allocation->bytes);
    if (!block)
        return hr_fail_memory(err, sizeof *block, "a memory block");
    block->allocator = *allocator;
    block->allocation = *allocation;
    block->allocation.size = sizeof block->allocation;
    int code = block_fill(block, device, err);
    if (code < 0) {
        hr_free(block);
        return code;
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

/* In a forked child a driver is of no use, and the memory is the parent's. */
static void device_memory_free(struct hr_block *block)
{
    if (block->fork_generation != hr_fork_generation() && !hr_device_is_host(block->device))
        return;
    hr_device_free_later(block->device, block->memory, block->allocation.bytes);
    hr_device_unref(block->device);
}

void hr_block_unref(struct hr_block *block)
{
    if (!block || atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1)
        return;
    if (block->source == BLOCK_DEVICE) {
        device_memory_free(block);
    } else if (block->source == BLOCK_MAP) {
        hr_sys->unmap(block->memory, block->allocation.bytes);
    } else if (block->allocator.free) {
        block->allocator.free(block->allocator.context, block->memory, &block->allocation);
    }
    hr_free(block);
}
