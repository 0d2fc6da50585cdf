/*
 * test_files.c: the bounded set of open files: sharing, closing after the last use, making room, waiting for room,
 * descriptors with O_DIRECT, and a process without descriptors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/files.h"
#include "support/faults.h"
#include "support/test_model.h"

#define FILE_COUNT 20

static struct test_model model;
static struct hr_sys limited; /* the table with a descriptor limit of our own */
static uint64_t descriptor_limit;

static int fake_limits(uint64_t *ret_soft, uint64_t *ret_hard)
{
    *ret_soft = descriptor_limit;
    *ret_hard = descriptor_limit;
    return 0;
}

static int setup(void **state)
{
    (void)state;
    model_equal(&model, "file", FILE_COUNT, 100, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    return 0;
}

/* Half of `limit` descriptors for the set, `uses` of each file. */
static struct hr_files *files_make(uint64_t limit, size_t uses)
{
    struct hr_error err = {0};
    struct hr_files *files = NULL;
    size_t use_counts[FILE_COUNT];
    for (size_t i = 0; i < FILE_COUNT; i++)
        use_counts[i] = uses;
    descriptor_limit = limit;
    limited = hr_sys_real;
    limited.descriptor_limits = fake_limits;
    hr_sys = &limited;
    faults_install();
    assert_ok(hr_files_new(model.checkpoint, use_counts, &files, &err), err);
    return files;
}

static void files_drop(struct hr_files *files)
{
    hr_files_free(files);
    faults_assert_nothing_live();
    faults_remove();
    hr_sys = &hr_sys_real;
}

static int acquire_in(struct hr_files *files, size_t file_index, uint32_t *mode)
{
    struct hr_error err = {0};
    int fd = -1;
    int code = hr_files_acquire(files, file_index, mode, &fd, &err);
    if (code < 0)
        assert_ok(code, err);
    return code ? -1 : fd;
}

static int acquire(struct hr_files *files, size_t file_index)
{
    uint32_t mode = HR_READ_BUFFERED;
    return acquire_in(files, file_index, &mode);
}

static void test_shared_and_closed(void **state)
{
    (void)state;
    struct hr_files *files = files_make(100, 2);
    int fd = acquire(files, 3);
    assert_true(fd >= 0);
    assert_int_equal(acquire(files, 3), fd);
    assert_int_equal(faults_live().descriptor_count, 1);
    hr_files_release(files, 3);
    assert_int_equal(faults_live().descriptor_count, 1); /* one still holds it */
    hr_files_release(files, 3);
    assert_int_equal(faults_live().descriptor_count, 0); /* that was the last use */
    assert_true(acquire(files, 3) >= 0);                 /* one more than was said works too */
    hr_files_release(files, 3);
    assert_int_equal(faults_live().descriptor_count, 0);
    assert_true(acquire(files, 4) >= 0);
    hr_files_release(files, 4);
    assert_int_equal(faults_live().descriptor_count, 1); /* kept for its next use */
    files_drop(files);
}

static void test_bounded(void **state)
{
    (void)state;
    struct hr_files *files = files_make(8, 2);
    for (size_t i = 0; i < 4; i++)
        assert_true(acquire(files, i) >= 0);
    assert_int_equal(acquire(files, 4), -1);
    assert_true(acquire(files, 2) >= 0); /* what is open can be shared */
    hr_files_release(files, 1);
    assert_true(acquire(files, 4) >= 0); /* the idle one makes room */
    assert_int_equal(faults_live().descriptor_count, 4);
    assert_int_equal(acquire(files, 1), -1);
    hr_files_free(files); /* closes what is held, too */
    faults_assert_nothing_live();
    faults_remove();
    hr_sys = &hr_sys_real;
}

/* Others of the program have the rest of the descriptors: the set lives with those it has. */
static void test_process_without_descriptors(void **state)
{
    struct hr_error err = {0};
    uint32_t mode = HR_READ_BUFFERED;
    int fd;
    (void)state;
    struct hr_files *files = files_make(100, 2);
    faults_fail_from(FAULT_OPEN, 1, EMFILE);
    assert_code(hr_files_acquire(files, 0, &mode, &fd, &err), HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, EMFILE);
    assert_non_null(strstr(err.message, "ulimit -n"));
    assert_string_equal(err.file, model.paths[0]);
    faults_fail(0, 0, 0);
    assert_true(acquire(files, 0) >= 0);
    assert_true(acquire(files, 1) >= 0);
    faults_fail(FAULT_OPEN, 1, ENFILE);
    assert_int_equal(acquire(files, 2), -1);
    assert_int_equal(acquire(files, 2), -1); /* from now on two are the bound */
    hr_files_release(files, 0);
    assert_true(acquire(files, 2) >= 0);
    assert_int_equal(faults_live().descriptor_count, 2);
    hr_files_release(files, 1);
    hr_files_release(files, 2);
    files_drop(files);
}

static void test_changed(void **state)
{
    struct hr_error err = {0};
    struct test_model changed;
    uint32_t mode = HR_READ_BUFFERED;
    int fd = -7;
    size_t uses = 3;
    (void)state;
    model_equal(&changed, "changing", 1, 1000, 1);
    struct hr_files *files;
    assert_ok(hr_files_new(changed.checkpoint, &uses, &files, &err), err);
    assert_int_equal(hr_files_acquire(files, 0, &mode, &fd, &err), 0);
    assert_int_equal(hr_files_check(files, 0, &err), 0);
    assert_int_equal(truncate(changed.paths[0], 500), 0);
    assert_code(hr_files_check(files, 0, &err), HR_EFILE_CHANGED);
    assert_string_equal(err.file, changed.paths[0]);
    hr_files_release(files, 0);
    hr_files_free(files);
    assert_ok(hr_files_new(changed.checkpoint, &uses, &files, &err), err);
    assert_code(hr_files_acquire(files, 0, &mode, &fd, &err), HR_EFILE_CHANGED);
    unlink(changed.paths[0]);
    assert_code(hr_files_acquire(files, 0, &mode, &fd, &err), HR_EFILE_CHANGED);
    assert_int_equal(err.sys_errno, ENOENT);
    hr_files_free(files);
    model_close(&changed);
}

/* ---------------------------------------------------------------------------------- past the page cache */

static int has_direct(int fd)
{
    return (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

static void test_two_descriptors(void **state)
{
    uint32_t direct = HR_READ_DIRECT, drop = HR_READ_DROP;
    (void)state;
    struct hr_files *files = files_make(100, 3);
    int direct_fd = acquire_in(files, 3, &direct);
    if (direct != HR_READ_DIRECT) {
        hr_files_free(files);
        faults_remove();
        print_message("skipped: no O_DIRECT on this filesystem\n");
        skip();
    }
    assert_true(has_direct(direct_fd));
    assert_int_equal(hr_files_check(files, 3, NULL), 0); /* by the only one that is open */
    int fd = acquire_in(files, 3, &drop);
    assert_true(fd >= 0 && fd != direct_fd && !has_direct(fd));
    assert_int_equal(drop, HR_READ_DROP);
    assert_int_equal(acquire_in(files, 3, &direct), direct_fd);
    assert_int_equal(faults_live().descriptor_count, 2);
    hr_files_release(files, 3);
    hr_files_release(files, 3);
    assert_int_equal(faults_live().descriptor_count, 2);
    hr_files_release(files, 3);
    assert_int_equal(faults_live().descriptor_count, 0);
    files_drop(files);
}

/* The limit counts both; each of an idle file's two makes room for one. */
static void test_both_bounded(void **state)
{
    uint32_t direct = HR_READ_DIRECT, buffered = HR_READ_BUFFERED;
    (void)state;
    struct hr_files *files = files_make(6, 9);
    assert_true(acquire_in(files, 0, &direct) >= 0);
    assert_true(acquire_in(files, 0, &buffered) >= 0);
    if (direct != HR_READ_DIRECT) {
        hr_files_free(files);
        faults_remove();
        skip();
    }
    assert_true(acquire_in(files, 1, &direct) >= 0);
    assert_int_equal(acquire_in(files, 1, &buffered), -1);
    assert_int_equal(acquire_in(files, 2, &buffered), -1);
    hr_files_release(files, 0);
    assert_int_equal(acquire_in(files, 2, &buffered), -1); /* one still holds file 0 */
    hr_files_release(files, 0);
    assert_true(acquire_in(files, 1, &buffered) >= 0);
    assert_true(acquire_in(files, 2, &buffered) >= 0);
    assert_int_equal(acquire_in(files, 2, &direct), -1);
    assert_int_equal(faults_live().descriptor_count, 3);
    hr_files_release(files, 1);
    hr_files_release(files, 1);
    hr_files_release(files, 2);
    assert_int_equal(faults_live().descriptor_count, 3);
    files_drop(files);
}

/* Refused at open, or said by the caller to be refused when read: the other descriptor, without trying again. */
static void test_direct_refused(void **state)
{
    static const int errors[] = {EINVAL, EOPNOTSUPP};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct hr_files *files = files_make(100, 2);
        uint32_t mode = HR_READ_DIRECT;
        faults_fail(FAULT_OPEN, 1, errors[i]);
        int fd = acquire_in(files, 0, &mode);
        assert_true(fd >= 0 && !has_direct(fd));
        assert_int_equal(mode, HR_READ_BUFFERED);
        mode = HR_READ_DIRECT;
        assert_int_equal(acquire_in(files, 0, &mode), fd);
        assert_int_equal(mode, HR_READ_BUFFERED);
        assert_int_equal(faults_count(FAULT_OPEN), 2);
        mode = HR_READ_DIRECT;
        hr_files_refuse_direct(files, 1);
        fd = acquire_in(files, 1, &mode);
        assert_true(fd >= 0 && !has_direct(fd));
        assert_int_equal(mode, HR_READ_BUFFERED);
        hr_files_release(files, 0);
        hr_files_release(files, 0);
        hr_files_release(files, 1);
        files_drop(files);
    }
}

/* Other errors of opening are errors, and leave the caller's variables alone. */
static void test_direct_fails(void **state)
{
    struct hr_error err = {0};
    uint32_t mode = HR_READ_DIRECT;
    int fd = -7;
    (void)state;
    struct hr_files *files = files_make(100, 2);
    faults_fail(FAULT_OPEN, 1, EIO);
    assert_code(hr_files_acquire(files, 0, &mode, &fd, &err), HR_EIO_ERROR);
    faults_fail_from(FAULT_OPEN, 1, EINVAL); /* the second try, too */
    assert_code(hr_files_acquire(files, 0, &mode, &fd, &err), HR_EIO_ERROR);
    faults_fail(FAULT_STAT, 1, EIO);
    assert_code(hr_files_acquire(files, 1, &mode, &fd, &err), HR_EIO_ERROR);
    assert_int_equal(fd, -7);
    assert_int_equal(mode, HR_READ_DIRECT);
    assert_int_equal(faults_live().descriptor_count, 0);
    files_drop(files);
}

/* ----------------------------------------------------------------------------------------- threads */

struct worker {
    struct hr_files *files;
    unsigned number;
    int failed;
};

/* Takes and gives back files in an order of its own; checks that no descriptor means another file. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    char header[200];
    for (unsigned turn = 0; turn < 300; turn++) {
        size_t file_index = test_byte(worker->number, turn) % FILE_COUNT;
        uint32_t mode = turn % 3 ? HR_READ_BUFFERED : HR_READ_DIRECT;
        int fd, code;
        while ((code = hr_files_acquire(worker->files, file_index, &mode, &fd, NULL)) > 0)
            hr_files_wait(worker->files);
        if (code < 0) {
            worker->failed = 1;
            return NULL;
        }
        size_t at = hr_checkpoint_at(model.checkpoint, file_index)->offset;
        if (mode != HR_READ_DIRECT &&
            (pread(fd, header, 100, (off_t)at) != 100 || test_mismatch(header, file_index + 7, 0, 100) != 100))
            worker->failed = 1;
        worker->failed |= has_direct(fd) != (mode == HR_READ_DIRECT);
        worker->failed |= hr_files_check(worker->files, file_index, NULL) < 0;
        if (turn % 16 == 0)
            sched_yield();
        hr_files_release(worker->files, file_index);
    }
    return NULL;
}

static void run_workers(struct hr_files *files, void *(*main)(void *), int *failed_count)
{
    struct worker workers[8];
    pthread_t threads[8];
    for (unsigned i = 0; i < 8; i++) {
        workers[i] = (struct worker){files, i, 0};
        pthread_create(&threads[i], NULL, main, &workers[i]);
    }
    *failed_count = 0;
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        *failed_count += workers[i].failed;
    }
}

static void test_threads(void **state)
{
    static const uint64_t limits[] = {2, 6, 30, 200};
    int failed_count;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct hr_files *files = files_make(limits[i], 100000);
        run_workers(files, work, &failed_count);
        assert_int_equal(failed_count, 0);
        assert_true(faults_live().descriptor_count <= (long)limits[i] / 2);
        files_drop(files);
    }
}

static atomic_int opening_count;

/* Fails only when all 8 are here: each of them sees others that have a place. */
static int open_together(const char *path, int flags)
{
    (void)path, (void)flags;
    atomic_fetch_add(&opening_count, 1);
    for (int i = 0; i < 100000 && atomic_load(&opening_count) < 8; i++)
        sched_yield();
    return -EMFILE;
}

static void *open_once(void *argument)
{
    struct worker *worker = argument;
    uint32_t mode = HR_READ_BUFFERED;
    int fd, code;
    while ((code = hr_files_acquire(worker->files, worker->number, &mode, &fd, NULL)) > 0)
        hr_files_wait(worker->files);
    worker->failed = code < 0;
    return NULL;
}

/* Threads that find no descriptor at the same time do not wait for each other: all of them fail. */
static void test_all_without_descriptors(void **state)
{
    int failed_count;
    (void)state;
    for (int turn = 0; turn < 50; turn++) {
        struct hr_files *files = files_make(100, 1);
        struct hr_sys none = *hr_sys;
        const struct hr_sys *before = hr_sys;
        none.open = open_together;
        atomic_store(&opening_count, 0);
        hr_sys = &none;
        run_workers(files, open_once, &failed_count);
        hr_sys = before;
        assert_int_equal(failed_count, 8);
        files_drop(files);
    }
}

static void test_no_memory(void **state)
{
    struct hr_error err = {0};
    struct hr_files *files = NULL;
    size_t uses[FILE_COUNT] = {0};
    (void)state;
    for (unsigned long n = 1; n <= 2; n++) {
        faults_install();
        faults_fail(FAULT_MEMORY, n, 0);
        assert_code(hr_files_new(model.checkpoint, uses, &files, &err), HR_EOUT_OF_MEMORY);
        assert_null(files);
        faults_assert_nothing_live();
        faults_remove();
    }
    hr_files_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_and_closed),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_process_without_descriptors),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_two_descriptors),
        cmocka_unit_test(test_both_bounded),
        cmocka_unit_test(test_direct_refused),
        cmocka_unit_test(test_direct_fails),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_all_without_descriptors),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
