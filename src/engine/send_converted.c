/*
 * send_converted.c: conversions for a device that cannot do them itself, having no kernel or not being able to read
 * staging. Rows are converted into ordinary memory, one behind the other, and copied from there when that or the table of
 * moves is full. It is the slow way: memory of our own is pageable, and each turn waits for its copies.
 */
#include "engine/send_converted.h"

#include "base/error.h"
#include "base/sys.h"
#include "convert/convert.h"

struct converting {
    struct hr_sender *sender;
    const struct load_item *item;
    const struct hr_plan_item *planned;
    char *scratch; /* HR_CAST_SCRATCH_BYTES, */
    uint64_t used; /*   so many of which hold converted rows */
};

/* Copies what the table holds, out of `block`, and waits for it, so that table and sources are free. */
static int settle(struct hr_sender *sender, const struct hr_staging_block *block, struct hr_error *err)
{
    const struct hr_staging_block *own = sender->block;
    sender->block = block;
    int code = hr_send_flush(sender, err);
    sender->block = own;
    return code < 0 ? code : hr_fence_wait(sender->fence, err);
}

/* Copies what there is. */
static int turn(struct converting *converting, struct hr_error *err)
{
    static const struct hr_staging_block pageable = {.kind = HR_STAGING_PAGEABLE};
    converting->used = 0;
    return converting->sender->move_count ? settle(converting->sender, &pageable, err) : 0;
}

/* `count` elements, which fit, to `target_offset` of the destination. */
static void convert(struct converting *converting, const char *source, uint64_t count, int64_t target_offset)
{
    const struct hr_plan_item *planned = converting->planned;
    struct hr_sender *sender = converting->sender;
    char *made = converting->scratch + converting->used;
    uint64_t bytes = count * planned->target_unit;
    hr_convert(planned->source_dtype, planned->dtype, made, source, count);
    converting->used += bytes;
    struct hr_move move = {
        .source = (uintptr_t)made,
        .target = (uintptr_t)(converting->item->data + target_offset),
        .bytes = bytes,
        .rows = 1,
        .source_pitch = (long long)bytes,
        .target_pitch = (long long)bytes,
    };
    if (!hr_move_join(sender->moves, sender->move_count, converting->item, &move, converting->item))
        sender->moves[sender->move_count++] = move;
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
        if (room == 0 || converting->sender->move_count == converting->sender->move_capacity) {
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

int hr_send_converted(struct hr_sender *sender, const struct load_item *item, const struct hr_plan_item *planned,
                      const struct hr_plan_piece *piece, struct hr_send_source *source, char **scratch,
                      struct hr_error *err)
{
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    if (!*scratch)
        *scratch = hr_alloc(HR_CAST_SCRATCH_BYTES);
    if (!*scratch)
        return hr_fail_memory(err, HR_CAST_SCRATCH_BYTES, "conversions for a device that cannot do them");
    struct converting converting = {.sender = sender, .item = item, .planned = planned, .scratch = *scratch};
    int code = settle(sender, sender->block, err); /* what the table holds has its sources in the slot */
    hr_run_walk_init(&walk, planned, piece);
    while (code == 0 && hr_run_walk_rows(&walk, &rows)) {
        const char *bytes = hr_send_take(source, &rows);
        uint64_t pitch = source->is_span ? rows.source_stride : rows.run.bytes;
        for (uint64_t i = 0; code == 0 && i < rows.count; i++, bytes += pitch) {
            code = convert_run(&converting, bytes, &rows.run, err);
            rows.run.target_offset += rows.target_stride;
        }
    }
    return code < 0 ? code : turn(&converting, err);
}
