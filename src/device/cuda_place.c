/*
 * cuda_place.c: sorts moves into the ways into place: the converting kernel for those with a cast, copies of long ranges,
 * 2D copies of wide rows, and the placing kernel for the rest; without that one, all of it by copies.
 */
#include <assert.h>

#include "base/limits.h"
#include "device/cuda_device.h"

#define STREAM_ORDER HR_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

uint64_t hr_cast_code(uint32_t from, uint32_t to)
{
    uint64_t source_log = (uint64_t)__builtin_ctz(hr_dtype_bits(from) / 8);
    uint64_t target_log = (uint64_t)__builtin_ctz(hr_dtype_bits(to) / 8);
    return from | (uint64_t)to << 8 | source_log << 16 | target_log << 24;
}

uint64_t hr_move_target_bytes(const struct hr_move *move)
{
    return move->bytes >> (move->cast >> 16 & 255) << (move->cast >> 24 & 255);
}

void hr_move_flatten(struct hr_move *move)
{
    long long bytes = (long long)move->bytes, bytes_there = (long long)hr_move_target_bytes(move);
    if (move->rows == 1 || (move->source_pitch == bytes && move->target_pitch == bytes_there)) {
        move->bytes *= move->rows;
        move->rows = 1;
        move->source_pitch = (long long)move->bytes;
        move->target_pitch = (long long)hr_move_target_bytes(move);
    }
}

size_t hr_moves_part(struct hr_move *moves, size_t move_count)
{
    size_t plain_count = 0;
    for (size_t i = 0; i < move_count; i++) {
        struct hr_move move = moves[i];
        if (move.cast)
            continue;
        moves[i] = moves[plain_count];
        moves[plain_count++] = move;
    }
    return move_count - plain_count;
}

/* ------------------------------------------------------------------------------------------- copies */

static int copy_range(struct hr_lane *lane, const struct hr_move *move, struct hr_place_counts *counts,
                      struct hr_error *err)
{
    hr_cu_result result = lane->device->driver->cuMemcpyHtoDAsync(move->target, (const void *)(uintptr_t)move->source,
                                                                  move->bytes, lane->stream);
    if (result != HR_CU_SUCCESS)
        return hr_cuda_check(lane->device, result, "copying to the device", err);
    counts->copy_count++;
    counts->bytes_sent += move->bytes;
    return 0;
}

/* What the driver's 2D copies can do: rows that follow each other upwards. */
static int can_copy_rows(const struct hr_lane *lane, const struct hr_move *move)
{
    long long bytes = (long long)move->bytes, most = (long long)lane->device->pitch_bytes_max;
    return lane->device->driver->cuMemcpy2DAsync && move->source_pitch >= bytes && move->target_pitch >= bytes &&
           move->source_pitch <= most && move->target_pitch <= most;
}

static int copy_rows(struct hr_lane *lane, const struct hr_move *move, struct hr_place_counts *counts,
                     struct hr_error *err)
{
    struct hr_cu_memcpy_2d copy = {.srcMemoryType = HR_CU_MEMORYTYPE_HOST,
                                   .srcHost = (const void *)(uintptr_t)move->source,
                                   .srcPitch = (size_t)move->source_pitch,
                                   .dstMemoryType = HR_CU_MEMORYTYPE_DEVICE,
                                   .dstDevice = move->target,
                                   .dstPitch = (size_t)move->target_pitch,
                                   .WidthInBytes = move->bytes,
                                   .Height = move->rows};
    hr_cu_result result = lane->device->driver->cuMemcpy2DAsync(&copy, lane->stream);
    if (result != HR_CU_SUCCESS)
        return hr_cuda_check(lane->device, result, "copying rows to the device", err);
    counts->copy_count++;
    counts->bytes_sent += move->bytes * move->rows;
    return 0;
}

/* Ranges that are gathered for one call of the driver. */
struct batch {
    hr_cu_address targets[HR_PLACE_BATCH_COUNT], sources[HR_PLACE_BATCH_COUNT];
    size_t sizes[HR_PLACE_BATCH_COUNT];
    size_t count;
};

static int batch_flush(struct hr_lane *lane, struct batch *batch, struct hr_place_counts *counts, struct hr_error *err)
{
    struct hr_cu_memcpy_attributes attributes = {.srcAccessOrder = STREAM_ORDER};
    size_t attribute_index = 0, fail_index = 0;
    if (batch->count == 0)
        return 0;
    hr_cu_result result =
        lane->device->driver->cuMemcpyBatchAsync(batch->targets, batch->sources, batch->sizes, batch->count,
                                                 &attributes, &attribute_index, 1, &fail_index, lane->stream);
    if (result != HR_CU_SUCCESS)
        return hr_cuda_check(lane->device, result, "copying a batch to the device", err);
    for (size_t i = 0; i < batch->count; i++)
        counts->bytes_sent += batch->sizes[i];
    counts->copy_count += batch->count;
    batch->count = 0;
    return 0;
}

