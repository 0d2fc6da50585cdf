/*
 * reader.c: takes chunks, begins them, and decides what to wait for.
 *
 * A slot carries one chunk through its reads (slot.h). What the page cache holds is read at once, one chunk after the
 * other; what storage must deliver is read many at once, as far as the process's budget goes (flow.h). A chunk for a
 * device is then sent there (send.h), and its slot is busy until the copies are done; the reader goes on with its other
 * slots meanwhile.
 *
 * A reader waits for one thing at a time, in this order: reads, its own oldest copy, then others (a file descriptor, a
 * staging slot, the gate, the budget, a chunk). So who waits for others holds nothing that they could wait for. What is
 * early (gate.h), and may have to wait for other ranks, has only a staging slot, and of those some are for others.
 *
 * A reader allocates nothing once it runs, but for staging slots, of which the ring decides, the fences of its slots, its
 * ring for cold reads, when the first one comes, and memory to convert in for a GPU that cannot.
 */
#include "engine/reader.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/sys.h"
#include "engine/chunks.h"
#include "engine/flow.h"
#include "engine/gate.h"
#include "engine/heat.h"
#include "engine/reader_state.h"
#include "engine/trace.h"
#include "topo/binding.h"

/* ------------------------------------------------------------------------------------ making, freeing */

/*
 * Room for a fence of each slot and device. The fences are made as slots are used, by their reader: most of the slots are
 * for cold reads, and the caller would make all of them before the first byte moves.
 */
static int make_fences(struct hr_reader *reader, struct hr_error *err)
{
    const struct hr_loader *loader = reader->load->loader;
    size_t count = (size_t)reader->slot_count * loader->device_count;
    if (!loader->remote_devices)
        return 0;
    reader->fences = hr_alloc_array(count, sizeof *reader->fences);
    if (!reader->fences)
        return hr_fail_memory(err, count * sizeof *reader->fences, "the fences of a reader");
    for (uint32_t i = 0; i < reader->slot_count; i++)
        reader->slots[i].fences = &reader->fences[(size_t)i * loader->device_count];
    return 0;
}

