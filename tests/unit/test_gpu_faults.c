/*
 * test_gpu_faults.c: whole loads on a GPU while each call of the driver fails in turn, with an ordinary error and with
 * one that destroys the context. The error names file, tensor and cause, what was ready stays readable where the context
 * lives, nothing is left behind, and the process loads again. Needs the fake driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/faults.h"
#include "support/gpu_scene.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define ORDINARY 999
#define NO_MEMORY 2
#define STICKY 719
#define CALLS_MAX 3000
#define TENSOR_COUNT 6

/* A sanitizer makes loads slow: it gets every third call only, the others get all. */
#if defined(HEADRACE_TSAN) || defined(HEADRACE_SANITIZE)
#define SWEEP_STEP 3
#else
#define SWEEP_STEP 1
#endif

static struct test_model equal, rows;

static int setup(void **state)
{
    static const struct test_tensor narrow = {
        .name = "rows", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {900, 60}, .seed = 1};
    (void)state;
    model_equal(&equal, "equal", TENSOR_COUNT, 90 * KIB, 3);
    model_write(&rows, "rows", &narrow, 1, 1, 0);
    model_open(&rows);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&equal);
    model_close(&rows);
    return 0;
}

/* ------------------------------------------------------------------------------ one load, whole or not */

static const struct hr_range columns[2] = {{0, 900, 0}, {3, 50, 0}};

/* How a load is made: of all tensors of `equal`, or of columns of the one of `rows`. */
struct way {
    const char *settings;
    uint32_t route, sequential, ownership;
    uint64_t window_bytes;
    int is_strided;
    uint32_t device_count; /* that tensors go to in turn; 0: one */
};

static const struct way ways[] = {
    {.route = HR_ROUTE_PREAD},
    {.route = HR_ROUTE_PREAD, .ownership = HR_OWN_EACH, .window_bytes = 200 * KIB},
    {.route = HR_ROUTE_PREAD, .is_strided = 1},
    {.route = HR_ROUTE_PREAD, .sequential = 1},
    {.route = HR_ROUTE_URING, .window_bytes = 1},
    {.route = HR_ROUTE_URING, .is_strided = 1},
    {.route = HR_ROUTE_PREAD, .settings = "confidential=1", .is_strided = 1},
    {.route = HR_ROUTE_PREAD, .settings = "register=refuse,no_kernel=1", .ownership = HR_OWN_EACH},
    {.route = HR_ROUTE_PREAD, .device_count = 3, .window_bytes = 400 * KIB},
};

static const struct test_model *model_of(const struct way *way)
{
    return way->is_strided ? &rows : &equal;
}

static int make_loader(const struct way *way, struct hr_loader **ret_loader, struct hr_error *err)
{
    const char *devices[] = {"cuda:0", "cuda:1", "cpu"};
    const struct hr_loader_options options = {.size = sizeof options,
                                              .devices = devices,
                                              .device_count = way->device_count ? way->device_count : 1,
                                              .route = way->route,
                                              .thread_count = 2,
                                              .lane_count = 2,
                                              .chunk_bytes = 64 * KIB,
                                              .queue_depth = 2};
    return hr_loader_new(&options, ret_loader, err);
}

static int start(struct hr_loader *loader, const struct way *way, struct hr_load **ret_load, struct hr_error *err)
{
    struct hr_load_options options = {.size = sizeof options,
                                      .window_bytes = way->window_bytes,
                                      .ownership = way->ownership,
                                      .sequential = way->sequential};
    struct hr_item *items = model_items(model_of(way));
    if (way->is_strided)
        items[0].ranges = columns;
    for (size_t i = 0; way->device_count && i < model_of(way)->count; i++)
        items[i].device_index = (uint32_t)i % way->device_count;
    int code = hr_load_start(loader, model_of(way)->checkpoint, items, model_of(way)->count, &options, ret_load, err);
    free(items);
    return code;
}

/* Reads a ready item back and holds it against the file; the code of the reading. */
static int check_back(struct hr_load *load, const struct way *way, size_t item_index, struct hr_error *err)
{
    struct hr_view view = {.size = sizeof view};
    assert_ok(hr_load_view(load, item_index, &view, err), *err);
    char *copy = malloc(view.bytes);
    int code = hr_load_read(load, item_index, 0, view.bytes, copy, err);
    view.data = copy;
    if (code == 0)
        check_view(&model_of(way)->tensors[item_index], way->is_strided ? columns : NULL, &view);
    free(copy);
    return code;
}

/* After a failure elsewhere: what is ready still is. */
static void check_what_is_ready(struct hr_load *load, const struct way *way)
{
    for (size_t i = 0; i < model_of(way)->count; i++) {
        struct hr_view view = {.size = sizeof view};
        struct hr_error err = {0};
        if (hr_load_view(load, i, &view, NULL) == 0)
            assert_ok(check_back(load, way, i, &err), err);
    }
}

