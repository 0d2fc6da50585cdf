/*
 * test_gpu_devices.c: one load to several devices: host memory, and as many of two GPUs, real or fake, as there are.
 * Every tensor is where its item says, and the devices take turns, so that none waits for another to be done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define READ_MAX 1000

static struct test_model mixed;
static const char *const names[] = {"cpu", "cuda:0", "cuda:1"};

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "devices", 9);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    return 0;
}

static size_t device_count(void)
{
    size_t count = 1;
    struct hr_device_info info = {.size = sizeof info};
    while (count < sizeof names / sizeof names[0] && hr_device_find(names[count], &info, NULL) == 0)
        count++;
    return count;
}

static void check_places(struct hr_load *load, const struct hr_item *items)
{
    for (size_t i = 0; i < mixed.count; i++) {
        struct hr_view view = {.size = sizeof view};
        struct hr_error err = {0};
        assert_ok(hr_load_view(load, i, &view, &err), err);
        assert_int_equal(view.device_index, items[i].device_index);
        assert_int_equal(view.device_type, items[i].device_index ? HR_DEVICE_CUDA : HR_DEVICE_CPU);
        if (items[i].device_index)
            assert_int_equal(view.device_ordinal, items[i].device_index - 1);
        check_item(load, i, &mixed);
    }
}

/* Devices that change with every tensor, with every few, and once. */
static void test_each_in_its_place(void **state)
{
    static const size_t runs[] = {1, 3, 40};
    size_t count = device_count();
    struct hr_loader_options options = {
        .size = sizeof options, .devices = names, .device_count = count, .thread_count = 3, .chunk_bytes = 64 * KIB};
    struct hr_loader *loader = loader_make(&options);
    struct hr_item *items = model_items(&mixed);
    (void)state;
    for (size_t run = 0; run < sizeof runs / sizeof runs[0]; run++) {
        for (size_t i = 0; i < mixed.count; i++)
            items[i].device_index = i / runs[run] % count;
        for (unsigned mode = 0; mode < 6; mode++) {
            struct hr_load_options load_options = {.size = sizeof load_options,
                                                   .ownership = mode & 1 ? HR_OWN_EACH : HR_OWN_ARENA,
                                                   .window_bytes = mode & 2 ? 100 * KIB : 0,
                                                   .sequential = mode >= 4};
            struct hr_load *load = load_make(loader, mixed.checkpoint, items, mixed.count, &load_options);
            struct hr_error err = {0};
            size_t index;
            int code;
            while ((code = hr_load_next(load, &index, &err)) == 0)
                check_item(load, index, &mixed);
            assert_code(code, HR_EEND);
            check_places(load, items);
            hr_load_free(load);
        }
    }
    hr_loader_free(loader);
    free(items);
}

/* ------------------------------------------------------------------------------------------- turns */

struct reads {
    uint64_t offsets[READ_MAX];
    size_t count;
};

static void add_read(void *context, const struct hr_trace_event *event)
{
    struct reads *reads = context;
    if (event->kind == HR_TRACE_READ && reads->count < READ_MAX)
        reads->offsets[reads->count++] = event->offset;
}

/* With the first half of a file on one device and the rest on another, reads go from half to half. */
static void test_devices_take_turns(void **state)
{
    const char *const twice[] = {"cpu", "cpu"};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = twice,
                                        .device_count = 2,
                                        .thread_count = 1,
                                        .chunk_bytes = 64 * KIB,
                                        .route = HR_ROUTE_PREAD};
    struct reads reads = {.count = 0};
    struct hr_load_options load_options = {.size = sizeof load_options, .trace = add_read, .trace_context = &reads};
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    model_equal(&model, "turns", 20, 128 * KIB, 20);
    struct hr_item *items = model_items(&model);
    for (size_t i = 0; i < model.count; i++)
        items[i].device_index = i >= model.count / 2;
    uint64_t half = hr_checkpoint_at(model.checkpoint, model.count / 2)->offset;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, model.checkpoint, items, model.count, &load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &model);
    hr_load_free(load);
    hr_loader_free(loader);
    size_t turns = 0;
    for (size_t i = 1; i < reads.count; i++)
        turns += (reads.offsets[i] >= half) != (reads.offsets[i - 1] >= half);
    assert_in_range(reads.count, 40, 44);
    assert_in_range(turns, 30, 44);
    free(items);
    model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_in_its_place),
        cmocka_unit_test(test_devices_take_turns),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
