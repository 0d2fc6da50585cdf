/*
 * slot.c: from a chunk's runs to vectored reads. Runs that follow each other in the file share an operation.
 */
#include "engine/slot.h"

#include <string.h>

void hr_slot_begin(struct slot *slot, const struct hr_plan_chunk *chunk, int fd, char *buffer)
{
    slot->chunk = chunk;
    slot->fd = fd;
    slot->buffer = buffer;
    slot->piece_index = chunk->piece_first;
    slot->walking = slot->has_run = 0;
    slot->bytes_expected = slot->bytes_done = slot->packed = 0;
}

/* Moves the slot to its chunk's next run; 0 at the end. Items whose file is mapped need no reading. */
static int next_run(const struct hr_load *load, struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    for (;;) {
        if (slot->walking && hr_run_walk_next(&slot->walk, &slot->run)) {
            size_t item_index = load->plan.pieces[slot->piece_index - 1].item_index;
            slot->run_data = load->items[item_index].data + slot->run.target_offset;
            if (slot->chunk->way == HR_WAY_DIRECT && slot->buffer) {
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

static int fill_staged(struct slot *slot)
{
    uint64_t bytes = slot->chunk->file_end - slot->chunk->file_begin;
    if (slot->bytes_done == bytes)
        return 0;
    slot->op.offset = slot->chunk->file_begin;
    slot->vectors[0].iov_base = slot->buffer;
    slot->vectors[0].iov_len = bytes;
    slot->vector_first = 0;
    slot->vector_count = 1;
    slot->bytes_expected = bytes;
    return 1;
}

int hr_slot_fill(const struct hr_load *load, struct slot *slot)
{
    return slot->chunk->way == HR_WAY_STAGED ? fill_staged(slot) : fill_direct(load, slot);
}

/* Drops them from the front of the vectors. */
void hr_slot_advance(struct slot *slot, uint64_t bytes)
{
    slot->op.offset += bytes;
    slot->bytes_expected -= bytes;
    slot->bytes_done += bytes;
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

void hr_slot_scatter(const struct hr_load *load, struct slot *slot)
{
    while (next_run(load, slot))
        memcpy(slot->run_data, slot->buffer + (slot->run.source_offset - slot->chunk->file_begin), slot->run.bytes);
    slot->has_run = 0;
}
