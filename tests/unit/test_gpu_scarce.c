/*
 * test_gpu_scarce.c: loads to GPUs that lack something: device memory, pinned memory, the right to read host memory,
 * the placing kernel, the driver itself. The bytes are right, or the error says what is needed and what there is; the
 * figures say how it went. Needs the fake driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/gpu_scene.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define TENSOR_COUNT 6
#define TENSOR_BYTES (90 * KIB)

static struct test_model equal, mixed;
static struct hr_loader *loader; /* of the running test */

static int setup(void **state)
{
    (void)state;
    model_equal(&equal, "equal", TENSOR_COUNT, TENSOR_BYTES, 3);
    model_mixed(&mixed, "mixed", 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&equal);
    model_close(&mixed);
    return 0;
}

static void begin(const char *settings, uint32_t thread_count)
{
    const char *devices[] = {"cuda:0"};
    const struct hr_loader_options options = {.size = sizeof options,
                                              .devices = devices,
                                              .device_count = 1,
                                              .thread_count = thread_count,
                                              .chunk_bytes = 64 * KIB};
    scene_need_fake(settings);
    loader = loader_make(&options);
}

static void end(void)
{
    hr_loader_free(loader);
    scene_assert_nothing_live();
}

/* Loads all of `mixed`, checks every byte, and tells how it went. */
static struct hr_stats load_mixed(const struct hr_load_options *options)
{
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    struct hr_load *load = load_model(loader, &mixed, options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &mixed);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    return stats;
}

static void assert_says(const char *text, const char *said)
{
    if (!strstr(text, said))
        fail_msg("'%s' is not in '%s'", said, text);
}

/* ----------------------------------------------------------------------------------- device memory */

#define MEMORY_BYTES (400 * KIB) /* four tensors, and less than a fifth */

static const struct hr_load_options one_by_one = {
    .size = sizeof one_by_one, .ownership = HR_OWN_EACH, .window_bytes = 2 * TENSOR_BYTES};

/* Whoever keeps all that comes runs out in the middle. */
static void test_memory_runs_out(void **state)
{
    struct hr_error err = {0};
    char numbers[100];
    size_t index, count = 0;
    int code;
    (void)state;
    begin("memory=409600", 2);
    struct hr_load *load = load_model(loader, &equal, &one_by_one);
    while ((code = hr_load_next(load, &index, &err)) == 0) {
        check_item(load, index, &equal);
        count++;
    }
    assert_code(code, HR_EOUT_OF_MEMORY);
    snprintf(numbers, sizeof numbers, "no memory for %llu bytes: %llu of %llu bytes are free",
             (unsigned long long)TENSOR_BYTES, (unsigned long long)(MEMORY_BYTES - 4 * TENSOR_BYTES),
             (unsigned long long)MEMORY_BYTES);
    assert_says(err.message, numbers);
    assert_int_equal(err.driver_code, 2);
    assert_string_equal(err.tensor, hr_checkpoint_at(equal.checkpoint, 4)->name);
    assert_in_range(count, 1, 4);
    for (size_t i = 0, ready = 0; i < TENSOR_COUNT; i++) {
        struct hr_view view = {.size = sizeof view};
        if (hr_load_view(load, i, &view, NULL) == 0) {
            check_item(load, i, &equal);
            ready++;
        }
        assert_true(i < TENSOR_COUNT - 1 || ready >= count);
    }
    hr_load_free(load);
    end();
}

/* Whoever gives up what he has used gets through, also with the loader that has seen memory run out. */
static void test_memory_is_enough_for_a_window(void **state)
{
    struct hr_error err = {0};
    size_t index, count = 0;
    (void)state;
    begin("memory=409600", 2);
    struct hr_load *load = load_model(loader, &equal, &one_by_one);
    assert_code(hr_load_wait_all(load, NULL), HR_EOUT_OF_MEMORY);
    hr_load_free(load);
    load = load_model(loader, &equal, &one_by_one);
    for (; hr_load_next(load, &index, &err) == 0; count++) {
        check_item(load, index, &equal);
        assert_ok(hr_load_drop(load, index, &err), err);
    }
    assert_code(err.code, HR_EEND);
    assert_int_equal(count, TENSOR_COUNT);
    hr_load_free(load);
    end();
}

/* ----------------------------------------------------------------------------------- pinned memory */

