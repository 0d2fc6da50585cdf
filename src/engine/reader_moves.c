/*
 * reader_moves.c: a chunk from its first read until it is where it belongs. After its last byte the file's identity is
 * compared once more, and only then do its items count the bytes: so an item is ready only when a comparison has followed
 * each of its bytes, and the host has seen each of them land.
 */
#include <errno.h>
#include <stddef.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sys.h"
#include "engine/chunks.h"
#include "engine/flow.h"
#include "engine/gate.h"
#include "engine/gds_read.h"
#include "engine/heat.h"
#include "engine/reader_state.h"
#include "engine/send.h"
#include "engine/trace.h"
#include "io/residency.h"

/* ----------------------------------------------------------------------------------------- errors */

static void fail_read(struct hr_load *load, struct slot *slot)
{
    struct hr_error error;
    uint64_t offset = slot->op.offset;
    if (slot->op.result == 0)
        hr_fail(&error, HR_ESHORT_READ,
                "the file ends at byte %llu where %llu more were to be read; it was cut short after it was opened",
                (unsigned long long)offset, (unsigned long long)slot->bytes_expected);
    else
        hr_fail_sys(&error, HR_EIO_ERROR, (int)-slot->op.result, "reading %llu bytes at byte %llu failed",
                    (unsigned long long)slot->bytes_expected, (unsigned long long)offset);
    hr_chunk_locate(load, slot->chunk, offset, &error);
    hr_load_fail(load, &error);
}

static void fail_chunk(struct hr_reader *reader, struct slot *slot, struct hr_error *error)
{
    hr_chunk_locate(reader->load, slot->chunk, slot->chunk->file_begin, error);
    hr_load_fail(reader->load, error);
}

/* ------------------------------------------------------------------------------------- completion */

static void note_fixed(struct hr_load *load, const struct hr_io_backend *backend, const struct hr_io *io)
{
    int fixed = io ? backend->has_fixed(io) : 0;
    if (fixed < 0 || (fixed && !load->has_fixed))
        load->has_fixed = fixed;
}

void hr_reader_add_counters(struct hr_reader *reader)
{
    struct hr_load *load = reader->load;
    load->bytes_read += reader->counters.bytes_read;
    load->bytes_direct += reader->counters.bytes_direct;
    load->bytes_in_place += reader->counters.bytes_in_place;
    load->read_count += reader->counters.read_count;
    load->read_ns += reader->counters.read_ns;
    load->place_ns += reader->counters.place_ns;
    load->copy_wait_ns += reader->counters.copy_wait_ns;
    uint64_t cpu_ns = hr_sys->thread_cpu_ns();
    load->cpu_ns += cpu_ns - reader->cpu_from_ns;
    reader->cpu_from_ns = cpu_ns;
    note_fixed(load, load->backend, reader->io);
    note_fixed(load, load->cold_backend, reader->cold_io);
    load->bytes_sent += reader->counters.placed.bytes_sent;
    load->copy_count += reader->counters.placed.copy_count;
    load->kernel_count += reader->counters.placed.kernel_count;
    reader->counters = (struct counters){0};
}

/* The chunk's reads have ended; once for each time that it was counted. */
static void release_budget(struct hr_reader *reader, struct slot *slot, int succeeded)
{
    if (slot->flow_bytes)
        hr_flow_end(reader->load->loader->flow, slot->flow_bytes, slot->flow_ns, succeeded);
    slot->flow_bytes = 0;
}

/*
 * The chunk was read, or will never be: its file is free, and so is the drive. Once; all of its bytes have been compared
 * with the file's identity then, wherever they are.
 */
static int leave_storage(struct hr_reader *reader, struct slot *slot, int succeeded, struct hr_error *err)
{
    struct hr_load *load = reader->load;
    if (slot->has_left)
        return 0;
    slot->has_left = 1;
    int code = succeeded ? hr_files_check(load->files, slot->chunk->file_index, err) : 0;
    hr_files_release(load->files, slot->chunk->file_index);
    hr_chunk_end(load, slot->chunk);
    return code;
}

