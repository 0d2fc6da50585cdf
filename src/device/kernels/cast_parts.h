/*
 * cast_parts.h: what one thread of the converting kernel does, in the C that nvcc and a C compiler share, so that
 * tests/unit/test_cast_parts.c can play every thread on a processor. Who does what, and how memory is touched, is as in
 * place_parts.h; an element is converted by convert_parts.h, as on the host.
 *
 * A row is a sequence of units: as many elements as fill 16 bytes of the target, or fewer where those would take more
 * than 32 bytes of the source. Units lie in the target on multiples of their size; the first and the last of a row may
 * be there in part. A thread makes a unit at a time: of the two or three aligned vectors of the source that it spans
 * those are loaded that hold a byte of its elements, and what is whole and lies on its own size is stored at once, the
 * rest byte by byte. So a target that is no multiple of its elements' size is right too, and slow.
 */
#ifndef HR_DEVICE_KERNELS_CAST_PARTS_H
#define HR_DEVICE_KERNELS_CAST_PARTS_H

#include "convert/convert_parts.h"
#include "device/kernels/place_parts.h"

/* Defined by whoever includes this: the low `bytes` (8 or 4) of `word`; the address is a multiple of them. */
HR_PLACE_FN void hr_word_store(hr_place_u64 address, hr_place_u64 word, unsigned bytes);

#ifdef __CUDACC__
#define HR_CAST_UNROLL _Pragma("unroll")
#else
#define HR_CAST_UNROLL
#endif

/* A conversion, and what follows from it. */
struct hr_cast {
    unsigned from, to;                 /* enum hr_dtype */
    unsigned source_size, target_size; /* bytes of an element */
    unsigned unit, count;              /* bytes of a unit in the target, and its elements */
};

HR_PLACE_FN struct hr_cast hr_cast_make(unsigned from, unsigned to, unsigned source_size, unsigned target_size)
{
    unsigned ratio = source_size / target_size;
    unsigned unit = ratio <= 2 ? 16 : 32 / ratio;
    struct hr_cast cast = {from, to, source_size, target_size, unit, unit / target_size};
    return cast;
}

/* As hr_move.cast says. */
HR_PLACE_FN struct hr_cast hr_cast_decode(hr_place_u64 code)
{
    return hr_cast_make((unsigned)(code & 255), (unsigned)(code >> 8 & 255), 1u << (code >> 16 & 255),
                        1u << (code >> 24 & 255));
}

/* ------------------------------------------------------------------------------------- the sequence of units */

HR_PLACE_FN struct hr_place_shape hr_cast_shape(const struct hr_move *move, const struct hr_cast *cast)
{
    struct hr_place_shape shape = {0, 0};
    hr_place_u64 pitch = move->rows > 1 ? (hr_place_u64)move->target_pitch | cast->unit : cast->unit;
    unsigned alignment = (unsigned)(pitch & (0 - pitch)); /* in which all targets of the move agree */
    unsigned head = cast->unit - alignment + (unsigned)(move->target & (alignment - 1)); /* the largest of all rows */
    shape.per_row = (head + move->bytes / cast->source_size * cast->target_size + cast->unit - 1) / cast->unit;
    if (move->rows == 1) { /* what a warp reads shall begin with a whole line of 128 bytes */
        hr_place_u64 begin = move->source - head / cast->target_size * cast->source_size;
        shape.skew = (unsigned)(begin & 127) / (cast->count * cast->source_size);
        shape.per_row += shape.skew;
    }
    return shape;
}

/* Elements [start, stop) of a unit; addresses are those of its element 0, which may lie before the row. */
struct hr_cast_piece {
    hr_place_u64 source, target;
    unsigned start, stop; /* equal: nothing to do */
};

