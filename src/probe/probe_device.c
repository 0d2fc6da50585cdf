/*
 * probe_device.c: the ceilings of a device's link, through the same staging, lanes and fences as loads use.
 *
 * A worker has a lane of its own and two turns in it: while the copies of one are on their way, the other is made ready.
 * What a turn uses of staging and of moves is not written before its fence is done.
 *
 * Staging: [ moves, a MiB | data, DATA_BYTES | a MiB that copies may look into but not use ].
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sys.h"
#include "probe/probe.h"

#define DATA_BYTES (64 * HR_PROBE_MIB)
#define STAGING_BYTES (DATA_BYTES + 2 * HR_PROBE_MIB)
/* A turn sends so much, or a copy where that is more: long beside what a fence costs. */
#define TURN_BYTES (16 * HR_PROBE_MIB)
#define MOVES_A_TURN_MAX 16 /* of the smallest size of to_device */
#define PIN_TRIAL_COUNT 3
#define LINK_SHARES 1     /* for each figure but the last, */
#define PIPELINE_SHARES 4 /* for page_cache_to_device with each size of pieces */

#define DETAIL(field, ...) snprintf((field), sizeof(field), __VA_ARGS__)

struct sender {
    struct hr_lane *lane;
    struct hr_fence *fences[2];
    int pending[2]; /* the fence stands for copies that nobody has waited for */
    uint32_t turn;
};

struct link {
    struct hr_probe_run *run;
    struct hr_device *device;
    struct hr_staging_block block;
    void *memory; /* of the device, DATA_BYTES */
    uint32_t sender_count;
    struct sender senders[HR_READER_MAX]; /* one a worker, used by it alone */
    uint64_t piece_bytes_max, piece_bytes;
};

_Static_assert(sizeof(struct hr_move) * MOVES_A_TURN_MAX * 2 * HR_READER_MAX <= HR_PROBE_MIB, "moves fit");

static char *staging_data(const struct link *link)
{
    return link->block.memory + HR_PROBE_MIB;
}

/* -------------------------------------------------------------------------------------- life cycle */

static int sender_open(struct link *link, struct hr_error *err)
{
    struct sender *sender = &link->senders[link->sender_count++];
    int code = hr_lane_open(link->device, &sender->lane, err);
    for (int i = 0; i < 2 && code == 0; i++)
        code = hr_fence_new(link->device, &sender->fences[i], err);
    return code;
}

/* Also of what was made in part only. Closing a lane waits for its copies, so lanes go first. */
static void link_release(struct link *link)
{
    for (uint32_t i = 0; i < link->sender_count; i++) {
        hr_lane_close(link->senders[i].lane);
        hr_fence_free(link->senders[i].fences[0]);
        hr_fence_free(link->senders[i].fences[1]);
    }
    hr_device_free(link->device, link->memory, DATA_BYTES);
    if (link->block.memory)
        hr_staging_block_free(link->device, &link->block);
}

/* Makes staging a few times; the last stays. A kind that is not pinned has no figure. */
static int measure_pin(struct link *link, char *detail, size_t capacity, struct hr_error *err)
{
    uint64_t deadline_ns = hr_sys->clock_ns() + LINK_SHARES * link->run->share_ns, best_ns = UINT64_MAX;
    for (int i = 0; i < PIN_TRIAL_COUNT; i++) {
        if (link->block.memory)
            hr_staging_block_free(link->device, &link->block);
        memset(&link->block, 0, sizeof link->block);
        uint64_t begin_ns = hr_sys->clock_ns();
        int code = hr_staging_block_make(link->device, STAGING_BYTES, -1, &link->block, detail, capacity, err);
        if (code < 0)
            return code;
        uint64_t end_ns = hr_sys->clock_ns(), took_ns = end_ns > begin_ns ? end_ns - begin_ns : 1;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
        if (end_ns > deadline_ns)
            break;
    }
    if (link->block.kind != HR_STAGING_PAGEABLE)
        link->run->limits.pin = (uint64_t)((double)STAGING_BYTES * 1e9 / (double)best_ns);
    return 0;
}

