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
    walk->target_offset = (int64_t)hr_plan_target_bytes(item, in_run);
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
    walk->target_offset -= (int64_t)hr_plan_target_bytes(item, done);
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

/* How many whole runs of the innermost dimension follow from the current one on, which starts here; at least 1. */
static uint64_t rows_here(const struct hr_run_walk *walk)
{
    const struct hr_plan_item *item = walk->item;
    if (item->dim_count == 0 || walk->run_left < item->run_bytes)
        return 1;
    uint64_t in_dim = item->dims[item->dim_count - 1].count - walk->index[item->dim_count - 1];
    uint64_t whole = (walk->end - walk->position) / item->run_bytes;
    return whole == 0 ? 1 : in_dim < whole ? in_dim : whole;
}

int hr_run_walk_rows(struct hr_run_walk *walk, struct hr_run_rows *ret_rows)
{
    const struct hr_plan_item *item = walk->item;
    if (walk->position == walk->end)
        return 0;
    *ret_rows = (struct hr_run_rows){.count = rows_here(walk)};
    uint64_t skipped = ret_rows->count - 1;
    if (skipped) {
        const struct hr_plan_dim *dim = &item->dims[item->dim_count - 1];
        ret_rows->source_stride = dim->source_stride;
        ret_rows->target_stride = dim->target_stride;
        walk->position += skipped * item->run_bytes;
        walk->index[item->dim_count - 1] += skipped;
        walk->source_offset += skipped * dim->source_stride;
        walk->target_offset += (int64_t)skipped * dim->target_stride;
    }
    hr_run_walk_next(walk, &ret_rows->run);
    ret_rows->run.source_offset -= skipped * ret_rows->source_stride;
    ret_rows->run.target_offset -= (int64_t)skipped * ret_rows->target_stride;
    return 1;
}
