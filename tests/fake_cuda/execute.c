/*
 * execute.c: what an operation does when its turn in its stream has come. Addresses are looked up now, and sources and
 * tables of moves are read now; the lock is away while bytes move, and the ranges that they touch are pinned meanwhile.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "convert/convert_parts.h"
#include "device/place.h"
#include "driver_state.h"

long fake_moving_count;

static uint64_t next_random(struct fake_stream *stream)
{
    stream->random ^= stream->random << 13;
    stream->random ^= stream->random >> 7;
    stream->random ^= stream->random << 17;
    return stream->random;
}

/* One operation in four takes a while. */
static void delay(struct fake_stream *stream)
{
    uint64_t random = next_random(stream);
    if (!fake_settings.delay_us || random % 4)
        return;
    uint64_t ns = (random >> 8) % ((uint64_t)fake_settings.delay_us * 1000);
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    pthread_mutex_unlock(&fake_lock);
    nanosleep(&time, NULL);
    pthread_mutex_lock(&fake_lock);
}

/* The bytes of all rows: *ret_first is the lowest address. */
static uint64_t extent(uint64_t address, int64_t pitch, uint64_t rows, uint64_t bytes, uint64_t *ret_first)
{
    int64_t reach = pitch * (int64_t)(rows - 1);
    *ret_first = reach < 0 ? address + (uint64_t)reach : address;
    return (uint64_t)(reach < 0 ? -reach : reach) + bytes;
}

static char *host_of(const struct fake_range *range, uint64_t address)
{
    return range ? range->storage + (int64_t)(address - range->begin) : (char *)(uintptr_t)address;
}

static const char *refuse_source(const struct fake_stream *stream, const struct fake_piece *piece,
                                 const struct fake_range *range)
{
    if (piece->flags & FAKE_SOURCE_RAW)
        return NULL;
    if (!range)
        return "reads what is no live memory";
    if (!(piece->flags & FAKE_BY_KERNEL))
        return NULL;
    if (range->memory == FAKE_DEVICE_MEMORY)
        return range->context == stream->object.context ? NULL : "reads another device's memory";
    if (range->memory != FAKE_MAPPED)
        return "reads a host address that is not the device's";
    if (fake_settings.confidential)
        return "reads host memory, which confidential computing forbids";
    return range->flags & CU_HOST_DEVICEMAP ? NULL : "reads host memory that is not mapped for devices";
}

static const char *refuse_target(const struct fake_stream *stream, const struct fake_piece *piece,
                                 const struct fake_range *range)
{
    if (piece->flags & FAKE_TARGET_RAW)
        return NULL;
    if (!range)
        return "writes what is no live memory";
    if ((piece->flags & FAKE_BY_KERNEL) && range->memory != FAKE_DEVICE_MEMORY)
        return "writes host memory";
    if ((piece->flags & FAKE_BY_KERNEL) && range->context != stream->object.context)
        return "writes another device's memory";
    return NULL;
}

/* One element after the other, by the bits. */
static void convert_row(const struct fake_piece *piece, char *target, const char *source)
{
    size_t from_bytes = (size_t)1 << (piece->cast >> 16 & 255), to_bytes = (size_t)1 << (piece->cast >> 24 & 255);
    unsigned from = piece->cast & 255, to = piece->cast >> 8 & 255;
    for (uint64_t at = 0; at < piece->bytes; at += from_bytes, target += to_bytes) {
        unsigned long long bits = 0;
        memcpy(&bits, source + at, from_bytes);
        bits = hr_convert_bits(from, to, bits);
        memcpy(target, &bits, to_bytes);
    }
}

static void copy_rows(const struct fake_piece *piece, char *target, const char *source)
{
    for (uint64_t row = 0; row < piece->rows; row++) {
        char *to = target + (int64_t)row * piece->target_pitch;
        const char *from = source + (int64_t)row * piece->source_pitch;
        if (piece->cast)
            convert_row(piece, to, from);
        else
            memmove(to, from, piece->bytes);
    }
}

