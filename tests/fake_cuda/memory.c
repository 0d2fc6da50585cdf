/*
 * memory.c: memory of devices and pinned memory of the host. The GPU sees pinned memory under another address than the
 * host, as some GPUs do, so that whoever confuses the two is found out.
 */
#include <string.h>
#include <sys/mman.h>

#include "driver_state.h"

#define GRANULE 512u
/* Larger allocations are poisoned at their ends only: whole ones would take memory for what is never written. */
#define POISON_BYTES_MAX (64ul << 20)
#define POISON_END_BYTES (4ul << 20)

static char *map_storage(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void poison(char *storage, size_t bytes)
{
    if (bytes <= POISON_BYTES_MAX) {
        memset(storage, FAKE_CUDA_POISON, bytes);
        return;
    }
    memset(storage, FAKE_CUDA_POISON, POISON_END_BYTES);
    memset(storage + bytes - POISON_END_BYTES, FAKE_CUDA_POISON, POISON_END_BYTES);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUresult result = fake_enter("cuMemGetInfo", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    *total_bytes = (size_t)fake_settings.memory_bytes;
    *free_bytes = (size_t)(fake_settings.memory_bytes - fake_current()->used_bytes);
    return fake_leave(CUDA_SUCCESS);
}

static CUresult add_device_memory(struct fake_context *context, size_t bytes, CUdeviceptr *ret_memory)
{
    struct fake_range range = {.bytes = bytes, .memory = FAKE_DEVICE_MEMORY, .context = context};
    range.storage = map_storage(bytes);
    if (!range.storage)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!fake_reserve(&range, bytes)) {
        munmap(range.storage, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    poison(range.storage, bytes);
    if (!fake_range_add(&range)) {
        munmap(range.storage, bytes);
        munmap(range.reserved, range.reserved_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->used_bytes += (long)bytes;
    *ret_memory = range.begin;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes)
{
    CUresult result = fake_enter("cuMemAlloc", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE);
    if (result)
        return result;
    struct fake_context *context = fake_current();
    size_t free_bytes = (size_t)(fake_settings.memory_bytes - context->used_bytes);
    if (!bytes)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    if (bytes > free_bytes || (bytes + GRANULE - 1) / GRANULE * GRANULE > free_bytes)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    /* Not rounded up in the table: what is written behind the end is an error, even where a GPU has room. */
    return fake_leave(add_device_memory(context, bytes, memory));
}

CUresult cuMemFree_v2(CUdeviceptr memory)
{
    CUresult result = fake_enter("cuMemFree", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE | FAKE_TAKES_EFFECT);
    if (result || !memory)
        return result ? result : fake_leave(CUDA_SUCCESS);
    if (fake_settings.capture_refusals) {
        fake_settings.capture_refusals--;
        return fake_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    struct fake_range *range = fake_find(memory, 1);
    if (!range || range->begin != memory || range->memory != FAKE_DEVICE_MEMORY)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    fake_drain(range->context, NULL);
    range = fake_find(memory, 1); /* the lock was away */
    if (!range || range->begin != memory)
        return fake_leave(fake_corrupt(fake_current(), "memory at %#llx is freed twice at once", memory));
    fake_range_remove(memory);
    return fake_leave(CUDA_SUCCESS);
}

/* Enters host memory and its twin for the GPU. */
static CUresult add_host_memory(struct fake_range *range)
{
    range->context = fake_current();
    struct fake_range twin = *range;
    twin.memory = FAKE_MAPPED;
    if (!fake_reserve(&twin, range->bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->alias = twin.begin;
    if (!fake_range_add(&twin)) {
        munmap(twin.reserved, twin.reserved_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!fake_range_add(range)) {
        fake_range_remove(twin.begin);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult may_register(size_t bytes)
{
    struct fake_cuda_live live = {0};
    fake_ranges_count(NULL, &live);
    if (fake_settings.confidential)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!fake_settings.register_limit)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (fake_settings.register_limit > 0 && live.registered_bytes + (long)bytes > fake_settings.register_limit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    CUresult result = fake_enter("cuMemHostRegister", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE);
    if (result)
        return result;
    struct fake_range range = {.begin = (uint64_t)(uintptr_t)memory,
                               .bytes = bytes,
                               .memory = FAKE_REGISTERED,
                               .storage = memory,
                               .flags = flags};
    if (!memory || !bytes)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    if (fake_overlaps(range.begin, bytes))
        return fake_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    result = may_register(bytes);
    return fake_leave(result ? result : add_host_memory(&range));
}

/* Gives pinned memory back. Copies that still use it are a mistake that nobody would be told of. */
static CUresult remove_host_memory(void *memory, enum fake_memory kind, CUresult unknown)
{
    const struct fake_range *range = fake_find((uint64_t)(uintptr_t)memory, 1);
    if (!range || range->begin != (uint64_t)(uintptr_t)memory || range->memory != kind)
        return unknown;
    CUresult result = CUDA_SUCCESS;
    if (fake_pending(range->begin, range->bytes) || fake_pending(range->alias, range->bytes)) {
        result = fake_corrupt(fake_current(), "pinned memory at %p is given back while copies use it", memory);
        fake_drain(NULL, NULL);
    }
    range = fake_find((uint64_t)(uintptr_t)memory, 1);
    if (range)
        fake_range_remove(range->begin);
    return result;
}

CUresult cuMemHostUnregister(void *memory)
{
    CUresult result = fake_enter("cuMemHostUnregister", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE | FAKE_TAKES_EFFECT);
    if (result)
        return result;
    return fake_leave(remove_host_memory(memory, FAKE_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    CUresult result = fake_enter("cuMemHostAlloc", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE);
    if (result)
        return result;
    if (!bytes)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    struct fake_range range = {.bytes = bytes, .memory = FAKE_PINNED, .flags = flags};
    range.storage = fake_settings.pinned_refused ? NULL : map_storage(bytes);
    if (!range.storage)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    range.begin = (uint64_t)(uintptr_t)range.storage;
    memset(range.storage, FAKE_CUDA_POISON, bytes);
    result = add_host_memory(&range);
    if (result)
        munmap(range.storage, bytes);
    else
        *memory = range.storage;
    return fake_leave(result);
}

CUresult cuMemFreeHost(void *memory)
{
    CUresult result = fake_enter("cuMemFreeHost", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE | FAKE_TAKES_EFFECT);
    if (result)
        return result;
    return fake_leave(remove_host_memory(memory, FAKE_PINNED, CUDA_ERROR_INVALID_VALUE));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned int flags)
{
    CUresult result = fake_enter("cuMemHostGetDevicePointer", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    uint64_t host = (uint64_t)(uintptr_t)memory;
    const struct fake_range *range = fake_find(host, 1);
    if (flags || !range || !range->alias || !(range->flags & CU_HOST_DEVICEMAP))
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    *address = range->alias + (host - range->begin);
    return fake_leave(CUDA_SUCCESS);
}

static CUresult write_attribute(void *value, int attribute, CUdeviceptr pointer, const struct fake_range *range)
{
    uint64_t offset = pointer - range->begin;
    int on_device = range->memory == FAKE_DEVICE_MEMORY;
    switch (attribute) {
    case 1:
        *(CUcontext *)value = range->context;
        return CUDA_SUCCESS;
    case 2:
        *(unsigned int *)value = on_device ? CU_MEMORY_DEVICE : CU_MEMORY_HOST;
        return CUDA_SUCCESS;
    case 3:
        *(CUdeviceptr *)value = (range->alias ? range->alias : range->begin) + offset;
        return CUDA_SUCCESS;
    case 4:
        *(void **)value = on_device ? NULL : range->storage + offset;
        return on_device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case 8: /* managed, which confidential computing makes of pinned memory */
        *(unsigned char *)value = fake_settings.confidential && !on_device;
        return CUDA_SUCCESS;
    case 9:
        *(int *)value = fake_context_device(range->context);
        return CUDA_SUCCESS;
    case 11:
        *(uint64_t *)value = range->begin;
        return CUDA_SUCCESS;
    case 12:
        *(size_t *)value = range->bytes;
        return CUDA_SUCCESS;
    case 13:
        *(unsigned char *)value = 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
    CUresult result = fake_enter("cuPointerGetAttribute", FAKE_NEEDS_INIT);
    if (result)
        return result;
    const struct fake_range *range = fake_find(pointer, 1);
    return fake_leave(range ? write_attribute(value, attribute, pointer, range) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **values, CUdeviceptr pointer)
{
    CUresult result = fake_enter("cuPointerGetAttributes", FAKE_NEEDS_INIT);
    if (result)
        return result;
    const struct fake_range *range = fake_find(pointer, 1);
    for (unsigned i = 0; i < count && !result; i++)
        if (range)
            result = write_attribute(values[i], attributes[i], pointer, range);
        else if (attributes[i] == 9)
            *(int *)values[i] = -2; /* no device */
        else if (attributes[i] == 8 || attributes[i] == 13)
            *(unsigned char *)values[i] = 0;
        else if (attributes[i] == 2)
            *(unsigned int *)values[i] = 0;
        else
            memset(values[i], 0, sizeof(uint64_t));
    return fake_leave(result);
}