/* The chunk is where it belongs, or will never be: its slot is free again. */
static void finish_chunk(struct hr_reader *reader, struct slot *slot, int succeeded)
{
    struct hr_load *load = reader->load;
    const struct hr_plan_chunk *chunk = slot->chunk;
    struct hr_error error;
    release_budget(reader, slot, 0);
    if (slot->staging)
        hr_staging_give(slot->ring, slot->staging);
    slot->staging = NULL;
    hr_reader_add_counters(reader); /* before its items are ready: who has seen all of them sees all reads */
    int code = leave_storage(reader, slot, succeeded, &error);
    slot->chunk = NULL;
    reader->free_count++;
    if (code < 0) {
        hr_chunk_locate(load, chunk, chunk->file_begin, &error);
        hr_load_fail(load, &error);
    } else if (succeeded && !slot->has_landed) {
        hr_chunk_landed(load, chunk);
    }
}

/* ----------------------------------------------------------------------------------------- copies */

/* To one of the reader's lists of slots. */
static void append(struct slot **first, struct slot **last, struct slot *slot)
{
    slot->copy_next = NULL;
    if (*first)
        (*last)->copy_next = slot;
    else
        *first = slot;
    *last = slot;
}

/*
 * A feed's chunk is as good as there once its copies are in its slot's lane, behind which comes what wants it. The buffer
 * is in use until they are done.
 */
static void hand_over(struct hr_reader *reader, struct slot *slot)
{
    struct hr_error error;
    if (leave_storage(reader, slot, 1, &error) < 0) {
        fail_chunk(reader, slot, &error);
        return;
    }
    hr_reader_add_counters(reader);
    slot->has_landed = 1;
    hr_chunk_landed(reader->load, slot->chunk);
}

/* The chunk's copies are in a lane since `from_ns`, with a fence behind them; or it failed. */
static void chunk_sent(struct hr_reader *reader, struct slot *slot, uint64_t from_ns, int code, struct hr_error *error)
{
    if (code < 0) {
        fail_chunk(reader, slot, error);
        finish_chunk(reader, slot, 0);
        return;
    }
    slot->begin_ns = from_ns;
    append(&reader->copy_first, &reader->copy_last, slot);
    if (reader->load->is_feed)
        hand_over(reader, slot);
}

/* What the slot's copies are waited for with, made when they are its first to that device. */
static int slot_fence(struct hr_reader *reader, const struct slot *slot, struct hr_fence **ret_fence,
                      struct hr_error *err)
{
    struct hr_load *load = reader->load;
    struct hr_fence **fence = &slot->fences[load->plan.groups[slot->chunk->group_index].device_index];
    int code = *fence ? 0 : hr_fence_new(hr_chunk_device(load, slot->chunk)->device, fence, err);
    *ret_fence = *fence;
    return code;
}

/* Feeds send by the lane of the slot on the device, others by any. */
static struct hr_lane *lane_of(const struct hr_reader *reader, const struct hr_plan_chunk *chunk)
{
    const struct hr_load *load = reader->load;
    const struct loader_device *target = hr_chunk_device(load, chunk);
    if (!load->is_feed)
        return target->lanes[reader->index % target->lane_count];
    const char *place = load->plan.items[load->plan.pieces[chunk->piece_first].item_index].into;
    return load->feed_slots.lanes[(uint64_t)(place - load->feed_slots.memory) / load->feed_slot_bytes];
}

/* By GPUDirect Storage: read into the slot's device memory, and on to its places. */
static void read_on_device(struct hr_reader *reader, struct slot *slot)
{
    struct hr_load *load = reader->load;
    struct gds_counts counts = {0};
    struct hr_fence *fence;
    struct hr_error error;
    int code = slot_fence(reader, slot, &fence, &error);
    if (code == 0)
        code = hr_gds_read_chunk(load, slot->chunk, slot->fd, slot->staging, lane_of(reader, slot->chunk), fence,
                                 reader->index, &counts, &reader->counters.placed, &error);
    reader->counters.bytes_read += counts.bytes_read;
    reader->counters.read_count += counts.read_count;
    reader->counters.read_ns += counts.read_ns;
    reader->counters.copy_wait_ns += counts.copy_wait_ns;
    chunk_sent(reader, slot, hr_sys->clock_ns(), code, &error);
}