static void test_pinning_is_refused(void **state)
{
    static const struct {
        const char *settings, *kind, *reason;
    } cases[] = {
        {"", "registered huge pages", ""},
        {"pinned=refuse", "registered huge pages", ""},
        {"register=refuse", "pinned memory of the driver", "cuMemHostRegister: CUDA_ERROR_OPERATING_SYSTEM (304)"},
        {"register=refuse,pinned=refuse", "pageable memory", "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"},
        {"confidential=1", "pinned memory of the driver", "confidential computing"},
        {"confidential=1,pinned=refuse", "pageable memory", "confidential computing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(cases[i].settings, 2);
        struct hr_stats stats = load_mixed(NULL);
        assert_memory_equal(stats.staging, cases[i].kind, strlen(cases[i].kind));
        assert_says(stats.staging, cases[i].reason);
        assert_true(*cases[i].reason || strlen(stats.staging) == strlen(cases[i].kind));
        end();
    }
}

static struct fake_cuda_live now_live(void)
{
    struct fake_cuda_live live;
    scene_fake()->live(&live);
    return live;
}

/* Loads the first item of `mixed`. */
static struct hr_stats load_first(void)
{
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_item item = {.size = sizeof item};
    struct hr_error err = {0};
    struct hr_load *load = load_make(loader, mixed.checkpoint, &item, 1, NULL);
    assert_ok(hr_load_wait(load, 0, &err), err);
    check_item(load, 0, &mixed);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    return stats;
}

/*
 * Of two slots at once only one can be registered: it is, and the driver's memory comes after it. Once all of it was
 * given back, nothing is left of that.
 */
static void test_registration_is_bounded(void **state)
{
    (void)state;
    begin("register=limit:400000", 1);
    struct hr_stats stats = load_first();
    assert_string_equal(stats.staging, "registered huge pages");
    assert_in_range(stats.staging_bytes, 64 * KIB, 400000);
    assert_int_equal(now_live().registered_bytes, stats.staging_bytes);
    assert_int_equal(now_live().pinned_count, 0);
    uint64_t registered = stats.staging_bytes;
    stats = load_mixed(NULL);
    assert_says(stats.staging, "pinned memory of the driver: cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2)");
    assert_int_equal(now_live().registered_bytes, registered);
    assert_true(now_live().pinned_count > 0);
    assert_true(stats.staging_bytes > registered);
    assert_int_equal(hr_loader_trim(loader), stats.staging_bytes);
    assert_int_equal(now_live().registered_bytes + now_live().pinned_count, 0);
    stats = load_first();
    assert_string_equal(stats.staging, "registered huge pages");
    assert_int_equal(now_live().registered_bytes, stats.staging_bytes);
    end();
}

/* ---------------------------------------------------------------------------- what the device can do */

/* The fake driver's context ends when a kernel reads host memory. */
static void test_confidential(void **state)
{
    (void)state;
    for (uint32_t ownership = 0; ownership < 2; ownership++) {
        struct hr_load_options options = {.size = sizeof options, .ownership = ownership};
        begin("confidential=1", 2);
        struct hr_stats stats = load_mixed(&options);
        assert_in_range(stats.copy_count, 1, stats.chunk_count);
        assert_true(stats.kernel_count > 0);
        end();
    }
}

static void test_without_kernel(void **state)
{
    static const char *const settings[] = {"no_kernel=1", "no_kernel=1,confidential=1", "no_kernel=1,pinned=refuse",
                                           "no_kernel=1,register=refuse,pinned=refuse"};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        begin(settings[i], 2);
        struct hr_stats stats = load_mixed(NULL);
        assert_int_equal(stats.kernel_count, 0);
        assert_true(stats.copy_count > 0);
        end();
    }
}

/* A driver that shows no GPU any more: loaders of before go on, new ones say it, and "auto" is the host. */
static void test_driver_without_devices(void **state)
{
    const char *devices[] = {"cuda:0"};
    struct hr_loader_options options = {.size = sizeof options, .devices = devices, .device_count = 1};
    struct hr_loader *none = NULL;
    struct hr_device_info info = {.size = sizeof info};
    struct hr_error err = {0};
    (void)state;
    begin("", 2);
    assert_int_equal(scene_fake()->configure("driver=none,devices=0"), 0);
    load_mixed(NULL);
    assert_code(hr_loader_new(&options, &none, &err), HR_EDEVICE_UNAVAILABLE);
    assert_null(none);
    assert_true(err.message[0]);
    assert_int_equal(hr_device_find("auto", &info, &err), 0);
    assert_int_equal(info.type, HR_DEVICE_CPU);
    scene_fake()->configure("driver=0,devices=2");
    load_mixed(NULL);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_runs_out),        cmocka_unit_test(test_memory_is_enough_for_a_window),
        cmocka_unit_test(test_pinning_is_refused),     cmocka_unit_test(test_registration_is_bounded),
        cmocka_unit_test(test_confidential),           cmocka_unit_test(test_without_kernel),
        cmocka_unit_test(test_driver_without_devices),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
