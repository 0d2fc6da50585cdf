/*
 * fake_storage.c: the disk of fake_storage.h.
 */
#include "support/fake_storage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"
#include "io/io.h"

#define PAGE_BYTES 4096

static const struct hr_sys *below;
static struct hr_sys table;
static struct fake_storage options;
static struct stat fail_file;
static atomic_ulong read_count, random_count, misaligned_count;
static _Atomic uint64_t drive_free_ns; /* when the shared drive has delivered what was asked of it */

#define PLAYED_MAX 4096
static atomic_char is_played[PLAYED_MAX]; /* by descriptor: was opened with O_DIRECT, which is played */

#define DUE_MAX 4096
static pthread_mutex_t due_lock = PTHREAD_MUTEX_INITIALIZER;
static struct due {
    const struct hr_io_op *op; /* NULL: unused */
    uint64_t ns;
} due[DUE_MAX];

/* splitmix64 over a shared counter. */
static uint64_t next_random(void)
{
    uint64_t x = options.seed + (atomic_fetch_add(&random_count, 1) + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static int happens(unsigned percent)
{
    return percent && next_random() % 100 < percent;
}

static void read_started(void)
{
    if (atomic_fetch_add(&read_count, 1) + 1 == options.event_at && options.event)
        options.event(options.event_context);
}

static void read_delay(void)
{
    uint64_t ns = options.delay_ns + (options.delay_random_ns ? next_random() % options.delay_random_ns : 0);
    if (happens(options.slow_percent))
        ns += options.slow_ns;
    struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (ns && nanosleep(&left, &left))
        continue;
}

static size_t vectors_size(const struct iovec *vectors, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += vectors[i].iov_len;
    return size;
}

/* ------------------------------------------------------------------------------------ a shared drive */

/* When a read that begins now is done; what only asks the page cache does not come to the drive. */
static uint64_t drive_due(size_t size, uint32_t flags)
{
    if (options.bandwidth <= 0 || flags & RWF_NOWAIT)
        return 0;
    uint64_t now = below->clock_ns(), free_ns = atomic_load(&drive_free_ns), next;
    do
        next = (free_ns > now ? free_ns : now) + (uint64_t)((double)size / options.bandwidth);
    while (!atomic_compare_exchange_weak(&drive_free_ns, &free_ns, next));
    return next + options.latency_ns;
}

static void wait_until(uint64_t due_ns)
{
    for (uint64_t now = below->clock_ns(); now < due_ns; now = below->clock_ns()) {
        uint64_t ns = due_ns - now;
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
    }
}

/* The entry of an operation that a ring has in flight; NULL: a free one. The lock is held. */
static struct due *due_find(const struct hr_io_op *op)
{
    for (size_t i = 0; i < DUE_MAX; i++)
        if (due[i].op == op)
            return &due[i];
    return NULL;
}

/* An operation is offered to the kernel, maybe again. */
static void due_remember(const struct hr_io_op *op)
{
    pthread_mutex_lock(&due_lock);
    struct due *entry = due_find(op) ? NULL : due_find(NULL);
    if (entry)
        *entry = (struct due){op, drive_due(vectors_size(op->vectors, op->vector_count), op->flags)};
    pthread_mutex_unlock(&due_lock);
}

static uint64_t due_take(const struct hr_io_op *op)
{
    pthread_mutex_lock(&due_lock);
    struct due *entry = due_find(op);
    uint64_t ns = entry ? entry->ns : 0;
    if (entry)
        entry->op = NULL;
    pthread_mutex_unlock(&due_lock);
    return ns;
}

/* ------------------------------------------------------------------------------------------- reads */

static int in_fail_file(int fd)
{
    struct stat now;
    if (!options.fail_path)
        return 1;
    return fstat(fd, &now) == 0 && now.st_dev == fail_file.st_dev && now.st_ino == fail_file.st_ino;
}

static int is_direct(int fd)
{
    return (fd < PLAYED_MAX && is_played[fd]) || (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

/* What O_DIRECT that is played says of such a read: 0 or -EINVAL. */
static int alignment_error(int fd, const struct iovec *vectors, int count, uint64_t offset)
{
    uint64_t offset_mask = options.alignment.offset_bytes - 1;
    uint64_t memory_mask = __atomic_load_n(&options.alignment.memory_bytes, __ATOMIC_RELAXED) - 1;
    uint64_t wrong = offset & offset_mask;
    if (!options.plays_direct || !is_direct(fd))
        return 0;
    for (int i = 0; i < count; i++)
        wrong |= ((uintptr_t)vectors[i].iov_base & memory_mask) | (vectors[i].iov_len & offset_mask);
    if (wrong)
        atomic_fetch_add(&misaligned_count, 1);
    return wrong ? -EINVAL : 0;
}

/* Bytes of the range that are said to be in the page cache of a cold file. */
static uint64_t warm_part(uint64_t offset, uint64_t size)
{
    if (offset >= options.warm_bytes)
        return 0;
    uint64_t part = options.warm_bytes - offset;
    return part < size ? part : size;
}

/* What this read has to return instead of bytes, or 0. */
static int read_error(int fd, uint64_t offset, size_t size, uint32_t flags)
{
    if (flags && options.flags_error)
        return -options.flags_error;
    if (__atomic_load_n(&options.direct_read_error, __ATOMIC_RELAXED) && is_direct(fd))
        return -__atomic_load_n(&options.direct_read_error, __ATOMIC_RELAXED);
    if (flags & RWF_NOWAIT && options.cold && warm_part(offset, size) < size)
        return -EAGAIN;
    if (offset < options.fail_end && options.fail_begin < offset + size && in_fail_file(fd))
        return options.fail_error ? -options.fail_error : -EIO;
    if (happens(options.eintr_percent))
        return -EINTR;
    if (happens(options.eagain_percent))
        return -EAGAIN;
    return 0;
}

static size_t shortened(int fd, size_t size)
{
    if (size < 2 || !happens(options.short_percent))
        return size;
    size_t shorter = 1 + next_random() % (size - 1);
    if (!is_direct(fd))
        return shorter;
    shorter = (shorter + 511) / 512 * 512;
    return shorter < size ? shorter : size;
}

/* Facts about the machine are asked for at any time, and come from no storage. */
static int is_sysfs(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) == 0 && system.f_type == SYSFS_MAGIC;
}

static ssize_t fake_preadv(int fd, const struct iovec *vectors, int vector_count, uint64_t offset, int flags)
{
    if (is_sysfs(fd))
        return below->preadv(fd, vectors, vector_count, offset, flags);
    struct iovec cut[HR_IOV_MAX];
    size_t size = vectors_size(vectors, vector_count);
    int count = 0;
    read_started();
    uint64_t due_ns = drive_due(size, (uint32_t)flags);
    read_delay();
    wait_until(due_ns);
    int error = alignment_error(fd, vectors, vector_count, offset);
    if (!error)
        error = read_error(fd, offset, size, (uint32_t)flags);
    if (error)
        return error;
    for (size_t left = shortened(fd, size); left > 0 && count < HR_IOV_MAX; count++) {
        cut[count] = vectors[count];
        if (cut[count].iov_len > left)
            cut[count].iov_len = left;
        left -= cut[count].iov_len;
    }
    return below->preadv(fd, cut, count, offset, flags);
}

static int fake_ring_submit(struct io_uring *ring)
{
    read_started();
    for (unsigned i = *ring->sq.khead; options.bandwidth > 0 && i != ring->sq.sqe_tail; i++) {
        const struct hr_io_op *op = (const void *)(uintptr_t)ring->sq.sqes[i & ring->sq.ring_mask].user_data;
        if (op)
            due_remember(op);
    }
    return below->ring_submit(ring);
}

/* Lets another completion that is there already overtake the one that would be fetched now. */
static void reorder(struct io_uring *ring, struct io_uring_cqe *first)
{
    unsigned ready = io_uring_cq_ready(ring);
    if (ready < 2 || !happens(options.reorder_percent))
        return;
    unsigned at = *ring->cq.khead + 1 + (unsigned)(next_random() % (ready - 1));
    struct io_uring_cqe *other = &ring->cq.cqes[at & ring->cq.ring_mask];
    struct io_uring_cqe kept = *first;
    *first = *other;
    *other = kept;
}

/* What lies past the first `size` bytes of the vectors is not what the file holds there. */
static void scribble(const struct iovec *vectors, int count, size_t size)
{
    for (int i = 0; i < count; i++) {
        size_t kept = size < vectors[i].iov_len ? size : vectors[i].iov_len;
        memset((char *)vectors[i].iov_base + kept, 0xee, vectors[i].iov_len - kept);
        size -= kept;
    }
}

/* Rewrites the result of a read in the ring's memory; other operations carry no hr_io_op. */
static int fake_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret_cqe)
{
    int error = below->ring_wait(ring, ret_cqe);
    if (!error)
        reorder(ring, *ret_cqe);
    struct hr_io_op *op = error ? NULL : (struct hr_io_op *)(uintptr_t)(*ret_cqe)->user_data;
    if (!op)
        return error;
    if (options.bandwidth > 0)
        wait_until(due_take(op));
    read_delay();
    int result = alignment_error(op->fd, op->vectors, op->vector_count, op->offset);
    if (!result)
        result = read_error(op->fd, op->offset, vectors_size(op->vectors, op->vector_count), op->flags);
    if (result)
        (*ret_cqe)->res = result;
    else if ((*ret_cqe)->res > 0)
        (*ret_cqe)->res = (int)shortened(op->fd, (size_t)(*ret_cqe)->res);
    int arrived = (*ret_cqe)->res;
    scribble(op->vectors, op->vector_count, arrived > 0 ? (size_t)arrived : 0);
    return 0;
}

static int fake_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    if (options.cachestat_error)
        return -options.cachestat_error;
    int error = below->cachestat(fd, offset, size, ret_page_count);
    if (options.cold) {
        *ret_page_count = (warm_part(offset, size) + PAGE_BYTES - 1) / PAGE_BYTES;
        return 0;
    }
    return error;
}

/* With `cold` it is refused: from a mapping alone it cannot be told which part of the file is meant. */
static int fake_mincore(void *memory, size_t bytes, unsigned char *ret_pages)
{
    if (options.mincore_error || options.cold)
        return options.mincore_error ? -options.mincore_error : -ENOSYS;
    return below->mincore(memory, bytes, ret_pages);
}

static int fake_fadvise(int fd, uint64_t offset, uint64_t size, int advice)
{
    return options.fadvise_error ? -options.fadvise_error : below->fadvise(fd, offset, size, advice);
}

static int fake_may_write(int fd)
{
    return options.may_write_error ? -options.may_write_error : below->may_write(fd);
}

static int fake_fs_type(int fd, uint32_t *ret_magic)
{
    int error = below->fs_type(fd, ret_magic);
    if (options.fs_magic && !error)
        *ret_magic = options.fs_magic;
    return error;
}

static int fake_direct_alignment(int fd, struct hr_direct_alignment *ret_alignment)
{
    if (options.alignment_error)
        return -options.alignment_error;
    if (!options.alignment.memory_bytes && !options.alignment.offset_bytes)
        return below->direct_alignment(fd, ret_alignment);
    *ret_alignment = options.alignment;
    return 0;
}

static int fake_open(const char *path, int flags)
{
    int plays = options.plays_direct && flags & O_DIRECT;
    if (options.direct_open_error && flags & O_DIRECT)
        return -options.direct_open_error;
    int fd = below->open(path, plays ? flags & ~O_DIRECT : flags);
    if (fd >= 0 && fd < PLAYED_MAX)
        is_played[fd] = (char)plays;
    return fd;
}

static int64_t fake_large_page_bytes(const void *memory, size_t bytes)
{
    if (!options.plays_direct)
        return below->large_page_bytes(memory, bytes);
    return options.small_pages ? 0 : (int64_t)bytes;
}

static int fake_close(int fd)
{
    if (fd >= 0 && fd < PLAYED_MAX)
        is_played[fd] = 0;
    return below->close(fd);
}

static int fake_descriptor_limits(uint64_t *ret_soft, uint64_t *ret_hard)
{
    int error = below->descriptor_limits(ret_soft, ret_hard);
    if (error == 0 && options.descriptor_max)
        *ret_soft = options.descriptor_max;
    return error;
}

void fake_storage_install(const struct fake_storage *wanted)
{
    if (hr_sys == &table) /* a test that failed did not come to removing it */
        hr_sys = below;
    options = *wanted;
    if (options.fail_path)
        assert_int_equal(stat(options.fail_path, &fail_file), 0);
    atomic_store(&read_count, 0);
    atomic_store(&random_count, 0);
    atomic_store(&misaligned_count, 0);
    atomic_store(&drive_free_ns, 0);
    memset(due, 0, sizeof due);
    below = hr_sys;
    table = *below;
    table.preadv = fake_preadv;
    table.ring_submit = fake_ring_submit;
    table.ring_wait = fake_ring_wait;
    table.cachestat = fake_cachestat;
    table.mincore = fake_mincore;
    table.fadvise = fake_fadvise;
    table.may_write = fake_may_write;
    table.fs_type = fake_fs_type;
    table.direct_alignment = fake_direct_alignment;
    table.open = fake_open;
    table.large_page_bytes = fake_large_page_bytes;
    table.close = fake_close;
    table.descriptor_limits = fake_descriptor_limits;
    hr_sys = &table;
}

void fake_storage_remove(void)
{
    assert_ptr_equal(hr_sys, &table);
    hr_sys = below;
}

unsigned long fake_storage_read_count(void)
{
    return atomic_load(&read_count);
}

unsigned long fake_storage_misaligned_count(void)
{
    return atomic_load(&misaligned_count);
}

void fake_event_truncate(void *truncation)
{
    const struct fake_truncation *wanted = truncation;
    if (truncate(wanted->path, (off_t)wanted->size))
        print_error("truncate %s failed\n", wanted->path);
}

void fake_event_replace(void *replacement)
{
    const struct fake_replacement *wanted = replacement;
    if (rename(wanted->from, wanted->to))
        print_error("rename %s failed\n", wanted->from);
}

void fake_event_refuse_direct(void *unused)
{
    (void)unused;
    __atomic_store_n(&options.direct_read_error, EINVAL, __ATOMIC_RELAXED);
}

void fake_event_want_pages(void *unused)
{
    (void)unused;
    __atomic_store_n(&options.alignment.memory_bytes, 4096, __ATOMIC_RELAXED);
}
