/*
 * ruler.h: the fastest bare program that takes a checkpoint's bytes from the page cache to a GPU: what headrace is
 * measured against, and the two limits that it is made of.
 *
 * Threads take blocks of the joined data sections in turn, pread each into a piece of pinned memory of their own, copy
 * it to the device on their own stream, and before they use that piece again wait (asleep) for the event behind its
 * copy. No tensor, no check, no allocation. One user at a time.
 */
#ifndef BENCH_RULER_H
#define BENCH_RULER_H

#include <headrace/headrace.h>

struct ruler;

struct ruler_setting {
    unsigned threads, depth; /* depth: pieces of pinned memory a thread */
    uint64_t block_bytes;
};

enum { RULER_COPY_SIZES = 5, RULER_COPY_STREAMS = 2 };

/* What stands behind each copy: an event that is waited for asleep is one that interrupts the processor. */
enum ruler_behind { RULER_NOTHING, RULER_EVENT, RULER_SLEEPING_EVENT, RULER_BEHIND_COUNT };

struct ruler_limits {
    double page_cache; /* bytes a second into the same pieces, without the copies */
    struct ruler_setting page_cache_setting;
    uint64_t copy_sizes[RULER_COPY_SIZES];
    unsigned copy_streams[RULER_COPY_STREAMS];
    /* bytes a second from pinned memory to the device */
    double copy[RULER_COPY_SIZES][RULER_COPY_STREAMS][RULER_BEHIND_COUNT];
};

/* Opens the files, makes the pinned ring and the destination on the device; the checkpoint must outlive it. */
struct ruler *ruler_new(const struct hr_checkpoint *checkpoint);
uint64_t ruler_bytes(const struct ruler *ruler);
/* One trial over all bytes; its seconds. */
double ruler_trial(struct ruler *ruler, const struct ruler_setting *setting);
/* The fastest setting, with one of these thread counts; with none of them, those that suit the cores. */
struct ruler_setting ruler_sweep(struct ruler *ruler, const unsigned *threads, size_t thread_count);
struct ruler_limits ruler_measure_limits(struct ruler *ruler);

#endif
