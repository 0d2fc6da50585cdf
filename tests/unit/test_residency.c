/*
 * test_residency.c: what the page cache holds, asked in each way, on kernels that lack any of them, and about files of
 * others; and leaving the page cache as it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "io/residency.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/make_files.h"
#include "support/page_cache.h"

#define MIB (UINT64_C(1) << 20)
#define PAGE UINT64_C(4096)
#define FILE_BYTES (8 * MIB + 123)
#define NOBODY 65534

static int hot_file(void)
{
    return page_cache_file(test_path("hot"), 1, FILE_BYTES);
}

static int cold_file(void)
{
    int fd = page_cache_file(test_path("cold"), 2, FILE_BYTES);
    page_cache_empty(fd, FILE_BYTES);
    return fd;
}

/* Refuses what comes before `way`. */
static struct fake_storage only(enum hr_residency_way way)
{
    struct fake_storage lacking = {0};
    lacking.cachestat_error = way > HR_RESIDENCY_CACHESTAT ? EPERM : 0;
    lacking.flags_error = way > HR_RESIDENCY_PROBES ? EOPNOTSUPP : 0;
    return lacking;
}

static int64_t ask(int fd, enum hr_residency_way way, uint64_t offset, uint64_t size)
{
    struct fake_storage lacking = only(way);
    enum hr_residency_way used = HR_RESIDENCY_UNKNOWN;
    fake_storage_install(&lacking);
    int64_t found = hr_residency(fd, offset, size, &used);
    fake_storage_remove();
    assert_int_equal(used, found < 0 ? HR_RESIDENCY_UNKNOWN : way);
    return found;
}

#define FOR_WAYS(way) for (enum hr_residency_way way = HR_RESIDENCY_CACHESTAT; way <= HR_RESIDENCY_MINCORE; way++)

static int has_cachestat(void)
{
    if (hr_residency_exact(-1, 0, 1) == -EBADF)
        return 1;
    print_message("skipped: this kernel has no cachestat\n");
    return 0;
}

/* Reads without waiting, which tmpfs does not know. */
static int has_probes(int fd)
{
    char byte;
    struct iovec vector = {&byte, 1};
    return hr_sys->preadv(fd, &vector, 1, 0, RWF_NOWAIT) == 1;
}

static void test_hot(void **state)
{
    (void)state;
    if (!has_cachestat())
        skip();
    int fd = hot_file();
    if (!has_probes(fd))
        skip();
    FOR_WAYS(way)
    {
        assert_int_equal(ask(fd, way, 0, FILE_BYTES), FILE_BYTES);
        assert_int_equal(ask(fd, way, 4095, 2), 2);
        assert_int_equal(ask(fd, way, MIB + 17, 3 * MIB), 3 * MIB);
        assert_int_equal(ask(fd, way, FILE_BYTES + 10000, 5), 0);
    }
    assert_int_equal(hr_residency(fd, 0, 0, NULL), 0);
    assert_int_equal(hr_residency(-1, 0, 1, NULL), -EBADF);
    close(fd);
}

/* Asking brings nothing in, but for a page at each place that is probed. */
static void test_cold(void **state)
{
    static const uint64_t brought_in_max[] = {0, 0, 8 * PAGE, 0};
    (void)state;
    FOR_WAYS(way)
    {
        int fd = cold_file();
        assert_int_equal(ask(fd, way, 0, FILE_BYTES), 0);
        usleep(20000);
        assert_true((uint64_t)hr_residency_exact(fd, 0, FILE_BYTES) <= brought_in_max[way]);
        close(fd);
    }
}

static void test_half(void **state)
{
    (void)state;
    FOR_WAYS(way)
    {
        int fd = cold_file();
        page_cache_fill(fd, 2 * MIB, 4 * MIB);
        assert_int_equal(ask(fd, way, 2 * MIB, 4 * MIB), 4 * MIB);
        int64_t found = ask(fd, way, 0, 8 * MIB);
        assert_in_range(found, 4 * MIB - (way == HR_RESIDENCY_PROBES ? MIB : 0),
                        4 * MIB + (way == HR_RESIDENCY_PROBES ? MIB : 0));
        close(fd);
    }
}

/* More than one mapping of mincore, and a range that begins and ends within pages. */
static void test_large_hole(void **state)
{
    (void)state;
    int fd = open(test_path("hole"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 40 * MIB), 0);
    page_cache_empty(fd, 40 * MIB);
    page_cache_fill(fd, 39 * MIB, 5 * PAGE);
    page_cache_fill(fd, 16 * MIB, PAGE);
    if (hr_residency_exact(fd, 0, 40 * MIB) != 6 * PAGE)
        skip(); /* reading a hole of tmpfs makes no pages */
    assert_int_equal(ask(fd, HR_RESIDENCY_MINCORE, 0, 40 * MIB), 6 * PAGE);
    assert_int_equal(ask(fd, HR_RESIDENCY_MINCORE, 16 * MIB + 5, 24 * MIB - 9), 6 * PAGE);
    assert_int_equal(ask(fd, HR_RESIDENCY_MINCORE, 16 * MIB + PAGE, 23 * MIB - 1), PAGE);
    close(fd);
}

