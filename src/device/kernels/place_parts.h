/*
 * place_parts.h: what one thread of the placing kernel does, in the C that nvcc and a C compiler share, so that
 * tests/unit/test_place_parts.c can play every thread on a processor. Whoever includes it defines the three functions
 * that touch memory.
 *
 * Targets are written as vectors of 16 bytes on 16; only the first and the last of a row may be written in part, byte
 * by byte. What goes into a vector is cut out of the one or two aligned vectors of the source that hold it, whatever
 * the two alignments. So every load is a vector on 16 that holds at least one byte of the row: it never leaves the row's
 * pages, and never more than 15 bytes beyond the row are read. The neighbour needs one of the two vectors as well and
 * finds it in the first-level cache. Nothing beyond a row is ever written.
 *
 * The vectors of all rows of a move, each row counted alike, are one sequence. Threads take it in spans: HR_PLACE_UNROLL
 * vectors a thread, in steps of a warp, so that a warp reads a contiguous range and all its loads are on their way
 * before the first is waited for.
 */
#ifndef HR_DEVICE_KERNELS_PLACE_PARTS_H
#define HR_DEVICE_KERNELS_PLACE_PARTS_H

#include "device/place.h"

#ifdef __CUDACC__
#define HR_PLACE_FN static __device__ __forceinline__
#else
#define HR_PLACE_FN static inline
#endif

#define HR_PLACE_WARP 32u
/* With many warps two keep the link busy; four would spill registers in blocks of 1024 threads. */
#define HR_PLACE_UNROLL 2u
/* Moves that a block looks at together. */
#define HR_PLACE_BATCH 16u
/* The most vectors, 4 KiB and its ends, that one warp makes of a move where other warps have moves of their own. */
#define HR_PLACE_SMALL_MAX 258u

typedef unsigned long long hr_place_u64;

struct hr_vector {
    hr_place_u64 low, high;
};

/* Defined by whoever includes this. The addresses of vectors are multiples of 16. */
HR_PLACE_FN struct hr_vector hr_vector_load(hr_place_u64 address);
HR_PLACE_FN void hr_vector_store(hr_place_u64 address, struct hr_vector vector);
HR_PLACE_FN void hr_byte_store(hr_place_u64 address, unsigned char byte);

/* ------------------------------------------------------------------------------------------ who does what */

/*
 * A block takes the moves first, first + step, ... and of each, when it is not small, share `part` of `parts`: where
 * there are more blocks than moves, several blocks make one. A block whose part is not below `parts` has nothing to do.
 */
struct hr_place_walk {
    unsigned first, step, part, parts;
};

HR_PLACE_FN struct hr_place_walk hr_place_walk(unsigned block, unsigned block_count, unsigned move_count)
{
    struct hr_place_walk walk;
    walk.step = block_count < move_count ? block_count : move_count;
    walk.first = block % walk.step;
    walk.part = block / walk.step;
    walk.parts = block_count / walk.step;
    return walk;
}

/* How many of `move_count` moves lie on first, first + step, ...: at most HR_PLACE_BATCH. */
HR_PLACE_FN unsigned hr_place_batch(hr_place_u64 first, unsigned step, unsigned move_count)
{
    hr_place_u64 count = (move_count - first + step - 1) / step;
    return count < HR_PLACE_BATCH ? (unsigned)count : HR_PLACE_BATCH;
}

/* Threads that make a move together: warps of `lanes` threads, and which of them this one is. */
struct hr_place_team {
    unsigned warp, warps, lane, lanes;
};

/* A block's threads. A last warp that is not whole does nothing (warp == warps), unless it is the only one. */
HR_PLACE_FN struct hr_place_team hr_place_team(unsigned thread, unsigned thread_count)
{
    struct hr_place_team team;
    team.lanes = thread_count < HR_PLACE_WARP ? thread_count : HR_PLACE_WARP;
    team.warps = thread_count / team.lanes;
    team.warp = thread / team.lanes;
    team.lane = thread % team.lanes;
    return team;
}

/* ------------------------------------------------------------------------------------- the sequence of vectors */