static void run_piece(struct fake_stream *stream, const struct fake_piece *piece)
{
    uint64_t first, bytes = extent(piece->source, piece->source_pitch, piece->rows, piece->bytes, &first);
    struct fake_range *source = piece->flags & FAKE_SOURCE_RAW ? NULL : fake_find(first, bytes);
    uint64_t row_bytes = piece->bytes >> (piece->cast >> 16 & 255) << (piece->cast >> 24 & 255);
    bytes = extent(piece->target, piece->target_pitch, piece->rows, row_bytes, &first);
    struct fake_range *target = piece->flags & FAKE_TARGET_RAW ? NULL : fake_find(first, bytes);
    const char *reason = refuse_source(stream, piece, source);
    if (!reason)
        reason = refuse_target(stream, piece, target);
    if (reason) {
        fake_corrupt(stream->object.context, "an operation %s: %#llx -> %#llx, %llu rows of %llu bytes", reason,
                     (unsigned long long)piece->source, (unsigned long long)piece->target,
                     (unsigned long long)piece->rows, (unsigned long long)piece->bytes);
        return;
    }
    if (source)
        source->pin_count++;
    if (target)
        target->pin_count++;
    fake_moving_count++;
    pthread_mutex_unlock(&fake_lock);
    copy_rows(piece, host_of(target, piece->target), host_of(source, piece->source));
    pthread_mutex_lock(&fake_lock);
    fake_moving_count--;
    if (stream->object.context->poison)
        pthread_cond_broadcast(&fake_progress);
    if (source)
        source->pin_count--;
    if (target)
        target->pin_count--;
}

/* Pieces of an operation have no order among themselves. */
static void run_pieces(struct fake_stream *stream, const struct fake_op *op)
{
    size_t first = op->piece_count > 1 ? next_random(stream) % op->piece_count : 0;
    int backwards = next_random(stream) & 1;
    for (size_t i = 0; i < op->piece_count && !stream->object.context->poison; i++) {
        size_t index = (first + i) % op->piece_count;
        run_piece(stream, &op->pieces[backwards ? op->piece_count - 1 - index : index]);
    }
}

static void run_fill(struct fake_stream *stream, const struct fake_op *op)
{
    const struct fake_range *range = fake_find(op->pieces->target, op->pieces->bytes);
    if (range)
        memset(host_of(range, op->pieces->target), op->fill, op->pieces->bytes);
    else
        fake_corrupt(stream->object.context, "a fill writes what is no live memory");
}

static struct fake_piece piece_of(const struct hr_move *move)
{
    return (struct fake_piece){.cast = move->cast,
                               .target = move->target,
                               .source = move->source,
                               .bytes = move->bytes,
                               .rows = move->rows,
                               .target_pitch = move->target_pitch,
                               .source_pitch = move->source_pitch,
                               .flags = FAKE_BY_KERNEL};
}

/* The kernels, by their description in device/place.h. */
static void run_kernel(struct fake_stream *stream, struct fake_op *op)
{
    uint64_t table_bytes = op->move_count * sizeof(struct hr_move);
    if (op->move_count == 0)
        return; /* the table is not looked at */
    struct fake_piece table = {.source = op->moves, .bytes = table_bytes, .rows = 1, .flags = FAKE_BY_KERNEL};
    const struct fake_range *range = fake_find(op->moves, table_bytes);
    const char *reason = refuse_source(stream, &table, range);
    op->pieces = reason ? NULL : calloc(op->move_count, sizeof *op->pieces);
    if (!op->pieces) {
        fake_corrupt(stream->object.context, "the kernel %s: its table at %#llx", reason ? reason : "has no memory",
                     (unsigned long long)op->moves);
        return;
    }
    for (unsigned i = 0; i < op->move_count; i++) {
        struct hr_move move;
        memcpy(&move, host_of(range, op->moves) + i * sizeof move, sizeof move);
        op->pieces[i] = piece_of(&move);
        if (!move.bytes || !move.rows)
            fake_corrupt(stream->object.context, "a move of the kernel is empty");
        if ((move.cast != 0) != op->converts)
            fake_corrupt(stream->object.context, "a move is for the other kernel");
    }
    op->piece_count = op->move_count;
    run_pieces(stream, op);
}

static void run_host(const struct fake_op *op)
{
    pthread_mutex_unlock(&fake_lock);
    op->function(op->argument);
    pthread_mutex_lock(&fake_lock);
}

void fake_execute(struct fake_stream *stream, struct fake_op *op)
{
    if (op->kind == FAKE_OP_WAIT) {
        fake_point_wait(op->point);
        return;
    }
    delay(stream);
    if (op->kind == FAKE_OP_RECORD)
        op->point->done = 1;
    else if (stream->object.context->poison)
        return;
    else if (op->kind == FAKE_OP_COPY)
        run_pieces(stream, op);
    else if (op->kind == FAKE_OP_FILL)
        run_fill(stream, op);
    else if (op->kind == FAKE_OP_KERNEL)
        run_kernel(stream, op);
    else
        run_host(op);
}
