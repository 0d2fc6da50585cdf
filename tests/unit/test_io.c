/*
 * test_io.c: both io backends against real files, one that misbehaves, and refusals of every call below them. The
 * same tests run over each backend; io_uring's are skipped, by name, where this machine refuses it.
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
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/io.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/make_files.h"

#define SEED 7
#define FILE_BYTES 1000123u
#define READ_BYTES 5000u
#define READ_COUNT 150u
#define DEPTH 8u

static const char *content_path(void)
{
    static const char *path;
    static unsigned char content[FILE_BYTES];
    if (!path) {
        path = test_path("content");
        test_fill(content, SEED, 0, sizeof content);
        test_raw_write(path, content, sizeof content);
    }
    return path;
}

static int content_open(void)
{
    int fd = open(content_path(), O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static struct hr_io *io_open(const struct hr_io_backend *backend, uint32_t depth)
{
    struct hr_io *io;
    struct hr_error err;
    if (backend->open(depth, &io, &err))
        fail_msg("%s: %s", backend->name, err.message);
    return io;
}

/* One operation with its own memory. */
struct read {
    struct hr_io_op op;
    struct iovec vector;
    int returned_count;
    unsigned char bytes[READ_BYTES];
};

static struct read reads[READ_COUNT];

static struct hr_io_op *read_init(size_t index, int fd, uint64_t offset, size_t size)
{
    struct read *read = &reads[index];
    memset(read, 0xee, sizeof *read);
    read->returned_count = 0;
    read->vector = (struct iovec){read->bytes, size};
    read->op = (struct hr_io_op){.fd = fd, .vector_count = 1, .offset = offset, .vectors = &read->vector};
    return &read->op;
}

static struct hr_io_op *wait_one(const struct hr_io_backend *backend, struct hr_io *io)
{
    struct hr_io_op *op = backend->wait(io);
    assert_non_null(op);
    struct read *read = (struct read *)((char *)op - offsetof(struct read, op));
    assert_true(read >= reads && read < reads + READ_COUNT);
    read->returned_count++;
    return op;
}

static void assert_content(const struct read *read)
{
    size_t size = (size_t)read->op.result;
    assert_true(read->op.result >= 0 && size <= read->vector.iov_len);
    assert_int_equal(test_mismatch(read->bytes, SEED, read->op.offset, size), size);
}

/* Reads READ_COUNT places all over the file, DEPTH at a time; each must come back once. */
static void read_all_over(const struct hr_io_backend *backend, struct hr_io *io, int fd)
{
    size_t in_flight = 0;
    for (size_t i = 0; i < READ_COUNT; i++) {
        if (in_flight == DEPTH) {
            wait_one(backend, io);
            in_flight--;
        }
        uint64_t offset = i * 6151 % (FILE_BYTES - READ_BYTES);
        assert_int_equal(backend->submit(io, read_init(i, fd, offset, READ_BYTES - i)), 0);
        in_flight++;
    }
    while (in_flight-- > 0)
        wait_one(backend, io);
    assert_null(backend->wait(io));
    for (size_t i = 0; i < READ_COUNT; i++)
        assert_int_equal(reads[i].returned_count, 1);
}

static void test_many(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct hr_io *io = io_open(backend, DEPTH);
    int fd = content_open();
    assert_null(backend->wait(io));
    for (int round = 0; round < 3; round++) { /* the queues wrap around */
        read_all_over(backend, io, fd);
        for (size_t i = 0; i < READ_COUNT; i++) {
            assert_int_equal(reads[i].op.result, READ_BYTES - i);
            assert_content(&reads[i]);
        }
    }
    close(fd);
    backend->close(io);
    backend->close(NULL);
}

