/*
 * reader.c: takes chunks, reads them, and sees them to their place.
 *
 * A slot carries one chunk through its reads (slot.h). What the page cache holds is read at once, one chunk after the
 * other; what storage must deliver is read many at once, as far as the process's budget goes (flow.h). A chunk for a
 * device is then sent there (send.h), and its slot is busy until the copies are done; the reader goes on with its other
 * slots meanwhile. After a chunk's last byte the
 * file's identity is compared once more, and only then do its items count the bytes: so an item is ready only when a
 * comparison has followed each of its bytes, and the host has seen each of them land.
 *
 * A reader waits for one thing at a time, in this order: reads, its own oldest copy, then others (a file descriptor, a
 * staging slot, the budget, a chunk). So who waits for others holds nothing that they could wait for.
 *
 * A reader allocates nothing once it runs, but for staging slots, of which the ring decides.
 */
#include "engine/reader.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "engine/chunks.h"
#include "engine/flow.h"
#include "engine/gds_read.h"
#include "engine/heat.h"
#include "engine/send.h"
#include "engine/slot.h"
#include "engine/trace.h"
#include "io/residency.h"
#include "topo/binding.h"

/* As the load's of these names. Readers add to those once a chunk: runs can be short, and the load's are shared. */
struct counters {
    uint64_t bytes_read, bytes_direct, read_count, read_ns, place_ns, copy_wait_ns;
    struct hr_place_counts placed;
};

struct hr_reader {
    struct hr_load *load;
    struct hr_io *io;      /* of the load's backend */
    struct hr_io *cold_io; /* of its cold backend; NULL until a chunk wants it */
    uint32_t index;        /* among the load's readers */
    uint32_t slot_count;
    uint32_t depth, cold_depth;          /* reads that may be in flight */
    uint32_t reading, cold_reading;      /* reads in flight */
    uint32_t free_count;                 /* slots without a chunk */
    struct slot *blocked;                /* ready to read, but the budget was spent */
    struct slot *copy_first, *copy_last; /* slots whose copies are under way, oldest first */
    const struct hr_plan_chunk *waiting; /* taken, but there was no descriptor or no staging slot for it yet */
    struct hr_staging *waits_for;        /* the ring that `waiting` waits for; NULL: a descriptor */
    struct hr_fence **fences;            /* of each slot and device */
    uint64_t cpu_from_ns;                /* processor time that the load knows of */
    struct counters counters;            /* not yet added to the load's */
    struct slot slots[];
};

/* ------------------------------------------------------------------------------------ making, freeing */

static int make_fences(struct hr_reader *reader, struct hr_error *err)
{
    const struct hr_loader *loader = reader->load->loader;
    size_t count = (size_t)reader->slot_count * loader->device_count;
    if (!loader->remote_devices)
        return 0;
    reader->fences = hr_alloc_array(count, sizeof *reader->fences);
    if (!reader->fences)
        return hr_fail_memory(err, count * sizeof *reader->fences, "the fences of a reader");
    for (size_t i = 0; i < count; i++) {
        reader->slots[i / loader->device_count].fences = &reader->fences[i - i % loader->device_count];
        struct hr_device *device = loader->devices[i % loader->device_count].device;
        int code = hr_device_is_host(device) ? 0 : hr_fence_new(device, &reader->fences[i], err);
        if (code < 0)
            return code;
    }
    return 0;
}

int hr_reader_new(struct hr_load *load, uint32_t index, uint32_t depth, struct hr_reader **ret_reader,
                  struct hr_error *err)
{
    uint32_t cold_depth = load->heat ? load->cold_depth : 0;
    uint32_t slot_count = depth + cold_depth + (load->loader->remote_devices ? HR_STAGING_DEPTH - 1 : 0);
    struct hr_reader *reader = hr_alloc(sizeof *reader + slot_count * sizeof reader->slots[0]);
    if (!reader)
        return hr_fail_memory(err, sizeof *reader + slot_count * sizeof reader->slots[0], "a reader");
    reader->load = load;
    reader->index = index;
    reader->depth = depth;
    reader->cold_depth = cold_depth;
    reader->slot_count = reader->free_count = slot_count;
    int code = load->backend->open(depth, &reader->io, err);
    if (code == 0)
        code = make_fences(reader, err);
    if (code < 0) {
        hr_reader_free(reader);
        return code;
    }
    *ret_reader = reader;
    return 0;
}

