/*
 * fake_storage.c: the disk of fake_storage.h.
 */
#include "support/fake_storage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <liburing.h>
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

static const struct hr_sys *below;
static struct hr_sys table;
static struct fake_storage options;
static struct stat fail_file;
static atomic_ulong read_count, random_count;

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

static int in_fail_file(int fd)
{
    struct stat now;
    if (!options.fail_path)
        return 1;
    return fstat(fd, &now) == 0 && now.st_dev == fail_file.st_dev && now.st_ino == fail_file.st_ino;
}

/* What this read has to return instead of bytes, or 0. */
static int read_error(int fd, uint64_t offset, size_t size)
{
    if (offset < options.fail_end && options.fail_begin < offset + size && in_fail_file(fd))
        return options.fail_error ? -options.fail_error : -EIO;
    if (happens(options.eintr_percent))
        return -EINTR;
    if (happens(options.eagain_percent))
        return -EAGAIN;
    return 0;
}

static size_t shortened(size_t size)
{
    return size > 1 && happens(options.short_percent) ? 1 + next_random() % (size - 1) : size;
}

/* Facts about the machine are asked for at any time, and come from no storage. */
static int is_sysfs(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) == 0 && system.f_type == SYSFS_MAGIC;
}

static ssize_t fake_preadv(int fd, const struct iovec *vectors, int vector_count, uint64_t offset)
{
    if (is_sysfs(fd))
        return below->preadv(fd, vectors, vector_count, offset);
    struct iovec cut[HR_IOV_MAX];
    size_t size = vectors_size(vectors, vector_count);
    int count = 0;
    read_started();
    read_delay();
    int error = read_error(fd, offset, size);
    if (error)
        return error;
    for (size_t left = shortened(size); left > 0 && count < HR_IOV_MAX; count++) {
        cut[count] = vectors[count];
        if (cut[count].iov_len > left)
            cut[count].iov_len = left;
        left -= cut[count].iov_len;
    }
    return below->preadv(fd, cut, count, offset);
}

static int fake_ring_submit(struct io_uring *ring)
{
    read_started();
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
    read_delay();
    int result = read_error(op->fd, op->offset, vectors_size(op->vectors, op->vector_count));
    if (result)
        (*ret_cqe)->res = result;
    else if ((*ret_cqe)->res > 0)
        (*ret_cqe)->res = (int)shortened((size_t)(*ret_cqe)->res);
    int arrived = (*ret_cqe)->res;
    scribble(op->vectors, op->vector_count, arrived > 0 ? (size_t)arrived : 0);
    return 0;
}

static int fake_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    int error = below->cachestat(fd, offset, size, ret_page_count);
    if (options.cold) {
        *ret_page_count = 0;
        return 0;
    }
    return error;
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
    below = hr_sys;
    table = *below;
    table.preadv = fake_preadv;
    table.ring_submit = fake_ring_submit;
    table.ring_wait = fake_ring_wait;
    table.cachestat = fake_cachestat;
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
