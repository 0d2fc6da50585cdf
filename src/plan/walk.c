/*
 * walk.c: from a position in an item's byte stream to runs. The walk keeps the file and target positions of the
 * next byte and steps them like an odometer, so that a run costs additions only.
 */
#include "plan/plan.h"

void hr_run_walk_init(struct hr_run_walk *walk, const struct hr_plan_item *item, const struct hr_plan_piece *piece)
{
    uint64_t run = piece->begin / item->run_bytes;
    uint64_t in_run = piece->begin % item->run_bytes;
    walk->item = item;
    walk->position = piece->begin;
    walk->end = piece->end;
    walk->run_left = item->run_bytes - in_run;
    walk->source_offset = item->source_offset + in_run;
    walk->target_offset = (int64_t)in_run;
    for (uint32_t d = item->dim_count; d-- > 0;) {
        const struct hr_plan_dim *dim = &item->dims[d];
        walk->index[d] = run % dim->count;
        run /= dim->count;
        walk->source_offset += walk->index[d] * dim->source_stride;
        walk->target_offset += (int64_t)walk->index[d] * dim->target_stride;
    }
}

/* From the current run, of which `done` bytes lie before the walk's offsets, to the start of the next one. */
static void walk_step(struct hr_run_walk *walk, uint64_t done)
{
    const struct hr_plan_item *item = walk->item;
    walk->source_offset -= done;
    walk->target_offset -= (int64_t)done;
    for (uint32_t d = item->dim_count; d-- > 0;) {
        const struct hr_plan_dim *dim = &item->dims[d];
        if (++walk->index[d] < dim->count) {
            walk->source_offset += dim->source_stride;
            walk->target_offset += dim->target_stride;
            return;
        }
        walk->index[d] = 0;
        walk->source_offset -= dim->source_stride * (dim->count - 1);
        walk->target_offset -= dim->target_stride * (int64_t)(dim->count - 1);
    }
}

int hr_run_walk_next(struct hr_run_walk *walk, struct hr_run *ret_run)
{
    if (walk->position == walk->end)
        return 0;
    uint64_t left = walk->end - walk->position;
    uint64_t bytes = walk->run_left < left ? walk->run_left : left;
    *ret_run = (struct hr_run){walk->source_offset, walk->target_offset, bytes};
    walk->position += bytes;
    if (walk->position < walk->end) {
        walk_step(walk, walk->item->run_bytes - walk->run_left);
        walk->run_left = walk->item->run_bytes;
    }
    return 1;
}
