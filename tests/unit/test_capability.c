/*
 * test_capability.c: every entry says something whole, the facts are this machine's, and a machine that refuses is
 * described, not believed in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <headrace/headrace.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "support/faults.h"
#include "support/gpu.h"

#define CAPACITY 32

static const struct hr_capability *find(const struct hr_capability *entries, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    fail_msg("no entry '%s'", name);
    return NULL;
}

static void assert_whole(const struct hr_capability *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_in_range(strlen(entries[i].name), 3, 20);
        assert_in_range(strlen(entries[i].detail), 5, sizeof entries[i].detail - 2); /* longer ones were cut */
        assert_null(strchr(entries[i].detail, '\n'));
        assert_true(entries[i].usable == 0 || entries[i].usable == 1);
    }
}

static void test_here(void **state)
{
    struct hr_capability entries[CAPACITY];
    char expected[64];
    (void)state;
    faults_install();
    size_t count = hr_capabilities(entries, CAPACITY);
    faults_assert_nothing_live();
    faults_remove();
    assert_int_equal(count, 11);
    assert_whole(entries, count);
    assert_int_equal(find(entries, count, "pread")->usable, 1);
    assert_int_equal(find(entries, count, "mmap")->usable, 1);
    assert_int_equal(find(entries, count, "cuda")->usable, gpu_name() != NULL);

    cpu_set_t cores;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    snprintf(expected, sizeof expected, "%d by ", CPU_COUNT(&cores));
    assert_int_equal(strncmp(find(entries, count, "cores")->detail, expected, strlen(expected)), 0);
}

static void test_capacity(void **state)
{
    struct hr_capability entries[3];
    (void)state;
    memset(entries, 0x55, sizeof entries);
    assert_int_equal(hr_capabilities(NULL, 0), 11);
    assert_int_equal(hr_capabilities(entries, 2), 11);
    assert_string_equal(entries[1].name, "io_uring");
    assert_int_equal(entries[2].usable, 0x55555555);
}

static void test_few_descriptors(void **state)
{
    struct hr_capability entries[CAPACITY];
    struct rlimit before, low;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 50; /* CI also runs this with a hard limit of 64 */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    size_t count = hr_capabilities(entries, CAPACITY);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    const char *detail = find(entries, count, "open_files")->detail;
    assert_non_null(strstr(detail, "limit 50 "));
    assert_non_null(strstr(detail, "at most 25 "));
    assert_non_null(strstr(detail, "ulimit -n"));
}

/* Everything that can be refused is refused: no claim survives but those that need nothing. */
static void test_all_refused(void **state)
{
    static const int errors[] = {ENOSYS, EPERM, ENOMEM, EIO};
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct hr_capability entries[CAPACITY];
        faults_install();
        faults_fail_from(FAULT_ALL & ~(unsigned)FAULT_CLOSE, 1, errors[i]);
        size_t count = hr_capabilities(entries, CAPACITY);
        faults_assert_nothing_live();
        faults_remove();
        assert_whole(entries, count);
        assert_int_equal(find(entries, count, "io_uring")->usable, 0);
        assert_int_equal(find(entries, count, "cachestat")->usable, 0);
        assert_int_equal(find(entries, count, "huge_pages")->usable, 0);
        assert_int_equal(find(entries, count, "memory")->usable, 0);
        assert_int_equal(find(entries, count, "pread")->usable, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_here),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_few_descriptors),
        cmocka_unit_test(test_all_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
