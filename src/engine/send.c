/*
 * send.c: the pieces of a chunk as moves. Rows of the innermost dimension are one move, so a narrow slice needs few.
 * What is converted is left to the device; send_converted.c does it where that cannot.
 */
#include "engine/send.h"

#include "engine/sending.h"

int hr_sending_flush(struct sending *sending, const struct hr_staging_block *block, struct hr_error *err)
{
    int code = hr_lane_place(sending->lane, block, sending->slot->moves, sending->move_count, sending->counts, err);
    sending->move_count = 0;
    return code < 0 ? code : hr_fence_put(sending->fence, sending->lane, err);
}

/* Puts what the table holds into the lane. */
static int flush(struct sending *sending, struct hr_error *err)
{
    return hr_sending_flush(sending, sending->slot->block, err);
}

uint64_t hr_item_cast(const struct hr_plan_item *item)
{
    return hr_plan_is_cast(item) ? hr_cast_code(item->source_dtype, item->dtype) : 0;
}

/* Whether `next` goes on where `last` ends, in both memories. */
static int follows(const struct hr_move *last, const struct hr_move *next)
{
    return last->rows == 1 && next->rows == 1 && last->cast == next->cast &&
           next->source == last->source + last->bytes && next->target == last->target + hr_move_target_bytes(last);
}

int hr_move_join(struct hr_move *moves, size_t move_count, const struct load_item *last_item,
                 const struct hr_move *move, const struct load_item *item)
{
    struct hr_move *last = move_count ? &moves[move_count - 1] : NULL;
    int is_same = last && (item == last_item || (item->block && item->block == last_item->block));
    if (!is_same || !follows(last, move))
        return 0;
    last->bytes += move->bytes;
    return 1;
}

/* The table is the lane's until its copies are done. */
static int make_room(struct sending *sending, struct hr_error *err)
{
    if (sending->move_count < sending->slot->move_capacity)
        return 0;
    int code = flush(sending, err);
    return code < 0 ? code : hr_fence_wait(sending->fence, err);
}

const char *hr_sending_source(struct sending *sending, const struct hr_run_rows *rows)
{
    uint64_t at = sending->is_span ? rows->run.source_offset - sending->chunk->file_begin : sending->packed;
    sending->packed += rows->run.bytes * rows->count;
    return sending->bytes + at;
}

static struct hr_move as_move(struct sending *sending, const struct hr_run_rows *rows, const char *data, uint64_t cast)
{
    return (struct hr_move){
        .source = (uintptr_t)hr_sending_source(sending, rows),
        .target = (uintptr_t)(data + rows->run.target_offset),
        .bytes = rows->run.bytes,
        .rows = rows->count,
        .source_pitch = (long long)(sending->is_span ? rows->source_stride : rows->run.bytes),
        .target_pitch = rows->target_stride,
        .cast = cast,
    };
}

static int send_piece(struct sending *sending, const struct hr_plan_piece *piece, struct hr_error *err)
{
    struct hr_load *load = sending->load;
    const struct hr_plan_item *planned = &load->plan.items[piece->item_index];
    const struct load_item *item = &load->items[piece->item_index];
    uint64_t cast = hr_item_cast(planned);
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    hr_run_walk_init(&walk, planned, piece);
    while (hr_run_walk_rows(&walk, &rows)) {
        struct hr_move move = as_move(sending, &rows, item->data, cast);
        if (hr_move_join(sending->slot->moves, sending->move_count, sending->item, &move, item))
            continue;
        int code = make_room(sending, err);
        if (code < 0)
            return code;
        sending->slot->moves[sending->move_count++] = move;
        sending->item = item;
    }
    return 0;
}

int hr_chunk_send(struct hr_load *load, const struct hr_plan_chunk *chunk, const struct hr_staging_slot *slot,
                  const char *bytes, int is_span, struct hr_lane *lane, struct hr_fence *fence, char **scratch,
                  struct hr_place_counts *counts, struct hr_error *err)
{
    struct sending sending = {load, chunk, slot, bytes, is_span, lane, fence, counts, 0, 0, NULL};
    int by_host = chunk->has_cast && !hr_lane_converts(lane, slot->block), code = 0;
    for (size_t i = 0; code == 0 && i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        if (by_host && hr_plan_is_cast(&load->plan.items[piece->item_index]))
            code = hr_send_converted(&sending, piece, scratch, err);
        else
            code = send_piece(&sending, piece, err);
    }
    if (code == 0)
        code = flush(&sending, err);
    if (code < 0 && hr_fence_put(fence, lane, NULL) == 0)
        hr_fence_wait(fence, NULL); /* some of it may be under way */
    return code;
}
