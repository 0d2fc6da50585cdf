/*
 * test_gpu_cast.c: dtypes converted on their way to a GPU, real or fake: every pair, slices, shards and strides, by every
 * route; in no more memory than what comes of it takes; where the GPU cannot do it the readers do, and that is said.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cast_model.h"
#include "support/gpu.h"
#include "support/gpu_scene.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define ORDINARY 999

static struct test_model model;

static int setup(void **state)
{
    (void)state;
    cast_model_open(&model, "gpu-cast");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    return 0;
}

static const struct hr_loader_options settings[] = {
    {.chunk_bytes = 0},
    {.chunk_bytes = 64 << 10, .route = HR_ROUTE_PREAD, .thread_count = 3, .lane_count = 2},
    {.chunk_bytes = 100001, .route = HR_ROUTE_PREAD, .thread_count = 3, .staging_bytes = 100001}, /* one slot */
    {.chunk_bytes = 64 << 10, .route = HR_ROUTE_URING, .queue_depth = 3},
    {.chunk_bytes = 64 << 10, .route = HR_ROUTE_GDS},
};

static int is_usable(const struct hr_loader_options *options)
{
    return (options->route != HR_ROUTE_URING || uring_usable()) && (options->route != HR_ROUTE_GDS || gds_usable());
}

static struct hr_loader *gpu_loader(struct hr_loader_options options)
{
    const char *devices[] = {gpu_name()};
    options.size = sizeof options;
    options.devices = devices;
    options.device_count = 1;
    return loader_make(&options);
}

/* Memory for `into`, which nobody else keeps a context open for. */
static CUdeviceptr guarded_alloc(size_t bytes)
{
    CUdeviceptr memory = 0;
    const struct scene_driver *driver = scene_driver();
    scene_context_push();
    assert_int_equal(driver->cuMemAlloc_v2(&memory, bytes), 0);
    assert_int_equal(driver->cuMemsetD8Async(memory, 0xdb, bytes, NULL), 0);
    assert_int_equal(driver->cuStreamSynchronize(NULL), 0);
    return memory;
}

static void guarded_free(CUdeviceptr memory)
{
    assert_int_equal(scene_driver()->cuMemFree_v2(memory), 0);
    scene_context_pop();
}

/* Loads and checks; tells how it went. Items with `into` get device memory in its place. */
static struct hr_stats load_and_check(const struct hr_loader_options *options,
                                      const struct hr_load_options *load_options, const struct cast_request *request)
{
    struct hr_error err = {0};
    struct hr_stats stats = {.size = sizeof stats};
    size_t into_bytes = request->count * request->into_bytes;
    CUdeviceptr memory = into_bytes ? guarded_alloc(into_bytes) : 0;
    char *copy = malloc(into_bytes + 1);
    struct hr_item *items = malloc(request->count * sizeof *items);
    memcpy(items, request->items, request->count * sizeof *items);
    for (size_t i = 0; i < request->count; i++)
        if (items[i].into)
            items[i].into = (char *)(uintptr_t)memory + ((char *)items[i].into - request->into);
    struct hr_loader *loader = gpu_loader(*options);
    struct hr_load *load = load_make(loader, model.checkpoint, items, request->count, load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    if (into_bytes)
        assert_int_equal(scene_driver()->cuMemcpyDtoH_v2(copy, memory, into_bytes), 0);
    cast_check(load, &model, request, copy);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    hr_loader_free(loader);
    if (memory)
        guarded_free(memory);
    free(items);
    free(copy);
    return stats;
}

static void test_every_pair(void **state)
{
    (void)state;
    struct cast_request request = cast_request_all(&model);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (uint32_t ways = 0; ways < 8; ways += 1 + ways / 2) { /* 0, 1, 2, 4, 7 */
            struct hr_load_options options = {.size = sizeof options,
                                              .ownership = ways & 1,
                                              .window_bytes = ways & 2 ? 100000 : 0,
                                              .sequential = ways >> 2};
            if (is_usable(&settings[i]))
                load_and_check(&settings[i], &options, &request);
        }
    cast_request_free(&request);
}

static void test_random_requests(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++)
        for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
            struct hr_load_options options = {
                .size = sizeof options, .ownership = seed & 1, .sequential = seed % 5 == 0};
            if (!is_usable(&settings[i]))
                continue;
            struct cast_request request = cast_request_random(&model, 25, seed * 0x9e3779b97f4a7c15u);
            load_and_check(&settings[i], &options, &request);
            cast_request_free(&request);
        }
}