/* `per_row` vectors hold a row wherever it lies; the first `skew` of them, and others, may hold nothing of it. */
struct hr_place_shape {
    hr_place_u64 per_row;
    unsigned skew;
};

HR_PLACE_FN struct hr_place_shape hr_place_shape(const struct hr_move *move)
{
    struct hr_place_shape shape = {0, 0};
    hr_place_u64 pitch = move->rows > 1 ? (hr_place_u64)move->target_pitch | 16 : 16;
    unsigned alignment = (unsigned)(pitch & (0 - pitch)); /* in which all targets of the move agree */
    unsigned head = 16 - alignment + (unsigned)(move->target & (alignment - 1)); /* the largest of all rows */
    shape.per_row = (head + move->bytes + 15) / 16;
    if (move->rows == 1) { /* what a warp reads shall begin with a whole line of 128 bytes */
        shape.skew = (unsigned)((move->source - head) >> 4 & 7);
        shape.per_row += shape.skew;
    }
    return shape;
}

/* Whether one warp makes all of it. The more moves there are, the more warps have something else to do meanwhile. */
HR_PLACE_FN int hr_place_is_small(const struct hr_move *move, const struct hr_place_shape *shape, unsigned move_count)
{
    hr_place_u64 most = (hr_place_u64)move_count * HR_PLACE_WARP * HR_PLACE_UNROLL;
    if (most > HR_PLACE_SMALL_MAX)
        most = HR_PLACE_SMALL_MAX;
    hr_place_u64 per_row = shape->per_row - shape->skew;
    return move->rows <= most && per_row <= most && move->rows * per_row <= most;
}

/* A place in the sequence, or a distance. */
struct hr_place_index {
    hr_place_u64 row, column;
};

HR_PLACE_FN struct hr_place_index hr_place_index(hr_place_u64 number, hr_place_u64 per_row)
{
    struct hr_place_index index = {0, number};
    if (number >= per_row) { /* long rows spare the division */
        index.row = number / per_row;
        index.column = number % per_row;
    }
    return index;
}

HR_PLACE_FN void hr_place_advance(struct hr_place_index *index, const struct hr_place_index *by, hr_place_u64 per_row)
{
    index->row += by->row;
    index->column += by->column;
    if (index->column >= per_row) {
        index->column -= per_row;
        index->row++;
    }
}

/* --------------------------------------------------------------------------------------------- one vector */

/* Bytes [start, stop) of the vector at `target`, a multiple of 16, come from `source` + start and on. */
struct hr_place_piece {
    hr_place_u64 source, target;
    unsigned range; /* start | stop << 8, in one register; 0: nothing to do */
};

HR_PLACE_FN struct hr_place_piece hr_place_piece(const struct hr_move *move, unsigned skew,
                                                 const struct hr_place_index *index)
{
    struct hr_place_piece piece = {0, 0, 0};
    hr_place_u64 row = move->target + index->row * (hr_place_u64)move->target_pitch;
    /* Where the vector begins, counted from the beginning of the row: at most 15 bytes before it matter. */
    long long offset = (long long)(index->column * 16) - (long long)(row & 15) - (long long)(skew * 16);
    if (index->row >= move->rows || offset <= -16 || offset >= (long long)move->bytes)
        return piece;
    hr_place_u64 rest = move->bytes - (hr_place_u64)offset;
    piece.source = move->source + index->row * (hr_place_u64)move->source_pitch + (hr_place_u64)offset;
    piece.target = row + (hr_place_u64)offset;
    piece.range = (offset < 0 ? (unsigned)-offset : 0) | (rest < 16 ? (unsigned)rest : 16) << 8;
    return piece;
}

/* Which of the two aligned vectors from `source` on hold anything of the piece. */
HR_PLACE_FN int hr_place_needs_lower(const struct hr_place_piece *piece)
{
    return piece->range && (piece->source & 15) + (piece->range & 255) < 16;
}

HR_PLACE_FN int hr_place_needs_upper(const struct hr_place_piece *piece)
{
    return (piece->source & 15) + (piece->range >> 8) > 16;
}

