/*
 * sending.h: a chunk on its way out of staging, as send.c and send_converted.c share it.
 */
#ifndef HR_ENGINE_SENDING_H
#define HR_ENGINE_SENDING_H

#include "engine/send.h"

struct sending {
    struct hr_load *load;
    const struct hr_plan_chunk *chunk;
    const struct hr_staging_slot *slot;
    const char *bytes;
    int is_span;
    struct hr_lane *lane;
    struct hr_fence *fence;
    struct hr_place_counts *counts;
    uint64_t packed; /* bytes of the runs so far: where the next one of a direct chunk lies */
    size_t move_count;
    const struct load_item *item; /* of the last move */
};

/* Puts what the table holds, with sources in `block`, into the lane, and the fence behind it. */
int hr_sending_flush(struct sending *sending, const struct hr_staging_block *block, struct hr_error *err);
/* Where the rows lie; each of a chunk's is asked for once, in order. */
const char *hr_sending_source(struct sending *sending, const struct hr_run_rows *rows);

/*
 * Converts a piece on this thread, through *scratch (as of hr_chunk_send()), and has it copied from there, a part at a
 * time. Blocks for the copies.
 */
int hr_send_converted(struct sending *sending, const struct hr_plan_piece *piece, char **scratch, struct hr_error *err);

#endif
