/*
 * test_gpu_probe.c: a probe of a GPU: all figures are there, staging that is not pinned is named, and whichever driver
 * or system call fails, nothing is left behind. Runs on the fake driver and on a real one; what only the fake can play
 * is skipped there, and all of it where there is no GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_cuda/fake_cuda.h"
#include "support/faults.h"
#include "support/make_files.h"
#include "support/page_cache.h"

#define MIB (UINT64_C(1) << 20)
#define FILE_BYTES (68 * MIB)

static struct {
    int (*configure)(const char *);
    void (*reset)(void);
    void (*fail_nth)(unsigned long, int);
    unsigned long (*fired)(void);
    void (*live)(struct fake_cuda_live *);
} fake; /* all NULL with a real driver */

static void *symbol(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

static int find_fake(void **state)
{
    (void)state;
    *(void **)&fake.configure = symbol("fake_cuda_configure");
    *(void **)&fake.reset = symbol("fake_cuda_reset");
    *(void **)&fake.fail_nth = symbol("fake_cuda_fail_nth");
    *(void **)&fake.fired = symbol("fake_cuda_fired");
    *(void **)&fake.live = symbol("fake_cuda_live");
    return 0;
}

static void need_gpu(void)
{
    struct hr_device_info info = {.size = sizeof info};
    if (fake.reset)
        fake.reset();
    if (hr_device_find("cuda:0", &info, NULL) < 0)
        skip();
}

static void need_fake(const char *settings)
{
    if (!fake.reset)
        skip();
    fake.reset();
    assert_int_equal(fake.configure(settings), 0);
}

static void assert_nothing_of_the_driver_lives(void)
{
    struct fake_cuda_live live;
    if (!fake.live)
        return;
    fake.live(&live);
    assert_int_equal(live.allocation_count, 0);
    assert_int_equal(live.registered_bytes, 0);
    assert_int_equal(live.pinned_count, 0);
    assert_int_equal(live.stream_count, 0);
    assert_int_equal(live.event_count, 0);
    assert_int_equal(live.module_count, 0);
    assert_int_equal(live.retain_count, 0);
    assert_int_equal(live.context_depth, 0);
}

static const char *hot_file(void)
{
    static const char *path;
    if (!path)
        path = page_cache_hole("hot", FILE_BYTES);
    return path;
}

static int probe(const char *path, uint64_t budget_ns, struct hr_limits *ret_limits, struct hr_error *err)
{
    struct hr_probe_options options = {
        .size = sizeof options, .device = "cuda:0", .path = path, .thread_count = 2, .budget_ns = budget_ns};
    *ret_limits = (struct hr_limits){.size = sizeof *ret_limits};
    int code = hr_probe(&options, ret_limits, err);
    assert_nothing_of_the_driver_lives();
    return code;
}

static void test_figures(void **state)
{
    static const uint64_t sizes[HR_PROBE_SIZE_COUNT] = {MIB, 4 * MIB, 16 * MIB, 64 * MIB};
    struct hr_limits limits;
    (void)state;
    need_gpu();
    assert_int_equal(probe(hot_file(), 50000000, &limits, NULL), 0);
    assert_int_equal(limits.device.type, HR_DEVICE_CUDA);
    assert_memory_equal(limits.to_device_sizes, sizes, sizeof sizes);
    for (int i = 0; i < HR_PROBE_SIZE_COUNT; i++)
        assert_true(limits.to_device[i] > MIB);
    assert_true(limits.from_device > MIB);
    assert_non_null(strstr(limits.device_detail, " staging"));
    assert_int_equal(limits.pin > 0, !strstr(limits.device_detail, "pageable"));
    assert_int_equal(limits.page_cache_to_device > 0, limits.page_cache > 0);
    assert_in_range(strlen(limits.device_detail), 10, sizeof limits.device_detail - 2);
}

static void test_lesser_staging(void **state)
{
    struct hr_limits limits;
    (void)state;
    need_fake("register=refuse");
    assert_int_equal(probe(NULL, 1, &limits, NULL), 0);
    assert_int_equal(strncmp(limits.device_detail, "pinned staging: ", 16), 0);
    assert_true(limits.pin > 0 && limits.to_device[0] > 0);
    need_fake("register=refuse,pinned=refuse");
    assert_int_equal(probe(NULL, 1, &limits, NULL), 0);
    assert_int_equal(strncmp(limits.device_detail, "pageable staging: ", 18), 0);
    assert_int_equal(limits.pin, 0);
    assert_true(limits.to_device[0] > 0);
}

static void test_too_little_memory(void **state)
{
    struct hr_limits limits;
    struct hr_error err = {0};
    (void)state;
    need_fake("memory=33554432");
    assert_int_equal(probe(NULL, 1, &limits, &err), HR_EOUT_OF_MEMORY);
    assert_int_equal(err.code, HR_EOUT_OF_MEMORY);
    assert_true(*err.message);
}

/* Few calls open and close, many repeat in between: those are sampled. */
static void test_every_driver_call_fails(void **state)
{
    struct hr_limits limits;
    struct hr_error err;
    (void)state;
    unsigned long run_count = 0, fired = 1;
    for (unsigned long n = 1; fired; n += 1 + n / 6) {
        need_fake("delay_us=1");
        fake.fail_nth(n, 999); /* CUDA_ERROR_UNKNOWN */
        memset(&err, 0, sizeof err);
        int code = probe(hot_file(), 1, &limits, &err);
        fired = fake.fired();
        fake.fail_nth(0, 0);
        run_count += fired != 0;
        if (code == 0) {
            assert_true(*limits.device_detail);
            continue;
        }
        assert_true(code == HR_EDEVICE_UNAVAILABLE || code == HR_EDEVICE_ERROR || code == HR_EOUT_OF_MEMORY);
        assert_int_equal(err.code, code);
        assert_true(*err.message);
    }
    assert_true(run_count > 20);
    assert_int_equal(probe(NULL, 1, &limits, NULL), 0);
    assert_true(limits.to_device[0] > 0);
}

/* A context that is destroyed in the middle: figures until then, and the reason. */
static void test_fault_in_the_middle(void **state)
{
    struct hr_limits limits;
    (void)state;
    need_fake("fail_call=cuMemcpyDtoHAsync:1:700");
    assert_int_equal(probe(hot_file(), 1, &limits, NULL), 0);
    assert_true(limits.to_device[HR_PROBE_SIZE_COUNT - 1] > 0);
    assert_int_equal(limits.from_device, 0);
    assert_int_equal(limits.page_cache_to_device, 0);
    assert_non_null(strstr(limits.device_detail, "700"));
}

static int scenario(void *context, struct hr_error *err)
{
    struct hr_limits limits;
    return probe(context, 1, &limits, err);
}

static void test_every_system_call_fails(void **state)
{
    (void)state;
    need_gpu();
    if (fake.configure)
        assert_int_equal(fake.configure("delay_us=1"), 0);
    faults_sweep(FAULT_MEMORY | FAULT_MAP | FAULT_THREAD, 0, scenario, (void *)hot_file());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_lesser_staging),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_every_driver_call_fails),
        cmocka_unit_test(test_fault_in_the_middle),
        cmocka_unit_test(test_every_system_call_fails),
    };
    return cmocka_run_group_tests(tests, find_fake, NULL);
}