void hr_reader_free(struct hr_reader *reader)
{
    if (!reader)
        return;
    for (size_t i = 0; reader->fences && i < (size_t)reader->slot_count * reader->load->loader->device_count; i++)
        hr_fence_free(reader->fences[i]);
    hr_free(reader->fences);
    reader->load->backend->close(reader->io);
    if (reader->cold_io)
        reader->load->cold_backend->close(reader->cold_io);
    hr_free(reader);
}

/* Whose slots the chunk goes through; NULL: it is read in place. */
static struct hr_staging *ring_of(const struct hr_load *load, const struct hr_plan_chunk *chunk, uint32_t mode)
{
    if (hr_chunk_device(load, chunk)->lane_count)
        return load->route == HR_ROUTE_GDS ? hr_chunk_device(load, chunk)->device_ring : load->loader->staging;
    return chunk->way == HR_WAY_STAGED || mode == HR_READ_DIRECT ? load->loader->bounces : NULL;
}

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

/* ------------------------------------------------------------------------------------- completion */

static void add_counters(struct hr_reader *reader)
{
    struct hr_load *load = reader->load;
    load->bytes_read += reader->counters.bytes_read;
    load->bytes_direct += reader->counters.bytes_direct;
    load->read_count += reader->counters.read_count;
    load->read_ns += reader->counters.read_ns;
    load->place_ns += reader->counters.place_ns;
    load->copy_wait_ns += reader->counters.copy_wait_ns;
    uint64_t cpu_ns = hr_sys->thread_cpu_ns();
    load->cpu_ns += cpu_ns - reader->cpu_from_ns;
    reader->cpu_from_ns = cpu_ns;
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
    add_counters(reader); /* before its items are ready: who has seen all of them sees all reads */
    int code = succeeded ? hr_files_check(load->files, chunk->file_index, &error) : 0;
    hr_files_release(load->files, chunk->file_index);
    slot->chunk = NULL;
    reader->free_count++;
    if (code < 0) {
        hr_chunk_locate(load, chunk, chunk->file_begin, &error);
        hr_load_fail(load, &error);
    } else if (succeeded) {
        hr_chunk_landed(load, chunk);
    }
}

/* ----------------------------------------------------------------------------------------- copies */

static void fail_copy(struct hr_reader *reader, struct slot *slot, struct hr_error *error)
{
    hr_chunk_locate(reader->load, slot->chunk, slot->chunk->file_begin, error);
    hr_load_fail(reader->load, error);
}

/* The chunk's copies are in a lane since `from_ns`, with a fence behind them; or it failed. */
static void chunk_sent(struct hr_reader *reader, struct slot *slot, uint64_t from_ns, int code, struct hr_error *error)
{
    if (code < 0) {
        fail_copy(reader, slot, error);
        finish_chunk(reader, slot, 0);
        return;
    }
    slot->begin_ns = from_ns;
    slot->copy_next = NULL;
    if (reader->copy_first)
        reader->copy_last->copy_next = slot;
    else
        reader->copy_first = slot;
    reader->copy_last = slot;
}

/* By GPUDirect Storage: read into the slot's device memory, and on to its places. */
static void read_on_device(struct hr_reader *reader, struct slot *slot)
{
    struct hr_load *load = reader->load;
    struct loader_device *target = hr_chunk_device(load, slot->chunk);
    struct gds_counts counts = {0};
    struct hr_error error;
    int code =
        hr_gds_read_chunk(load, slot->chunk, slot->fd, slot->staging, target->lanes[reader->index % target->lane_count],
                          slot->fences[load->plan.groups[slot->chunk->group_index].device_index], reader->index,
                          &counts, &reader->counters.placed, &error);
    reader->counters.bytes_read += counts.bytes_read;
    reader->counters.read_count += counts.read_count;
    reader->counters.read_ns += counts.read_ns;
    reader->counters.copy_wait_ns += counts.copy_wait_ns;
    chunk_sent(reader, slot, hr_sys->clock_ns(), code, &error);
}

