/*
 * spreader_moves.c: windows as moves: out of this rank's part into segments, and out of what came into the items.
 *
 * A part, and each of its copies after an all-gather, lies as the stream does. A segment has an item's bytes as its
 * piece of the stream has them, the items behind each other; both ends walk the same pieces.
 */
#include "engine/spreader_state.h"

#include <string.h>

/* A rank's share of what came, with its status behind it. */
static uint64_t share_bytes(const struct flight *flight)
{
    const struct hr_spread_window *window = &flight->window;
    return (window->segment_bytes ? window->segment_bytes : window->part_bytes) + HR_SPREAD_STATUS_BYTES;
}

char *hr_spreader_status(const struct flight *flight, uint32_t rank)
{
    return flight->receive + (rank + 1) * share_bytes(flight) - HR_SPREAD_STATUS_BYTES;
}

static struct hr_move range_move(char *target, const char *source, uint64_t bytes)
{
    return (struct hr_move){.source = (uintptr_t)source,
                            .target = (uintptr_t)target,
                            .bytes = bytes,
                            .rows = 1,
                            .source_pitch = (long long)bytes,
                            .target_pitch = (long long)bytes};
}

/* ----------------------------------------------------------------------------------------- packing */

/* Adds a piece of the part at `source`, which begins at file offset `begin`, to what is packed at *target. */
static int pack_piece(struct hr_sender *sender, const struct hr_plan_item *geometry, const struct hr_plan_piece *piece,
                      const char *source, uint64_t begin, char **target, struct hr_error *err)
{
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    hr_run_walk_init(&walk, geometry, piece);
    while (hr_run_walk_rows(&walk, &rows)) {
        struct hr_move move = {.source = (uintptr_t)(source + (rows.run.source_offset - begin)),
                               .target = (uintptr_t)*target,
                               .bytes = rows.run.bytes,
                               .rows = rows.count,
                               .source_pitch = (long long)rows.source_stride,
                               .target_pitch = (long long)rows.run.bytes};
        int code = hr_send_move(sender, &move, NULL, err);
        if (code < 0)
            return code;
        *target += rows.run.bytes * rows.count;
    }
    return 0;
}

/*
 * What lies in the file at the place of the stream where `begin` is, counted as if the item's file range went on: so that
 * a byte at file offset o of the item lies o - file_place() behind that place.
 */
static uint64_t file_place(const struct hr_spread_item *item, uint64_t begin)
{
    return item->source - (item->begin - begin);
}

char *hr_spreader_packed(const struct hr_spreader *s, const struct flight *flight)
{
    return flight->receive + s->spread->world * share_bytes(flight);
}

static int pack_for(struct hr_spreader *s, struct flight *flight, uint32_t rank, size_t first, struct hr_sender *sender,
                    struct hr_error *err)
{
    const struct hr_spread *spread = s->spread;
    struct hr_range part = hr_spread_part(&flight->window, spread->rank);
    char *segment = hr_spreader_packed(s, flight) + rank * share_bytes(flight), *target = segment;
    int code = 0;
    for (size_t i = first; code == 0 && i < spread->item_count && spread->items[i].begin < part.stop; i++) {
        const struct hr_spread_item *item = &spread->items[i];
        struct hr_plan_item geometry;
        struct hr_plan_piece piece;
        hr_spread_geometry(item, rank, s->scratch, &geometry);
        if (hr_spread_piece(item, &geometry, part.start, part.stop, &piece))
            code = pack_piece(sender, &geometry, &piece, flight->part, file_place(item, part.start), &target, err);
    }
    if (code < 0)
        return code;
    struct hr_move status = range_move(segment + flight->window.segment_bytes, flight->part + flight->window.part_bytes,
                                       HR_SPREAD_STATUS_BYTES);
    return hr_send_move(sender, &status, NULL, err);
}

