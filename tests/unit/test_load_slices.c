/*
 * test_load_slices.c: slices and destinations of the caller's: only what is asked for lands, in its place, and
 * nothing beside it is touched.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/gpu.h"
#include "support/test_model.h"

#define GUARD 0xdb

static struct test_model model;

static const struct test_tensor tensors[] = {
    {.name = "first", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {13}, .seed = 1},
    {.name = "cube", .dtype = HR_DTYPE_F32, .rank = 3, .shape = {37, 41, 29}, .seed = 2},
    {.name = "rows", .dtype = HR_DTYPE_BF16, .rank = 2, .shape = {211, 1031}, .seed = 3},
    {.name = "bytes", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {300007}, .seed = 4},
    {.name = "pairs", .dtype = HR_DTYPE_F4, .rank = 3, .shape = {9, 17, 32}, .seed = 5},
    {.name = "sixes", .dtype = HR_DTYPE_F6_E2M3, .rank = 3, .shape = {5, 12, 16}, .seed = 6},
    {.name = "scalar", .dtype = HR_DTYPE_F64, .rank = 0, .seed = 7},
    {.name = "six", .dtype = HR_DTYPE_I64, .rank = 6, .shape = {3, 4, 2, 5, 3, 7}, .seed = 8},
};
enum { CUBE = 1, ROWS, BYTES, PAIRS, SIXES, SCALAR, SIX };
#define TENSOR_COUNT (sizeof tensors / sizeof tensors[0])

static int setup(void **state)
{
    (void)state;
    model_write(&model, "slices", tensors, TENSOR_COUNT, TENSOR_COUNT, 5);
    model_open(&model);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    return 0;
}

/* Loads one item to host memory and checks it. `guarded` holds guards, and `into` if there is one. */
static void load_to_host(struct hr_loader_options *options, uint32_t sequential, const struct hr_item *item)
{
    struct hr_error err = {0};
    struct hr_view view = {.size = sizeof view};
    struct hr_load_options load_options = {.size = sizeof load_options, .sequential = sequential};
    struct hr_loader *loader = loader_make(options);
    struct hr_load *load = load_make(loader, model.checkpoint, item, 1, &load_options);
    assert_ok(hr_load_wait(load, 0, &err), err);
    assert_ok(hr_load_view(load, 0, &view, &err), err);
    if (item->into)
        assert_ptr_equal(view.data, item->into);
    check_view(&model.tensors[item->tensor_index], item->ranges, &view);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* The same on a GPU, where `guarded` and `into` stand for device memory, which is copied back to them. */
static void load_to_gpu(struct hr_loader_options *options, uint32_t sequential, const struct hr_item *item,
                        char *guarded, size_t guarded_size)
{
    const char *device = gpu_name();
    struct hr_error err = {0};
    struct hr_view view = {.size = sizeof view};
    struct hr_load_options load_options = {.size = sizeof load_options, .sequential = sequential};
    struct hr_item moved = *item;
    char *memory = gpu_alloc(guarded_size, GUARD);
    if (item->into)
        moved.into = memory + ((char *)item->into - guarded);
    options->devices = &device;
    options->device_count = 1;
    struct hr_loader *loader = loader_make(options);
    struct hr_load *load = load_make(loader, model.checkpoint, &moved, 1, &load_options);
    assert_ok(hr_load_wait(load, 0, &err), err);
    assert_ok(hr_load_view(load, 0, &view, &err), err);
    assert_int_equal(view.device_type, HR_DEVICE_CUDA);
    char *copy = malloc(view.bytes + 1);
    if (item->into) {
        assert_ptr_equal(view.data, moved.into);
        gpu_read(guarded, memory, guarded_size);
        view.data = item->into;
    } else {
        assert_ok(hr_load_read(load, 0, 0, view.bytes, copy, &err), err);
        view.data = copy;
    }
    check_view(&model.tensors[item->tensor_index], item->ranges, &view);
    free(copy);
    hr_load_free(load);
    hr_loader_free(loader);
    gpu_free(memory, guarded_size);
}

/* Loads one item by every route, threaded and sequential, to host memory and to a GPU; with `into` from guards. */
static void load_item(const struct hr_item *item, void *guarded, size_t guarded_size)
{
    for (uint32_t route = HR_ROUTE_PREAD; route < HR_ROUTE_COUNT; route++)
        for (uint32_t sequential = 0; sequential < 2; sequential++) {
            struct hr_loader_options options = {.size = sizeof options, .route = route, .chunk_bytes = 64 << 10};
            if (route == HR_ROUTE_URING && !uring_usable())
                continue;
            if (route == HR_ROUTE_GDS && !gds_usable())
                continue;
            if (gpu_name() && route != HR_ROUTE_MMAP) {
                struct hr_loader_options gpu_options = options;
                load_to_gpu(&gpu_options, sequential, item, guarded, guarded_size);
            }
            if (route == HR_ROUTE_GDS)
                continue;
            memset(guarded, GUARD, guarded_size);
            load_to_host(&options, sequential, item);
        }
}

static void load_slice(size_t tensor_index, const struct hr_range *ranges)
{
    char unused;
    struct hr_item item = {.size = sizeof item, .tensor_index = tensor_index, .ranges = ranges};
    load_item(&item, &unused, 1);
}

/* Starts, ends and steps in one dimension, the others whole. */
static void test_each_dimension(void **state)
{
    static const size_t which[] = {CUBE, ROWS, BYTES, SIX};
    (void)state;
    for (size_t w = 0; w < sizeof which / sizeof which[0]; w++) {
        const struct test_tensor *tensor = &tensors[which[w]];
        for (uint32_t d = 0; d < tensor->rank; d++)
            for (uint64_t step = 0; step < 4; step++) {
                struct hr_range ranges[8];
                for (uint32_t i = 0; i < tensor->rank; i++)
                    ranges[i] = (struct hr_range){0, tensor->shape[i], 0};
                ranges[d] = (struct hr_range){1, tensor->shape[d] - (step == 2), step};
                load_slice(which[w], ranges);
                ranges[d] = (struct hr_range){tensor->shape[d] / 2, tensor->shape[d] / 2 + 1, step};
                load_slice(which[w], ranges);
            }
    }
}

static void test_all_dimensions(void **state)
{
    struct hr_range cube[3] = {{3, 31, 2}, {5, 40, 3}, {1, 28, 5}};
    struct hr_range rows[2] = {{10, 200, 7}, {1, 1031, 2}};
    struct hr_range six[6] = {{1, 3, 0}, {0, 4, 2}, {1, 2, 0}, {0, 5, 3}, {1, 3, 0}, {2, 6, 0}};
    struct hr_range columns[2] = {{0, 211, 0}, {515, 1031, 0}};
    (void)state;
    load_slice(CUBE, cube);
    load_slice(ROWS, rows);
    load_slice(SIX, six);
    load_slice(ROWS, columns);
}

/* Elements of 4 and 6 bits, cut where bytes end. */
static void test_sub_byte(void **state)
{
    struct hr_range pairs[3] = {{1, 8, 3}, {2, 16, 2}, {2, 30, 0}};
    struct hr_range sixes[3] = {{1, 5, 0}, {3, 11, 4}, {4, 12, 0}};
    struct hr_range inside[3] = {{0, 9, 0}, {0, 17, 0}, {1, 32, 0}};
    struct hr_item item = {.size = sizeof item, .tensor_index = PAIRS, .ranges = inside};
    struct hr_load *load = NULL;
    struct hr_error err = {0};
    (void)state;
    load_slice(PAIRS, pairs);
    load_slice(SIXES, sixes);
    struct hr_loader *loader = loader_make(NULL);
    assert_code(hr_load_start(loader, model.checkpoint, &item, 1, NULL, &load, &err), HR_EUNSUPPORTED);
    assert_null(load);
    assert_string_equal(err.tensor, "pairs");
    hr_loader_free(loader);
}

/* A row slice reads its bytes and no others. */
static void test_exact_reads(void **state)
{
    struct hr_range rows[2] = {{50, 60, 0}, {0, 1031, 0}};
    struct hr_item item = {.size = sizeof item, .tensor_index = ROWS, .ranges = rows};
    struct hr_loader_options options = {.size = sizeof options, .route = HR_ROUTE_PREAD};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    (void)state;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, model.checkpoint, &item, 1, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.bytes_needed, 10 * 1031 * 2);
    assert_int_equal(stats.bytes_read, 10 * 1031 * 2);
    assert_int_equal(stats.read_count, 1);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* Compact memory of the caller's, at an odd address, with guards on both sides. */
static void test_into_compact(void **state)
{
    (void)state;
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        size_t bytes = test_tensor_bytes(&tensors[i]), size = bytes + 128;
        uint8_t *memory = malloc(size);
        struct hr_item item = {.size = sizeof item, .tensor_index = i, .into = memory + 61};
        load_item(&item, memory, size);
        for (size_t k = 0; k < 61; k++)
            assert_int_equal(memory[k], GUARD);
        for (size_t k = 61 + bytes; k < size; k++)
            assert_int_equal(memory[k], GUARD);
        free(memory);
    }
}