/* ------------------------------------------------------------------------------------ how it is done */

static size_t index_of(const char *name)
{
    const struct hr_tensor *found = hr_checkpoint_find(model.checkpoint, name, strlen(name));
    return (size_t)(found - hr_checkpoint_at(model.checkpoint, 0));
}

/* In one launch a chunk: no tensor goes by itself, and what is not converted goes as ever. */
static void test_by_the_gpu(void **state)
{
    struct hr_item items[] = {
        {.size = sizeof items[0], .tensor_index = index_of("single"), .dtype = HR_DTYPE_BF16},
        {.size = sizeof items[0], .tensor_index = index_of("brain"), .dtype = HR_DTYPE_F32},
        {.size = sizeof items[0], .tensor_index = index_of("half")},
    };
    struct cast_request request = {.items = items, .count = 3};
    struct hr_loader_options options = {.chunk_bytes = 4 * MIB, .route = HR_ROUTE_PREAD};
    uint64_t bytes = 0, converted = hr_checkpoint_at(model.checkpoint, items[0].tensor_index)->size +
                                    hr_checkpoint_at(model.checkpoint, items[1].tensor_index)->size;
    (void)state;
    struct hr_stats stats = load_and_check(&options, NULL, &request);
    for (size_t i = 0; i < 3; i++)
        bytes += hr_checkpoint_at(model.checkpoint, items[i].tensor_index)->size;
    assert_int_equal(stats.bytes_converted, converted);
    assert_int_equal(stats.bytes_needed, bytes);
    if (strncmp(stats.conversion, "GPU", 3) != 0) { /* a real one may not be able to */
        print_message("converted by %s\n", stats.conversion);
        return;
    }
    assert_string_equal(stats.conversion, "GPU");
    assert_int_equal(stats.bytes_sent, bytes); /* as stored: what is narrowed is so on the GPU */
    assert_int_equal(stats.kernel_count, stats.chunk_count);
}

/* A GPU with little more room than what comes of the conversion takes. */
static void test_device_memory(void **state)
{
    enum { ROWS = 8 * 1024, COLUMNS = 1024 };
    static const struct test_tensor wide = {.name = "wide", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {ROWS, COLUMNS}};
    const uint64_t bytes = (uint64_t)ROWS * COLUMNS * 2;
    struct test_model large;
    struct hr_error err = {0};
    char limit[40];
    (void)state;
    snprintf(limit, sizeof limit, "memory=%llu", (unsigned long long)(bytes + MIB));
    scene_need_fake(limit);
    model_write(&large, "large", &wide, 1, 1, 0);
    model_open(&large);
    struct hr_item item = {.size = sizeof item, .dtype = HR_DTYPE_BF16};
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 3});
    struct hr_load *load = load_make(loader, large.checkpoint, &item, 1, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    hr_load_free(load);
    item.dtype = HR_DTYPE_NONE; /* as it is stored it has no room */
    assert_code(hr_load_start(loader, large.checkpoint, &item, 1, NULL, &load, &err), HR_EOUT_OF_MEMORY);
    hr_loader_free(loader);
    model_close(&large);
    scene_assert_nothing_live();
}

/* ---------------------------------------------------------------------------------- where it cannot */

struct poor {
    const char *settings, *said;
};

static const struct poor poor_ones[] = {
    {"no_kernel=1", "readers, since the converting kernel ("},
    {"confidential=1", "readers, since the GPU cannot read staging"},
    {"register=refuse,pinned=refuse", "readers, since the GPU cannot read staging"},
    {"no_kernel=1,no_batch=1,register=refuse", "readers, since the converting kernel ("},
};

static void test_by_readers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof poor_ones / sizeof poor_ones[0]; i++) {
        scene_need_fake(poor_ones[i].settings);
        struct cast_request all = cast_request_all(&model);
        for (uint32_t ways = 0; ways < 2; ways++) {
            struct hr_load_options options = {.size = sizeof options, .ownership = ways, .sequential = ways};
            struct hr_stats stats = load_and_check(&settings[1 + ways], &options, &all);
            if (strncmp(stats.conversion, poor_ones[i].said, strlen(poor_ones[i].said)) != 0)
                fail_msg("with %s: '%s'", poor_ones[i].settings, stats.conversion);
        }
        cast_request_free(&all);
        for (uint64_t seed = 100; seed < 104; seed++) {
            struct cast_request random = cast_request_random(&model, 25, seed * 0x9e3779b97f4a7c15u);
            load_and_check(&settings[1], NULL, &random);
            cast_request_free(&random);
        }
    }
}