static void test_vectors(void **state)
{
    const struct hr_io_backend *backend = *state;
    static unsigned char memory[3 * HR_IOV_MAX];
    struct iovec vectors[HR_IOV_MAX];
    struct hr_io *io = io_open(backend, 1);
    int fd = content_open();
    memset(memory, 0xee, sizeof memory);
    for (size_t i = 0; i < HR_IOV_MAX; i++) /* two bytes of three, so that what lies between must stay */
        vectors[i] = (struct iovec){memory + 3 * i, 2};
    struct hr_io_op op = {.fd = fd, .vector_count = HR_IOV_MAX, .offset = 777, .vectors = vectors};
    assert_int_equal(backend->submit(io, &op), 0);
    assert_ptr_equal(backend->wait(io), &op);
    assert_int_equal(op.result, 2 * HR_IOV_MAX);
    for (size_t i = 0; i < HR_IOV_MAX; i++) {
        assert_int_equal(memory[3 * i], test_byte(SEED, 777 + 2 * i));
        assert_int_equal(memory[3 * i + 1], test_byte(SEED, 777 + 2 * i + 1));
        assert_int_equal(memory[3 * i + 2], 0xee);
    }
    close(fd);
    backend->close(io);
}

static void test_end_of_file(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct hr_io *io = io_open(backend, 3);
    int fd = content_open();
    backend->submit(io, read_init(0, fd, FILE_BYTES - 10, 100));
    backend->submit(io, read_init(1, fd, FILE_BYTES, 100));
    backend->submit(io, read_init(2, fd, FILE_BYTES + 5000, 100));
    for (int i = 0; i < 3; i++)
        wait_one(backend, io);
    assert_int_equal(reads[0].op.result, 10);
    assert_content(&reads[0]);
    assert_int_equal(reads[0].bytes[10], 0xee);
    assert_int_equal(reads[1].op.result, 0);
    assert_int_equal(reads[2].op.result, 0);
    close(fd);
    backend->close(io);
}

static void test_bad_files(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct hr_io *io = io_open(backend, 3);
    int fd = content_open(), folder = open(test_dir(), O_RDONLY | O_CLOEXEC);
    backend->submit(io, read_init(0, -1, 0, 100));
    backend->submit(io, read_init(1, folder, 0, 100));
    backend->submit(io, read_init(2, fd, 0, 100));
    for (int i = 0; i < 3; i++)
        wait_one(backend, io);
    assert_int_equal(reads[0].op.result, -EBADF);
    assert_int_equal(reads[1].op.result, -EISDIR);
    assert_int_equal(reads[2].op.result, 100);
    assert_content(&reads[2]);
    close(folder);
    close(fd);
    backend->close(io);
}

static void test_repeats(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct fake_storage storage = {.seed = 1, .short_percent = 40, .eintr_percent = 30, .eagain_percent = 30};
    size_t short_count = 0;
    int fd = content_open();
    fake_storage_install(&storage);
    struct hr_io *io = io_open(backend, DEPTH);
    read_all_over(backend, io, fd);
    backend->close(io);
    assert_true(fake_storage_read_count() > READ_COUNT * 3 / 2);
    fake_storage_remove();
    for (size_t i = 0; i < READ_COUNT; i++) {
        assert_true(reads[i].op.result > 0);
        assert_content(&reads[i]);
        short_count += reads[i].op.result < (int64_t)(READ_BYTES - i);
    }
    assert_in_range(short_count, READ_COUNT / 5, READ_COUNT * 3 / 5);
    close(fd);
}

/* The drive of fake_storage.h: bandwidth is shared, and latencies pass at the same time where reads are in flight so. */
static void test_shared_drive(void **state)
{
    const struct hr_io_backend *backend = *state;
    const uint64_t latency_ns = 4000000, bytes = READ_COUNT * READ_BYTES - READ_COUNT * (READ_COUNT - 1) / 2;
    struct fake_storage storage = {.bandwidth = 0.02, .latency_ns = latency_ns};
    int fd = content_open();
    fake_storage_install(&storage);
    struct hr_io *io = io_open(backend, DEPTH);
    uint64_t from_ns = hr_sys->clock_ns();
    read_all_over(backend, io, fd);
    uint64_t ns = hr_sys->clock_ns() - from_ns;
    backend->close(io);
    fake_storage_remove();
    assert_true(ns >= (uint64_t)((double)bytes / storage.bandwidth) + latency_ns);
    if (backend == &hr_io_pread) /* one read after the other */
        assert_true(ns >= READ_COUNT * latency_ns);
    else
        assert_true(ns < READ_COUNT * latency_ns);
    close(fd);
}

