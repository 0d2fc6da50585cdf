/*
 * cache_state.c: see cache_state.h. cachestat(2) has no wrapper in the C libraries; its number is the same on all
 * architectures. mincore() says that all of another user's file is there, so it errs on the side that stops a run.
 */
#include "cache_state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "measure.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

static uint64_t resident_by_mincore(int fd, uint64_t size)
{
    uint64_t pages = (size + PAGE - 1) / PAGE, resident = 0;
    unsigned char *states = malloc(pages);
    void *mapping = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (!states || mapping == MAP_FAILED || mincore(mapping, size, states) < 0)
        die("mincore", "it cannot be told what the page cache holds");
    for (uint64_t i = 0; i < pages; i++)
        resident += states[i] & 1;
    munmap(mapping, size);
    free(states);
    return resident * PAGE;
}

uint64_t page_cache_resident(int fd, uint64_t size)
{
    uint64_t range[2] = {0, size}, counts[5] = {0}; /* counts[0]: pages that are resident */
    if (!size)
        return 0;
    if (syscall(SYS_cachestat, fd, range, counts, 0) == 0)
        return counts[0] * PAGE;
    return resident_by_mincore(fd, size);
}

int page_cache_drop(int fd, uint64_t size)
{
    struct timespec pause = {.tv_nsec = 20000000};
    for (int trial = 0; trial < 10; trial++) {
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (!page_cache_resident(fd, size))
            return 0;
        nanosleep(&pause, NULL); /* pages that another core is about to put on its lists */
    }
    return -1;
}

/*
 * With read-ahead, so that the cache is made of large folios as readers make it; only the last part before an end that is
 * not the file's goes without, so that nothing beyond is read.
 */
void page_cache_fill(int fd, uint64_t bytes, uint64_t size)
{
    enum { BLOCK = 4 << 20, EXACT = 32 << 20 };
    char *block = malloc(BLOCK);
    for (uint64_t at = 0; at < bytes;) {
        uint64_t wanted = bytes - at < BLOCK ? bytes - at : BLOCK;
        if (bytes < size && bytes - at <= EXACT)
            posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        ssize_t got = pread(fd, block, wanted, (off_t)at);
        if (got <= 0)
            die("pread", "the file could not be read into the page cache");
        at += (uint64_t)got;
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
    free(block);
}