int hr_reader_new(struct hr_load *load, uint32_t index, uint32_t depth, struct hr_reader **ret_reader,
                  struct hr_error *err)
{
    uint32_t cold_depth = load->heat ? load->cold_depth : 0;
    uint32_t sent_count = (load->is_feed ? HR_STAGING_DEPTH_FEED : HR_STAGING_DEPTH) - 1;
    uint32_t slot_count = depth + cold_depth + (load->loader->remote_devices ? sent_count : 0);
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

/* In a forked child they are left alone: the driver is of no use there. */
static void free_fences(struct hr_reader *reader)
{
    size_t count = (size_t)reader->slot_count * reader->load->loader->device_count;
    int is_child = reader->load->fork_generation != hr_fork_generation();
    for (size_t i = 0; reader->fences && !is_child && i < count; i++)
        hr_fence_free(reader->fences[i]);
    hr_free(reader->fences);
}

void hr_reader_free(struct hr_reader *reader)
{
    if (!reader)
        return;
    free_fences(reader);
    hr_free(reader->scratch);
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
    int is_buffered = chunk->way == HR_WAY_STAGED || chunk->has_cast || mode == HR_READ_DIRECT;
    return is_buffered ? load->loader->bounces : NULL;
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
static int find_buffer(struct hr_reader *reader, const struct hr_plan_chunk *chunk, struct hr_staging *ring,
                       struct slot *slot, struct hr_error *err)
{
    uint64_t from = hr_sys->clock_ns(), grown = 0;
    if (!ring)
        return 0;
    size_t grow_count = ring == reader->load->loader->staging ? HR_STAGING_DEPTH : 1;
    int is_early = hr_gate_is_early(reader->load, chunk);
    int code = hr_staging_take(ring, grow_count, is_early, &slot->staging, &grown, err);
    if (grown)
        hr_trace_span(reader->load, HR_TRACE_STAGING, reader->index, from, SIZE_MAX, 0, grown);
    slot->ring = ring;
    reader->waits_for = code > 0 && !is_early ? ring : NULL;
    reader->waits_at_gate = code > 0 && is_early;
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
    reader->waits_at_gate = 0;
    int code = find_descriptor(reader, chunk, &reading, &fd, err);
    if (code)
        return code;
    code = find_buffer(reader, chunk, ring_of(load, chunk, reading.mode), slot, err);
    if (code) {
        hr_files_unacquire(load->files, chunk->file_index);
        return code;
    }
    slot->is_cold = reading.is_cold && has_cold_io(reader);
    slot->memory_alignment = hr_chunk_device(load, chunk)->lane_count ? 0 : reading.memory_alignment;
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
    hr_reader_advance(reader, slot);
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
        hr_reader_advance(reader, slot);
    return 1;
}

static int may_begin(const struct hr_reader *reader)
{
    return reader->free_count && !reader->blocked && reader->reading < reader->depth &&
           (reader->cold_depth == 0 || reader->cold_reading < reader->cold_depth);
}

/* Nothing of this reader's is under way: it may sleep until there is a chunk. */
static int is_idle(const struct hr_reader *reader)
{
    return !reader->reading && !reader->cold_reading && !reader->copy_first && !reader->read_last &&
           !reader->load->options.sequential;
}

/*
 * Takes and begins chunks until all slots are busy, there is nothing to do now, or one has been read: that is to go on to
 * its places while others are read.
 */
static int begin_chunks(struct hr_reader *reader)
{
    int begun = 0;
    if (reader->blocked)
        unblock(reader, 0);
    reader->wanted = NULL;
    while (may_begin(reader)) {
        struct held_chunk held;
        const struct hr_plan_chunk *chunk = hr_chunk_take(reader->load, reader->index, is_idle(reader), &held);
        if (held.chunk) {
            hr_reader_take_over(reader, free_slot(reader), &held);
            begun++;
            continue;
        }
        if (!chunk)
            break;
        if (!begin_chunk(reader, chunk)) {
            reader->wanted = chunk;
            hr_chunk_leave(reader->load, chunk);
            break;
        }
        begun++;
        if (hr_reader_has_read(reader))
            break;
    }
    return begun;
}

/* Nothing of this reader's is under way, and the next chunk needs what others hold. */
static void wait_for_others(struct hr_reader *reader)
{
    uint64_t from = hr_sys->clock_ns();
    if (reader->waits_at_gate) {
        hr_gate_wait(reader->load, reader->wanted, reader->index);
        return;
    }
    if (!reader->waits_for) {
        hr_files_wait(reader->load->files);
        return;
    }
    hr_staging_wait(reader->waits_for);
    reader->counters.copy_wait_ns += hr_trace_span(reader->load, HR_TRACE_STAGING, reader->index, from, SIZE_MAX, 0, 0);
}

/* Sees one read end. Storage gets the next ones to do before this one's bytes are copied. */
static void complete_read(struct hr_reader *reader)
{
    struct slot *slot = hr_reader_complete_read(reader);
    if (!slot)
        return;
    reader->read_last = slot;
    if (slot->is_cold)
        begin_chunks(reader);
    reader->read_last = NULL;
    hr_reader_place(reader, slot);
}

/* Goes on with what is under way: 0 when that is nothing. */
static int move_on(struct hr_reader *reader)
{
    if (reader->reading || reader->cold_reading)
        complete_read(reader);
    else if (reader->copy_first)
        hr_reader_finish_copy(reader, 1);
    else if (reader->blocked)
        unblock(reader, 1);
    else if (reader->wanted)
        wait_for_others(reader);
    else
        return 0;
    while (hr_reader_finish_copy(reader, 0))
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
    hr_reader_add_counters(reader);
    hr_reader_free(reader);
    return NULL;
}

int hr_reader_step(struct hr_reader *reader)
{
    reader->cpu_from_ns = hr_sys->thread_cpu_ns();
    int begun = begin_chunks(reader);
    while (move_on(reader)) /* nobody else can move a chunk that is taken */
        if (reader->wanted)
            begun += begin_chunks(reader);
    return begun;
}