/* EAGAIN without end becomes an error; EINTR without end is not tried: nothing could be done about it. */
static void test_again_for_ever(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct fake_storage storage = {.eagain_percent = 100};
    int fd = content_open();
    fake_storage_install(&storage);
    struct hr_io *io = io_open(backend, 1);
    backend->submit(io, read_init(0, fd, 0, 100));
    wait_one(backend, io);
    assert_int_equal(reads[0].op.result, -EAGAIN);
    assert_int_equal(fake_storage_read_count(), HR_IO_RETRY_MAX + 1);
    fake_storage_remove();
    backend->close(io);
    close(fd);
}

static void test_bad_sector(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct fake_storage storage = {.fail_begin = 500000, .fail_end = 500001, .fail_path = content_path()};
    size_t failed_count = 0;
    int fd = content_open();
    fake_storage_install(&storage);
    struct hr_io *io = io_open(backend, DEPTH);
    read_all_over(backend, io, fd);
    backend->close(io);
    fake_storage_remove();
    for (size_t i = 0; i < READ_COUNT; i++) {
        const struct hr_io_op *op = &reads[i].op;
        int touched = op->offset <= 500000 && op->offset + READ_BYTES - i > 500000;
        failed_count += (size_t)touched;
        assert_int_equal(op->result, touched ? -EIO : (int64_t)(READ_BYTES - i));
        if (!touched)
            assert_content(&reads[i]);
    }
    assert_true(failed_count > 0);
    close(fd);
}

/* Open, read, close; what went wrong becomes one error, as the engine would say it. */
static int read_once(void *context, struct hr_error *err)
{
    const struct hr_io_backend *backend = context;
    struct hr_io *io = NULL;
    int64_t result;
    int fd = hr_sys->open(content_path(), O_RDONLY);
    if (fd < 0)
        return hr_fail_sys(err, HR_EIO_ERROR, -fd, "cannot open it");
    int code = backend->open(2, &io, err);
    if (code) {
        assert_null(io);
        hr_sys->close(fd);
        return code;
    }
    for (size_t i = 0; i < 2 && !code; i++) {
        result = backend->submit(io, read_init(i, fd, i * 100, 100));
        if (result < 0)
            code = hr_fail_sys(err, HR_EIO_ERROR, (int)-result, "cannot submit");
    }
    for (struct hr_io_op *op; (op = backend->wait(io));) {
        if (op->result < 0)
            code = hr_fail_sys(err, HR_EIO_ERROR, (int)-op->result, "cannot read");
        else
            assert_content((struct read *)((char *)op - offsetof(struct read, op)));
    }
    backend->close(io);
    hr_sys->close(fd);
    return code;
}

static void test_every_call_failing(void **state)
{
    union {
        const void *in;
        void *out;
    } backend = {*state};
    static const int errors[] = {0, EINTR, EAGAIN, EBUSY, EINVAL, EBADF, ENOMEM, EPERM};
    content_path();
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        assert_true(faults_sweep(FAULT_ALL, errors[i], read_once, backend.out) >= 4);
}

static void test_open_without_memory(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct hr_io *io = NULL;
    struct hr_error err;
    faults_install();
    faults_fail(FAULT_MEMORY, 1, 0);
    assert_int_equal(backend->open(DEPTH, &io, &err), HR_EOUT_OF_MEMORY);
    assert_null(io);
    assert_int_equal(err.code, HR_EOUT_OF_MEMORY);
    faults_assert_nothing_live();
    faults_remove();
}

/* ------------------------------------------------------------------------------------ io_uring only */

