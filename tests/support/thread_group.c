/*
 * thread_group.c: see thread_group.h.
 */
#include "support/thread_group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device/cuda_device.h"
#include "support/stream_group.h"
#include "support/test_model.h"

#define BLOCK_BYTES (8u << 20)
#define TABLE_BYTES (THREAD_GROUP_MAX * sizeof(struct hr_move))

static void abort_group(struct thread_group *group, const char *why, uint32_t rank)
{
    pthread_mutex_lock(&group->lock);
    if (!group->why[0])
        snprintf(group->why, sizeof group->why, "rank %u %s", rank, why);
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

/* Once it is said, it stays. */
static int is_aborted(struct thread_group *group)
{
    pthread_mutex_lock(&group->lock);
    int aborted = group->why[0] != '\0';
    pthread_mutex_unlock(&group->lock);
    return aborted;
}

/* 0 when all ranks have come. */
static int barrier(struct thread_rank *rank)
{
    struct thread_group *group = rank->group;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += THREAD_GROUP_PATIENCE_S;
    pthread_mutex_lock(&group->lock);
    unsigned long round = group->round;
    if (++group->arrived == group->world) {
        group->arrived = 0;
        group->round++;
        pthread_cond_broadcast(&group->changed);
    }
    while (group->round == round && !group->why[0])
        if (pthread_cond_timedwait(&group->changed, &group->lock, &until)) {
            snprintf(group->why, sizeof group->why, "rank %u waited in vain", rank->rank);
            pthread_cond_broadcast(&group->changed);
        }
    int failed = group->round == round;
    pthread_mutex_unlock(&group->lock);
    return failed;
}

static void hold(struct thread_group *group)
{
    pthread_mutex_lock(&group->lock);
    while (!group->is_released && !group->why[0])
        pthread_cond_wait(&group->changed, &group->lock);
    pthread_mutex_unlock(&group->lock);
}

void thread_group_release(struct thread_group *group)
{
    pthread_mutex_lock(&group->lock);
    group->is_released = 1;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

/* What every call begins with. Who is late in a stream has come. */
static int come(struct thread_rank *rank)
{
    unsigned call = ++rank->call_count;
    if (call == rank->late_at && !rank->group->driver)
        usleep((useconds_t)rank->group->late_ms * 1000);
    if (call == rank->held_at)
        hold(rank->group);
    if (call == rank->fail_at)
        abort_group(rank->group, "lost its connection", rank->rank);
    return is_aborted(rank->group);
}

/* This rank's bytes, where others can copy them. */
static int give(struct thread_rank *rank, const void *send, size_t bytes)
{
    if (bytes > rank->sent_bytes) {
        free(rank->sent);
        rank->sent = malloc(bytes);
        rank->sent_bytes = bytes;
    }
    if (!rank->lane) {
        memcpy(rank->sent, send, bytes);
        return 0;
    }
    if (hr_fence_put(rank->fence, rank->lane, NULL) || hr_fence_wait(rank->fence, NULL))
        return 1;
    return hr_device_read(rank->device, rank->sent, send, bytes, NULL);
}

/* Takes `bytes` of each of `count` ranks; on a GPU that is put into the stream. */
static int take(struct thread_rank *rank, void *receive, size_t bytes, uint32_t first, uint32_t count, size_t offset)
{
    struct hr_place_counts counts = {0};
    struct hr_move *moves = rank->lane ? (struct hr_move *)(rank->block.memory + BLOCK_BYTES) : NULL;
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *from = rank->group->ranks[first + i].sent + offset;
        if (!rank->lane) {
            memcpy((char *)receive + i * bytes, from, bytes);
            continue;
        }
        if ((i + 1) * bytes > BLOCK_BYTES)
            return 1;
        memcpy(rank->block.memory + i * bytes, from, bytes);
        moves[i] = (struct hr_move){.source = (uintptr_t)rank->block.memory + i * bytes,
                                    .target = (uintptr_t)receive + i * bytes,
                                    .bytes = bytes,
                                    .rows = 1,
                                    .source_pitch = (long long)bytes,
                                    .target_pitch = (long long)bytes};
    }
    return rank->lane ? hr_lane_place(rank->lane, &rank->block, moves, count, &counts, NULL) : 0;
}

static int exchange(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct thread_rank *rank = context;
    struct hr_lane *lane = rank->lane;
    if (come(rank))
        return 1;
    rank->lane = NULL; /* host memory */
    int failed = give(rank, send, bytes) || barrier(rank) || take(rank, receive, bytes, 0, rank->group->world, 0);
    rank->lane = lane;
    return failed || barrier(rank);
}

static int in_stream(struct thread_rank *rank, int failed)
{
    if (failed)
        abort_group(rank->group, "lost its device", rank->rank);
    return failed;
}

static int all_gather(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct thread_rank *rank = context;
    if (come(rank))
        return 1;
    if (rank->group->driver)
        return in_stream(rank, stream_all_gather(rank, send, receive, bytes, rank->call_count == rank->late_at));
    if (give(rank, send, bytes))
        abort_group(rank->group, "lost its device", rank->rank);
    if (barrier(rank))
        return 1;
    if (take(rank, receive, bytes, 0, rank->group->world, 0))
        abort_group(rank->group, "lost its device", rank->rank);
    return barrier(rank);
}

static int scatter(void *context, const void *send, void *receive, uint64_t bytes, uint32_t root)
{
    struct thread_rank *rank = context;
    if (come(rank))
        return 1;
    if (rank->group->driver)
        return in_stream(rank, stream_scatter(rank, send, receive, bytes, root, rank->call_count == rank->late_at));
    int is_root = root == rank->rank;
    if (!is_root != !send || (is_root ? give(rank, send, bytes * rank->group->world) : 0))
        abort_group(rank->group, "lost its device", rank->rank);
    if (!is_root && rank->lane && (hr_fence_put(rank->fence, rank->lane, NULL) || hr_fence_wait(rank->fence, NULL)))
        abort_group(rank->group, "lost its device", rank->rank);
    if (barrier(rank))
        return 1;
    if (take(rank, receive, bytes, root, 1, bytes * rank->rank))
        abort_group(rank->group, "lost its device", rank->rank);
    return barrier(rank);
}

static void *group_alloc(void *context, uint64_t bytes)
{
    struct thread_rank *rank = context;
    rank->live_count++;
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void group_free(void *context, void *memory)
{
    struct thread_rank *rank = context;
    rank->live_count--;
    free(memory);
}

static const char *failure(void *context)
{
    struct thread_rank *rank = context;
    return is_aborted(rank->group) ? rank->group->why : NULL;
}

struct hr_group thread_group_of(struct thread_rank *rank)
{
    struct hr_group group = {.size = sizeof group,
                             .rank = rank->rank,
                             .world = rank->group->world,
                             .context = rank,
                             .stream = rank->lane ? rank->lane->stream : NULL,
                             .exchange = exchange,
                             .all_gather = all_gather,
                             .scatter = scatter,
                             .failure = failure};
    if (rank->uses_alloc) {
        group.alloc = group_alloc;
        group.free = group_free;
    }
    return group;
}

void thread_group_begin(struct thread_group *group, uint32_t world, const char *const *device_names)
{
    char detail[240];
    struct hr_error err = {0};
    *group = (struct thread_group){.world = world, .late_ms = 200};
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
    for (uint32_t r = 0; r < world; r++) {
        struct thread_rank *rank = &group->ranks[r];
        rank->group = group;
        rank->rank = r;
        if (!device_names)
            continue;
        assert_ok(hr_device_open(device_names[r], &rank->device, &err), err);
        assert_ok(hr_lane_open(rank->device, &rank->lane, &err), err);
        assert_ok(hr_fence_new(rank->device, &rank->fence, &err), err);
        assert_ok(hr_staging_block_make(rank->device, BLOCK_BYTES + TABLE_BYTES, -1, &rank->block, detail,
                                        sizeof detail, &err),
                  err);
    }
}

void thread_group_end(struct thread_group *group)
{
    for (uint32_t r = 0; r < group->world; r++) {
        struct thread_rank *rank = &group->ranks[r];
        if (rank->live_count)
            fail_msg("rank %u: %ld allocations of the group live", r, rank->live_count);
        hr_lane_close(rank->lane);
        stream_group_end(rank);
        hr_fence_free(rank->fence);
        if (rank->block.memory)
            hr_staging_block_free(rank->device, &rank->block);
        hr_device_unref(rank->device);
        free(rank->sent);
    }
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
}

static void *rank_main(void *argument)
{
    struct thread_rank *rank = argument;
    rank->main(rank);
    return NULL;
}

void thread_group_run(struct thread_group *group)
{
    for (uint32_t r = 0; r < group->world; r++)
        assert_int_equal(pthread_create(&group->ranks[r].thread, NULL, rank_main, &group->ranks[r]), 0);
    for (uint32_t r = 0; r < group->world; r++)
        pthread_join(group->ranks[r].thread, NULL);
}
