/*
 * gpu.c: see gpu.h. The device stays open until the process ends: its context holds what tests allocate.
 */
#include "support/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "support/test_model.h"

const char *gpu_name(void)
{
    static int usable = -1;
    struct hr_device_info info = {.size = sizeof info};
    struct hr_error err = {0};
    if (usable < 0) {
        usable = hr_device_find("cuda:0", &info, &err) == 0;
        if (!usable)
            print_message("GPUs are left out: %s\n", err.message);
    }
    return usable ? "cuda:0" : NULL;
}

/* A real cuFile may refuse the files of these tests, for where they are. */
static int has_fake_cufile(void)
{
    void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
    return library && dlsym(library, "fake_cufile_configure");
}

int gds_usable(void)
{
    static int usable = -1;
    const char *device = gpu_name();
    struct hr_loader_options options = {
        .size = sizeof options, .devices = &device, .device_count = 1, .route = HR_ROUTE_GDS};
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    if (usable < 0 && !has_fake_cufile()) {
        usable = 0;
        print_message("the route gds is left out: this needs the fake cuFile\n");
    } else if (usable < 0) {
        usable = device && hr_loader_new(&options, &loader, &err) == 0;
        if (!usable)
            print_message("the route gds is left out: %s\n", device ? err.message : "no GPU");
        hr_loader_free(loader);
    }
    return usable;
}

static struct hr_device *device_open(void)
{
    static struct hr_device *device;
    struct hr_error err = {0};
    if (!device)
        assert_ok(hr_device_open("cuda:0", &device, &err), err);
    return device;
}

void *gpu_try_alloc(size_t bytes)
{
    void *memory = NULL;
    return hr_device_alloc(device_open(), bytes, &memory, NULL) ? NULL : memory;
}

void *gpu_alloc(size_t bytes, int value)
{
    void *memory = gpu_try_alloc(bytes);
    assert_non_null(memory);
    char *filled = malloc(bytes);
    memset(filled, value, bytes);
    gpu_write(memory, filled, bytes);
    free(filled);
    return memory;
}

void gpu_free(void *memory, size_t bytes)
{
    struct hr_device *device = device_open();
    hr_device_free(device, memory, bytes);
}

void gpu_reap(void)
{
    hr_device_reap(device_open());
}

void gpu_write(void *memory, const void *bytes, size_t size)
{
    struct hr_device *device = device_open();
    struct hr_staging_block block;
    struct hr_place_counts counts = {0};
    struct hr_lane *lane = NULL;
    struct hr_fence *fence = NULL;
    struct hr_error err = {0};
    char detail[160];
    assert_ok(
        hr_staging_block_make(device, size + sizeof(struct hr_move) + 4096, -1, &block, detail, sizeof detail, &err),
        err);
    assert_ok(hr_lane_open(device, &lane, &err), err);
    assert_ok(hr_fence_new(device, &fence, &err), err);
    struct hr_move *move = (struct hr_move *)block.memory;
    memcpy(block.memory + 4096, bytes, size);
    *move = (struct hr_move){
        .source = (uintptr_t)block.memory + 4096, .target = (uintptr_t)memory, .bytes = size, .rows = 1};
    assert_ok(hr_lane_place(lane, &block, move, 1, &counts, &err), err);
    assert_ok(hr_fence_put(fence, lane, &err), err);
    assert_ok(hr_fence_wait(fence, &err), err);
    hr_fence_free(fence);
    hr_lane_close(lane);
    hr_staging_block_free(device, &block);
}

void gpu_read(void *ret_bytes, const void *memory, size_t size)
{
    struct hr_device *device = device_open();
    struct hr_error err = {0};
    assert_ok(hr_device_read(device, ret_bytes, memory, size, &err), err);
}
