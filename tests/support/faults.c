/*
 * faults.c: the table of faults.h. Every wrapper asks `must_fail` first, so that a failed call had no effect (but
 * for close, which must not be repeated).
 */
#include "support/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

#define PAGE_BYTES 4096

static const struct hr_sys *below;
static struct hr_sys table;

static atomic_ulong counts[FAULT_CLASS_COUNT];
static atomic_ulong fail_classes, fail_first, fail_last, fail_seen, fail_fired;
static atomic_int fail_error;
static atomic_long live_allocations, live_mapping_bytes, live_descriptors, live_dirs, live_rings, live_threads;

static const int default_errors[FAULT_CLASS_COUNT] = {ENOMEM, ENOMEM, EMFILE, EIO,   EIO, EIO,   EIO,
                                                      EAGAIN, ENOMEM, EIO,    EPERM, EIO, ENOMEM};

/* 0, or the errno that this call has to fail with. */
static int must_fail(enum fault_class class)
{
    int index = __builtin_ctz(class);
    atomic_fetch_add(&counts[index], 1);
    if (!(atomic_load(&fail_classes) & class))
        return 0;
    unsigned long number = atomic_fetch_add(&fail_seen, 1) + 1;
    if (number < atomic_load(&fail_first) || number > atomic_load(&fail_last))
        return 0;
    atomic_fetch_add(&fail_fired, 1);
    int error = atomic_load(&fail_error);
    return error ? error : default_errors[index];
}

static void *faulty_alloc(size_t bytes)
{
    void *memory = must_fail(FAULT_MEMORY) ? NULL : below->alloc(bytes);
    atomic_fetch_add(&live_allocations, memory != NULL);
    return memory;
}

static void *faulty_resize(void *memory, size_t bytes)
{
    void *resized = must_fail(FAULT_MEMORY) ? NULL : below->resize(memory, bytes);
    atomic_fetch_add(&live_allocations, resized && !memory);
    return resized;
}

static void faulty_free(void *memory)
{
    atomic_fetch_sub(&live_allocations, memory != NULL);
    below->free(memory);
}

