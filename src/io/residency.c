/*
 * residency.c: what the page cache holds of a file, asked in up to three ways. The kernel counts whole pages; a page
 * that the range only touches counts, so answers are cut to the range's size.
 */
#include "io/residency.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/sys.h"

/* A mapping for mincore: its answer, a byte a page, lies on the stack. */
#define WINDOW_PAGES 4096u

static uint64_t page_size(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static int64_t cut(uint64_t bytes, uint64_t size)
{
    return (int64_t)(bytes < size ? bytes : size);
}

int64_t hr_residency_exact(int fd, uint64_t offset, uint64_t size)
{
    uint64_t page_count;
    if (size == 0) /* which the kernel takes for "to the end of the file" */
        return 0;
    int error = hr_sys->cachestat(fd, offset, size, &page_count);
    return error ? error : cut(page_count * page_size(), size);
}

int hr_read_byte(int fd, uint64_t offset, int flags)
{
    char byte;
    struct iovec vector = {&byte, 1};
    ssize_t got;
    do
        got = hr_sys->preadv(fd, &vector, 1, offset, flags);
    while (got == -EINTR);
    return (int)got;
}

/* 1: the page cache holds the byte, 0: it does not, or the file ends before it; else -errno. */
static int probe_byte(int fd, uint64_t offset)
{
    int got = hr_read_byte(fd, offset, RWF_NOWAIT);
    return got == -EAGAIN ? 0 : got;
}

static int64_t probe_places(int fd, uint64_t offset, uint64_t size)
{
    uint64_t count = size / HR_RESIDENCY_PROBE_BYTES;
    count = count < 1 ? 1 : count > HR_RESIDENCY_PROBE_MAX ? HR_RESIDENCY_PROBE_MAX : count;
    uint64_t step = size / count, found = 0;
    for (uint64_t i = 0; i < count; i++) {
        int answer = probe_byte(fd, offset + i * step + step / 2);
        if (answer < 0)
            return answer;
        found += (uint64_t)answer;
    }
    return found == count ? (int64_t)size : (int64_t)(found * step);
}

/* Without POSIX_FADV_RANDOM a miss would start read-ahead, and asking would fill the page cache. */
static int64_t residency_by_probes(int fd, uint64_t offset, uint64_t size)
{
    int error = hr_sys->fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    if (error)
        return error;
    int64_t found = probe_places(fd, offset, size);
    hr_sys->fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
    return found;
}

/* Resident pages of one window that begins on a page; or -errno. */
static int64_t window_count(int fd, uint64_t begin, uint64_t page_count)
{
    unsigned char pages[WINDOW_PAGES];
    size_t bytes = page_count * page_size();
    int64_t found = 0;
    void *memory = hr_sys->map(NULL, bytes, PROT_READ, MAP_SHARED, fd, begin);
    if (!memory)
        return -ENOMEM;
    int error = hr_sys->mincore(memory, bytes, pages);
    hr_sys->unmap(memory, bytes);
    for (uint64_t i = 0; i < page_count && !error; i++)
        found += pages[i] & 1;
    return error ? error : found;
}

static int64_t residency_by_mincore(int fd, uint64_t offset, uint64_t size)
{
    uint64_t page = page_size();
    uint64_t at = offset / page, end = (offset + size - 1) / page + 1, found = 0;
    int error = hr_sys->may_write(fd);
    if (error)
        return error;
    while (at < end) {
        uint64_t count = end - at < WINDOW_PAGES ? end - at : WINDOW_PAGES;
        int64_t here = window_count(fd, at * page, count);
        if (here < 0)
            return here;
        found += (uint64_t)here;
        at += count;
    }
    return cut(found * page, size);
}

int64_t hr_residency(int fd, uint64_t offset, uint64_t size, enum hr_residency_way *ret_way)
{
    enum hr_residency_way way = HR_RESIDENCY_CACHESTAT;
    int64_t refusal = hr_residency_exact(fd, offset, size), found = refusal;
    if (found < 0 && refusal != -EBADF) {
        way = HR_RESIDENCY_PROBES;
        found = residency_by_probes(fd, offset, size);
    }
    if (found < 0 && refusal != -EBADF) {
        way = HR_RESIDENCY_MINCORE;
        found = residency_by_mincore(fd, offset, size);
    }
    if (ret_way)
        *ret_way = found < 0 ? HR_RESIDENCY_UNKNOWN : way;
    return found < 0 ? refusal : found;
}

/* The kernel leaves pages that the range holds in part, but for the file's last one. Size 0 would mean all the rest. */
int hr_drop_behind(int fd, uint64_t offset, uint64_t size)
{
    return size ? hr_sys->fadvise(fd, offset, size, POSIX_FADV_DONTNEED) : 0;
}