static void test_uring_refused(void **state)
{
    static const struct {
        int error, code;
        const char *reason;
    } cases[] = {
        {ENOSYS, HR_EUNSUPPORTED, "no io_uring"},
        {EPERM, HR_EUNSUPPORTED, "seccomp"}, /* kernel.io_uring_disabled is 0 where these tests can run at all */
        {ENOMEM, HR_EOUT_OF_MEMORY, "ulimit -l"},
        {EMFILE, HR_EUNSUPPORTED, "ulimit -n"},
        {EINVAL, HR_EUNSUPPORTED, "refused"},
    };
    (void)state;
    faults_install();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_io *io = NULL;
        struct hr_error err;
        char detail[240];
        faults_fail_from(FAULT_RING, 1, cases[i].error);
        assert_int_equal(hr_io_uring.open(DEPTH, &io, &err), cases[i].code);
        assert_null(io);
        assert_int_equal(err.sys_errno, cases[i].error);
        assert_non_null(strstr(err.message, cases[i].reason));
        assert_non_null(strstr(err.message, "pread"));
        assert_int_equal(hr_io_uring.probe(detail, sizeof detail), 0);
        assert_non_null(strstr(detail, cases[i].reason));
        faults_assert_nothing_live();
    }
    faults_remove();
}

/* An older kernel that does not know our flags, and sandboxes that allow the setup only. */
static void test_uring_half_refused(void **state)
{
    char detail[240];
    (void)state;
    faults_install();
    faults_fail(FAULT_RING, 1, EINVAL);
    assert_int_equal(hr_io_uring.probe(detail, sizeof detail), 1);
    assert_int_equal(faults_fired(), 1);
    for (unsigned long n = 2; n <= 3; n++) {
        faults_fail_from(FAULT_RING, n, EPERM);
        assert_int_equal(hr_io_uring.probe(detail, sizeof detail), 0);
        assert_non_null(strstr(detail, "no-op"));
    }
    faults_assert_nothing_live();
    faults_remove();
}

/* A queue that the kernel will not take while it works on others, and takes later. */
static void test_uring_busy(void **state)
{
    int fd = content_open();
    (void)state;
    faults_install();
    struct hr_io *io = io_open(&hr_io_uring, 4);
    assert_int_equal(hr_io_uring.submit(io, read_init(0, fd, 0, 100)), 0);
    faults_fail_from(FAULT_RING, 1, EBUSY);
    for (size_t i = 1; i < 4; i++)
        assert_int_equal(hr_io_uring.submit(io, read_init(i, fd, i * 1000, 100)), 0);
    assert_int_equal(faults_fired(), 3); /* no spinning: a completion is due */
    faults_fail(0, 0, 0);
    for (int i = 0; i < 4; i++)
        wait_one(&hr_io_uring, io);
    assert_null(hr_io_uring.wait(io));
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(reads[i].op.result, 100);
        assert_content(&reads[i]);
    }
    hr_io_uring.close(io);
    faults_assert_nothing_live();
    faults_remove();
    close(fd);
}

/* A ring that takes two reads and then nothing more: the two complete, the others fail, no one waits for ever. */
static void test_uring_breaks(void **state)
{
    int fd = content_open();
    (void)state;
    faults_install();
    struct hr_io *io = io_open(&hr_io_uring, 4);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(hr_io_uring.submit(io, read_init(i, fd, i * 1000, 100)), 0);
    faults_fail(FAULT_RING, 1, EBUSY);
    assert_int_equal(hr_io_uring.submit(io, read_init(2, fd, 0, 100)), 0);
    faults_fail(FAULT_RING, 1, ENXIO);
    assert_int_equal(hr_io_uring.submit(io, read_init(3, fd, 0, 100)), 0);
    faults_fail(0, 0, 0);
    for (int i = 0; i < 4; i++)
        wait_one(&hr_io_uring, io);
    assert_null(hr_io_uring.wait(io));
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(reads[i].returned_count, 1);
        assert_int_equal(reads[i].op.result, i < 2 ? 100 : -ENXIO);
        if (i < 2)
            assert_content(&reads[i]);
    }
    assert_int_equal(hr_io_uring.submit(io, read_init(0, fd, 0, 100)), -ENXIO);
    assert_null(hr_io_uring.wait(io));
    hr_io_uring.close(io);
    faults_assert_nothing_live();
    faults_remove();
    close(fd);
}