static long page_bytes(size_t bytes)
{
    return (long)((bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
}

static void *faulty_map(void *hint, size_t bytes, int protection, int flags, int fd, uint64_t offset)
{
    void *memory = must_fail(FAULT_MAP) ? NULL : below->map(hint, bytes, protection, flags, fd, offset);
    if (memory)
        atomic_fetch_add(&live_mapping_bytes, page_bytes(bytes));
    return memory;
}

static int faulty_unmap(void *memory, size_t bytes)
{
    int error = below->unmap(memory, bytes);
    if (!error)
        atomic_fetch_sub(&live_mapping_bytes, page_bytes(bytes));
    return error;
}

static int faulty_advise(void *memory, size_t bytes, int advice)
{
    int error = must_fail(FAULT_MAP);
    return error ? -error : below->advise(memory, bytes, advice);
}

static int faulty_open(const char *path, int flags)
{
    int error = must_fail(FAULT_OPEN);
    int fd = error ? -error : below->open(path, flags);
    atomic_fetch_add(&live_descriptors, fd >= 0);
    return fd;
}

static int faulty_duplicate(int fd, int lowest, int close_on_exec)
{
    int error = must_fail(FAULT_OPEN);
    int copy = error ? -error : below->duplicate(fd, lowest, close_on_exec);
    atomic_fetch_add(&live_descriptors, copy >= 0);
    return copy;
}

static int faulty_close(int fd)
{
    int injected = must_fail(FAULT_CLOSE);
    int error = below->close(fd);
    atomic_fetch_sub(&live_descriptors, error == 0);
    return injected ? -injected : error;
}

static int faulty_fstat(int fd, struct stat *ret_stat)
{
    int error = must_fail(FAULT_STAT);
    return error ? -error : below->fstat(fd, ret_stat);
}

static int faulty_stat(const char *path, struct stat *ret_stat)
{
    int error = must_fail(FAULT_STAT);
    return error ? -error : below->stat(path, ret_stat);
}

static int faulty_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    int error = must_fail(FAULT_STAT);
    return error ? -error : below->cachestat(fd, offset, size, ret_page_count);
}

static ssize_t faulty_preadv(int fd, const struct iovec *vectors, int vector_count, uint64_t offset, int flags)
{
    int error = must_fail(FAULT_READ);
    return error ? -error : below->preadv(fd, vectors, vector_count, offset, flags);
}

static int faulty_create(const char *path, unsigned mode)
{
    int error = must_fail(FAULT_WRITE);
    int fd = error ? -error : below->create(path, mode);
    atomic_fetch_add(&live_descriptors, fd >= 0);
    return fd;
}

static ssize_t faulty_pwritev(int fd, const struct iovec *vectors, int vector_count, uint64_t offset)
{
    int error = must_fail(FAULT_WRITE);
    return error ? -error : below->pwritev(fd, vectors, vector_count, offset);
}

static int faulty_allocate(int fd, uint64_t size)
{
    int error = must_fail(FAULT_WRITE);
    return error ? -error : below->allocate(fd, size);
}

static int faulty_set_mode(int fd, unsigned mode)
{
    int error = must_fail(FAULT_WRITE);
    return error ? -error : below->set_mode(fd, mode);
}

static int faulty_sync(int fd)
{
    int error = must_fail(FAULT_WRITE);
    return error ? -error : below->sync(fd);
}

static int faulty_rename(const char *from, const char *to)
{
    int error = must_fail(FAULT_WRITE);
    return error ? -error : below->rename(from, to);
}

static int faulty_fadvise(int fd, uint64_t offset, uint64_t size, int advice)
{
    int error = must_fail(FAULT_ADVICE);
    return error ? -error : below->fadvise(fd, offset, size, advice);
}

static int faulty_fs_type(int fd, uint32_t *ret_magic)
{
    int error = must_fail(FAULT_STAT);
    return error ? -error : below->fs_type(fd, ret_magic);
}

static int faulty_direct_alignment(int fd, struct hr_direct_alignment *ret_alignment)
{
    int error = must_fail(FAULT_STAT);
    return error ? -error : below->direct_alignment(fd, ret_alignment);
}

static int faulty_may_write(int fd)
{
    int error = must_fail(FAULT_STAT);
    return error ? -error : below->may_write(fd);
}

static int faulty_mincore(void *memory, size_t bytes, unsigned char *ret_pages)
{
    int error = must_fail(FAULT_MAP);
    return error ? -error : below->mincore(memory, bytes, ret_pages);
}

static int faulty_dir_open(const char *path, struct hr_dir **ret_dir)
{
    int error = must_fail(FAULT_DIR);
    error = error ? -error : below->dir_open(path, ret_dir);
    atomic_fetch_add(&live_dirs, error == 0);
    return error;
}

static const char *faulty_dir_next(struct hr_dir *dir, int *ret_error)
{
    int error = must_fail(FAULT_DIR);
    if (!error)
        return below->dir_next(dir, ret_error);
    *ret_error = -error;
    return NULL;
}

static void faulty_dir_close(struct hr_dir *dir)
{
    atomic_fetch_sub(&live_dirs, 1);
    below->dir_close(dir);
}

struct thread_call {
    void *(*main)(void *);
    void *argument;
};

static void *thread_main(void *argument)
{
    struct thread_call call = *(struct thread_call *)argument;
    free(argument);
    void *result = call.main(call.argument);
    atomic_fetch_sub(&live_threads, 1);
    return result;
}

static int faulty_thread_start(pthread_t *ret_thread, void *(*main)(void *), void *argument)
{
    int error = must_fail(FAULT_THREAD);
    if (error)
        return -error;
    struct thread_call *call = malloc(sizeof *call);
    *call = (struct thread_call){main, argument};
    atomic_fetch_add(&live_threads, 1);
    error = below->thread_start(ret_thread, thread_main, call);
    if (error) {
        atomic_fetch_sub(&live_threads, 1);
        free(call);
    }
    return error;
}

static int faulty_affinity_get(uint64_t *ret_words, size_t word_count)
{
    int error = must_fail(FAULT_BIND);
    return error ? -error : below->affinity_get(ret_words, word_count);
}

static int faulty_affinity_set(const uint64_t *words, size_t word_count)
{
    int error = must_fail(FAULT_BIND);
    return error ? -error : below->affinity_set(words, word_count);
}

static int faulty_memory_prefer(void *memory, size_t bytes, unsigned node)
{
    int error = must_fail(FAULT_BIND);
    return error ? -error : below->memory_prefer(memory, bytes, node);
}

static int faulty_ring_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    int error = must_fail(FAULT_RING);
    error = error ? -error : below->ring_init(entries, ring, flags);
    atomic_fetch_add(&live_rings, error == 0);
    return error;
}

