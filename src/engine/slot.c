/*
 * slot.c: from a chunk's runs to vectored reads. Runs that follow each other in the file share an operation.
 */
#include "engine/slot.h"

#include <string.h>

#include "convert/convert.h"

static uint64_t page_of(uint64_t offset)
{
    return offset / HR_CUT_ALIGNMENT * HR_CUT_ALIGNMENT;
}

void hr_slot_begin(struct slot *slot, const struct hr_plan_chunk *chunk, uint32_t mode, int fd, char *memory)
{
    slot->chunk = chunk;
    /* pages of the page cache too are copied fastest to where they begin at the same place of a page */
    slot->buffer = memory ? memory + chunk->file_begin % HR_CUT_ALIGNMENT : NULL;
    hr_slot_restart(slot, mode, fd);
}

void hr_slot_restart(struct slot *slot, uint32_t mode, int fd)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    int is_direct = mode == HR_READ_DIRECT;
    slot->mode = mode;
    slot->fd = fd;
    slot->op.flags = mode == HR_READ_DONTCACHE ? HR_RWF_DONTCACHE : 0;
    slot->is_span = chunk->way == HR_WAY_STAGED || is_direct;
    slot->span_begin = is_direct ? page_of(chunk->file_begin) : chunk->file_begin;
    slot->span_end = is_direct ? page_of(chunk->file_end + HR_CUT_ALIGNMENT - 1) : chunk->file_end;
    slot->piece_index = chunk->piece_first;
    slot->walking = slot->has_run = 0;
    slot->bytes_expected = slot->bytes_done = slot->packed = 0;
    slot->stall_count = 0;
}

/* Moves the slot to its chunk's next run; 0 at the end. Items whose file is mapped need no reading. */
static int next_run(const struct hr_load *load, struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    for (;;) {
        if (slot->walking && hr_run_walk_next(&slot->walk, &slot->run)) {
            size_t item_index = load->plan.pieces[slot->piece_index - 1].item_index;
            slot->run_data = load->items[item_index].data + slot->run.target_offset;
            if (slot->buffer && !slot->is_span) {
                slot->run_data = slot->buffer + slot->packed;
                slot->packed += slot->run.bytes;
            }
            return slot->has_run = 1;
        }
        slot->walking = 0;
        if (slot->piece_index == chunk->piece_first + chunk->piece_count)
            return 0;
        const struct hr_plan_piece *piece = &load->plan.pieces[slot->piece_index++];
        if (load->items[piece->item_index].mapped)
            continue;
        hr_run_walk_init(&slot->walk, &load->plan.items[piece->item_index], piece);
        slot->walking = 1;
    }
}

/* Appends the run at hand to the operation's vectors; runs that also continue in memory become one vector. */
static void add_vector(struct slot *slot)
{
    struct iovec *last = slot->vector_count ? &slot->vectors[slot->vector_count - 1] : NULL;
    if (last && (char *)last->iov_base + last->iov_len == slot->run_data) {
        last->iov_len += slot->run.bytes;
    } else {
        slot->vectors[slot->vector_count].iov_base = slot->run_data;
        slot->vectors[slot->vector_count++].iov_len = slot->run.bytes;
    }
    slot->bytes_expected += slot->run.bytes;
    slot->has_run = 0;
}

/* Collects runs that follow each other in the file into one operation; 0 when the chunk has no more. */
static int fill_direct(const struct hr_load *load, struct slot *slot)
{
    slot->vector_first = slot->vector_count = 0;
    slot->bytes_expected = 0;
    if (!slot->has_run && !next_run(load, slot))
        return 0;
    slot->op.offset = slot->run.source_offset;
    while (slot->run.source_offset == slot->op.offset + slot->bytes_expected && slot->vector_count < HR_IOV_MAX) {
        add_vector(slot);
        if (!next_run(load, slot))
            break;
    }
    return 1;
}

/* Goes on at what has arrived, with O_DIRECT at the page that it ends in. */
static int fill_span(struct slot *slot)
{
    uint64_t needed = slot->chunk->file_end - slot->span_begin;
    uint64_t from = slot->mode == HR_READ_DIRECT ? page_of(slot->bytes_done) : slot->bytes_done;
    if (slot->bytes_done >= needed)
        return 0;
    slot->op.offset = slot->span_begin + from;
    slot->vectors[0].iov_base = slot->buffer - (slot->chunk->file_begin - slot->span_begin) + from;
    slot->vectors[0].iov_len = slot->span_end - slot->op.offset;
    slot->vector_first = 0;
    slot->vector_count = 1;
    slot->bytes_expected = needed - from;
    return 1;
}

int hr_slot_fill(const struct hr_load *load, struct slot *slot)
{
    return slot->is_span ? fill_span(slot) : fill_direct(load, slot);
}

/*
 * A short count is right only at the end of the file, behind what is needed; there it comes again and again, since with
 * O_DIRECT reading goes on at a page. Elsewhere it may be shorter than before, too.
 */
static int advance_span(struct slot *slot, uint64_t bytes)
{
    uint64_t done = slot->op.offset - slot->span_begin + bytes;
    slot->stall_count = done > slot->bytes_done ? 0 : slot->stall_count + 1;
    if (done > slot->bytes_done)
        slot->bytes_done = done;
    if (slot->stall_count == HR_SLOT_STALLS_MAX) {
        slot->op.offset = slot->span_begin + slot->bytes_done;
        slot->bytes_expected = slot->chunk->file_end - slot->op.offset;
        return 0;
    }
    slot->bytes_expected = 0;
    return 1;
}

/* Drops them from the front of the vectors. */
static void advance_vectors(struct slot *slot, uint64_t bytes)
{
    slot->op.offset += bytes;
    slot->bytes_expected -= bytes;
    while (bytes) {
        struct iovec *first = &slot->vectors[slot->vector_first];
        if (bytes < first->iov_len) {
            first->iov_base = (char *)first->iov_base + bytes;
            first->iov_len -= bytes;
            return;
        }
        bytes -= first->iov_len;
        slot->vector_first++;
    }
}

int hr_slot_advance(struct slot *slot, uint64_t bytes)
{
    if (slot->is_span)
        return advance_span(slot, bytes);
    advance_vectors(slot, bytes);
    return 1;
}

/* From the buffer to its place. */
static void move_run(const struct hr_plan_item *item, const struct hr_run *run, char *data, const char *bytes)
{
    if (hr_plan_is_cast(item))
        hr_convert(item->source_dtype, item->dtype, data + run->target_offset, bytes, run->bytes / item->source_unit);
    else
        memcpy(data + run->target_offset, bytes, run->bytes);
}

void hr_slot_scatter(const struct hr_load *load, const struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    uint64_t packed = 0;
    for (size_t i = 0; i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        const struct hr_plan_item *item = &load->plan.items[piece->item_index];
        struct hr_run_walk walk;
        struct hr_run run;
        if (load->items[piece->item_index].mapped)
            continue;
        hr_run_walk_init(&walk, item, piece);
        while (hr_run_walk_next(&walk, &run)) {
            uint64_t at = slot->is_span ? run.source_offset - chunk->file_begin : packed;
            move_run(item, &run, load->items[piece->item_index].data, slot->buffer + at);
            packed += run.bytes;
        }
    }
}