/* Nothing is in the kernel and it keeps saying EAGAIN: an error after a bounded time. */
static void test_uring_never_takes(void **state)
{
    int fd = content_open();
    (void)state;
    faults_install();
    struct hr_io *io = io_open(&hr_io_uring, 2);
    faults_fail_from(FAULT_RING, 1, EAGAIN);
    hr_io_uring.submit(io, read_init(0, fd, 0, 100));
    assert_ptr_equal(wait_one(&hr_io_uring, io), &reads[0].op);
    assert_int_equal(reads[0].op.result, -EAGAIN);
    assert_int_equal(faults_fired(), HR_IO_RETRY_MAX + 1);
    hr_io_uring.close(io);
    faults_assert_nothing_live();
    faults_remove();
    close(fd);
}

/* --------------------------------------------------------------------------------------- flags of reads */

/* What cannot be had without waiting is said at once, instead of being tried again. */
static void test_no_wait(void **state)
{
    const struct hr_io_backend *backend = *state;
    struct fake_storage cold = {.cold = 1, .warm_bytes = 4096};
    struct iovec vector = {(char[1]){0}, 1};
    int fd = content_open();
    if (hr_sys->preadv(fd, &vector, 1, 0, RWF_NOWAIT) == -EOPNOTSUPP) {
        print_message("skipped: this filesystem does not know RWF_NOWAIT\n");
        close(fd);
        skip();
    }
    fake_storage_install(&cold);
    struct hr_io *io = io_open(backend, DEPTH);
    for (size_t i = 0; i < 2; i++) {
        struct hr_io_op *op = read_init(i, fd, i * 4096, 100);
        op->flags = RWF_NOWAIT;
        assert_int_equal(backend->submit(io, op), 0);
        assert_ptr_equal(wait_one(backend, io), op);
        assert_int_equal(op->result, i ? -EAGAIN : 100);
    }
    assert_int_equal(fake_storage_read_count(), 2);
    backend->close(io);
    fake_storage_remove();
    close(fd);
}

/* A flag that no kernel knows reaches the kernel. */
static void test_unknown_flag(void **state)
{
    const struct hr_io_backend *backend = *state;
    int fd = content_open();
    struct hr_io *io = io_open(backend, DEPTH);
    struct hr_io_op *op = read_init(0, fd, 0, 100);
    op->flags = 1u << 30;
    assert_int_equal(backend->submit(io, op), 0);
    assert_ptr_equal(wait_one(backend, io), op);
    assert_true(op->result == -EOPNOTSUPP || op->result == -EINVAL);
    backend->close(io);
    close(fd);
}

#define FOR_BACKEND(test, backend) cmocka_unit_test_prestate(test, (void *)(uintptr_t) & (backend))
#define FOR_ALL(backend)                                                                                         \
    FOR_BACKEND(test_many, backend), FOR_BACKEND(test_vectors, backend), FOR_BACKEND(test_end_of_file, backend), \
        FOR_BACKEND(test_bad_files, backend), FOR_BACKEND(test_repeats, backend),                                \
        FOR_BACKEND(test_shared_drive, backend), FOR_BACKEND(test_again_for_ever, backend),                      \
        FOR_BACKEND(test_bad_sector, backend), FOR_BACKEND(test_every_call_failing, backend),                    \
        FOR_BACKEND(test_open_without_memory, backend), FOR_BACKEND(test_no_wait, backend),                      \
        FOR_BACKEND(test_unknown_flag, backend)

int main(void)
{
    const struct CMUnitTest pread_tests[] = {FOR_ALL(hr_io_pread)};
    const struct CMUnitTest uring_tests[] = {
        FOR_ALL(hr_io_uring),
        cmocka_unit_test(test_uring_refused),
        cmocka_unit_test(test_uring_half_refused),
        cmocka_unit_test(test_uring_busy),
        cmocka_unit_test(test_uring_breaks),
        cmocka_unit_test(test_uring_never_takes),
    };
    char detail[240];
    int failed = cmocka_run_group_tests_name("pread", pread_tests, NULL, NULL);
    if (hr_io_uring.probe(detail, sizeof detail))
        failed += cmocka_run_group_tests_name("io_uring", uring_tests, NULL, NULL);
    else
        print_message("io_uring: skipped: %s\n", detail);
    return failed;
}
