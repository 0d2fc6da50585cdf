/*
 * test_load_cast.c: dtypes converted on their way to host memory: every pair, slices, shards and strides, by every route;
 * what it takes and what it reads; storage and memory that fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "support/cast_model.h"
#include "support/faults.h"

static struct test_model model;

static int setup(void **state)
{
    (void)state;
    cast_model_open(&model, "cast");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    return 0;
}

static void load_and_check(const struct hr_loader_options *options, const struct hr_load_options *load_options,
                           const struct cast_request *request)
{
    struct hr_error err = {0};
    struct hr_loader *loader = loader_make(options);
    struct hr_load *load = load_make(loader, model.checkpoint, request->items, request->count, load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    cast_check(load, &model, request, NULL);
    hr_load_free(load);
    hr_loader_free(loader);
}

static const struct hr_loader_options settings[] = {
    {.size = sizeof settings[0]},
    {.size = sizeof settings[0], .chunk_bytes = 64 << 10, .route = HR_ROUTE_PREAD, .thread_count = 3},
    {.size = sizeof settings[0], .chunk_bytes = 64 << 10, .route = HR_ROUTE_MMAP},
    {.size = sizeof settings[0], .chunk_bytes = 100001, .route = HR_ROUTE_URING, .queue_depth = 3},
};

static void test_every_pair(void **state)
{
    (void)state;
    struct cast_request request = cast_request_all(&model);
    assert_true(request.count > 150);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (uint32_t ways = 0; ways < 8; ways++) {
            struct hr_load_options options = {.size = sizeof options,
                                              .ownership = ways & 1,
                                              .window_bytes = ways & 2 ? 100000 : 0,
                                              .sequential = ways >> 2};
            if (settings[i].route == HR_ROUTE_URING && !uring_usable())
                continue;
            load_and_check(&settings[i], &options, &request);
        }
    cast_request_free(&request);
}

static void test_random_requests(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++)
        for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
            if (settings[i].route == HR_ROUTE_URING && !uring_usable())
                continue;
            struct hr_load_options options = {
                .size = sizeof options, .ownership = seed & 1, .sequential = seed % 5 == 0};
            struct cast_request request = cast_request_random(&model, 40, seed * 0x9e3779b97f4a7c15u);
            load_and_check(&settings[i], &options, &request);
            cast_request_free(&request);
        }
}

/* What is stored is counted as needed and read, what comes of it as allocated; arenas hold the converted sizes. */
static void test_statistics(void **state)
{
    struct hr_error err = {0};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_view view = {.size = sizeof view};
    const struct hr_tensor *single = hr_checkpoint_find(model.checkpoint, "single", 6);
    const struct hr_tensor *brain = hr_checkpoint_find(model.checkpoint, "brain", 5);
    const struct hr_tensor *first = hr_checkpoint_at(model.checkpoint, 0);
    struct hr_item items[2] = {
        {.size = sizeof items[0], .tensor_index = (size_t)(single - first), .dtype = HR_DTYPE_BF16},
        {.size = sizeof items[0], .tensor_index = (size_t)(brain - first)}};
    struct hr_load_options options = {.size = sizeof options, .ownership = HR_OWN_EACH};
    (void)state;
    struct hr_loader *loader = loader_make(&settings[1]);
    struct hr_load *load = load_make(loader, model.checkpoint, items, 2, &options);
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.bytes_needed, single->size + brain->size);
    assert_int_equal(stats.bytes_ready, stats.bytes_needed);
    assert_int_equal(stats.bytes_read, stats.bytes_needed);
    assert_int_equal(stats.bytes_converted, single->size);
    assert_int_equal(stats.bytes_allocated, single->size / 2 + brain->size);
    assert_string_equal(stats.conversion, "readers");
    assert_ok(hr_load_view(load, 0, &view, &err), err);
    assert_int_equal(view.bytes, single->size / 2);
    hr_load_free(load);
    load = load_make(loader, model.checkpoint, items + 1, 1, &options);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.bytes_converted, 0);
    assert_string_equal(stats.conversion, "");
    hr_load_free(load);
    hr_loader_free(loader);
}

static void test_refused(void **state)
{
    struct hr_error err = {0};
    struct hr_load *load = NULL;
    struct hr_loader *loader = loader_make(&settings[0]);
    const struct hr_tensor *nibbles = hr_checkpoint_find(model.checkpoint, "nibbles", 7);
    struct hr_item item = {.size = sizeof item,
                           .tensor_index = (size_t)(nibbles - hr_checkpoint_at(model.checkpoint, 0)),
                           .dtype = HR_DTYPE_F32};
    (void)state;
    assert_code(hr_load_start(loader, model.checkpoint, &item, 1, NULL, &load, &err), HR_EUNSUPPORTED);
    assert_string_equal(err.tensor, "nibbles");
    assert_string_equal(err.message,
                        "tensor 'nibbles' is stored as F4 and cannot be converted to F32; load it as it is stored");
    hr_loader_free(loader);
}

/* ------------------------------------------------------------------------------------------- failures */

struct failing {
    uint32_t route, sequential;
};

static int load_from_nothing(void *context, struct hr_error *err)
{
    const struct failing *failing = context;
    const char *paths[] = {model_path(&model, 1)};
    struct hr_loader_options options = {
        .size = sizeof options, .route = failing->route, .thread_count = 2, .chunk_bytes = 64 << 10};
    struct hr_load_options load_options = {.size = sizeof load_options, .sequential = failing->sequential};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    struct hr_item items[2] = {{.size = sizeof items[0], .tensor_index = 1, .dtype = HR_DTYPE_BF16},
                               {.size = sizeof items[0], .tensor_index = 2, .dtype = HR_DTYPE_F64}};
    int code = hr_checkpoint_open(paths, 1, NULL, &checkpoint, err);
    if (code == 0)
        code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, checkpoint, items, 2, &load_options, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    for (size_t i = 0; load && i < 2; i++) {
        struct hr_view view = {.size = sizeof view};
        if (hr_load_view(load, i, &view, NULL) == 0)
            cast_check_view(&model, &items[i], &view);
    }
    hr_load_free(load);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return code;
}

static void test_failures(void **state)
{
    struct failing ways[] = {{HR_ROUTE_PREAD, 0}, {HR_ROUTE_PREAD, 1}, {HR_ROUTE_AUTO, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        assert_true(faults_sweep(FAULT_MEMORY | FAULT_MAP, 0, load_from_nothing, &ways[i]) > 10);
        assert_true(faults_sweep(FAULT_READ, 0, load_from_nothing, &ways[i]) > 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair), cmocka_unit_test(test_random_requests), cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
