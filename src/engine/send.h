/*
 * send.h: from staging to a device. Turns the pieces of a chunk that lies in a staging slot into moves, and puts those
 * into a lane. It knows chunks and lanes; neither files nor threads.
 */
#ifndef HR_ENGINE_SEND_H
#define HR_ENGINE_SEND_H

#include "device/device.h"
#include "engine/load.h"
#include "engine/staging.h"

/*
 * Lengthens the last of the moves by `move` if that goes on where it ends, in both memories, and within one allocation of
 * ours or one tensor of the caller's, and converts alike: 1, or 0. `last_item` and `item`: whose bytes they are.
 */
int hr_move_join(struct hr_move *moves, size_t move_count, const struct load_item *last_item,
                 const struct hr_move *move, const struct load_item *item);

/* hr_move.cast of an item: 0 when it is not converted. */
uint64_t hr_item_cast(const struct hr_plan_item *item);

/*
 * Sends a chunk whose bytes lie at `bytes` in the slot: as in its file (`is_span`), or run behind run. `fence` stands
 * for all of it afterwards. On failure nothing of it is in the lane any more. Blocks only when the chunk has more moves
 * than the slot's table holds, and where this thread has to convert, since the device cannot: for that *scratch (NULL at
 * first) gets memory, which the caller frees with hr_free(); threads do not share it.
 */
int hr_chunk_send(struct hr_load *load, const struct hr_plan_chunk *chunk, const struct hr_staging_slot *slot,
                  const char *bytes, int is_span, struct hr_lane *lane, struct hr_fence *fence, char **scratch,
                  struct hr_place_counts *counts, struct hr_error *err);

#endif