/* The chunk has been read: on to its places. */
static void place_chunk(struct hr_reader *reader, struct slot *slot)
{
    struct hr_load *load = reader->load;
    const struct hr_plan_chunk *chunk = slot->chunk;
    struct hr_error error;
    uint64_t from = hr_sys->clock_ns();
    release_budget(reader, slot, 1);
    if (slot->mode == HR_READ_DROP)
        hr_drop_behind(slot->fd, chunk->file_begin, chunk->file_end - chunk->file_begin);
    if (!hr_chunk_device(load, chunk)->lane_count) {
        if (slot->is_span)
            hr_slot_scatter(load, slot);
        reader->counters.place_ns += hr_sys->clock_ns() - from;
        finish_chunk(reader, slot, 1);
        return;
    }
    struct loader_device *target = hr_chunk_device(load, chunk);
    int code = hr_chunk_send(
        load, chunk, slot->staging, slot->buffer, slot->is_span, target->lanes[reader->index % target->lane_count],
        slot->fences[load->plan.groups[chunk->group_index].device_index], &reader->counters.placed, &error);
    reader->counters.place_ns += hr_sys->clock_ns() - from;
    chunk_sent(reader, slot, from, code, &error);
}

/* Finishes the oldest copy if it is done, or with `block` once it is: 1, or 0 when it is not or there is none. */
static int finish_copy(struct hr_reader *reader, int block)
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
    if (code < 0)
        fail_copy(reader, slot, &error);
    finish_chunk(reader, slot, code >= 0 && !load->stopping);
    return 1;
}

/* ------------------------------------------------------------------------------------------ reads */

/* Submits the slot's vectors from vector_first on. */
static int submit(struct hr_reader *reader, struct slot *slot)
{
    slot->op.fd = slot->fd;
    slot->op.vectors = slot->vectors + slot->vector_first;
    slot->op.vector_count = slot->vector_count - slot->vector_first;
    slot->begin_ns = hr_sys->clock_ns();
    int code = slot->is_cold ? reader->load->cold_backend->submit(reader->cold_io, &slot->op)
                             : reader->load->backend->submit(reader->io, &slot->op);
    reader->counters.read_ns += hr_sys->clock_ns() - slot->begin_ns;
    if (code < 0) {
        slot->op.result = code;
        fail_read(reader->load, slot);
        return code;
    }
    reader->counters.read_count++;
    reader->reading += !slot->is_cold;
    reader->cold_reading += slot->is_cold;
    return 0;
}

/* Starts the chunk's next operation, or has it placed. */
static void advance(struct hr_reader *reader, struct slot *slot)
{
    if (reader->load->stopping) {
        finish_chunk(reader, slot, 0);
    } else if (slot->staging && slot->staging->gds) {
        read_on_device(reader, slot);
    } else if (!slot->bytes_expected && !hr_slot_fill(reader->load, slot)) {
        place_chunk(reader, slot);
    } else if (submit(reader, slot) < 0) {
        finish_chunk(reader, slot, 0);
    }
}

/* The file refuses O_DIRECT after all: the chunk is read anew, in the next best mode. 0 when that cannot be. */
static int read_without_direct(struct hr_reader *reader, struct slot *slot)
{
    struct hr_load *load = reader->load;
    struct hr_error error;
    int fd;
    if (slot->mode != HR_READ_DIRECT || (slot->op.result != -EINVAL && slot->op.result != -EOPNOTSUPP))
        return 0;
    struct hr_chunk_reading reading = hr_heat_without_direct(load, slot->chunk);
    hr_files_refuse_direct(load->files, slot->chunk->file_index);
    if (hr_files_acquire(load->files, slot->chunk->file_index, &reading.mode, &fd, &error))
        return 0;
    hr_files_unacquire(load->files, slot->chunk->file_index); /* that of the descriptor before */
    hr_slot_restart(slot, reading.mode, fd);
    if (!slot->is_span) /* as it began: the buffer is a span's */
        slot->is_span = slot->buffer && !hr_chunk_device(load, slot->chunk)->lane_count;
    advance(reader, slot);
    return 1;
}

static void read_failed(struct hr_reader *reader, struct slot *slot)
{
    if (read_without_direct(reader, slot))
        return;
    fail_read(reader->load, slot);
    finish_chunk(reader, slot, 0);
}

