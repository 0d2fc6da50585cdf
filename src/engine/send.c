/*
 * send.c: pieces as moves. Rows of the innermost dimension are one move, so a narrow slice needs few.
 */
#include "engine/send.h"

#include <string.h>

/* Whether `next` goes on where `last` ends, in both memories. */
static int follows(const struct hr_move *last, const struct hr_move *next)
{
    return last->rows == 1 && next->rows == 1 && next->source == last->source + last->bytes &&
           next->target == last->target + last->bytes;
}

int hr_move_join(struct hr_move *moves, size_t move_count, const struct load_item *last_item,
                 const struct hr_move *move, const struct load_item *item)
{
    struct hr_move *last = move_count ? &moves[move_count - 1] : NULL;
    int is_same = last && (item == last_item || (item && last_item && item->block && item->block == last_item->block));
    if (!is_same || !follows(last, move))
        return 0;
    last->bytes += move->bytes;
    return 1;
}

int hr_send_flush(struct hr_sender *sender, struct hr_error *err)
{
    if (!sender->lane)
        return 0;
    int code = sender->is_resident
                   ? hr_lane_spread(sender->lane, sender->block, sender->moves, sender->move_count, sender->counts, err)
                   : hr_lane_place(sender->lane, sender->block, sender->moves, sender->move_count, sender->counts, err);
    sender->move_count = 0;
    return code < 0 ? code : hr_fence_put(sender->fence, sender->lane, err);
}

/* The table is the lane's until its copies are done. */
static int make_room(struct hr_sender *sender, struct hr_error *err)
{
    if (sender->move_count < sender->move_capacity)
        return 0;
    int code = hr_send_flush(sender, err);
    return code < 0 ? code : hr_fence_wait(sender->fence, err);
}

static void copy_rows(const struct hr_move *move)
{
    for (unsigned long long r = 0; r < move->rows; r++)
        memcpy((char *)(uintptr_t)move->target + (long long)r * move->target_pitch,
               (const char *)(uintptr_t)move->source + (long long)r * move->source_pitch, move->bytes);
}

int hr_send_move(struct hr_sender *sender, const struct hr_move *move, const struct load_item *item,
                 struct hr_error *err)
{
    if (!sender->lane) {
        copy_rows(move);
        return 0;
    }
    if (hr_move_join(sender->moves, sender->move_count, sender->item, move, item))
        return 0;
    int code = make_room(sender, err);
    if (code < 0)
        return code;
    sender->moves[sender->move_count++] = *move;
    sender->item = item;
    return 0;
}

static struct hr_move as_move(const struct hr_run_rows *rows, struct hr_send_source *source, const char *data)
{
    const char *from = source->bytes;
    if (source->is_span)
        from += rows->run.source_offset - source->begin;
    else
        source->bytes += rows->run.bytes * rows->count;
    return (struct hr_move){
        .source = (uintptr_t)from,
        .target = (uintptr_t)(data + rows->run.target_offset),
        .bytes = rows->run.bytes,
        .rows = rows->count,
        .source_pitch = (long long)(source->is_span ? rows->source_stride : rows->run.bytes),
        .target_pitch = rows->target_stride,
    };
}

int hr_send_piece(struct hr_sender *sender, const struct load_item *item, const struct hr_plan_item *planned,
                  const struct hr_plan_piece *piece, struct hr_send_source *source, struct hr_error *err)
{
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    hr_run_walk_init(&walk, planned, piece);
    while (hr_run_walk_rows(&walk, &rows)) {
        struct hr_move move = as_move(&rows, source, item->data);
        int code = hr_send_move(sender, &move, item, err);
        if (code < 0)
            return code;
    }
    return 0;
}

int hr_chunk_send(struct hr_load *load, const struct hr_plan_chunk *chunk, const struct hr_staging_slot *slot,
                  const char *bytes, int is_span, struct hr_lane *lane, struct hr_fence *fence,
                  struct hr_place_counts *counts, struct hr_error *err)
{
    struct hr_sender sender = {.lane = lane,
                               .block = slot->block,
                               .moves = slot->moves,
                               .move_capacity = slot->move_capacity,
                               .fence = fence,
                               .counts = counts};
    struct hr_send_source source = {bytes, is_span, chunk->file_begin};
    int code = 0;
    for (size_t i = 0; code == 0 && i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        code = hr_send_piece(&sender, &load->items[piece->item_index], &load->plan.items[piece->item_index], piece,
                             &source, err);
    }
    if (code == 0)
        code = hr_send_flush(&sender, err);
    if (code < 0 && hr_fence_put(fence, lane, NULL) == 0)
        hr_fence_wait(fence, NULL); /* some of it may be under way */
    return code;
}