static void test_unknown(void **state)
{
    static const int refusals[] = {ENOSYS, EPERM, EINVAL, EOPNOTSUPP, EACCES};
    int fd = hot_file();
    (void)state;
    if (!has_probes(fd))
        skip();
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct fake_storage lacking = {.cachestat_error = refusals[i]};
        enum hr_residency_way way = HR_RESIDENCY_CACHESTAT;
        fake_storage_install(&lacking);
        assert_int_equal(hr_residency_exact(fd, 0, FILE_BYTES), -refusals[i]);
        assert_int_equal(hr_residency(fd, 0, FILE_BYTES, &way), FILE_BYTES);
        assert_int_equal(way, HR_RESIDENCY_PROBES);
        fake_storage_remove();
        lacking.fadvise_error = refusals[i]; /* without advice no probe is made: it would start read-ahead */
        fake_storage_install(&lacking);
        assert_int_equal(hr_residency(fd, 0, FILE_BYTES, &way), FILE_BYTES);
        assert_int_equal(way, HR_RESIDENCY_MINCORE);
        assert_int_equal(fake_storage_read_count(), 0);
        fake_storage_remove();
        lacking.may_write_error = EACCES;
        fake_storage_install(&lacking);
        assert_int_equal(hr_residency(fd, 0, FILE_BYTES, &way), -refusals[i]);
        assert_int_equal(way, HR_RESIDENCY_UNKNOWN);
        fake_storage_remove();
    }
    close(fd);
}

/* The n-th call failing: the answer is true or unknown, and nothing stays mapped. */
static void test_every_call_failing(void **state)
{
    int fd = hot_file();
    (void)state;
    FOR_WAYS(way)
    {
        struct fake_storage lacking = only(way);
        fake_storage_install(&lacking);
        for (unsigned long n = 1, fired = 1; fired; n++) {
            faults_install();
            faults_fail(FAULT_ALL, n, EIO);
            int64_t found = hr_residency(fd, 0, FILE_BYTES, NULL);
            fired = faults_fired();
            faults_assert_nothing_live();
            faults_remove();
            assert_true(found < 0 || found == (int64_t)FILE_BYTES);
        }
        fake_storage_remove();
    }
    close(fd);
}

static void test_memory_filesystem(void **state)
{
    unsigned char bytes[10000] = {1};
    const char *path = "/dev/shm/headrace-test-residency";
    (void)state;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || !has_cachestat()) {
        print_message("skipped: no /dev/shm\n");
        skip();
    }
    unlink(path);
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(ask(fd, HR_RESIDENCY_CACHESTAT, 0, sizeof bytes), sizeof bytes);
    assert_int_equal(ask(fd, HR_RESIDENCY_MINCORE, 0, sizeof bytes), sizeof bytes);
    close(fd);
}

/* ------------------------------------------------------------------------------------ files of others */

struct answers {
    int64_t hot, cold, by_probes, without_probes;
    enum hr_residency_way way;
};

static void ask_as_nobody(int hot, int cold, struct answers *ret)
{
    ret->hot = hr_residency(hot, 0, FILE_BYTES, &ret->way);
    ret->cold = hr_residency(cold, 0, FILE_BYTES, NULL);
    ret->by_probes = ask(cold, HR_RESIDENCY_PROBES, 0, MIB);
    ret->without_probes = ask(cold, HR_RESIDENCY_MINCORE, 0, FILE_BYTES);
}

/* Another user's file: what is cold is never said to be resident, as mincore would. */
static void test_files_of_others(void **state)
{
    struct answers answers = {0};
    int pipe_fds[2], status;
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: only root can become somebody else\n");
        skip();
    }
    int hot = hot_file(), cold = cold_file();
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (setgid(NOBODY) || setuid(NOBODY))
            _exit(2);
        ask_as_nobody(hot, cold, &answers);
        _exit(write(pipe_fds[1], &answers, sizeof answers) != sizeof answers);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read(pipe_fds[0], &answers, sizeof answers), sizeof answers);
    assert_int_equal(answers.hot, FILE_BYTES);
    assert_int_equal(answers.cold, 0);
    assert_in_range(answers.way, HR_RESIDENCY_CACHESTAT, HR_RESIDENCY_PROBES);
    assert_true(answers.by_probes >= 0);
    assert_int_equal(answers.without_probes, -EPERM);
    close(pipe_fds[0]), close(pipe_fds[1]), close(hot), close(cold);
}

/* -------------------------------------------------------------------------------------- dropping behind */

static void test_drop_behind(void **state)
{
    (void)state;
    int fd = cold_file();
    page_cache_fill(fd, 0, MIB);
    assert_int_equal(hr_drop_behind(fd, 100, 0), 0);
    assert_int_equal(hr_residency_exact(fd, 0, MIB), MIB);
    assert_int_equal(hr_drop_behind(fd, PAGE + 1, 10 * PAGE), 0); /* two pages in part, nine as a whole */
    assert_int_equal(hr_residency_exact(fd, 0, MIB), MIB - 9 * PAGE);
    page_cache_fill(fd, 8 * MIB - PAGE, PAGE + 123);
    assert_int_equal(hr_drop_behind(fd, 8 * MIB, 123), 0); /* the file's last page */
    assert_int_equal(hr_residency_exact(fd, 8 * MIB - PAGE, PAGE + 123), PAGE);
    assert_int_equal(hr_drop_behind(fd, 0, FILE_BYTES), 0);
    assert_int_equal(hr_residency_exact(fd, 0, FILE_BYTES), 0);
    assert_int_equal(hr_drop_behind(-1, 0, 1), -EBADF);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot),
        cmocka_unit_test(test_cold),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_large_hole),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_every_call_failing),
        cmocka_unit_test(test_memory_filesystem),
        cmocka_unit_test(test_files_of_others),
        cmocka_unit_test(test_drop_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