static void faulty_ring_exit(struct io_uring *ring)
{
    atomic_fetch_sub(&live_rings, 1);
    below->ring_exit(ring);
}

static int faulty_ring_submit(struct io_uring *ring)
{
    int error = must_fail(FAULT_RING);
    return error ? -error : below->ring_submit(ring);
}

static int faulty_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret_cqe)
{
    int error = must_fail(FAULT_RING);
    return error ? -error : below->ring_wait(ring, ret_cqe);
}

static int faulty_ring_buffers(struct io_uring *ring, unsigned count)
{
    int error = must_fail(FAULT_REGISTER);
    return error ? -error : below->ring_buffers(ring, count);
}

static int faulty_ring_buffer_set(struct io_uring *ring, unsigned index, const struct iovec *memory)
{
    int error = must_fail(FAULT_REGISTER);
    return error ? -error : below->ring_buffer_set(ring, index, memory);
}

static void live_reset(void)
{
    atomic_long *all[] = {&live_allocations, &live_mapping_bytes, &live_descriptors,
                          &live_dirs,        &live_rings,         &live_threads};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        atomic_store(all[i], 0);
    for (size_t i = 0; i < FAULT_CLASS_COUNT; i++)
        atomic_store(&counts[i], 0);
}

void faults_install(void)
{
    if (hr_sys == &table) /* a test that failed did not come to removing it */
        hr_sys = below;
    below = hr_sys;
    live_reset();
    faults_fail(0, 0, 0);
    table = *below;
    table.alloc = faulty_alloc;
    table.resize = faulty_resize;
    table.free = faulty_free;
    table.map = faulty_map;
    table.unmap = faulty_unmap;
    table.advise = faulty_advise;
    table.open = faulty_open;
    table.close = faulty_close;
    table.duplicate = faulty_duplicate;
    table.fstat = faulty_fstat;
    table.stat = faulty_stat;
    table.preadv = faulty_preadv;
    table.create = faulty_create;
    table.pwritev = faulty_pwritev;
    table.allocate = faulty_allocate;
    table.set_mode = faulty_set_mode;
    table.sync = faulty_sync;
    table.rename = faulty_rename;
    table.cachestat = faulty_cachestat;
    table.fadvise = faulty_fadvise;
    table.fs_type = faulty_fs_type;
    table.direct_alignment = faulty_direct_alignment;
    table.may_write = faulty_may_write;
    table.mincore = faulty_mincore;
    table.dir_open = faulty_dir_open;
    table.dir_next = faulty_dir_next;
    table.dir_close = faulty_dir_close;
    table.thread_start = faulty_thread_start;
    table.affinity_get = faulty_affinity_get;
    table.affinity_set = faulty_affinity_set;
    table.memory_prefer = faulty_memory_prefer;
    table.ring_init = faulty_ring_init;
    table.ring_exit = faulty_ring_exit;
    table.ring_submit = faulty_ring_submit;
    table.ring_wait = faulty_ring_wait;
    table.ring_buffers = faulty_ring_buffers;
    table.ring_buffer_set = faulty_ring_buffer_set;
    hr_sys = &table;
}

