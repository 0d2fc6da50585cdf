/*
 * ruler.c: see ruler.h. The sweep tries all settings on a part of the bytes, then the best few on all of them.
 */
#include "ruler.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_bare.h"
#include "measure.h"

#define THREADS_MAX 128
#define DEPTH_MAX 4
#define RING_BYTES ((uint64_t)256 << 20)
#define SWEEP_BYTES ((uint64_t)4 << 30)
#define SETTINGS_MAX 64
#define FINALISTS 3

struct ruler {
    const struct hr_checkpoint *checkpoint;
    int *fds;
    uint64_t *starts; /* of each data section in the joined bytes */
    uint64_t bytes;
    char *ring;
    uint64_t device; /* address of as many bytes */
    void *streams[THREADS_MAX], *events[THREADS_MAX][DEPTH_MAX];

    /* the trial that runs: written before its threads start */
    struct ruler_setting setting;
    uint64_t end;
    int copies;
    atomic_uint_fast64_t position; /* taken by all threads */
    atomic_uint next_thread;
};

struct ruler *ruler_new(const struct hr_checkpoint *checkpoint)
{
    struct ruler *ruler = calloc(1, sizeof *ruler);
    size_t count = hr_checkpoint_file_count(checkpoint);
    ruler->checkpoint = checkpoint;
    ruler->fds = calloc(count, sizeof *ruler->fds);
    ruler->starts = calloc(count, sizeof *ruler->starts);
    for (size_t i = 0; i < count; i++) {
        const struct hr_file *file = hr_checkpoint_file(checkpoint, i);
        ruler->fds[i] = open(file->path, O_RDONLY | O_CLOEXEC);
        if (ruler->fds[i] < 0)
            die("open", file->path);
        ruler->starts[i] = ruler->bytes;
        ruler->bytes += file->size - file->data_offset;
    }
    ruler->ring = cuda_pinned(RING_BYTES);
    ruler->device = cuda_alloc(ruler->bytes > RING_BYTES ? ruler->bytes : RING_BYTES);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        ruler->streams[i] = cuda_stream();
        for (unsigned d = 0; d < DEPTH_MAX; d++)
            ruler->events[i][d] = cuda_event();
    }
    return ruler;
}

uint64_t ruler_bytes(const struct ruler *ruler)
{
    return ruler->bytes;
}

/* Reads bytes from..end of the joined data sections. */
static void read_block(const struct ruler *ruler, char *to, uint64_t from, uint64_t end)
{
    size_t count = hr_checkpoint_file_count(ruler->checkpoint);
    for (size_t i = 0; i < count && from < end; i++) {
        const struct hr_file *file = hr_checkpoint_file(ruler->checkpoint, i);
        uint64_t stop = ruler->starts[i] + file->size - file->data_offset;
        stop = end < stop ? end : stop;
        while (from < stop) {
            off_t offset = (off_t)(file->data_offset + from - ruler->starts[i]);
            ssize_t got = pread(ruler->fds[i], to, stop - from, offset);
            if (got <= 0)
                die("pread", file->path);
            from += (uint64_t)got;
            to += got;
        }
    }
}

static void *ruler_thread(void *argument)
{
    struct ruler *ruler = argument;
    unsigned self = atomic_fetch_add(&ruler->next_thread, 1), depth = ruler->setting.depth;
    uint64_t block = ruler->setting.block_bytes;
    char *pieces = ruler->ring + self * depth * block;
    cuda_enter();
    for (unsigned turn = 0;; turn++) {
        uint64_t from = atomic_fetch_add(&ruler->position, block);
        uint64_t end = from + block < ruler->end ? from + block : ruler->end;
        unsigned piece = turn % depth;
        if (from >= ruler->end)
            break;
        if (ruler->copies && turn >= depth)
            CUDA(event_synchronize, ruler->events[self][piece]);
        read_block(ruler, pieces + piece * block, from, end);
        if (ruler->copies) {
            CUDA(copy_to_device, ruler->device + from, pieces + piece * block, end - from, ruler->streams[self]);
            CUDA(event_record, ruler->events[self][piece], ruler->streams[self]);
        }
    }
    /* the last event of the thread, recorded or not, says that all of its copies have ended */
    if (ruler->copies) {
        CUDA(event_record, ruler->events[self][0], ruler->streams[self]);
        CUDA(event_synchronize, ruler->events[self][0]);
    }
    return NULL;
}

static double run(struct ruler *ruler, const struct ruler_setting *setting, uint64_t bytes, int copies)
{
    pthread_t threads[THREADS_MAX];
    double from = now_seconds();
    ruler->setting = *setting;
    ruler->end = bytes;
    ruler->copies = copies;
    atomic_store(&ruler->position, 0);
    atomic_store(&ruler->next_thread, 0);
    for (unsigned i = 0; i < setting->threads; i++)
        if (pthread_create(&threads[i], NULL, ruler_thread, ruler))
            die("pthread_create", "no more threads");
    for (unsigned i = 0; i < setting->threads; i++)
        pthread_join(threads[i], NULL);
    return now_seconds() - from;
}