HR_PLACE_FN struct hr_cast_piece hr_cast_piece(const struct hr_move *move, const struct hr_cast *cast, unsigned skew,
                                               const struct hr_place_index *index)
{
    struct hr_cast_piece piece = {0, 0, 0, 0};
    hr_place_u64 row = move->target + index->row * (hr_place_u64)move->target_pitch;
    long long count = (long long)(move->bytes / cast->source_size);
    /* Where the unit begins, counted in elements from the beginning of the row. */
    long long first = ((long long)index->column - (long long)skew) * (long long)cast->count -
                      (long long)((unsigned)(row & (cast->unit - 1)) / cast->target_size);
    if (index->row >= move->rows || first <= -(long long)cast->count || first >= count)
        return piece;
    piece.source =
        move->source + index->row * (hr_place_u64)move->source_pitch + (hr_place_u64)first * cast->source_size;
    piece.target = row + (hr_place_u64)first * cast->target_size;
    piece.start = first < 0 ? (unsigned)-first : 0;
    piece.stop = count - first < (long long)cast->count ? (unsigned)(count - first) : cast->count;
    return piece;
}

/* --------------------------------------------------------------------------------------------- one unit */

/* The vectors that a unit spans; those that hold nothing of it are zero. */
struct hr_cast_loaded {
    struct hr_vector vectors[3];
};

HR_PLACE_FN struct hr_cast_loaded hr_cast_load(const struct hr_cast_piece *piece, const struct hr_cast *cast)
{
    struct hr_cast_loaded loaded;
    unsigned shift = (unsigned)(piece->source & 15);
    unsigned begin = shift + piece->start * cast->source_size, end = shift + piece->stop * cast->source_size;
    HR_CAST_UNROLL
    for (unsigned i = 0; i < 3; i++) {
        struct hr_vector none = {0, 0};
        int is_needed = begin < end && begin < 16 * i + 16 && end > 16 * i;
        loaded.vectors[i] = is_needed ? hr_vector_load(piece->source - shift + 16 * i) : none;
    }
    return loaded;
}

/* Word `index` (0 to 3) of two vectors. */
HR_PLACE_FN hr_place_u64 hr_cast_word(const struct hr_vector *first, const struct hr_vector *second, unsigned index)
{
    hr_place_u64 low = index & 1 ? first->high : first->low, high = index & 1 ? second->high : second->low;
    return index & 2 ? high : low;
}

HR_PLACE_FN hr_place_u64 hr_cast_mask(unsigned size)
{
    return ~0ull >> (64 - size * 8);
}

/* All elements of the unit, also those that are not wanted: they come of zeros or of neighbours, and are not stored. */
HR_PLACE_FN struct hr_vector hr_cast_convert(const struct hr_cast_loaded *loaded, unsigned shift,
                                             const struct hr_cast *cast)
{
    const struct hr_vector first = hr_vector_cut(loaded->vectors[0], loaded->vectors[1], shift);
    const struct hr_vector second = hr_vector_cut(loaded->vectors[1], loaded->vectors[2], shift);
    struct hr_vector made = {0, 0};
    for (unsigned i = 0; i < cast->count; i++) {
        unsigned from = i * cast->source_size, to = i * cast->target_size;
        hr_place_u64 bits = hr_cast_word(&first, &second, from / 8) >> from % 8 * 8 & hr_cast_mask(cast->source_size);
        bits = hr_convert_bits(cast->from, cast->to, bits) & hr_cast_mask(cast->target_size);
        made.low |= to < 8 ? bits << to % 8 * 8 : 0;
        made.high |= to < 8 ? 0 : bits << to % 8 * 8;
    }
    return made;
}

HR_PLACE_FN void hr_cast_store(const struct hr_cast_piece *piece, const struct hr_cast *cast, struct hr_vector made)
{
    if (piece->stop - piece->start == cast->count && (piece->target & (cast->unit - 1)) == 0) {
        if (cast->unit == 16)
            hr_vector_store(piece->target, made);
        else
            hr_word_store(piece->target, made.low, cast->unit);
        return;
    }
    for (unsigned i = piece->start * cast->target_size; i < piece->stop * cast->target_size; i++)
        hr_byte_store(piece->target + i, (unsigned char)((i < 8 ? made.low : made.high) >> i % 8 * 8));
}

