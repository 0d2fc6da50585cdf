/*
 * send.c: pieces as moves. Rows of the innermost dimension are one move, so a narrow slice needs few. What is converted
 * is left to the device; send_converted.c does it where that cannot.
 */
#include "engine/send.h"

#include <string.h>

#include "convert/convert.h"
#include "engine/send_converted.h"

uint64_t hr_item_cast(const struct hr_plan_item *item)
{
    return hr_plan_is_cast(item) ? hr_cast_code(item->source_dtype, item->dtype) : 0;
}

/* Whether `next` goes on where `last` ends, in both memories, and is converted alike. */
static int follows(const struct hr_move *last, const struct hr_move *next)
{
    return last->rows == 1 && next->rows == 1 && next->cast == last->cast &&
           next->source == last->source + last->bytes && next->target == last->target + hr_move_target_bytes(last);
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

/* In host memory. */
static void move_rows(const struct hr_move *move)
{
    char *target = (char *)(uintptr_t)move->target;
    const char *source = (const char *)(uintptr_t)move->source;
    uint32_t from = move->cast & 255, to = move->cast >> 8 & 255;
    for (unsigned long long r = 0; r < move->rows; r++) {
        if (move->cast)
            hr_convert(from, to, target, source, move->bytes / (hr_dtype_bits(from) / 8));
        else
            memcpy(target, source, move->bytes);
        target += move->target_pitch;
        source += move->source_pitch;
    }
}

int hr_send_move(struct hr_sender *sender, const struct hr_move *move, const struct load_item *item,
                 struct hr_error *err)
{
    if (!sender->lane) {
        move_rows(move);
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

const char *hr_send_take(struct hr_send_source *source, const struct hr_run_rows *rows)
{
    const char *bytes = source->bytes;
    if (source->is_span)
        return bytes + (rows->run.source_offset - source->begin);
    source->bytes += rows->run.bytes * rows->count;
    return bytes;
}

static struct hr_move as_move(const struct hr_run_rows *rows, struct hr_send_source *source, const char *data,
                              uint64_t cast)
{
    return (struct hr_move){
        .source = (uintptr_t)hr_send_take(source, rows),
        .target = (uintptr_t)(data + rows->run.target_offset),
        .bytes = rows->run.bytes,
        .rows = rows->count,
        .source_pitch = (long long)(source->is_span ? rows->source_stride : rows->run.bytes),
        .target_pitch = rows->target_stride,
        .cast = cast,
    };
}

int hr_send_piece(struct hr_sender *sender, const struct load_item *item, const struct hr_plan_item *planned,
                  const struct hr_plan_piece *piece, struct hr_send_source *source, struct hr_error *err)
{
    uint64_t cast = hr_item_cast(planned);
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    hr_run_walk_init(&walk, planned, piece);
    while (hr_run_walk_rows(&walk, &rows)) {
        struct hr_move move = as_move(&rows, source, item->data, cast);
        int code = hr_send_move(sender, &move, item, err);
        if (code < 0)
            return code;
    }
    return 0;
}

int hr_chunk_send(struct hr_load *load, const struct hr_plan_chunk *chunk, const struct hr_staging_slot *slot,
                  const char *bytes, int is_span, struct hr_lane *lane, struct hr_fence *fence, char **scratch,
                  struct hr_place_counts *counts, struct hr_error *err)
{
    struct hr_sender sender = {.lane = lane,
                               .block = slot->block,
                               .moves = slot->moves,
                               .move_capacity = slot->move_capacity,
                               .fence = fence,
                               .counts = counts};
    struct hr_send_source source = {bytes, is_span, chunk->file_begin};
    int by_host = chunk->has_cast && !hr_lane_converts(lane, slot->block), code = 0;
    if (by_host)
        load->casts.by_host = 1;
    for (size_t i = 0; code == 0 && i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        const struct load_item *item = &load->items[piece->item_index];
        const struct hr_plan_item *planned = &load->plan.items[piece->item_index];
        if (by_host && hr_plan_is_cast(planned))
            code = hr_send_converted(&sender, item, planned, piece, &source, scratch, err);
        else
            code = hr_send_piece(&sender, item, planned, piece, &source, err);
    }
    if (code == 0)
        code = hr_send_flush(&sender, err);
    if (code < 0 && hr_fence_put(fence, lane, NULL) == 0)
        hr_fence_wait(fence, NULL); /* some of it may be under way */
    return code;
}