/* The 16 bytes from byte `shift` (0 to 15) on of two vectors. */
HR_PLACE_FN struct hr_vector hr_vector_cut(struct hr_vector lower, struct hr_vector upper, unsigned shift)
{
    unsigned bits = shift % 8 * 8;
    hr_place_u64 first = shift < 8 ? lower.low : lower.high, second = shift < 8 ? lower.high : upper.low;
    hr_place_u64 third = shift < 8 ? upper.low : upper.high;
    /* In two steps: a shift by all 64 bits is undefined. */
    struct hr_vector cut = {first >> bits | second << 1 << (63 - bits), second >> bits | third << 1 << (63 - bits)};
    return cut;
}

HR_PLACE_FN void hr_place_store(const struct hr_place_piece *piece, struct hr_vector vector)
{
    unsigned start = piece->range & 255, stop = piece->range >> 8;
    if (stop - start == 16) {
        hr_vector_store(piece->target, vector);
        return;
    }
    for (unsigned i = start; i < stop; i++)
        hr_byte_store(piece->target + i, (unsigned char)((i < 8 ? vector.low : vector.high) >> i % 8 * 8));
}

/* --------------------------------------------------------------------------------------------- one thread */

/* This thread's share of a move. */
HR_PLACE_FN void hr_place_move(const struct hr_move *move, const struct hr_place_shape *shape,
                               const struct hr_place_team *team)
{
    hr_place_u64 per_row = shape->per_row, span = (hr_place_u64)team->lanes * HR_PLACE_UNROLL;
    struct hr_place_index index = hr_place_index(team->warp * span + team->lane, per_row);
    struct hr_place_index step = hr_place_index(team->lanes, per_row);
    struct hr_place_index jump = hr_place_index(team->warps * span - span + team->lanes, per_row);
    while (index.row < move->rows) {
        struct hr_place_piece pieces[HR_PLACE_UNROLL];
        struct hr_vector lower[HR_PLACE_UNROLL], upper[HR_PLACE_UNROLL];
        for (unsigned i = 0; i < HR_PLACE_UNROLL; i++) {
            pieces[i] = hr_place_piece(move, shape->skew, &index);
            hr_place_advance(&index, i + 1 < HR_PLACE_UNROLL ? &step : &jump, per_row);
        }
        for (unsigned i = 0; i < HR_PLACE_UNROLL; i++) {
            struct hr_vector none = {0, 0};
            hr_place_u64 source = pieces[i].source & ~15ull;
            lower[i] = hr_place_needs_lower(&pieces[i]) ? hr_vector_load(source) : none;
            upper[i] = hr_place_needs_upper(&pieces[i]) ? hr_vector_load(source + 16) : none;
        }
        for (unsigned i = 0; i < HR_PLACE_UNROLL; i++)
            hr_place_store(&pieces[i], hr_vector_cut(lower[i], upper[i], pieces[i].source & 15));
    }
}

/* Which of `block` make move number `i` of a batch: one warp, or all of those of the blocks that share it. */
HR_PLACE_FN struct hr_place_team hr_place_share(struct hr_place_team block, int is_small, unsigned i,
                                                const struct hr_place_walk *walk)
{
    struct hr_place_team team = block;
    if (is_small) {
        team.warp = walk->part > 0 || i % block.warps != block.warp;
        team.warps = 1;
    } else {
        team.warp += walk->part * block.warps;
        team.warps *= walk->parts;
    }
    return team;
}

/* This thread's share of a batch of moves: its warp's of the small ones, then its own of the others. */
HR_PLACE_FN void hr_place_moves(const struct hr_move *moves, unsigned count, const struct hr_place_walk *walk,
                                unsigned thread, unsigned thread_count)
{
    const struct hr_place_team block = hr_place_team(thread, thread_count);
    if (block.warp >= block.warps)
        return;
    for (unsigned i = 0; i < count; i++) {
        const struct hr_place_shape shape = hr_place_shape(&moves[i]);
        struct hr_place_team team = hr_place_share(block, hr_place_is_small(&moves[i], &shape, count), i, walk);
        if (team.warp < team.warps)
            hr_place_move(&moves[i], &shape, &team);
    }
}

#endif