/* --------------------------------------------------------------------------------------------- one thread */

/* This thread's share of a move. */
HR_PLACE_FN void hr_cast_share(const struct hr_move *move, const struct hr_cast *cast,
                               const struct hr_place_shape *shape, const struct hr_place_team *team)
{
    hr_place_u64 per_row = shape->per_row, span = (hr_place_u64)team->lanes * HR_PLACE_UNROLL;
    struct hr_place_index index = hr_place_index(team->warp * span + team->lane, per_row);
    struct hr_place_index step = hr_place_index(team->lanes, per_row);
    struct hr_place_index jump = hr_place_index(team->warps * span - span + team->lanes, per_row);
    while (index.row < move->rows) {
        struct hr_cast_piece pieces[HR_PLACE_UNROLL];
        struct hr_cast_loaded loaded[HR_PLACE_UNROLL];
        HR_CAST_UNROLL
        for (unsigned i = 0; i < HR_PLACE_UNROLL; i++) {
            pieces[i] = hr_cast_piece(move, cast, shape->skew, &index);
            hr_place_advance(&index, i + 1 < HR_PLACE_UNROLL ? &step : &jump, per_row);
        }
        HR_CAST_UNROLL
        for (unsigned i = 0; i < HR_PLACE_UNROLL; i++)
            loaded[i] = hr_cast_load(&pieces[i], cast);
        HR_CAST_UNROLL
        for (unsigned i = 0; i < HR_PLACE_UNROLL; i++)
            hr_cast_store(&pieces[i], cast, hr_cast_convert(&loaded[i], (unsigned)(pieces[i].source & 15), cast));
    }
}

/* Conversions that are compiled for themselves: those of models; the others choose their way for each element. */
/* clang-format off */
#define HR_CAST_PAIRS(X)                                                                                      \
    X(F32, 4, BF16, 2) X(BF16, 2, F32, 4) X(F32, 4, F16, 2) X(F16, 2, F32, 4) X(F16, 2, BF16, 2)              \
    X(BF16, 2, F16, 2) X(F8_E4M3, 1, BF16, 2) X(F8_E4M3, 1, F32, 4)
/* clang-format on */

#define HR_CAST_CODE(from, to) (HR_DTYPE_##from | HR_DTYPE_##to << 8)

#define HR_CAST_SHARE(from, source_size, to, target_size)                                                   \
    case HR_CAST_CODE(from, to): {                                                                          \
        const struct hr_cast pair = hr_cast_make(HR_DTYPE_##from, HR_DTYPE_##to, source_size, target_size); \
        hr_cast_share(move, &pair, shape, team);                                                            \
        break;                                                                                              \
    }

HR_PLACE_FN void hr_cast_move(const struct hr_move *move, const struct hr_cast *cast,
                              const struct hr_place_shape *shape, const struct hr_place_team *team)
{
    switch (cast->from | cast->to << 8) {
        HR_CAST_PAIRS(HR_CAST_SHARE)
    default:
        hr_cast_share(move, cast, shape, team);
    }
}

/* The moves that a block looks at together, as hr_place_moves(). */
HR_PLACE_FN void hr_cast_moves(const struct hr_move *moves, unsigned count, const struct hr_place_walk *walk,
                               unsigned thread, unsigned thread_count)
{
    const struct hr_place_team block = hr_place_team(thread, thread_count);
    if (block.warp >= block.warps)
        return;
    for (unsigned i = 0; i < count; i++) {
        struct hr_cast cast = hr_cast_decode(moves[i].cast);
        struct hr_place_shape shape = hr_cast_shape(&moves[i], &cast);
        struct hr_place_team team = hr_place_share(block, hr_place_is_small(&moves[i], &shape, count), i, walk);
        if (team.warp < team.warps)
            hr_cast_move(&moves[i], &cast, &shape, &team);
    }
}

#endif
