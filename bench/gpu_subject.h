/*
 * gpu_subject.h: one way of loading a checkpoint into a GPU with headrace, tried again and again: whose memory, whether
 * the loader is kept, how many threads are asked for. Keeps what each trial took and what the last one said.
 */
#ifndef BENCH_GPU_SUBJECT_H
#define BENCH_GPU_SUBJECT_H

#include <headrace/headrace.h>

#include "report.h"

enum subject_memory {
    MEMORY_ARENA = 0, /* the library's arenas, made anew in each load */
    MEMORY_EACH =
        1,          /* one allocation a tensor, by a hook that rounds to 512 bytes, as frameworks' warm allocators do */
    MEMORY_INTO = 2 /* the caller's memory, made once */
};

/* A checkpoint and memory on the device for it, which subjects use in turn. */
struct target {
    const char *path;
    struct hr_checkpoint *checkpoint;
    uint64_t bytes;                /* of all tensors */
    uint64_t region, region_bytes; /* made when a subject wants it; 0: not yet */
};

struct subject {
    struct target *target;
    enum subject_memory memory;
    int new_loader;   /* one for each load, else one is kept */
    unsigned threads; /* asked for; 0: the library decides */
    uint32_t dtype;   /* that all which can be are converted to, in arenas; HR_DTYPE_NONE: none */
    const char *device;
    int verify_all; /* compare all bytes, else those of a sample */

    struct hr_loader *loader;
    struct hr_item *items;
    uint64_t region_used;
    uint64_t free_before; /* bytes of the device before the load */
    int64_t used_most; /* how many of these were not free with the tensors there; in the first load the loader's too */

    size_t trial_count;
    double seconds[TRIALS_MAX], cpu[TRIALS_MAX], ratio[TRIALS_MAX];
    double first_seconds; /* of the first, uncounted load; making the loader included */
    double free_seconds;  /* of the last hr_load_free(), and hr_loader_free() with a new loader */
    struct hr_stats stats;
    uint64_t verified_items, verified_bytes;
};

void target_open(struct target *target, const char *path);

/*
 * Parses "memory,loader[,threads[,dtype]]": arena, each or into; kept or new; a dtype with arena only. Dies where it is
 * nothing of the kind.
 */
void subject_parse(struct subject *subject, const char *text);
const char *subject_memory_name(enum subject_memory memory);

/* The first load, which warms what later ones find warm. */
void subject_begin(struct subject *subject);
/* One counted trial; returns its seconds. */
double subject_trial(struct subject *subject);
/* One more load, whose bytes are read back from the device and compared with the files. */
void subject_verify(struct subject *subject);
void subject_end(struct subject *subject);

/* Bytes of the device that were in use above those of the tensors. */
int64_t subject_device_above(const struct subject *subject);

#endif
