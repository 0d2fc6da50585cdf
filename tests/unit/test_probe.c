/*
 * test_probe.c: what a probe of the host finds and what it says where it finds nothing; what it leaves behind. No figure
 * is compared with another: machines that run tests are busy.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sys.h"
#include "io/residency.h"
#include "support/faults.h"
#include "support/make_files.h"
#include "support/page_cache.h"

#define MIB (UINT64_C(1) << 20)
#define FILE_BYTES (80 * MIB)
#define BUDGET_NS 50000000

static const char *hot_file(void)
{
    static const char *path;
    if (!path)
        path = page_cache_hole("hot", FILE_BYTES);
    return path;
}

static int probe(const char *path, uint32_t thread_count, uint64_t budget_ns, struct hr_limits *ret_limits,
                 struct hr_error *err)
{
    struct hr_probe_options options = {
        .size = sizeof options, .device = "cpu", .path = path, .thread_count = thread_count, .budget_ns = budget_ns};
    *ret_limits = (struct hr_limits){.size = sizeof *ret_limits};
    return hr_probe(&options, ret_limits, err);
}

static int cachestat_works(const char *path)
{
    int fd = open(path, O_RDONLY);
    int64_t resident = hr_residency_exact(fd, 0, FILE_BYTES);
    close(fd);
    return resident == (int64_t)FILE_BYTES;
}

static void assert_no_device_figures(const struct hr_limits *limits)
{
    for (int i = 0; i < HR_PROBE_SIZE_COUNT; i++)
        assert_int_equal(limits->to_device[i], 0);
    assert_int_equal(limits->from_device, 0);
    assert_int_equal(limits->page_cache_to_device, 0);
    assert_int_equal(limits->pin, 0);
    assert_true(*limits->device_detail);
}

static void test_host(void **state)
{
    struct hr_limits limits;
    struct hr_error err;
    (void)state;
    assert_int_equal(probe(hot_file(), 3, BUDGET_NS, &limits, &err), 0);
    assert_int_equal(limits.size, sizeof limits);
    assert_int_equal(limits.device.type, HR_DEVICE_CPU);
    assert_int_equal(limits.core_count, hr_sys->core_count());
    assert_in_range(limits.time, time(NULL) - 100, time(NULL));
    assert_true(limits.memory_copy > MIB);
    if (cachestat_works(hot_file())) {
        assert_true(limits.page_cache > MIB);
        assert_true(limits.page_cache_fresh > MIB);
        assert_in_range(limits.page_cache_threads, 1, 3);
    }
    assert_true(*limits.page_cache_detail);
    assert_true(*limits.storage_detail);
    assert_true(limits.storage > MIB || !strstr(limits.storage_detail, "threads"));
    assert_no_device_figures(&limits);
}

static void test_without_file(void **state)
{
    struct hr_limits limits;
    (void)state;
    assert_int_equal(probe(NULL, 0, BUDGET_NS, &limits, NULL), 0);
    assert_true(limits.memory_copy > MIB);
    assert_int_equal(limits.page_cache, 0);
    assert_int_equal(limits.storage, 0);
    assert_string_equal(limits.storage_detail, "no file was given");
    assert_string_equal(limits.page_cache_detail, "no file was given");
}

/* What stands at `path` is no use: no figure, and details that say why. */
static void expect_reason(const char *path, const char *reason)
{
    struct hr_limits limits;
    assert_int_equal(probe(path, 1, 1, &limits, NULL), 0);
    assert_int_equal(limits.page_cache, 0);
    assert_int_equal(limits.page_cache_threads, 0);
    assert_int_equal(limits.storage, 0);
    assert_non_null(strstr(limits.storage_detail, reason));
    assert_true(*limits.page_cache_detail);
}

static void test_odd_files(void **state)
{
    (void)state;
    expect_reason(test_path("missing"), "No such file");
    expect_reason(test_dir(), "not a regular file");
    assert_int_equal(mkfifo(test_path("pipe"), 0600), 0);
    expect_reason(test_path("pipe"), "not a regular file"); /* and does not hang */
    test_raw_write(test_path("small"), "small", 5);
    expect_reason(test_path("small"), "less than 4 MiB");
}

