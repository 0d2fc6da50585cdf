/*
 * probe_host.c: the ceilings of the host: copies in memory, reads from the page cache and from storage. All of them land
 * in one scratch memory that is larger than the caches of most processors, each worker in a part of its own.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/sys.h"
#include "probe/probe.h"

#define MEMORY_SHARES 2
#define PAGE_CACHE_SHARES 6
#define FRESH_SHARES 3
#define STORAGE_SHARES 7
/* The reads of a load to a GPU; larger ones are not faster. */
#define PIECE_BYTES (2 * HR_PROBE_MIB)

#define DETAIL(field, ...) snprintf((field), sizeof(field), __VA_ARGS__)

struct reading {
    struct hr_probe_file *file;
    int fd;
    char *scratch;
    uint64_t scratch_bytes, part_bytes, piece_bytes; /* of the scratch, of a worker's part, of a read */
    int fresh;                                       /* each part is filled once a trial, untouched before */
    uint64_t filled_bytes[HR_READER_MAX];            /* by each worker in this trial, told by it alone */
    uint64_t block_count;                            /* storage: of the whole file */
    atomic_uint_fast64_t next_block;                 /* storage: of all trials, so that none is read twice */
};

static void reading_init(struct reading *reading, struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes)
{
    memset(reading, 0, sizeof *reading);
    reading->file = &run->file;
    reading->fd = run->file.fd;
    reading->scratch = scratch;
    reading->scratch_bytes = scratch_bytes;
}

/* ------------------------------------------------------------------------------------------ memory */

struct copying {
    char *scratch;
    uint64_t half_bytes;
};

static int64_t copy_step(void *context, uint32_t worker, struct hr_error *err)
{
    struct copying *copying = context;
    (void)worker;
    (void)err;
    memcpy(copying->scratch + copying->half_bytes, copying->scratch, copying->half_bytes);
    return (int64_t)copying->half_bytes;
}

void hr_probe_memory(struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes)
{
    struct copying copying = {scratch, scratch_bytes / 2};
    struct hr_probe_team team = {.context = &copying, .step = copy_step};
    struct hr_probe_rate best = {0};
    struct hr_error err; /* copying in memory does not fail */
    hr_probe_team_run(&team, 1, MEMORY_SHARES * run->share_ns, &best, &err);
    run->limits.memory_copy = best.bytes_per_second;
}

/* -------------------------------------------------------------------------------------- page cache */

static int hot_begin(void *context, uint32_t worker_count, struct hr_error *err)
{
    struct reading *reading = context;
    uint64_t part_bytes = hr_probe_power(reading->scratch_bytes / worker_count);
    reading->part_bytes = part_bytes;
    reading->piece_bytes = part_bytes < PIECE_BYTES ? part_bytes : PIECE_BYTES;
    memset(reading->filled_bytes, 0, sizeof reading->filled_bytes);
    int error = reading->fresh ? hr_sys->advise(reading->scratch, reading->scratch_bytes, MADV_DONTNEED) : 0;
    return error ? hr_fail_sys(err, HR_EIO_ERROR, -error, "memory could not be made fresh") : 0;
}

static int64_t hot_step(void *context, uint32_t worker, struct hr_error *err)
{
    struct reading *reading = context;
    uint64_t filled_bytes = reading->filled_bytes[worker], piece_bytes = reading->piece_bytes;
    if (reading->fresh && filled_bytes == reading->part_bytes)
        return 0;
    char *target = reading->scratch + worker * reading->part_bytes + filled_bytes % reading->part_bytes;
    uint64_t offset = hr_probe_file_next(reading->file, piece_bytes);
    int code = hr_probe_file_read(reading->fd, target, piece_bytes, offset, err);
    reading->filled_bytes[worker] = filled_bytes + piece_bytes;
    return code < 0 ? code : (int64_t)piece_bytes;
}

