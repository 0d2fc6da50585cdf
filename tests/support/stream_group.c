/*
 * stream_group.c: a call is a copy to the host, a function that meets the other ranks and copies theirs, and copies to
 * the device, one behind the other in the stream. A rank is at most one call ahead of the others there, though its host
 * may be many.
 */
#include "support/stream_group.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda_device.h"
#include "support/gpu_scene.h"

/* More than windows in flight have calls, each with memory for what is sent and for what comes. */
#define CALL_COUNT 32u
#define REGION_BYTES ((size_t)256 << 10)
#define CALL_BYTES (2 * REGION_BYTES + THREAD_GROUP_MAX * sizeof(struct hr_move))
#define LATE_NS 500000000

struct stream_call {
    struct thread_rank *rank;
    unsigned number; /* from 1 */
    char *sent, *received;
    struct hr_move *moves;
    uint64_t bytes, offset; /* of what is taken of each of `count` ranks */
    uint32_t first, count;
    int is_late;
};

static int have_all_come(const struct thread_group *group, unsigned number)
{
    for (uint32_t r = 0; r < group->world; r++)
        if (group->ranks[r].came < number)
            return 0;
    return 1;
}

/* In the stream: 1 once all ranks have come, 0 when the group is aborted. */
static int meet(struct thread_rank *rank, unsigned number)
{
    struct thread_group *group = rank->group;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += THREAD_GROUP_PATIENCE_S;
    pthread_mutex_lock(&group->lock);
    rank->came = number;
    pthread_cond_broadcast(&group->changed);
    while (!have_all_come(group, number) && !group->why[0])
        if (pthread_cond_timedwait(&group->changed, &group->lock, &until))
            strcpy(group->why, "a rank waited in vain in its stream");
    int have_met = !group->why[0];
    pthread_mutex_unlock(&group->lock);
    return have_met;
}

static void run_call(void *argument)
{
    struct stream_call *call = argument;
    if (call->is_late)
        nanosleep(&(struct timespec){0, LATE_NS}, NULL);
    if (!meet(call->rank, call->number))
        return;
    for (uint32_t i = 0; i < call->count; i++) {
        const struct stream_call *other = &call->rank->group->ranks[call->first + i].calls[call->number % CALL_COUNT];
        memcpy(call->received + i * call->bytes, other->sent + call->offset, call->bytes);
    }
}

static int launch(struct thread_rank *rank, struct stream_call *call)
{
    struct hr_cuda_scope scope;
    if (hr_cuda_enter(rank->device, &scope, NULL))
        return 1;
    int failed = rank->group->driver->cuLaunchHostFunc((CUstream)rank->lane->stream, run_call, call) != 0;
    hr_cuda_leave(rank->device, &scope);
    return failed;
}

static int make_calls(struct thread_rank *rank)
{
    char detail[240];
    if (rank->calls)
        return 0;
    if (hr_staging_block_make(rank->device, CALL_COUNT * CALL_BYTES, -1, &rank->call_block, detail, sizeof detail,
                              NULL))
        return 1;
    rank->calls = calloc(CALL_COUNT, sizeof rank->calls[0]);
    for (unsigned i = 0; i < CALL_COUNT; i++) {
        struct stream_call *call = &rank->calls[i];
        call->rank = rank;
        call->sent = rank->call_block.memory + i * CALL_BYTES;
        call->received = call->sent + REGION_BYTES;
        call->moves = (struct hr_move *)(call->received + REGION_BYTES);
    }
    return 0;
}

/* `call` has what is taken, and from whom. */
static int put(struct thread_rank *rank, struct stream_call *call, const void *send, uint64_t send_bytes, void *receive)
{
    struct hr_place_counts counts = {0};
    uint64_t bytes = call->count * call->bytes;
    if (send_bytes > REGION_BYTES || bytes > REGION_BYTES)
        return 1;
    if (send && hr_lane_fetch(rank->lane, call->sent, send, send_bytes, NULL))
        return 1;
    call->moves[0] = (struct hr_move){.source = (uintptr_t)call->received,
                                      .target = (uintptr_t)receive,
                                      .bytes = bytes,
                                      .rows = 1,
                                      .source_pitch = (long long)bytes,
                                      .target_pitch = (long long)bytes};
    return launch(rank, call) || hr_lane_place(rank->lane, &rank->call_block, call->moves, 1, &counts, NULL);
}

static struct stream_call *next_call(struct thread_rank *rank, uint32_t first, uint32_t count, uint64_t bytes,
                                     uint64_t offset, int is_late)
{
    if (make_calls(rank))
        return NULL;
    unsigned number = ++rank->called;
    struct stream_call *call = &rank->calls[number % CALL_COUNT];
    call->number = number;
    call->first = first;
    call->count = count;
    call->bytes = bytes;
    call->offset = offset;
    call->is_late = is_late;
    return call;
}

int stream_all_gather(struct thread_rank *rank, const void *send, void *receive, uint64_t bytes, int is_late)
{
    struct stream_call *call = next_call(rank, 0, rank->group->world, bytes, 0, is_late);
    return !call || put(rank, call, send, bytes, receive);
}

int stream_scatter(struct thread_rank *rank, const void *send, void *receive, uint64_t bytes, uint32_t root,
                   int is_late)
{
    struct stream_call *call = next_call(rank, root, 1, bytes, rank->rank * bytes, is_late);
    return !call || put(rank, call, send, bytes * rank->group->world, receive);
}

void stream_group_end(struct thread_rank *rank)
{
    if (rank->call_block.memory)
        hr_staging_block_free(rank->device, &rank->call_block);
    free(rank->calls);
}
