/*
 * send_converted.c: conversions for a device that cannot do them itself, having no kernel or not being able to read
 * staging. Rows are converted into ordinary memory, one behind the other, and copied from there when that or the table of
 * moves is full. It is the slow way: memory of our own is pageable, and each turn waits for its copies.
 */
#include "base/error.h"
#include "base/sys.h"
#include "convert/convert.h"
#include "engine/sending.h"

struct converting {
    struct sending *sending;
    const struct hr_plan_item *planned;
    char *data;    /* the destination */
    char *scratch; /* HR_CAST_SCRATCH_BYTES, */
    uint64_t used; /*   so many of which hold converted rows */
};

/* Copies what there is. */
static int turn(struct converting *converting, struct hr_error *err)
{
    static const struct hr_staging_block pageable = {.kind = HR_STAGING_PAGEABLE};
    struct sending *sending = converting->sending;
    converting->used = 0;
    if (sending->move_count == 0)
        return 0;
    int code = hr_sending_flush(sending, &pageable, err);
    return code < 0 ? code : hr_fence_wait(sending->fence, err);
}

/* `count` elements, which fit, to `target_offset` of the destination. */
static void convert(struct converting *converting, const char *source, uint64_t count, int64_t target_offset)
{
    const struct hr_plan_item *planned = converting->planned;
    char *made = converting->scratch + converting->used;
    uint64_t bytes = count * planned->target_unit;
    hr_convert(planned->source_dtype, planned->dtype, made, source, count);
    converting->used += bytes;
    struct hr_move move = {
        .source = (uintptr_t)made,
        .target = (uintptr_t)(converting->data + target_offset),
        .bytes = bytes,
        .rows = 1,
        .source_pitch = (long long)bytes,
        .target_pitch = (long long)bytes,
    };
    struct sending *sending = converting->sending;
    if (!hr_move_join(sending->slot->moves, sending->move_count, sending->item, &move, sending->item))
        sending->slot->moves[sending->move_count++] = move;
}

/* A run of any length, in parts that fit. */
static int convert_run(struct converting *converting, const char *source, const struct hr_run *run,
                       struct hr_error *err)
{
    const struct hr_plan_item *planned = converting->planned;
    uint64_t count = run->bytes / planned->source_unit;
    int64_t target_offset = run->target_offset;
    while (count) {
        uint64_t room = (HR_CAST_SCRATCH_BYTES - converting->used) / planned->target_unit;
        if (room == 0 || converting->sending->move_count == converting->sending->slot->move_capacity) {
            int code = turn(converting, err);
            if (code < 0)
                return code;
            continue;
        }
        uint64_t part = count < room ? count : room;
        convert(converting, source, part, target_offset);
        count -= part;
        source += part * planned->source_unit;
        target_offset += (int64_t)(part * planned->target_unit);
    }
    return 0;
}

int hr_send_converted(struct sending *sending, const struct hr_plan_piece *piece, char **scratch, struct hr_error *err)
{
    struct hr_load *load = sending->load;
    struct converting converting = {.sending = sending,
                                    .planned = &load->plan.items[piece->item_index],
                                    .data = load->items[piece->item_index].data};
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    if (!*scratch)
        *scratch = hr_alloc(HR_CAST_SCRATCH_BYTES);
    converting.scratch = *scratch;
    if (!converting.scratch)
        return hr_fail_memory(err, HR_CAST_SCRATCH_BYTES, "conversions for a device that cannot do them");
    load->casts.by_host = 1;
    int code = 0;
    if (sending->move_count) /* their sources are in the slot */
        code = hr_sending_flush(sending, sending->slot->block, err);
    if (code == 0)
        code = hr_fence_put(sending->fence, sending->lane, err);
    if (code == 0)
        code = hr_fence_wait(sending->fence, err); /* the table is free */
    sending->item = &load->items[piece->item_index];
    hr_run_walk_init(&walk, converting.planned, piece);
    while (code == 0 && hr_run_walk_rows(&walk, &rows)) {
        const char *source = hr_sending_source(sending, &rows);
        uint64_t pitch = sending->is_span ? rows.source_stride : rows.run.bytes;
        for (uint64_t i = 0; code == 0 && i < rows.count; i++, source += pitch) {
            code = convert_run(&converting, source, &rows.run, err);
            rows.run.target_offset += rows.target_stride;
        }
    }
    return code < 0 ? code : turn(&converting, err);
}