/* ------------------------------------------------------------------------------------------- turns */

/* Waits until the staging of the worker's next turn is free; *ret_turn is 0 or 1. */
static int turn_begin(struct sender *sender, uint32_t *ret_turn, struct hr_error *err)
{
    uint32_t turn = sender->turn++ % 2;
    int code = sender->pending[turn] ? hr_fence_wait(sender->fences[turn], err) : 0;
    sender->pending[turn] = 0;
    *ret_turn = turn;
    return code;
}

static int turn_end(struct sender *sender, uint32_t turn, struct hr_error *err)
{
    int code = hr_fence_put(sender->fences[turn], sender->lane, err);
    sender->pending[turn] = code == 0;
    return code;
}

/* One contiguous copy; `index` of the moves of this turn. Staging and device memory have the same layout. */
static int send_piece(struct link *link, uint32_t worker, uint32_t turn, uint32_t index, uint64_t position,
                      struct hr_error *err)
{
    struct hr_place_counts counts = {0};
    struct hr_move *move = (struct hr_move *)link->block.memory + (worker * 2 + turn) * MOVES_A_TURN_MAX + index;
    *move = (struct hr_move){.source = (uintptr_t)(staging_data(link) + position),
                             .target = (uintptr_t)link->memory + position,
                             .bytes = link->piece_bytes,
                             .rows = 1};
    return hr_lane_place(link->senders[worker].lane, &link->block, move, 1, &counts, err);
}

static int wait_for_both(void *context, uint32_t worker, struct hr_error *err)
{
    struct sender *sender = &((struct link *)context)->senders[worker];
    uint32_t turn;
    int code = turn_begin(sender, &turn, err);
    return code < 0 ? code : turn_begin(sender, &turn, err);
}

/* ----------------------------------------------------------------------------------------- figures */

/* Copies of piece_bytes; what they read is not written, so both turns send the same. */
static int64_t send_step(void *context, uint32_t worker, struct hr_error *err)
{
    struct link *link = context;
    struct sender *sender = &link->senders[worker];
    uint64_t bytes = link->piece_bytes > TURN_BYTES ? link->piece_bytes : TURN_BYTES;
    uint32_t turn, count = (uint32_t)(bytes / link->piece_bytes);
    int code = turn_begin(sender, &turn, err);
    for (uint32_t i = 0; i < count && code == 0; i++)
        code = send_piece(link, worker, turn, i, i * link->piece_bytes, err);
    if (code == 0)
        code = turn_end(sender, turn, err);
    return code < 0 ? code : (int64_t)bytes;
}

static int64_t read_step(void *context, uint32_t worker, struct hr_error *err)
{
    struct link *link = context;
    (void)worker;
    int code = hr_device_read(link->device, staging_data(link), link->memory, DATA_BYTES, err);
    return code < 0 ? code : (int64_t)DATA_BYTES;
}

static int measure_copies(struct link *link, struct hr_error *err)
{
    struct hr_limits *limits = &link->run->limits;
    struct hr_probe_team sending = {.context = link, .step = send_step, .end = wait_for_both};
    struct hr_probe_team reading = {.context = link, .step = read_step};
    struct hr_probe_rate best = {0};
    uint64_t duration_ns = LINK_SHARES * link->run->share_ns;
    int code = 0;
    for (int i = 0; i < HR_PROBE_SIZE_COUNT && code == 0; i++) {
        link->piece_bytes = limits->to_device_sizes[i];
        code = hr_probe_team_run(&sending, 1, duration_ns, &best, err);
        limits->to_device[i] = code == 0 ? best.bytes_per_second : 0;
        best.bytes_per_second = 0;
    }
    if (code == 0)
        code = hr_probe_team_run(&reading, 1, duration_ns, &best, err);
    limits->from_device = code == 0 ? best.bytes_per_second : 0;
    return code;
}

