/*
 * cuda_staging.c: pinned host memory. Best are huge pages of ours that are touched and then registered: much faster to
 * make than what the driver makes. Whatever is refused falls back, with the driver's words.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"
#include "device/cuda_device.h"
#include "device/host.h"
#include "topo/binding.h"

/* Host memory is mapped, and so stands on a page, from this size on. */
#define MAP_BYTES_MIN (64u << 10)

/* What a block really takes: whole pages, so that it shares none with anything else. */
static uint64_t whole_bytes(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) & ~(page - 1);
    return bytes < MAP_BYTES_MIN ? MAP_BYTES_MIN : bytes;
}

static void touch(char *memory, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t i = 0; i < bytes; i += page)
        *(volatile char *)(memory + i) = 0;
}

/* Adds to the reasons why it is not the best kind; what does not fit is cut. */
static void say(char *detail, size_t capacity, const char *what)
{
    size_t size = capacity ? strlen(detail) : 0;
    if (size + 1 < capacity)
        snprintf(detail + size, capacity - size, "%s%s", size ? "; " : "", what);
}

static void say_result(struct hr_device *device, char *detail, size_t capacity, const char *call, hr_cu_result result)
{
    char text[120];
    snprintf(text, sizeof text, "%s: %s (%u)", call, hr_cuda_result_name(device->driver, result), (unsigned)result);
    say(detail, capacity, text);
}

/* 1 when the device sees the block's memory: fills in the shift. */
static hr_cu_result block_map(struct hr_device *device, struct hr_staging_block *block)
{
    hr_cu_address address = 0;
    hr_cu_result result = device->driver->cuMemHostGetDevicePointer(&address, block->memory, 0);
    if (result == HR_CU_SUCCESS)
        block->device_shift = (int64_t)(address - (uintptr_t)block->memory);
    return result;
}

/*
 * Ordinary memory, touched, that a fork does not inherit: a copy on write would part the pages from what is pinned. Where
 * the node is refused, pages still come from where this thread runs, as do those of memory that the driver makes.
 */
static int block_touched(struct hr_staging_block *block, uint64_t bytes, int node, char *detail, size_t capacity)
{
    void *memory;
    if (hr_host_alloc(whole_bytes(bytes), &memory))
        return HR_EOUT_OF_MEMORY;
    int code = hr_binding_memory(memory, whole_bytes(bytes), node);
    if (code < 0) {
        char text[64];
        snprintf(text, sizeof text, "mbind to node %d: %s", node, strerror(-code));
        say(detail, capacity, text);
    }
    hr_sys->advise(memory, whole_bytes(bytes), MADV_DONTFORK);
    touch(memory, whole_bytes(bytes));
    *block = (struct hr_staging_block){.memory = memory, .bytes = bytes, .kind = HR_STAGING_PAGEABLE};
    return 0;
}

static hr_cu_result block_register(struct hr_device *device, struct hr_staging_block *block)
{
    const struct hr_cuda_driver *driver = device->driver;
    hr_cu_result result = driver->cuMemHostRegister(block->memory, whole_bytes(block->bytes),
                                                    HR_CU_MEMHOSTREGISTER_PORTABLE | HR_CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result != HR_CU_SUCCESS)
        return result;
    result = block_map(device, block);
    if (result != HR_CU_SUCCESS)
        driver->cuMemHostUnregister(block->memory);
    else
        block->kind = HR_STAGING_REGISTERED;
    return result;
}

static hr_cu_result block_pinned(struct hr_device *device, uint64_t bytes, struct hr_staging_block *ret_block)
{
    const struct hr_cuda_driver *driver = device->driver;
    void *memory = NULL;
    hr_cu_result result =
        driver->cuMemHostAlloc(&memory, whole_bytes(bytes), HR_CU_MEMHOSTALLOC_PORTABLE | HR_CU_MEMHOSTALLOC_DEVICEMAP);
    if (result != HR_CU_SUCCESS)
        return result;
    struct hr_staging_block block = {.memory = memory, .bytes = bytes, .kind = HR_STAGING_PINNED};
    result = block_map(device, &block);
    if (result != HR_CU_SUCCESS) {
        driver->cuMemFreeHost(memory);
        return result;
    }
    hr_sys->advise(memory, whole_bytes(bytes), MADV_DONTFORK);
    touch(memory, bytes);
    *ret_block = block;
    return HR_CU_SUCCESS;
}

/* In the device's context. Pageable memory is what registration was refused for, so it exists before anything else. */
static int block_make(struct hr_device *device, struct hr_staging_block *block, char *detail, size_t capacity,
                      struct hr_error *err)
{
    struct hr_staging_block pinned;
    hr_cu_result result;
    if (device->registers_host) {
        result = block_register(device, block);
        if (result == HR_CU_SUCCESS)
            return 0;
        hr_cuda_note(device, result);
        say_result(device, detail, capacity, "cuMemHostRegister", result);
    } else {
        say(detail, capacity, "this GPU registers no host memory (confidential computing)");
    }
    result = block_pinned(device, block->bytes, &pinned);
    if (result == HR_CU_SUCCESS) {
        hr_host_free(block->memory, whole_bytes(block->bytes));
        *block = pinned;
        return 0;
    }
    hr_cuda_note(device, result);
    say_result(device, detail, capacity, "cuMemHostAlloc", result);
    return device->fault ? hr_cuda_check(device, result, "pinning memory", err) : 0;
}

/* Host memory that no driver needs to know, touched by whoever uses it. */
static int block_plain(struct hr_staging_block *block, uint64_t bytes, struct hr_error *err)
{
    void *memory;
    if (hr_host_alloc(whole_bytes(bytes), &memory))
        return hr_fail_memory(err, bytes, "staging");
    *block = (struct hr_staging_block){.memory = memory, .bytes = bytes, .kind = HR_STAGING_PAGEABLE};
    return 0;
}

int hr_staging_block_make(struct hr_device *device, uint64_t bytes, int node, struct hr_staging_block *ret_block,
                          char *detail, size_t capacity, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_staging_block block;
    if (capacity)
        detail[0] = '\0';
    if (!device->driver)
        return block_plain(ret_block, bytes, err);
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    if (block_touched(&block, bytes, node, detail, capacity)) {
        code = hr_fail_memory(err, bytes, "staging");
    } else {
        code = block_make(device, &block, detail, capacity, err);
        if (code)
            hr_host_free(block.memory, whole_bytes(bytes));
        else
            *ret_block = block;
    }
    hr_cuda_leave(device, &scope);
    return code;
}

/* After a fault the driver does nothing more; what it had made stays until the process ends. */
void hr_staging_block_free(struct hr_device *device, struct hr_staging_block *block)
{
    struct hr_cuda_scope scope;
    if (!block->memory)
        return;
    if (block->kind != HR_STAGING_PAGEABLE && hr_cuda_enter_to_free(device, &scope) == 0) {
        hr_cuda_note(device, block->kind == HR_STAGING_REGISTERED ? device->driver->cuMemHostUnregister(block->memory)
                                                                  : device->driver->cuMemFreeHost(block->memory));
        hr_cuda_leave(device, &scope);
    }
    if (block->kind != HR_STAGING_PINNED)
        hr_host_free(block->memory, whole_bytes(block->bytes));
    *block = (struct hr_staging_block){0};
}
