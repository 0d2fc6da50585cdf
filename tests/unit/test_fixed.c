/*
 * test_fixed.c: registered buffers of io_uring. Bytes are right with them, without them, and where they are refused at any
 * call, to host memory and to a GPU; the statistics say which; memory that was freed is never read into.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"
#include "io/fixed.h"
#include "io/storage.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/gpu.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define SLOT_BYTES (64 * KIB)
#define SEED 11
#define NOBODY 65534

/* ------------------------------------------------------------------------------------- the backend alone */

static const char *content_path(void)
{
    static const char *path;
    static unsigned char content[10 * SLOT_BYTES + 123];
    if (!path) {
        path = test_path("fixed-content");
        test_fill(content, SEED, 0, sizeof content);
        test_raw_write(path, content, sizeof content);
    }
    return path;
}

static int owner;

static struct hr_io_buffer buffer_make(uint64_t serial, void *address)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (address ? MAP_FIXED : 0);
    char *memory = mmap(address, SLOT_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    assert_true(memory != MAP_FAILED);
    return (struct hr_io_buffer){memory, SLOT_BYTES, &owner, serial};
}

static void buffer_free(const struct hr_io_buffer *buffer)
{
    assert_int_equal(munmap(buffer->memory, SLOT_BYTES), 0);
}

static struct hr_io *io_open(void)
{
    struct hr_io *io;
    struct hr_error err = {0};
    assert_ok(hr_io_uring.open(8, &io, &err), err);
    return io;
}

/* Reads `size` bytes at `offset` into the buffer from `at` on; returns op.fixed, having looked at the bytes. */
static int read_into(struct hr_io *io, int fd, const struct hr_io_buffer *buffer, size_t at, size_t size,
                     uint64_t offset)
{
    struct iovec vector = {buffer->memory + at, size};
    struct hr_io_op op = {.fd = fd, .vector_count = 1, .offset = offset, .vectors = &vector, .buffer = buffer};
    memset(buffer->memory, 0xee, SLOT_BYTES);
    assert_int_equal(hr_io_uring.submit(io, &op), 0);
    assert_ptr_equal(hr_io_uring.wait(io), &op);
    assert_in_range(op.result, 1, size);
    assert_int_equal(test_mismatch((unsigned char *)vector.iov_base, SEED, offset, (size_t)op.result), op.result);
    for (size_t i = 0; i < at; i++)
        assert_int_equal((unsigned char)buffer->memory[i], 0xee);
    for (size_t i = at + (size_t)op.result; i < SLOT_BYTES; i++)
        assert_int_equal((unsigned char)buffer->memory[i], 0xee);
    return op.fixed;
}

static void test_reads(void **state)
{
    int fd = open(content_path(), O_RDONLY | O_CLOEXEC);
    struct hr_io *io = io_open();
    struct hr_io_buffer buffer = buffer_make(1, NULL);
    (void)state;
    assert_int_equal(hr_io_uring.has_fixed(io), 0);
    assert_int_equal(read_into(io, fd, &buffer, 0, SLOT_BYTES, 5), 1);
    assert_int_equal(read_into(io, fd, &buffer, 100, 1000, 77777), 1);
    assert_int_equal(read_into(io, fd, &buffer, SLOT_BYTES - 1, 1, 3), 1);
    assert_int_equal(read_into(io, fd, &buffer, 0, SLOT_BYTES, 10 * SLOT_BYTES), 1); /* 123 are left */
    assert_int_equal(hr_io_uring.has_fixed(io), 1);
    hr_io_uring.close(io);
    buffer_free(&buffer);
    close(fd);
}

