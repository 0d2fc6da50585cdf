/*
 * cuda_spread.c: moves whose sources are in the memory of the lane's device already: the converting kernel for those with
 * a cast, copies for long ranges, the placing kernel for the rest, and where there is none, copies row by row.
 */
#include "base/error.h"
#include "base/limits.h"
#include "device/cuda_device.h"

static int copy_range(struct hr_lane *lane, const struct hr_move *range, struct hr_place_counts *counts,
                      struct hr_error *err)
{
    hr_cu_result result =
        lane->device->driver->cuMemcpyDtoDAsync(range->target, range->source, range->bytes, lane->stream);
    if (result != HR_CU_SUCCESS)
        return hr_cuda_check(lane->device, result, "copying on the device", err);
    counts->copy_count++;
    return 0;
}

static int copy_rows(struct hr_lane *lane, const struct hr_move *move, struct hr_place_counts *counts,
                     struct hr_error *err)
{
    struct hr_move row = *move;
    int code = 0;
    for (unsigned long long i = 0; i < move->rows && !code; i++) {
        code = copy_range(lane, &row, counts, err);
        row.source += (unsigned long long)move->source_pitch;
        row.target += (unsigned long long)move->target_pitch;
    }
    return code;
}

/* Nothing but the kernel can do it, and that it is there the caller has made sure of. */
static int spread_casts(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves,
                        size_t move_count, struct hr_place_counts *counts, struct hr_error *err)
{
    int is_done = 0;
    for (size_t i = 0; i < move_count; i++)
        hr_move_flatten(&moves[i]);
    int code = hr_lane_launch_resident(lane, HR_KERNEL_CAST, block, moves, move_count, counts, &is_done, err);
    if (code == 0 && !is_done)
        return hr_fail(err, HR_EOUT_OF_MEMORY, "cuda:%d has no %zu bytes for a table of conversions",
                       lane->device->info.ordinal, move_count * sizeof *moves);
    return code;
}

/* In the device's context. What is long is copied; the rest is moved to the front of the table, for the kernel. */
static int spread(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves, size_t move_count,
                  struct hr_place_counts *counts, struct hr_error *err)
{
    size_t rest_count = 0, cast_count = hr_moves_part(moves, move_count);
    int is_done = 0, code = 0;
    move_count -= cast_count;
    if (cast_count)
        code = spread_casts(lane, block, moves + move_count, cast_count, counts, err);
    for (size_t i = 0; i < move_count && !code; i++) {
        hr_move_flatten(&moves[i]);
        if (moves[i].rows == 1 && (moves[i].bytes >= HR_PLACE_COPY_BYTES_MIN || move_count == 1))
            code = copy_range(lane, &moves[i], counts, err);
        else
            moves[rest_count++] = moves[i];
    }
    if (!code && rest_count)
        code = hr_lane_launch_resident(lane, HR_KERNEL_PLACE, block, moves, rest_count, counts, &is_done, err);
    for (size_t i = 0; i < rest_count && !is_done && !code; i++)
        code = copy_rows(lane, &moves[i], counts, err);
    return code;
}

int hr_lane_spread(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves, size_t move_count,
                   struct hr_place_counts *counts, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(lane->device, &scope, err);
    if (code)
        return code;
    code = spread(lane, block, moves, move_count, counts, err);
    hr_cuda_leave(lane->device, &scope);
    return code;
}