/* Waits for one operation and goes on with its chunk. Those out of the page cache are done already. */
static void complete_read(struct hr_reader *reader)
{
    struct hr_load *load = reader->load;
    uint64_t from = hr_sys->clock_ns();
    struct hr_io_op *op = reader->reading ? load->backend->wait(reader->io) : load->cold_backend->wait(reader->cold_io);
    reader->counters.read_ns += hr_sys->clock_ns() - from;
    struct slot *slot = (struct slot *)((char *)op - offsetof(struct slot, op));
    reader->reading -= !slot->is_cold;
    reader->cold_reading -= slot->is_cold;
    if (op->result <= 0) {
        read_failed(reader, slot);
        return;
    }
    hr_trace_span(load, HR_TRACE_READ, reader->index, slot->begin_ns, slot->chunk->file_index, op->offset,
                  (uint64_t)op->result);
    reader->counters.bytes_read += (uint64_t)op->result;
    if (slot->mode == HR_READ_DIRECT)
        reader->counters.bytes_direct += (uint64_t)op->result;
    if (hr_slot_advance(slot, (uint64_t)op->result)) {
        advance(reader, slot);
        return;
    }
    op->result = 0; /* the same bytes again: there are no more */
    read_failed(reader, slot);
}

/* ---------------------------------------------------------------------------------------- the loop */

static struct slot *free_slot(struct hr_reader *reader)
{
    for (uint32_t i = 0; i < reader->slot_count; i++)
        if (!reader->slots[i].chunk)
            return &reader->slots[i];
    return NULL;
}

/* A slot of the ring that the chunk goes through, if it does; 1 when it has to wait for one. */
static int find_buffer(struct hr_reader *reader, struct hr_staging *ring, struct slot *slot, struct hr_error *err)
{
    uint64_t from = hr_sys->clock_ns(), grown = 0;
    if (!ring)
        return 0;
    size_t grow_count = ring == reader->load->loader->staging ? HR_STAGING_DEPTH : 1;
    int code = hr_staging_take(ring, grow_count, &slot->staging, &grown, err);
    if (grown)
        hr_trace_span(reader->load, HR_TRACE_STAGING, reader->index, from, SIZE_MAX, 0, grown);
    slot->ring = ring;
    reader->waits_for = code > 0 ? ring : NULL;
    return code;
}

/* The descriptor by which the chunk is read, and how; 1 when it has to wait for one. Never holds two at once. */
static int find_descriptor(struct hr_reader *reader, const struct hr_plan_chunk *chunk,
                           struct hr_chunk_reading *ret_reading, int *ret_fd, struct hr_error *err)
{
    struct hr_load *load = reader->load;
    uint32_t mode = HR_READ_BUFFERED;
    if (!hr_heat_is_known(load, chunk, ret_reading)) {
        int code = hr_files_acquire(load->files, chunk->file_index, &mode, ret_fd, err);
        if (code)
            return code;
        *ret_reading = hr_heat_of_chunk(load, chunk, *ret_fd);
        if (ret_reading->mode != HR_READ_DIRECT)
            return 0;
        hr_files_unacquire(load->files, chunk->file_index);
    }
    mode = ret_reading->mode;
    int code = hr_files_acquire(load->files, chunk->file_index, &mode, ret_fd, err);
    if (code == 0 && mode != ret_reading->mode)
        *ret_reading = hr_heat_without_direct(load, chunk);
    return code;
}

/* What cold chunks are read by, made when the first one comes. Without it they are read as the others are. */
static int has_cold_io(struct hr_reader *reader)
{
    return reader->cold_io || reader->load->cold_backend->open(reader->cold_depth, &reader->cold_io, NULL) == 0;
}

/* All that a chunk needs to be read, or nothing; 1 when it has to wait for something. */
static int prepare_slot(struct hr_reader *reader, const struct hr_plan_chunk *chunk, struct slot *slot,
                        struct hr_error *err)
{
    struct hr_load *load = reader->load;
    struct hr_chunk_reading reading;
    int fd;
    reader->waits_for = NULL;
    int code = find_descriptor(reader, chunk, &reading, &fd, err);
    if (code)
        return code;
    code = find_buffer(reader, ring_of(load, chunk, reading.mode), slot, err);
    if (code) {
        hr_files_unacquire(load->files, chunk->file_index);
        return code;
    }
    slot->is_cold = reading.is_cold && has_cold_io(reader);
    hr_slot_begin(slot, chunk, reading.mode, fd, slot->staging ? slot->staging->memory : NULL);
    reader->free_count--;
    return 0;
}