void faults_remove(void)
{
    assert_ptr_equal(hr_sys, &table);
    hr_sys = below;
}

static void fail_between(unsigned classes, unsigned long first, unsigned long last, int error)
{
    atomic_store(&fail_classes, 0);
    atomic_store(&fail_seen, 0);
    atomic_store(&fail_fired, 0);
    atomic_store(&fail_first, first);
    atomic_store(&fail_last, last);
    atomic_store(&fail_error, error);
    atomic_store(&fail_classes, first ? classes : 0);
}

void faults_fail(unsigned classes, unsigned long n, int error)
{
    fail_between(classes, n, n, error);
}

void faults_fail_from(unsigned classes, unsigned long n, int error)
{
    fail_between(classes, n, ULONG_MAX, error);
}

unsigned long faults_fired(void)
{
    return atomic_load(&fail_fired);
}

unsigned long faults_count(unsigned classes)
{
    unsigned long sum = 0;
    for (unsigned i = 0; i < FAULT_CLASS_COUNT; i++)
        if (classes & (1u << i))
            sum += atomic_load(&counts[i]);
    return sum;
}

struct faults_live faults_live(void)
{
    return (struct faults_live){
        .allocation_count = atomic_load(&live_allocations),
        .mapping_bytes = atomic_load(&live_mapping_bytes),
        .descriptor_count = atomic_load(&live_descriptors),
        .dir_count = atomic_load(&live_dirs),
        .ring_count = atomic_load(&live_rings),
        .thread_count = atomic_load(&live_threads),
    };
}

static int is_alive(const struct faults_live *live)
{
    return live->allocation_count || live->mapping_bytes || live->descriptor_count || live->dir_count ||
           live->ring_count || live->thread_count;
}

void faults_assert_nothing_live(void)
{
    struct faults_live live = faults_live();
    for (int i = 0; i < 2000 && is_alive(&live); i++) { /* a device's reaper ends by itself */
        usleep(1000);
        live = faults_live();
    }
    if (is_alive(&live))
        fail_msg("left alive: %ld allocations, %ld mapped bytes, %ld descriptors, %ld folders, %ld rings, %ld threads",
                 live.allocation_count, live.mapping_bytes, live.descriptor_count, live.dir_count, live.ring_count,
                 live.thread_count);
}

static void check_error(int code, const struct hr_error *err)
{
    if (code > 0 || strcmp(hr_error_kind(code), "Unknown") == 0)
        fail_msg("%d is not in the list of codes", code);
    if (err->code != code)
        fail_msg("the code is %d, err->code is %d", code, err->code);
    if (err->message[0] == '\0')
        fail_msg("%s comes without a message", hr_error_kind(code));
}

/* One run with or without a failure; returns how many calls were failed. */
static unsigned long sweep_run(unsigned classes, unsigned long n, int error, fault_scenario scenario, void *context)
{
    struct hr_error err = {0};
    faults_install();
    faults_fail(classes, n, error);
    int code = scenario(context, &err);
    unsigned long fired = faults_fired();
    faults_assert_nothing_live();
    faults_remove();
    if (code)
        check_error(code, &err);
    if (code && !fired)
        fail_msg("a run without failures gave %s: %s", hr_error_kind(code), err.message);
    return fired;
}

unsigned long faults_sweep(unsigned classes, int error, fault_scenario scenario, void *context)
{
    for (unsigned long n = 1;; n++) {
        print_message("\rcall %lu failing", n); /* so that a crash or a failed check tells which */
        if (sweep_run(classes, n, error, scenario, context) == 0) {
            print_message("\r%lu calls failed in turn\n", n - 1);
            return n - 1;
        }
        sweep_run(0, 0, 0, scenario, context);
    }
}