static void place(struct hr_reader *reader, struct slot *slot)
{
    struct hr_load *load = reader->load;
    const struct hr_plan_chunk *chunk = slot->chunk;
    struct hr_error error;
    uint64_t from = hr_sys->clock_ns();
    if (!hr_chunk_device(load, chunk)->lane_count) {
        if (slot->buffer)
            reader->counters.bytes_in_place += hr_slot_scatter(load, slot);
        reader->counters.place_ns += hr_sys->clock_ns() - from;
        finish_chunk(reader, slot, 1);
        return;
    }
    struct hr_fence *fence;
    int code = slot_fence(reader, slot, &fence, &error);
    if (code == 0)
        code = hr_chunk_send(load, chunk, slot->staging, slot->buffer, slot->is_span, lane_of(reader, chunk), fence,
                             &reader->scratch, &reader->counters.placed, &error);
    reader->counters.place_ns += hr_sys->clock_ns() - from;
    chunk_sent(reader, slot, from, code, &error);
}

/* Its places are in use by others: it is held, with its staging slot, and this reader goes on. */
static void hold(struct hr_reader *reader, struct slot *slot)
{
    struct held_chunk held = {slot->chunk, slot->ring, slot->staging, slot->buffer, slot->is_span};
    struct hr_error error;
    if (leave_storage(reader, slot, 1, &error) < 0) {
        fail_chunk(reader, slot, &error);
        finish_chunk(reader, slot, 0);
        return;
    }
    slot->staging = NULL;
    slot->chunk = NULL;
    reader->free_count++;
    hr_reader_add_counters(reader); /* before another reader sends it and its items are ready */
    hr_gate_hold(reader->load, &held);
}

void hr_reader_place(struct hr_reader *reader, struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    if (slot->mode == HR_READ_DROP)
        hr_drop_behind(slot->fd, chunk->file_begin, chunk->file_end - chunk->file_begin);
    if (hr_gate_is_shut(reader->load, chunk))
        hold(reader, slot);
    else
        place(reader, slot);
}

void hr_reader_take_over(struct hr_reader *reader, struct slot *slot, const struct held_chunk *held)
{
    slot->chunk = held->chunk;
    slot->ring = held->ring;
    slot->staging = held->staging;
    slot->buffer = held->buffer;
    slot->is_span = held->is_span;
    slot->has_left = 1;
    slot->has_landed = 0;
    reader->free_count--;
    place(reader, slot);
}

int hr_reader_finish_copy(struct hr_reader *reader, int block)
{
    struct slot *slot = reader->copy_first;
    struct hr_load *load = reader->load;
    struct hr_error error;
    if (!slot)
        return 0;
    const struct hr_plan_chunk *chunk = slot->chunk;
    struct hr_fence *fence = slot->fences[load->plan.groups[chunk->group_index].device_index];
    uint64_t from = block ? hr_sys->clock_ns() : 0;
    int code = hr_fence_poll(fence, &error);
    if (code == 0 && !block)
        return 0;
    if (code == 0)
        code = hr_fence_wait(fence, &error);
    if (block)
        reader->counters.copy_wait_ns += hr_sys->clock_ns() - from;
    reader->copy_first = slot->copy_next;
    hr_trace_span(load, HR_TRACE_COPY, reader->index, slot->begin_ns, chunk->file_index, chunk->file_begin,
                  chunk->bytes);
    if (code < 0) {
        fail_chunk(reader, slot, &error);
        hr_fence_wait(fence, NULL); /* what failed may be the call alone, and the copy still want the slot */
    }
    finish_chunk(reader, slot, code >= 0 && !load->stopping);
    return 1;
}

/* ------------------------------------------------------------------------------------------ reads */

/* For who waits in vain: which read it is that does not come back. */
static void note_begin(struct hr_reader *reader, const struct slot *slot)
{
    struct reader_activity *activity = &reader->load->activities[reader->index];
    activity->file_index = slot->chunk->file_index;
    activity->offset = slot->op.offset;
    activity->since_ns = slot->begin_ns;
}

static void note_end(struct hr_reader *reader)
{
    int is_reading = reader->reading || reader->cold_reading;
    reader->load->activities[reader->index].since_ns = is_reading ? hr_sys->clock_ns() : 0;
}