void hr_probe_page_cache(struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes)
{
    struct reading reading;
    struct hr_probe_team team = {.context = &reading, .begin = hot_begin, .step = hot_step};
    struct hr_probe_rate touched = {0}, fresh = {0};
    struct hr_error err = {0};
    if (run->file.block_count == 0)
        return;
    reading_init(&reading, run, scratch, scratch_bytes);
    int code = hr_probe_team_sweep(&team, run->thread_count, PAGE_CACHE_SHARES * run->share_ns, &touched, &err);
    if (code == 0) {
        run->limits.page_cache = touched.bytes_per_second;
        run->limits.page_cache_threads = touched.thread_count;
        reading.fresh = 1;
        code = hr_probe_team_sweep(&team, run->thread_count, FRESH_SHARES * run->share_ns, &fresh, &err);
    }
    if (code < 0) {
        DETAIL(run->limits.page_cache_detail, "%.159s", err.message);
        return;
    }
    run->limits.page_cache_fresh = fresh.bytes_per_second;
    DETAIL(run->limits.page_cache_detail, "preadv of %" PRIu64 " MiB in turn; fresh memory with %u threads",
           run->file.block_count * HR_PROBE_BLOCK_BYTES / HR_PROBE_MIB, fresh.thread_count);
}

/* ----------------------------------------------------------------------------------------- storage */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/*
 * The number-th block of an order that visits each once, neighbours far apart, so that neither read-ahead of the device
 * nor what it has just read answers for it: steps of the golden section of the file, without a common divisor.
 */
static uint64_t spread_block(uint64_t number, uint64_t block_count)
{
    if (block_count < 3)
        return number;
    uint64_t step = block_count * 618 / 1000;
    while (common_divisor(step, block_count) > 1)
        step++;
    return number * step % block_count;
}

static int64_t storage_step(void *context, uint32_t worker, struct hr_error *err)
{
    struct reading *reading = context;
    uint64_t number = atomic_fetch_add(&reading->next_block, 1);
    if (number >= reading->block_count)
        return 0;
    uint64_t offset = spread_block(number, reading->block_count) * HR_PROBE_BLOCK_BYTES;
    char *target = reading->scratch + worker * HR_PROBE_BLOCK_BYTES;
    int code = hr_probe_file_read(reading->fd, target, HR_PROBE_BLOCK_BYTES, offset, err);
    return code < 0 ? code : (int64_t)HR_PROBE_BLOCK_BYTES;
}

static int read_storage(struct hr_probe_run *run, struct reading *reading, struct hr_error *err)
{
    struct hr_probe_team team = {.context = reading, .step = storage_step};
    struct hr_probe_rate best = {0};
    uint64_t room = reading->scratch_bytes / HR_PROBE_BLOCK_BYTES;
    uint32_t thread_count = run->thread_count < room ? run->thread_count : (uint32_t)room;
    int code = hr_probe_team_run(&team, thread_count, STORAGE_SHARES * run->share_ns, &best, err);
    if (code < 0)
        return code;
    run->limits.storage = best.bytes_per_second;
    DETAIL(run->limits.storage_detail, "O_DIRECT reads of 4 MiB by %u threads, all over the file", best.thread_count);
    return 0;
}

void hr_probe_storage(struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes)
{
    struct reading reading;
    struct hr_error err = {0};
    if (run->file.fd < 0)
        return;
    reading_init(&reading, run, scratch, scratch_bytes);
    reading.block_count = run->file.size / HR_PROBE_BLOCK_BYTES;
    if (reading.block_count == 0) {
        DETAIL(run->limits.storage_detail, "the file has less than 4 MiB");
        return;
    }
    reading.fd = hr_sys->open(run->path, O_RDONLY | O_DIRECT | O_NONBLOCK);
    if (reading.fd < 0) {
        hr_fail_sys(&err, HR_EIO_ERROR, -reading.fd, "the file cannot be opened with O_DIRECT");
        DETAIL(run->limits.storage_detail, "%.159s", err.message);
        return;
    }
    if (read_storage(run, &reading, &err) < 0)
        DETAIL(run->limits.storage_detail, "O_DIRECT: %.149s", err.message);
    hr_sys->close(reading.fd);
}