/* What is not one vector inside the buffer is read without: a neighbour's byte is as good as anybody's. */
static void test_outside(void **state)
{
    int fd = open(content_path(), O_RDONLY | O_CLOEXEC);
    struct hr_io *io = io_open();
    struct hr_io_buffer whole = buffer_make(1, NULL), half = whole;
    half.bytes /= 2;
    (void)state;
    assert_int_equal(read_into(io, fd, &half, half.bytes - 10, 11, 0), 0);
    half.memory++;
    struct iovec vectors[2] = {{whole.memory, 10}, {whole.memory + 20, 10}};
    struct hr_io_op op = {.fd = fd, .vector_count = 2, .vectors = vectors, .buffer = &whole};
    assert_int_equal(hr_io_uring.submit(io, &op), 0);
    assert_ptr_equal(hr_io_uring.wait(io), &op);
    assert_int_equal(op.result, 20);
    vectors[0] = (struct iovec){whole.memory, 10}; /* begins a byte before */
    op.vector_count = 1;
    op.buffer = &half;
    assert_int_equal(hr_io_uring.submit(io, &op), 0);
    assert_ptr_equal(hr_io_uring.wait(io), &op);
    assert_int_equal(op.result, 10);
    assert_int_equal(hr_io_uring.has_fixed(io), 0);
    hr_io_uring.close(io);
    buffer_free(&whole);
    close(fd);
}

/* The memory is freed, and other memory comes to lie at its address: that is what is read into. */
static void test_freed_buffer(void **state)
{
    int fd = open(content_path(), O_RDONLY | O_CLOEXEC);
    struct hr_io *io = io_open();
    struct hr_io_buffer buffer = buffer_make(1, NULL);
    (void)state;
    for (uint64_t serial = 2; serial < HR_FIXED_BUFFERS_MAX + 4; serial++) {
        int is_fixed = read_into(io, fd, &buffer, 0, SLOT_BYTES, serial);
        assert_int_equal(is_fixed, serial - 1 <= HR_FIXED_BUFFERS_MAX); /* the table is full */
        buffer = buffer_make(serial, buffer.memory);
    }
    assert_int_equal(hr_io_uring.has_fixed(io), 1);
    hr_io_uring.close(io);
    buffer_free(&buffer);
    close(fd);
}

/* A child that closes what it has inherited leaves its parent's buffers alone. */
static void test_child_closes(void **state)
{
    int fd = open(content_path(), O_RDONLY | O_CLOEXEC), status;
    struct hr_io *io = io_open();
    struct hr_io_buffer buffer = buffer_make(1, NULL);
    (void)state;
    assert_int_equal(read_into(io, fd, &buffer, 0, SLOT_BYTES, 0), 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        hr_io_uring.close(io);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read_into(io, fd, &buffer, 0, SLOT_BYTES, 1), 1);
    hr_io_uring.close(io);
    buffer_free(&buffer);
    close(fd);
}

/* A system whose reads into registered memory, or all reads, complete with an error. */
static struct {
    const struct hr_sys *below;
    struct hr_sys table;
    int error, fails_all;
} refusing;

static int refusing_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret_cqe)
{
    int error = refusing.below->ring_wait(ring, ret_cqe);
    if (error)
        return error;
    const struct hr_io_op *op = io_uring_cqe_get_data(*ret_cqe);
    if (op && (op->fixed > 0 || refusing.fails_all))
        (*ret_cqe)->res = -refusing.error;
    return 0;
}

static void refuse_reads(int error, int fails_all)
{
    refusing.below = hr_sys;
    refusing.table = *hr_sys;
    refusing.table.ring_wait = refusing_ring_wait;
    refusing.error = error;
    refusing.fails_all = fails_all;
    hr_sys = &refusing.table;
}