/* A file that the page cache does not hold: not measured, and not there afterwards either. */
static void test_cold_file(void **state)
{
    struct hr_limits limits;
    const char *path = test_path("cold");
    (void)state;
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
    if (hr_residency_exact(fd, 0, FILE_BYTES) == 0) {
        assert_int_equal(probe(path, 2, BUDGET_NS, &limits, NULL), 0);
        assert_int_equal(limits.page_cache, 0);
        assert_non_null(strstr(limits.page_cache_detail, "holds only 0 MiB"));
        assert_int_equal(hr_residency_exact(fd, 0, FILE_BYTES), 0);
    }
    close(fd);
}

static void test_bad_arguments(void **state)
{
    struct hr_limits limits = {.size = sizeof limits}, untouched = limits;
    struct hr_probe_options options = {.size = sizeof options, .device = "cpu", .budget_ns = 1};
    struct hr_error err;
    (void)state;
    assert_int_equal(hr_probe(&options, NULL, &err), HR_EINVALID_ARGUMENT);
    limits.size = 0;
    assert_int_equal(hr_probe(&options, &limits, &err), HR_EINVALID_ARGUMENT);
    limits.size = sizeof limits;
    options.size = 0;
    assert_int_equal(hr_probe(&options, &limits, &err), HR_EINVALID_ARGUMENT);
    options.size = sizeof options;
    options.reserved = 1;
    assert_int_equal(hr_probe(&options, &limits, &err), HR_EINVALID_ARGUMENT);
    options.reserved = 0;
    options.thread_count = 129;
    assert_int_equal(hr_probe(&options, &limits, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "129"));
    options.thread_count = 1;
    options.device = "tpu:0";
    assert_true(hr_probe(&options, &limits, &err) < 0);
    assert_non_null(strstr(err.message, "tpu:0"));
    assert_memory_equal(&limits, &untouched, sizeof limits);
}

/* A caller with a shorter struct gets what fits. */
static void test_short_struct(void **state)
{
    struct hr_probe_options options = {.size = sizeof options, .device = "cpu", .budget_ns = 1};
    struct hr_limits limits = {.size = offsetof(struct hr_limits, page_cache), .page_cache_fresh = 7};
    (void)state;
    assert_int_equal(hr_probe(&options, &limits, NULL), 0);
    assert_true(limits.memory_copy > 0);
    assert_int_equal(limits.size, offsetof(struct hr_limits, page_cache));
    assert_int_equal(limits.page_cache_fresh, 7);
}

static int scenario(void *context, struct hr_error *err)
{
    struct hr_limits limits;
    int code = probe(context, 2, 1, &limits, err);
    if (code == 0) {
        assert_true(limits.memory_copy > 0);
        assert_int_equal(limits.page_cache > 0, limits.page_cache_threads > 0);
        assert_true(*limits.page_cache_detail);
        assert_true(*limits.storage_detail);
    }
    return code;
}

static void test_every_call_fails(void **state)
{
    (void)state;
    unsigned classes = FAULT_ALL & ~(unsigned)FAULT_READ; /* how many reads there are depends on the clock */
    assert_true(faults_sweep(classes, 0, scenario, (void *)hot_file()) > 20);
}

static void test_reads_fail(void **state)
{
    (void)state;
    for (unsigned long n = 1; n < 60; n += 3) {
        struct hr_limits limits;
        faults_install();
        faults_fail_from(FAULT_READ, n, EIO);
        assert_int_equal(probe(hot_file(), 2, 1, &limits, NULL), 0);
        faults_assert_nothing_live();
        assert_true(faults_fired() || faults_count(FAULT_READ) < n);
        if (n == 1) {
            assert_int_equal(limits.page_cache, 0);
            assert_int_equal(limits.storage, 0);
        }
        if (limits.page_cache == 0 && cachestat_works(hot_file()))
            assert_non_null(strstr(limits.page_cache_detail, strerror(EIO)));
        faults_remove();
    }
}

/* Without threads the calling one measures alone, and says so. */
static void test_no_threads(void **state)
{
    struct hr_limits limits;
    (void)state;
    faults_install();
    faults_fail_from(FAULT_THREAD, 1, EAGAIN);
    assert_int_equal(probe(hot_file(), 4, 1, &limits, NULL), 0);
    faults_assert_nothing_live();
    faults_remove();
    assert_int_equal(limits.page_cache_threads, limits.page_cache ? 1 : 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_without_file),
        cmocka_unit_test(test_odd_files),
        cmocka_unit_test(test_cold_file),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_short_struct),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_reads_fail),
        cmocka_unit_test(test_no_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