/* An error concerns a tensor and its file; memory is made without a file, in arenas for many tensors at once. */
static void check_named(const struct way *way, const struct hr_error *err)
{
    const struct hr_checkpoint *checkpoint = model_of(way)->checkpoint;
    const struct hr_tensor *tensor = hr_checkpoint_find(checkpoint, err->tensor, strlen(err->tensor));
    if (!tensor && (err->file[0] || way->ownership == HR_OWN_EACH))
        fail_msg("which tensor of '%s'? %s", err->file, err->message);
    if (err->file[0])
        assert_string_equal(err->file, hr_checkpoint_file(checkpoint, tensor->file_index)->path);
}

/* Every item as it comes, until the end or an error. `driver_code`: what the calls that fail return. */
static int consume(struct hr_load *load, const struct way *way, int driver_code, struct hr_error *err)
{
    size_t index = 0;
    int code;
    while ((code = hr_load_next(load, &index, err)) == 0)
        if ((code = check_back(load, way, index, err)) < 0)
            break; /* it was the reading back that failed */
    if (code == HR_EEND)
        return 0;
    check_named(way, err);
    if (driver_code != STICKY)
        check_what_is_ready(load, way);
    return code;
}

static void assert_destroyed(int code, const struct hr_error *err)
{
    assert_code(code, HR_EDEVICE_ERROR);
    assert_int_equal(err->driver_code, STICKY);
    if (!strstr(err->message, "cannot use the device any more"))
        fail_msg("\"%s\"", err->message);
}

/* The context is gone: another load says so at once, without asking the driver. */
static void check_destroyed(struct hr_loader *loader, const struct way *way)
{
    unsigned long calls = scene_fake()->calls();
    struct hr_load *load = NULL;
    struct hr_error err = {0};
    int code = start(loader, way, &load, &err);
    if (code == 0)
        code = hr_load_wait_all(load, &err);
    assert_destroyed(code, &err);
    assert_int_equal(scene_fake()->calls(), calls);
    hr_load_free(load);
}

/* From a loader to nothing; nothing may be left of it. */
static int load_once(const struct way *way, int driver_code, struct hr_error *err)
{
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    faults_install();
    int code = make_loader(way, &loader, err);
    if (code == 0)
        code = start(loader, way, &load, err);
    if (code == 0)
        code = consume(load, way, driver_code, err);
    hr_load_free(load);
    if (code < 0 && loader && driver_code == STICKY)
        check_destroyed(loader, way);
    hr_loader_free(loader);
    scene_assert_nothing_live();
    faults_assert_nothing_live();
    faults_remove();
    return code;
}

static void load_well(const struct way *way)
{
    struct hr_error err = {0};
    assert_ok(load_once(way, 0, &err), err);
}

/* -------------------------------------------------------------------------------- every call of the driver */

static void check_cause(int code, int driver_code, const struct hr_error *err)
{
    if (code != HR_EDEVICE_ERROR && code != HR_EDEVICE_UNAVAILABLE && code != HR_EOUT_OF_MEMORY)
        fail_msg("%s: %s", hr_error_kind(code), err->message);
    assert_int_equal(err->code, code);
    if (err->driver_code != driver_code || !strstr(err->message, "CUDA_ERROR_"))
        fail_msg("driver code %d, \"%s\"", err->driver_code, err->message);
}

/* Fails the n-th call for n = 1, 2, 3 ... until a load meets none that fails. */
static void sweep(const struct way *way, int driver_code)
{
    char settings[100];
    unsigned long n, failed_count = 0;
    snprintf(settings, sizeof settings, "delay_us=5%s%s", way->settings ? "," : "", way->settings ? way->settings : "");
    const struct scene_fake *fake = scene_need_fake(settings);
    load_well(way);
    for (n = 1; n < CALLS_MAX; n += SWEEP_STEP) {
        struct hr_error err = {0};
        print_message("\rcall %lu failing", n); /* so that a failed check tells which */
        fake->fail_nth(n, driver_code);
        int code = load_once(way, driver_code, &err);
        unsigned long fired = fake->fired();
        if (code)
            check_cause(code, driver_code, &err);
        if (!fired)
            break;
        failed_count += code != 0;
        fake->reset();
        assert_int_equal(fake->configure(settings), 0);
        if (n % 8 == 1)
            load_well(way);
    }
    print_message("\r%lu calls, %lu loads failed\n", n - 1, failed_count);
    assert_in_range(n, 60, CALLS_MAX - 1);
    assert_in_range(failed_count, 20 / SWEEP_STEP, n);
}

static void sweep_ways(size_t way_count, int driver_code)
{
    for (size_t i = 0; i < way_count; i++)
        if (ways[i].route != HR_ROUTE_URING || uring_usable())
            sweep(&ways[i], driver_code);
}

static void test_every_call_fails(void **state)
{
    (void)state;
    sweep_ways(sizeof ways / sizeof ways[0], ORDINARY);
}

static void test_every_call_finds_no_memory(void **state)
{
    (void)state;
    sweep(&ways[0], NO_MEMORY);
    sweep(&ways[1], NO_MEMORY);
}

static void test_every_call_destroys_the_context(void **state)
{
    (void)state;
    sweep_ways(5, STICKY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_every_call_finds_no_memory),
        cmocka_unit_test(test_every_call_destroys_the_context),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