static void test_reads_refused(void **state)
{
    static const int errors[] = {EINVAL, EOPNOTSUPP, EFAULT};
    int fd = open(content_path(), O_RDONLY | O_CLOEXEC);
    struct hr_io_buffer buffer = buffer_make(1, NULL);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct hr_io *io = io_open();
        struct iovec vector = {buffer.memory, 100};
        struct hr_io_op op = {.fd = fd, .vector_count = 1, .vectors = &vector, .buffer = &buffer};
        refuse_reads(errors[i], 1); /* the file's fault, so nothing is said of buffers */
        assert_int_equal(hr_io_uring.submit(io, &op), 0);
        assert_ptr_equal(hr_io_uring.wait(io), &op);
        assert_int_equal(op.result, -errors[i]);
        assert_int_equal(hr_io_uring.has_fixed(io), 1);
        refusing.fails_all = 0;
        assert_int_equal(read_into(io, fd, &buffer, 0, SLOT_BYTES, 9), -errors[i]);
        assert_int_equal(hr_io_uring.has_fixed(io), -errors[i]);
        assert_int_equal(read_into(io, fd, &buffer, 0, SLOT_BYTES, 10), 0);
        hr_sys = refusing.below;
        hr_io_uring.close(io);
    }
    buffer_free(&buffer);
    close(fd);
}

static void test_described(void **state)
{
    static const struct {
        int error;
        const char *text;
    } cases[] = {{0, "usable"}, {-EINVAL, "refused (Linux 5.19 has them)"}, {-EPERM, "refused (errno 1)"}};
    struct rlimit before, low = {0, 0};
    char text[80];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hr_fixed_describe(cases[i].error, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    low.rlim_max = before.rlim_max;
    low.rlim_cur = 64 * KIB;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    hr_fixed_describe(-ENOMEM, text, sizeof text);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_string_equal(text, "refused (limit of locked memory 64 KiB)");
}

static int probe_once(void *context, struct hr_error *err)
{
    (void)context;
    int error = hr_fixed_probe();
    *err = (struct hr_error){.code = error ? HR_EUNSUPPORTED : 0};
    strcpy(err->message, "refused");
    return err->code;
}

/* Leaves nothing alive, whatever fails. */
static void test_probe(void **state)
{
    (void)state;
    assert_int_equal(hr_fixed_probe(), 0);
    assert_true(faults_sweep(FAULT_MAP | FAULT_RING | FAULT_REGISTER, 0, probe_once, NULL) > 4);
}

/* --------------------------------------------------------------------------------------------- loads */

static struct hr_loader *any_loader(uint64_t chunk_bytes, int gpu)
{
    const char *devices[] = {gpu_name()};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = devices,
                                        .device_count = (size_t)gpu,
                                        .thread_count = 2,
                                        .chunk_bytes = chunk_bytes};
    return loader_make(&options);
}

/* Whether what is not cached goes by O_DIRECT through buffers here: in host memory nothing agrees with 4096. */
static int is_direct(const char *path)
{
    struct hr_storage probed;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    hr_storage_probe(path, fd, &probed);
    close(fd);
    return probed.mode == HR_READ_DIRECT;
}

static const struct fake_storage cold = {.cold = 1, .alignment = {4096, 4096}, .short_percent = 10, .seed = 3};

static void assert_says(const struct hr_stats *stats, const char *part)
{
    if (!strstr(stats->storage, part))
        fail_msg("\"%s\" does not contain \"%s\"", stats->storage, part);
}

/* All bytes are right with and without, and where any one registration is refused: tensors end anywhere in a page. */
static void test_loads(void **state)
{
    static const int errors[] = {0, EINVAL, EPERM, EOPNOTSUPP};
    struct test_model model;
    (void)state;
    model_mixed(&model, "fixed", 20);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++)
        for (unsigned long n = 0; n < 8; n++) {
            fake_storage_install(&cold);
            faults_install();
            faults_fail(FAULT_REGISTER, n, errors[n % 4]);
            struct hr_loader *loader = any_loader(128 * KIB, gpu);
            struct hr_stats stats = load_whole_model(loader, &model);
            unsigned long fired = faults_fired();
            hr_loader_free(loader);
            faults_remove();
            fake_storage_remove();
            if (!is_direct(model.paths[0]))
                continue;
            assert_says(&stats, fired ? ", fixed buffers refused (" : ", fixed buffers: ");
            assert_true(n == 0 || n > 3 || fired == 1);
        }
    model_close(&model);
}

