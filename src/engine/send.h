/*
 * send.h: bytes on their way into place. Turns pieces of items into moves, from whatever layout their bytes have, and puts
 * those into a lane, or does them at once where the destination is host memory. It knows chunks and lanes; neither files
 * nor threads.
 */
#ifndef HR_ENGINE_SEND_H
#define HR_ENGINE_SEND_H

#include "device/device.h"
#include "engine/load.h"
#include "engine/staging.h"

/*
 * Lengthens the last of the moves by `move` if that goes on where it ends, in both memories, and within one allocation of
 * ours or one tensor of the caller's: 1, or 0. `last_item` and `item`: whose bytes they are; NULL: nobody's.
 */
int hr_move_join(struct hr_move *moves, size_t move_count, const struct load_item *last_item,
                 const struct hr_move *move, const struct load_item *item);

/* Who sends: the lane, and the table that moves are gathered in. Its owner fills all but the last two. */
struct hr_sender {
    struct hr_lane *lane; /* NULL: host memory; then no table is needed */
    const struct hr_staging_block *block;
    struct hr_move *moves; /* in the block */
    size_t move_capacity;
    int is_resident; /* sources are memory of the lane's device, not of the block */
    struct hr_fence *fence;
    struct hr_place_counts *counts;
    size_t move_count;
    const struct load_item *item; /* of the last move */
};

/* Where the bytes of pieces lie: as in the file, or run behind run. */
struct hr_send_source {
    const char *bytes;
    int is_span;
    uint64_t begin; /* is_span: what of the file lies at `bytes` */
};

/* Adds a move of `item`'s bytes, or of nobody's (NULL). Blocks only when the table is full. */
int hr_send_move(struct hr_sender *sender, const struct hr_move *move, const struct load_item *item,
                 struct hr_error *err);
/* Adds a piece. `source->bytes` advances by what is packed. */
int hr_send_piece(struct hr_sender *sender, const struct load_item *item, const struct hr_plan_item *planned,
                  const struct hr_plan_piece *piece, struct hr_send_source *source, struct hr_error *err);
/* Puts the rest of the table into the lane, and the fence behind all of it. */
int hr_send_flush(struct hr_sender *sender, struct hr_error *err);

/*
 * Sends a chunk whose bytes lie at `bytes` in the slot: as in its file (`is_span`), or run behind run. `fence` stands
 * for all of it afterwards. On failure nothing of it is in the lane any more. Blocks only when the chunk has more moves
 * than the slot's table holds.
 */
int hr_chunk_send(struct hr_load *load, const struct hr_plan_chunk *chunk, const struct hr_staging_slot *slot,
                  const char *bytes, int is_span, struct hr_lane *lane, struct hr_fence *fence,
                  struct hr_place_counts *counts, struct hr_error *err);

#endif