/* Each worker has two pieces of staging; with many workers they are smaller. */
static int pipeline_begin(void *context, uint32_t worker_count, struct hr_error *err)
{
    struct link *link = context;
    uint64_t room = hr_probe_power(DATA_BYTES / (2 * worker_count));
    (void)err;
    link->piece_bytes = room < link->piece_bytes_max ? room : link->piece_bytes_max;
    return 0;
}

static int64_t pipeline_step(void *context, uint32_t worker, struct hr_error *err)
{
    struct link *link = context;
    struct sender *sender = &link->senders[worker];
    struct hr_probe_file *file = &link->run->file;
    uint32_t turn;
    int code = turn_begin(sender, &turn, err);
    uint64_t position = (worker * 2 + turn) * link->piece_bytes;
    uint64_t offset = hr_probe_file_next(file, link->piece_bytes);
    if (code == 0)
        code = hr_probe_file_read(file->fd, staging_data(link) + position, link->piece_bytes, offset, err);
    if (code == 0)
        code = send_piece(link, worker, turn, 0, position, err);
    if (code == 0)
        code = turn_end(sender, turn, err);
    return code < 0 ? code : (int64_t)link->piece_bytes;
}

/* Smaller pieces win where staging then stays in the processor's cache, larger ones where calls are dear. */
static int measure_pipeline(struct link *link, struct hr_error *err)
{
    struct hr_probe_run *run = link->run;
    struct hr_probe_team team = {.context = link, .begin = pipeline_begin, .step = pipeline_step, .end = wait_for_both};
    struct hr_probe_rate best = {0};
    uint64_t sizes[] = {HR_PROBE_MIB, 2 * HR_PROBE_MIB}, best_size = 0;
    int code = 0;
    if (run->file.block_count == 0)
        return 0;
    while (link->sender_count < run->thread_count && code == 0)
        code = sender_open(link, err);
    for (size_t i = 0; i < 2 && code == 0; i++) {
        uint64_t before = best.bytes_per_second;
        link->piece_bytes_max = sizes[i];
        code = hr_probe_team_sweep(&team, run->thread_count, PIPELINE_SHARES * run->share_ns, &best, err);
        best_size = best.bytes_per_second > before ? sizes[i] : best_size;
    }
    if (code < 0)
        return code;
    run->limits.page_cache_to_device = best.bytes_per_second;
    size_t used = strlen(run->limits.device_detail);
    snprintf(run->limits.device_detail + used, sizeof run->limits.device_detail - used,
             "; with the page cache: %u threads, pieces of up to %" PRIu64 " MiB", best.thread_count,
             best_size / HR_PROBE_MIB);
    return 0;
}

static int measure_link(struct link *link, struct hr_error *err)
{
    static const char *const kinds[] = {"registered", "pinned", "pageable"};
    char why[80] = ""; /* leaves room for what measure_pipeline adds */
    int code = measure_pin(link, why, sizeof why, err);
    if (code == 0)
        code = hr_device_alloc(link->device, DATA_BYTES, &link->memory, err);
    if (code == 0)
        code = sender_open(link, err);
    if (code < 0)
        return code;
    DETAIL(link->run->limits.device_detail, "%s staging%s%s", kinds[link->block.kind], *why ? ": " : "", why);
    code = measure_copies(link, err);
    return code < 0 ? code : measure_pipeline(link, err);
}

int hr_probe_device(struct hr_probe_run *run, struct hr_device *device, struct hr_error *err)
{
    struct link link = {.run = run, .device = device};
    struct hr_error failure = {0};
    if (hr_device_is_host(device)) {
        DETAIL(run->limits.device_detail, "host memory: there is no link to measure");
        return 0;
    }
    for (int i = 0; i < HR_PROBE_SIZE_COUNT; i++)
        run->limits.to_device_sizes[i] = HR_PROBE_MIB << (2 * i);
    int code = measure_link(&link, &failure);
    link_release(&link);
    if (code == HR_EOUT_OF_MEMORY && err)
        *err = failure;
    if (code == HR_EOUT_OF_MEMORY)
        return code;
    if (code < 0)
        DETAIL(run->limits.device_detail, "%.159s", failure.message);
    return 0;
}