int hr_spreader_pack(struct hr_spreader *s, struct flight *flight, struct hr_error *err)
{
    struct hr_sender sender = {.lane = spreader_slot_lane(s, flight->window.index),
                               .block = &s->block,
                               .moves = flight->pack_moves,
                               .move_capacity = HR_GROUP_MOVES_MAX,
                               .is_resident = 1,
                               .fence = flight->pack_fence,
                               .counts = &s->counts};
    size_t first = hr_spread_first(s->spread, s->item_first, hr_spread_part(&flight->window, s->spread->rank).start);
    int code = 0;
    for (uint32_t rank = 0; code == 0 && rank < s->spread->world; rank++)
        code = pack_for(s, flight, rank, first, &sender, err);
    return code < 0 ? code : hr_send_flush(&sender, err);
}

/* ----------------------------------------------------------------------------------------- placing */

/* What came of rank `rank`'s part. *item_first is the walk's place, which advances from part to part. */
static int place_part(struct hr_spreader *s, const struct flight *flight, uint32_t rank, size_t *item_first,
                      struct hr_sender *sender, struct hr_error *err)
{
    const struct hr_spread *spread = s->spread;
    struct hr_range part = hr_spread_part(&flight->window, rank);
    struct hr_send_source source = {.bytes = flight->receive + rank * share_bytes(flight),
                                    .is_span = flight->window.segment_bytes == 0};
    int code = 0;
    *item_first = hr_spread_first(spread, *item_first, part.start);
    for (size_t i = *item_first; code == 0 && i < spread->item_count && spread->items[i].begin < part.stop; i++) {
        const struct hr_spread_item *item = &spread->items[i];
        const struct hr_plan_item *planned = &s->load->plan.items[item->item_index];
        struct hr_plan_piece piece;
        if (!hr_spread_piece(item, planned, part.start, part.stop, &piece))
            continue;
        source.begin = file_place(item, part.start);
        code = hr_send_piece(sender, &s->load->items[item->item_index], planned, &piece, &source, err);
    }
    return code;
}

/* Together, so that one copy brings them to the host. */
static int gather_statuses(struct hr_spreader *s, const struct flight *flight, struct hr_sender *sender,
                           struct hr_error *err)
{
    int code = 0;
    for (uint32_t rank = 0; code == 0 && rank < s->spread->world; rank++) {
        struct hr_move move = range_move(flight->gathered + rank * HR_SPREAD_STATUS_BYTES,
                                         hr_spreader_status(flight, rank), HR_SPREAD_STATUS_BYTES);
        code = hr_send_move(sender, &move, NULL, err);
    }
    return code;
}

int hr_spreader_place(struct hr_spreader *s, struct flight *flight, struct hr_error *err)
{
    struct hr_sender sender = {.lane = s->lane,
                               .block = &s->block,
                               .moves = flight->moves,
                               .move_capacity = HR_GROUP_MOVES_MAX,
                               .is_resident = 1,
                               .fence = flight->fence,
                               .counts = &s->counts};
    size_t item_first = s->item_first;
    int code = s->lane ? gather_statuses(s, flight, &sender, err) : 0;
    for (uint32_t rank = 0; code == 0 && flight->is_wanted && rank < s->spread->world; rank++)
        code = place_part(s, flight, rank, &item_first, &sender, err);
    return code < 0 ? code : hr_send_flush(&sender, err);
}

/* Items are counted some at a time: each count may take the load's lock. */
#define LANDING_COUNT 64

void hr_spreader_landed(struct hr_spreader *s, const struct flight *flight)
{
    const struct hr_spread *spread = s->spread;
    const struct hr_spread_window *window = &flight->window;
    struct hr_plan_piece pieces[LANDING_COUNT];
    size_t count = 0;
    s->landing_first = hr_spread_first(spread, s->landing_first, window->begin);
    for (size_t i = s->landing_first; i < spread->item_count && spread->items[i].begin < window->end; i++) {
        const struct hr_plan_item *planned = &s->load->plan.items[spread->items[i].item_index];
        if (!hr_spread_piece(&spread->items[i], planned, window->begin, window->end, &pieces[count]))
            continue;
        s->load->bytes_spread += pieces[count].end - pieces[count].begin;
        if (++count == LANDING_COUNT) {
            hr_load_pieces_landed(s->load, pieces, count);
            count = 0;
        }
    }
    hr_load_pieces_landed(s->load, pieces, count);
}