double ruler_trial(struct ruler *ruler, const struct ruler_setting *setting)
{
    return run(ruler, setting, ruler->bytes, 1);
}

/* ------------------------------------------------------------------------------------------- the sweep */

struct candidate {
    struct ruler_setting setting;
    double seconds; /* the best of its trials */
};

static int compare_candidates(const void *a, const void *b)
{
    double x = ((const struct candidate *)a)->seconds, y = ((const struct candidate *)b)->seconds;
    return (x > y) - (x < y);
}

/* Fewer threads than cores where there are many of these, as many, and more. */
static size_t thread_counts_of(unsigned cores, unsigned *counts)
{
    size_t count = 0;
    if (cores >= 8)
        counts[count++] = cores * 3 / 4;
    counts[count++] = cores;
    counts[count++] = cores + (cores + 1) / 2;
    counts[count++] = cores * 2;
    return count;
}

static size_t list_candidates(struct candidate *list, const unsigned *threads, size_t thread_count, int copies)
{
    size_t count = 0;
    for (size_t t = 0; t < thread_count; t++)
        for (uint64_t block = 1 << 20; block <= 4 << 20; block *= 2)
            for (unsigned depth = copies ? 2 : 1; depth <= (copies ? DEPTH_MAX : 1); depth *= 2)
                if (threads[t] <= THREADS_MAX && threads[t] * depth * block <= RING_BYTES && count < SETTINGS_MAX)
                    list[count++] = (struct candidate){{threads[t], depth, block}, 1e9};
    if (!count)
        die("ruler", "no thread count suits");
    return count;
}

static void try_candidates(struct ruler *ruler, struct candidate *list, size_t count, uint64_t bytes, int copies)
{
    for (int trial = 0; trial < 2; trial++)
        for (size_t i = 0; i < count; i++) {
            double seconds = run(ruler, &list[i].setting, bytes, copies);
            list[i].seconds = seconds < list[i].seconds ? seconds : list[i].seconds;
        }
    qsort(list, count, sizeof *list, compare_candidates);
}

static struct candidate sweep(struct ruler *ruler, const unsigned *threads, size_t thread_count, int copies)
{
    struct candidate list[SETTINGS_MAX];
    size_t count = list_candidates(list, threads, thread_count, copies);
    size_t finalists = count < FINALISTS ? count : FINALISTS;
    try_candidates(ruler, list, count, ruler->bytes < SWEEP_BYTES ? ruler->bytes : SWEEP_BYTES, copies);
    for (size_t i = 0; i < finalists; i++)
        list[i].seconds = 1e9;
    try_candidates(ruler, list, finalists, ruler->bytes, copies);
    return list[0];
}

struct ruler_setting ruler_sweep(struct ruler *ruler, const unsigned *threads, size_t thread_count)
{
    unsigned own[4];
    if (!thread_count) {
        thread_count = thread_counts_of(core_count(), own);
        threads = own;
    }
    return sweep(ruler, threads, thread_count, 1).setting;
}

/* ------------------------------------------------------------------------------------------ the limits */

/* Copies of `size` bytes from all over the ring, taking turns on the streams, `event` (or NULL) behind each. */
static double copy_rate(struct ruler *ruler, uint64_t size, unsigned streams, void *event)
{
    uint64_t total = 8 * RING_BYTES, sent = 0;
    double from = now_seconds();
    for (unsigned i = 0; sent < total; i++, sent += size) {
        CUDA(copy_to_device, ruler->device + sent % RING_BYTES, ruler->ring + sent % RING_BYTES, size,
             ruler->streams[i % streams]);
        if (event)
            CUDA(event_record, event, ruler->streams[i % streams]);
    }
    for (unsigned i = 0; i < streams; i++)
        CUDA(stream_synchronize, ruler->streams[i]);
    return (double)total / (now_seconds() - from);
}

struct ruler_limits ruler_measure_limits(struct ruler *ruler)
{
    struct ruler_limits limits = {.copy_sizes = {1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20},
                                  .copy_streams = {1, 4}};
    unsigned threads[4];
    void *const events[RULER_BEHIND_COUNT] = {NULL, cuda_event_to_poll(), ruler->events[0][0]};
    struct candidate best = sweep(ruler, threads, thread_counts_of(core_count(), threads), 0);
    limits.page_cache = (double)ruler->bytes / best.seconds;
    limits.page_cache_setting = best.setting;
    for (int i = 0; i < RULER_COPY_SIZES; i++)
        for (int j = 0; j < RULER_COPY_STREAMS; j++)
            for (int trial = 0; trial < 2; trial++)
                for (int k = 0; k < RULER_BEHIND_COUNT; k++) {
                    double rate = copy_rate(ruler, limits.copy_sizes[i], limits.copy_streams[j], events[k]);
                    limits.copy[i][j][k] = rate > limits.copy[i][j][k] ? rate : limits.copy[i][j][k];
                }
    return limits;
}