/* Submits the slot's vectors from vector_first on. */
static int submit(struct hr_reader *reader, struct slot *slot)
{
    slot->op.fd = slot->fd;
    slot->op.vectors = slot->vectors + slot->vector_first;
    slot->op.vector_count = slot->vector_count - slot->vector_first;
    slot->op.buffer = slot->staging ? &slot->staging->buffer : NULL;
    slot->begin_ns = hr_sys->clock_ns();
    slot->fork_mark = hr_fork_mark();
    note_begin(reader, slot);
    int code = slot->is_cold ? reader->load->cold_backend->submit(reader->cold_io, &slot->op)
                             : reader->load->backend->submit(reader->io, &slot->op);
    reader->counters.read_ns += hr_sys->clock_ns() - slot->begin_ns;
    if (code < 0) {
        slot->op.result = code;
        note_end(reader);
        fail_read(reader->load, slot);
        return code;
    }
    reader->counters.read_count++;
    reader->reading += !slot->is_cold;
    reader->cold_reading += slot->is_cold;
    return 0;
}

/* Else the vectors of its next operation are set. */
static int is_read(struct hr_reader *reader, struct slot *slot)
{
    return !slot->bytes_expected && !hr_slot_fill(reader->load, slot);
}

void hr_reader_advance(struct hr_reader *reader, struct slot *slot)
{
    if (reader->load->stopping) {
        finish_chunk(reader, slot, 0);
    } else if (slot->staging && slot->staging->gds) {
        read_on_device(reader, slot);
    } else if (is_read(reader, slot)) {
        release_budget(reader, slot, 1);
        hr_reader_place(reader, slot);
    } else if (submit(reader, slot) < 0) {
        finish_chunk(reader, slot, 0);
    }
}

static void read_failed(struct hr_reader *reader, struct slot *slot)
{
    struct hr_error error;
    int code = hr_reader_read_again(reader, slot, &error);
    if (code > 0)
        return;
    if (code < 0)
        fail_chunk(reader, slot, &error);
    else
        fail_read(reader->load, slot);
    finish_chunk(reader, slot, 0);
}

/* `bytes` of the slot's operation have arrived: the slot when they were the last ones of its chunk, else NULL. */
static struct slot *read_arrived(struct hr_reader *reader, struct slot *slot, uint64_t bytes)
{
    if (slot->has_places && hr_fork_since(slot->fork_mark)) {
        hr_reader_read_into_buffer(reader, slot);
        return NULL;
    }
    if (!hr_slot_advance(slot, bytes)) {
        slot->op.result = 0; /* the same bytes again: there are no more */
        read_failed(reader, slot);
        return NULL;
    }
    if (reader->load->stopping || !is_read(reader, slot)) {
        hr_reader_advance(reader, slot);
        return NULL;
    }
    release_budget(reader, slot, 1);
    return slot;
}

/* Those out of the page cache come first: they are done already. */
struct slot *hr_reader_complete_read(struct hr_reader *reader)
{
    struct hr_load *load = reader->load;
    uint64_t from = hr_sys->clock_ns();
    struct hr_io_op *op = reader->reading ? load->backend->wait(reader->io) : load->cold_backend->wait(reader->cold_io);
    reader->counters.read_ns += hr_sys->clock_ns() - from;
    struct slot *slot = (struct slot *)((char *)op - offsetof(struct slot, op));
    reader->reading -= !slot->is_cold;
    reader->cold_reading -= slot->is_cold;
    note_end(reader);
    if (op->result <= 0) {
        read_failed(reader, slot);
        return NULL;
    }
    hr_trace_span(load, HR_TRACE_READ, reader->index, slot->begin_ns, slot->chunk->file_index, op->offset,
                  (uint64_t)op->result);
    reader->counters.bytes_read += (uint64_t)op->result;
    if (slot->mode == HR_READ_DIRECT)
        reader->counters.bytes_direct += (uint64_t)op->result;
    return read_arrived(reader, slot, (uint64_t)op->result);
}

int hr_reader_has_read(const struct hr_reader *reader)
{
    const struct hr_load *load = reader->load;
    return (reader->reading && load->backend->is_done(reader->io)) ||
           (reader->cold_reading && load->cold_backend->is_done(reader->cold_io));
}
