/*
 * probe.h: what the parts of a probe share: its arguments, the scratch memory, the file, and teams of threads that move
 * bytes against the clock. It measures with the reads and copies that loads use, and knows nothing of loads.
 *
 * A figure that cannot be measured stays 0 and its detail says why. Parts return errors only for what ends the probe:
 * no memory.
 */
#ifndef HR_PROBE_PROBE_H
#define HR_PROBE_PROBE_H

#include <headrace/headrace.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/limits.h"
#include "device/device.h"

#define HR_PROBE_MIB (UINT64_C(1) << 20)
/* The unit in which the page cache is asked and storage is read: loads read as much at once. */
#define HR_PROBE_BLOCK_BYTES (4 * HR_PROBE_MIB)
/* 4 GiB of resident blocks: more than caches of processors hold, so that reading them in turn comes from memory. */
#define HR_PROBE_BLOCKS_MAX 1024
/* Each measurement gets some of so many shares of the budget. */
#define HR_PROBE_SHARE_COUNT 32

/* Of the file: `fd` < 0 when there is none. `block_count` is 0 when too little is resident. */
struct hr_probe_file {
    int fd;
    uint64_t size;
    size_t block_count;
    uint64_t blocks[HR_PROBE_BLOCKS_MAX]; /* offsets of blocks that the page cache holds as a whole */
    atomic_uint_fast64_t next_piece;      /* counts hr_probe_file_next(), by all workers */
};

struct hr_probe_run {
    const char *path; /* NULL: none */
    uint32_t thread_count;
    uint64_t share_ns;
    struct hr_probe_file file;
    struct hr_limits limits;
};

/* Opens the file and asks the page cache; what is lacking goes into the details. Close it in any case. */
void hr_probe_file_open(struct hr_probe_run *run);
void hr_probe_file_close(struct hr_probe_run *run);
/* Offset of the next `piece_bytes` (a power of two, at most a block) of resident blocks, round and round. Any thread. */
uint64_t hr_probe_file_next(struct hr_probe_file *file, uint64_t piece_bytes);
/* Reads exactly `bytes`, or says in `err` why not. */
int hr_probe_file_read(int fd, void *buffer, uint64_t bytes, uint64_t offset, struct hr_error *err);

/* The parts. `scratch` is touched memory on a page; hr_probe_fresh gives its pages back and takes them again. */
void hr_probe_memory(struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes);
void hr_probe_page_cache(struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes);
void hr_probe_storage(struct hr_probe_run *run, char *scratch, uint64_t scratch_bytes);
int hr_probe_device(struct hr_probe_run *run, struct hr_device *device, struct hr_error *err);

/* What a team does. Workers are numbered from 0; one that is not running has no work in flight. */
struct hr_probe_team {
    void *context;
    /* Before each trial, on the calling thread; for how many workers at most. NULL: nothing to do. */
    int (*begin)(void *context, uint32_t worker_count, struct hr_error *err);
    /* Again and again until the time is over: bytes moved, 0 when nothing is left, or an error. */
    int64_t (*step)(void *context, uint32_t worker, struct hr_error *err);
    /* After the last step, inside the time that is measured: waits for what is in flight. NULL: nothing is. */
    int (*end)(void *context, uint32_t worker, struct hr_error *err);
};

struct hr_probe_rate {
    uint64_t bytes_per_second;
    uint32_t thread_count;
};

/*
 * A few trials in about `duration_ns` with up to `thread_count` threads (fewer where the system has no more). A trial has
 * at least one step for each; only the first is made when they take longer than that. *best becomes what the fastest
 * gave, if that is faster.
 */
int hr_probe_team_run(const struct hr_probe_team *team, uint32_t thread_count, uint64_t duration_ns,
                      struct hr_probe_rate *best, struct hr_error *err);
/* The same with thread_count threads, half as many, ... 1, in `duration_ns` together. */
int hr_probe_team_sweep(const struct hr_probe_team *team, uint32_t thread_count, uint64_t duration_ns,
                        struct hr_probe_rate *best, struct hr_error *err);

/* The largest power of two that is not above `value` (not 0). */
uint64_t hr_probe_power(uint64_t value);

#endif