/* Counts a cold chunk in the budget: 1, or 0 when that is spent. */
static int spend_budget(struct hr_reader *reader, struct slot *slot, int block)
{
    struct hr_load *load = reader->load;
    uint64_t bytes = slot->chunk->file_end - slot->chunk->file_begin;
    if (bytes > load->loader->chunk_bytes)
        bytes = load->loader->chunk_bytes; /* run by run */
    int is_counted =
        block ? hr_flow_wait(load->loader->flow, bytes, &load->stopping) : hr_flow_begin(load->loader->flow, bytes);
    if (is_counted) {
        slot->flow_bytes = bytes;
        slot->flow_ns = hr_sys->clock_ns();
    }
    return is_counted;
}

/* Reads what was ready and had no budget. */
static void unblock(struct hr_reader *reader, int block)
{
    struct slot *slot = reader->blocked;
    if (!spend_budget(reader, slot, block) && !reader->load->stopping)
        return;
    reader->blocked = NULL;
    advance(reader, slot);
}

/* Begins `chunk` in a free slot; 0 when it has to wait. */
static int begin_chunk(struct hr_reader *reader, const struct hr_plan_chunk *chunk)
{
    struct slot *slot = free_slot(reader);
    struct hr_error error;
    int code = prepare_slot(reader, chunk, slot, &error);
    if (code > 0)
        return 0;
    if (code < 0) {
        hr_chunk_locate(reader->load, chunk, chunk->file_begin, &error);
        hr_load_fail(reader->load, &error);
        return 1;
    }
    if (slot->is_cold && !spend_budget(reader, slot, 0))
        reader->blocked = slot;
    else
        advance(reader, slot);
    return 1;
}

static int may_begin(const struct hr_reader *reader)
{
    return reader->free_count && !reader->blocked && reader->reading < reader->depth &&
           (reader->cold_depth == 0 || reader->cold_reading < reader->cold_depth);
}

/* Takes and begins chunks until all slots are busy or there is nothing to do now. */
static int begin_chunks(struct hr_reader *reader)
{
    int begun = 0;
    if (reader->blocked)
        unblock(reader, 0);
    while (may_begin(reader)) {
        const struct hr_plan_chunk *chunk = reader->waiting;
        int block =
            !reader->reading && !reader->cold_reading && !reader->copy_first && !reader->load->options.sequential;
        if (!chunk)
            chunk = hr_chunk_take(reader->load, reader->index, block);
        if (!chunk)
            break;
        reader->waiting = NULL;
        if (!begin_chunk(reader, chunk)) {
            reader->waiting = chunk;
            break;
        }
        begun++;
    }
    return begun;
}

/* Nothing of this reader's is under way, and its chunk needs what others hold. */
static void wait_for_others(struct hr_reader *reader)
{
    uint64_t from = hr_sys->clock_ns();
    if (!reader->waits_for) {
        hr_files_wait(reader->load->files);
        return;
    }
    hr_staging_wait(reader->waits_for);
    reader->counters.copy_wait_ns += hr_trace_span(reader->load, HR_TRACE_STAGING, reader->index, from, SIZE_MAX, 0, 0);
}

/* Goes on with what is under way: 0 when that is nothing. */
static int move_on(struct hr_reader *reader)
{
    if (reader->reading || reader->cold_reading)
        complete_read(reader);
    else if (reader->copy_first)
        finish_copy(reader, 1);
    else if (reader->blocked)
        unblock(reader, 1);
    else if (reader->waiting)
        wait_for_others(reader);
    else
        return 0;
    while (finish_copy(reader, 0))
        ;
    return 1;
}

void *hr_reader_main(void *argument)
{
    struct hr_reader *reader = argument;
    int code = hr_binding_thread(&reader->load->loader->placement);
    if (code < 0)
        reader->load->binding_error = -code;
    reader->cpu_from_ns = hr_sys->thread_cpu_ns();
    do
        begin_chunks(reader);
    while (move_on(reader));
    add_counters(reader);
    hr_reader_free(reader);
    return NULL;
}

int hr_reader_step(struct hr_reader *reader)
{
    reader->cpu_from_ns = hr_sys->thread_cpu_ns();
    int begun = begin_chunks(reader);
    while (move_on(reader)) /* nobody else can move a chunk that is taken */
        if (reader->waiting)
            begun += begin_chunks(reader);
    return begun;
}