/* A long run that widens takes more turns than one. */
static void test_turns(void **state)
{
    (void)state;
    struct hr_item items[] = {{.size = sizeof items[0], .tensor_index = index_of("single"), .dtype = HR_DTYPE_F64},
                              {.size = sizeof items[0], .tensor_index = index_of("row")}};
    struct cast_request request = {.items = items, .count = 2};
    struct hr_loader_options options = {.chunk_bytes = 4 * MIB, .route = HR_ROUTE_PREAD, .thread_count = 1};
    scene_need_fake("no_kernel=1");
    struct hr_stats stats = load_and_check(&options, NULL, &request);
    assert_int_equal(stats.kernel_count, 0);
    assert_true(stats.copy_count > 2);
    uint64_t widened = 2 * hr_checkpoint_at(model.checkpoint, items[0].tensor_index)->size;
    assert_int_equal(stats.bytes_sent, widened + hr_checkpoint_at(model.checkpoint, items[1].tensor_index)->size);
}

/* By GPUDirect Storage no reader sees the bytes. */
static void test_refused(void **state)
{
    struct hr_error err = {0};
    struct hr_load *load = NULL;
    struct hr_item item = {.size = sizeof item, .tensor_index = index_of("single"), .dtype = HR_DTYPE_F16};
    (void)state;
    scene_need_fake("no_kernel=1");
    if (!gds_usable())
        skip();
    struct hr_loader *loader = gpu_loader(settings[4]);
    assert_code(hr_load_start(loader, model.checkpoint, &item, 1, NULL, &load, &err), HR_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "route 'gds' cannot convert dtypes here: the converting kernel"));
    item.dtype = HR_DTYPE_NONE;
    load = load_make(loader, model.checkpoint, &item, 1, NULL);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* ------------------------------------------------------------------------------------------- failures */

static int load_some(unsigned long *ret_fired, struct hr_error *err)
{
    const char *devices[] = {"cuda:0"};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = devices,
                                        .device_count = 1,
                                        .route = HR_ROUTE_PREAD,
                                        .thread_count = 2,
                                        .lane_count = 2,
                                        .chunk_bytes = 64 << 10};
    struct hr_item items[] = {{.size = sizeof items[0], .tensor_index = index_of("single"), .dtype = HR_DTYPE_BF16},
                              {.size = sizeof items[0], .tensor_index = index_of("brain"), .dtype = HR_DTYPE_F32}};
    struct cast_request request = {.items = items, .count = 2};
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    int code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, model.checkpoint, items, 2, NULL, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    *ret_fired = scene_fake()->fired();
    if (code == 0) {
        scene_fake()->fail_nth(0, 0);
        cast_check(load, &model, &request, NULL);
    }
    hr_load_free(load);
    hr_loader_free(loader);
    return code;
}

/* Every call of the driver in turn, with the kernel and without: right or an error, and nothing is left behind. */
static void test_failures(void **state)
{
    static const char *const drivers[] = {"", "no_kernel=1"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        unsigned long n = 1, fired = 1;
        for (; fired; n += 1 + n / 40) {
            struct hr_error err = {0};
            const struct scene_fake *fake = scene_need_fake(drivers[i]);
            fake->fail_nth(n, ORDINARY);
            int code = load_some(&fired, &err);
            fake->fail_nth(0, 0);
            if (code && !err.message[0])
                fail_msg("call %lu: %s without a message", n, hr_strerror(code));
            scene_assert_nothing_live();
        }
        assert_true(n > 30);
    }
}

static void test_with_a_gpu(void **state)
{
    (void)state;
    if (!gpu_name())
        skip();
}

int main(void)
{
    const struct CMUnitTest none[] = {cmocka_unit_test(test_with_a_gpu)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair),    cmocka_unit_test(test_random_requests), cmocka_unit_test(test_by_the_gpu),
        cmocka_unit_test(test_device_memory), cmocka_unit_test(test_by_readers),      cmocka_unit_test(test_turns),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_failures),
    };
    if (!gpu_name())
        return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, setup, teardown);
}
