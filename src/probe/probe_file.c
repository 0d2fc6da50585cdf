/*
 * probe_file.c: the file of a probe: which of its blocks the page cache holds, and reading from them. It is read through
 * the page cache only where that holds it, so that probing changes nothing of what is cached.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/sys.h"
#include "io/residency.h"
#include "probe/probe.h"

/* With less, caches of processors would answer for memory. */
#define RESIDENT_BYTES_MIN (64 * HR_PROBE_MIB)

#define DETAIL(field, ...) snprintf((field), sizeof(field), __VA_ARGS__)

static void file_unusable(struct hr_probe_run *run, const struct hr_error *err)
{
    DETAIL(run->limits.page_cache_detail, "%.159s", err->message);
    DETAIL(run->limits.storage_detail, "%.159s", err->message);
}

/* A block counts when it is there as a whole. Takes a share of the budget, or what the first 4 GiB take: some ms. */
static int64_t find_resident(struct hr_probe_file *file, uint64_t duration_ns)
{
    uint64_t deadline_ns = hr_sys->clock_ns() + duration_ns;
    for (uint64_t offset = 0; offset + HR_PROBE_BLOCK_BYTES <= file->size; offset += HR_PROBE_BLOCK_BYTES) {
        int64_t resident = hr_residency_exact(file->fd, offset, HR_PROBE_BLOCK_BYTES);
        if (resident < 0)
            return resident;
        if ((uint64_t)resident == HR_PROBE_BLOCK_BYTES)
            file->blocks[file->block_count++] = offset;
        int late = offset / HR_PROBE_BLOCK_BYTES >= HR_PROBE_BLOCKS_MAX && hr_sys->clock_ns() > deadline_ns;
        if (late || file->block_count == HR_PROBE_BLOCKS_MAX)
            break;
    }
    return 0;
}

static void ask_page_cache(struct hr_probe_run *run)
{
    struct hr_probe_file *file = &run->file;
    int64_t error = find_resident(file, run->share_ns);
    uint64_t resident_mib = file->block_count * HR_PROBE_BLOCK_BYTES / HR_PROBE_MIB;
    if (error)
        DETAIL(run->limits.page_cache_detail, "cannot tell what the page cache holds (errno %d): see headrace doctor",
               (int)-error);
    else if (resident_mib * HR_PROBE_MIB < RESIDENT_BYTES_MIN)
        DETAIL(run->limits.page_cache_detail,
               "the page cache holds only %" PRIu64 " MiB of the file in whole blocks: read it first, at least %" PRIu64
               " MiB",
               resident_mib, (uint64_t)(RESIDENT_BYTES_MIN / HR_PROBE_MIB));
    else
        return;
    file->block_count = 0;
}

/* O_NONBLOCK so that a pipe cannot hold the call up; files do not care. */
static int open_regular(struct hr_probe_run *run, struct hr_error *err)
{
    struct stat stat;
    int fd = hr_sys->open(run->path, O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return hr_fail_sys(err, HR_EIO_ERROR, -fd, "cannot open '%s'", run->path);
    run->file.fd = fd;
    int error = hr_sys->fstat(fd, &stat);
    if (error)
        return hr_fail_sys(err, HR_EIO_ERROR, -error, "cannot stat '%s'", run->path);
    if (!S_ISREG(stat.st_mode))
        return hr_fail(err, HR_ENOT_A_REGULAR_FILE, "'%s' is not a regular file", run->path);
    run->file.size = (uint64_t)stat.st_size;
    return 0;
}

void hr_probe_file_open(struct hr_probe_run *run)
{
    struct hr_error err = {.message = "no file was given"};
    run->file.fd = -1;
    if (!run->path || open_regular(run, &err) < 0) {
        hr_probe_file_close(run);
        file_unusable(run, &err);
        return;
    }
    ask_page_cache(run);
}

void hr_probe_file_close(struct hr_probe_run *run)
{
    if (run->file.fd >= 0)
        hr_sys->close(run->file.fd);
    run->file.fd = -1;
}

uint64_t hr_probe_file_next(struct hr_probe_file *file, uint64_t piece_bytes)
{
    uint64_t per_block = HR_PROBE_BLOCK_BYTES / piece_bytes;
    uint64_t number = atomic_fetch_add(&file->next_piece, 1);
    return file->blocks[number / per_block % file->block_count] + number % per_block * piece_bytes;
}

int hr_probe_file_read(int fd, void *buffer, uint64_t bytes, uint64_t offset, struct hr_error *err)
{
    ssize_t got = hr_read_full(fd, buffer, bytes, offset);
    if (got < 0)
        return hr_fail_sys(err, HR_EIO_ERROR, (int)-got, "reading %" PRIu64 " bytes at %" PRIu64 " failed", bytes,
                           offset);
    if ((uint64_t)got < bytes)
        return hr_fail(err, HR_ESHORT_READ, "the file ended at %" PRIu64 " while it was read", offset + (uint64_t)got);
    return 0;
}
