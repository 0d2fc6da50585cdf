/*
 * thread_group.h: a process group whose ranks are threads of this process: collectives by a barrier and copies, for host
 * memory and for GPUs, where they end in stream order, and on fake GPUs may also begin in it (stream_group.h). One
 * rank's call can be late, be held until the test lets it go, or fail; then, and when a rank does not come within 20 s,
 * the group is aborted, as a real transport's is by its timeout: all calls fail, and say why.
 */
#ifndef TESTS_SUPPORT_THREAD_GROUP_H
#define TESTS_SUPPORT_THREAD_GROUP_H

#include <headrace/headrace.h>
#include <pthread.h>

#include "device/device.h"

#define THREAD_GROUP_MAX 4u
#define THREAD_GROUP_PATIENCE_S 20

struct thread_rank {
    struct thread_group *group;
    uint32_t rank;
    unsigned fail_at, late_at, held_at; /* this call, from 1, counted with `exchange`; 0: none */
    unsigned call_count;
    long live_count; /* of alloc; host memory only */
    int uses_alloc;
    void (*main)(struct thread_rank *rank); /* of the test */
    void *context;
    pthread_t thread;
    /* GPUs: the stream that collectives go into */
    struct hr_device *device;
    struct hr_lane *lane;
    struct hr_fence *fence;
    struct hr_staging_block block;
    unsigned char *sent; /* what this rank gives, for the others to copy */
    size_t sent_bytes;
    /* of stream_group.c */
    struct hr_staging_block call_block;
    struct stream_call *calls;
    unsigned called, came; /* calls that were put into the stream, and those that it has come to */
};

struct thread_group {
    uint32_t world;
    const struct scene_driver *driver; /* of fake GPUs: collectives begin in the order of streams, by it; or NULL */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned arrived;
    unsigned long round;
    long late_ms; /* 200; on streams of fake GPUs always 500 */
    int is_released;
    char why[160]; /* "" while it is not aborted */
    struct thread_rank ranks[THREAD_GROUP_MAX];
};

/* `device_names`: one for each rank, or NULL: host memory. */
void thread_group_begin(struct thread_group *group, uint32_t world, const char *const *device_names);
void thread_group_end(struct thread_group *group);
struct hr_group thread_group_of(struct thread_rank *rank);
/* Runs `main` of every rank on a thread of its own, and joins them. */
void thread_group_run(struct thread_group *group);
/* Lets a held call go on, or not be held when it comes. */
void thread_group_release(struct thread_group *group);

#endif