/* The temporary folder is its owner's alone. */
static void open_folder(const char *path)
{
    char folder[256];
    size_t size = (size_t)(strrchr(path, '/') - path);
    assert_true(size < sizeof folder);
    memcpy(folder, path, size);
    folder[size] = '\0';
    assert_int_equal(chmod(folder, 0755), 0);
}

/* An ordinary user may lock little memory: what fits is registered, then the rest is read without. */
static void test_limit_of_locked_memory(void **state)
{
    struct test_model model;
    struct rlimit before, low;
    char text[320];
    struct hr_error err = {0};
    (void)state;
    model_equal(&model, "locked", 8, 900001, 4);
    if (geteuid() != 0 || !is_direct(model.paths[0])) {
        print_message("skipped: only root can become somebody else, and O_DIRECT is needed\n");
        model_close(&model);
        skip();
    }
    open_folder(model.paths[0]);
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    low = (struct rlimit){768 * KIB, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    fake_storage_install(&cold);
    struct hr_loader *loader = any_loader(256 * KIB, 0);
    struct hr_stats stats = load_whole_model(loader, &model);
    hr_loader_free(loader);
    fake_storage_remove();
    assert_ok(hr_storage_describe(model.paths[0], text, sizeof text, &err), err);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_says(&stats, ", fixed buffers refused (limit of locked memory 768 KiB)");
    assert_non_null(strstr(text, "; fixed buffers: refused (limit of locked memory 768 KiB)"));
    model_close(&model);
}

struct beside {
    struct hr_loader *loader;
    const struct test_model *model;
    atomic_int running;
    unsigned turns;
};

static void *load_beside(void *argument)
{
    struct beside *beside = argument;
    for (unsigned i = 0; i < beside->turns; i++)
        load_whole_model(beside->loader, beside->model);
    beside->running--;
    return NULL;
}

/* Slots go from load to load, and are freed between and under them: what is read is what is asked for. */
static void test_side_by_side(void **state)
{
    struct test_model models[2];
    (void)state;
    model_equal(&models[0], "left", 9, 300007, 4);
    model_equal(&models[1], "right", 5, 500009, 2);
    fake_storage_install(&cold);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++)
        for (int trims = 0; trims < 2; trims++) {
            struct hr_loader *loader = any_loader(128 * KIB, gpu);
            struct beside left = {loader, &models[0], 1, 6}, right = {loader, &models[1], 1, 6};
            pthread_t threads[2];
            pthread_create(&threads[0], NULL, load_beside, &left);
            pthread_create(&threads[1], NULL, load_beside, &right);
            while (left.running || right.running) {
                if (trims)
                    hr_loader_trim(loader);
                usleep(300);
            }
            pthread_join(threads[0], NULL);
            pthread_join(threads[1], NULL);
            hr_loader_trim(loader);
            load_whole_model(loader, &models[0]);
            hr_loader_free(loader);
        }
    fake_storage_remove();
    model_close(&models[1]);
    model_close(&models[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),         cmocka_unit_test(test_outside),
        cmocka_unit_test(test_freed_buffer),  cmocka_unit_test(test_child_closes),
        cmocka_unit_test(test_reads_refused), cmocka_unit_test(test_described),
        cmocka_unit_test(test_probe),         cmocka_unit_test(test_loads),

        cmocka_unit_test(test_side_by_side),  cmocka_unit_test(test_limit_of_locked_memory), /* last: as another user */
    };
    if (!uring_usable())
        return 0;
    if (hr_fixed_probe() < 0) {
        char text[80];
        hr_fixed_describe(hr_fixed_probe(), text, sizeof text);
        print_message("registered buffers: %s; skipped\n", text);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