/* Counts the bytes that are not the guard's; content may hold a few by accident, so the caller allows for less. */
static size_t touched(const uint8_t *memory, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += memory[i] != GUARD;
    return count;
}

struct strided_case {
    size_t tensor_index;
    const struct hr_range *ranges;
    int64_t strides[3];
    uint64_t first, size; /* of the first element and of the memory */
};

static void test_into_strided(void **state)
{
    static const struct hr_range rows[2] = {{11, 200, 4}, {100, 1000, 0}};
    static const struct hr_range cube[3] = {{0, 37, 2}, {40, 41, 0}, {0, 29, 0}};
    const struct strided_case cases[] = {
        {CUBE, NULL, {41 * 32 * 4 + 64, 32 * 4, 4}, 0, 37 * (41 * 32 * 4 + 64)},           /* padded rows */
        {CUBE, NULL, {4, 37 * 4, 37 * 41 * 4}, 0, 37 * 41 * 29 * 4},                       /* reversed order */
        {CUBE, NULL, {41 * 29 * 4, 4, 41 * 4}, 0, 37 * 41 * 29 * 4},                       /* two swapped */
        {CUBE, NULL, {-41 * 29 * 4, 29 * 4, 4}, 36 * 41 * 29 * 4, 37 * 41 * 29 * 4},       /* planes backwards */
        {CUBE, NULL, {-41 * 29 * 4, -29 * 4, -4}, 37 * 41 * 29 * 4 - 4, 37 * 41 * 29 * 4}, /* all backwards */
        {ROWS, NULL, {2, 211 * 2, 0}, 0, 211 * 1031 * 2},                                  /* transposed */
        {ROWS, rows, {4096, 2, 0}, 100, 48 * 4096},                                        /* a column block */
        {ROWS, rows, {-4096, 4, 0}, 47 * 4096, 48 * 4096},                                 /* both at once */
        {CUBE, cube, {256, 0, 4}, 0, 19 * 256},                                            /* an extent of 1 */
        {BYTES, NULL, {3, 0, 0}, 1, 3 * 300007},                                           /* every third byte */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t *memory = malloc(cases[i].size);
        struct hr_item item = {.size = sizeof item,
                               .tensor_index = cases[i].tensor_index,
                               .ranges = cases[i].ranges,
                               .into = memory + cases[i].first,
                               .into_strides = cases[i].strides};
        load_item(&item, memory, cases[i].size);
        size_t bytes = test_tensor_bytes(&tensors[cases[i].tensor_index]);
        if (cases[i].ranges == rows)
            bytes = 48 * 900 * 2;
        else if (cases[i].ranges == cube)
            bytes = 19 * 29 * 4;
        assert_true(touched(memory, cases[i].size) <= bytes);
        free(memory);
    }
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_each_dimension), cmocka_unit_test(test_all_dimensions),
        cmocka_unit_test(test_sub_byte),       cmocka_unit_test(test_exact_reads),
        cmocka_unit_test(test_into_compact),   cmocka_unit_test(test_into_strided),
    };
    return cmocka_run_group_tests(all, setup, teardown);
}