static int batch_add(struct hr_lane *lane, struct batch *batch, const struct hr_move *range,
                     struct hr_place_counts *counts, struct hr_error *err)
{
    if (!lane->device->driver->cuMemcpyBatchAsync)
        return copy_range(lane, range, counts, err);
    batch->targets[batch->count] = range->target;
    batch->sources[batch->count] = range->source;
    batch->sizes[batch->count++] = range->bytes;
    return batch->count < HR_PLACE_BATCH_COUNT ? 0 : batch_flush(lane, batch, counts, err);
}

/* Row by row, where nothing better serves. */
static int batch_add_rows(struct hr_lane *lane, struct batch *batch, const struct hr_move *move,
                          struct hr_place_counts *counts, struct hr_error *err)
{
    struct hr_move row = *move;
    int code = 0;
    for (unsigned long long i = 0; i < move->rows && !code; i++) {
        code = batch_add(lane, batch, &row, counts, err);
        row.source += (unsigned long long)move->source_pitch;
        row.target += (unsigned long long)move->target_pitch;
    }
    return code;
}

static int copy_all(struct hr_lane *lane, const struct hr_move *moves, size_t move_count,
                    struct hr_place_counts *counts, struct hr_error *err)
{
    struct batch batch;
    int code = 0;
    batch.count = 0;
    for (size_t i = 0; i < move_count && !code; i++)
        code = moves[i].rows > 1 && can_copy_rows(lane, &moves[i])
                   ? copy_rows(lane, &moves[i], counts, err)
                   : batch_add_rows(lane, &batch, &moves[i], counts, err);
    return code ? code : batch_flush(lane, &batch, counts, err);
}

/* ------------------------------------------------------------------------------------------ placing */

/* Copies what is long or wide; the rest is moved to the front of the table. */
static int copy_long(struct hr_lane *lane, struct hr_move *moves, size_t move_count, size_t *ret_rest_count,
                     struct hr_place_counts *counts, struct hr_error *err)
{
    size_t rest_count = 0;
    int code = 0;
    for (size_t i = 0; i < move_count && !code; i++) {
        const struct hr_move *move = &moves[i];
        int is_large = move->bytes * move->rows >= HR_PLACE_COPY_BYTES_MIN;
        if (is_large && move->rows == 1)
            code = copy_range(lane, move, counts, err);
        else if (is_large && move->bytes >= HR_PLACE_ROW_BYTES_MIN && can_copy_rows(lane, move))
            code = copy_rows(lane, move, counts, err);
        else
            moves[rest_count++] = *move;
    }
    *ret_rest_count = rest_count;
    return code;
}

/* Where the kernel may read host memory: copies for what is long, and the kernel for the rest. */
static int place_sorted(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves,
                        size_t move_count, struct hr_place_counts *counts, struct hr_error *err)
{
    int is_done = 0;
    int code = copy_long(lane, moves, move_count, &move_count, counts, err);
    if (code || move_count == 0)
        return code;
    if (move_count > 1 || moves[0].rows > 1)
        code = hr_lane_launch(lane, HR_KERNEL_PLACE, block, moves, move_count, counts, &is_done, err);
    return code || is_done ? code : copy_all(lane, moves, move_count, counts, err);
}

/* The caller has made sure that there is the kernel. */
static int place_casts(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves,
                       size_t move_count, struct hr_place_counts *counts, struct hr_error *err)
{
    int is_done = 0;
    int code = hr_lane_launch(lane, HR_KERNEL_CAST, block, moves, move_count, counts, &is_done, err);
    assert(code || is_done);
    return code;
}

/* In the device's context. Where the kernel reads device memory only, all moves share the one copy to there. */
static int place(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves, size_t move_count,
                 struct hr_place_counts *counts, struct hr_error *err)
{
    int is_done = 0, code = 0;
    for (size_t i = 0; i < move_count; i++)
        hr_move_flatten(&moves[i]);
    size_t cast_count = hr_moves_part(moves, move_count);
    move_count -= cast_count;
    if (cast_count)
        code = place_casts(lane, block, moves + move_count, cast_count, counts, err);
    if (code || move_count == 0)
        return code;
    if (move_count > 1 && !lane->device->reads_host)
        code = hr_lane_launch(lane, HR_KERNEL_PLACE, block, moves, move_count, counts, &is_done, err);
    return code || is_done ? code : place_sorted(lane, block, moves, move_count, counts, err);
}

int hr_lane_place(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves, size_t move_count,
                  struct hr_place_counts *counts, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(lane->device, &scope, err);
    if (code)
        return code;
    code = place(lane, block, moves, move_count, counts, err);
    hr_cuda_leave(lane->device, &scope);
    return code;
}
