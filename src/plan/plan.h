/*
 * plan.h: a request turned into ordered byte moves. Pure: memory in, memory out; no system call but memory,
 * no thread, no clock. A plan knows neither descriptors nor devices' drivers; it is plain data that the engine
 * moves and that describe.c prints.
 *
 * The nouns, from the outside in:
 *   item   one tensor of the request, with the geometry of its bytes in the file and in its destination
 *   group  consecutive items (in plan order) whose destinations come into being together: the unit of the
 *          window, and with HR_OWN_ARENA one arena
 *   chunk  up to chunk_bytes of needed bytes of one file and one group: the unit of reading
 *   piece  a range of one item's byte stream inside a chunk
 *
 * The partition rule. An item's byte stream is its elements' bytes in row-major order. Its pieces, over all
 * chunks, tile [0, bytes) without gap or overlap; every piece lies in exactly one chunk, every chunk in exactly
 * one group, every item in exactly one group. So each byte is delivered once, to its place, by one chunk.
 *
 * A byte stream is made of runs of run_bytes that are contiguous both in the file and in the destination. The
 * position of run number r follows from the item's dims, so a piece needs no list of runs.
 *
 * Conversion. The byte stream of an item whose dtype is changed on the way is that of its stored elements; in the
 * destination each takes target_unit bytes where it takes source_unit in the file, and pieces and chunks are cut
 * between elements only. Of all other items both units are 1. What destinations take counts target_bytes.
 */
#ifndef HR_PLAN_PLAN_H
#define HR_PLAN_PLAN_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

/* An outer dimension of an item: `count` runs (or blocks of runs), apart by strides in bytes, in the file and there. */
struct hr_plan_dim {
    uint64_t count;
    uint64_t source_stride;
    int64_t target_stride;
};

/* How a chunk is read, and what of it. */
enum hr_way {
    HR_WAY_DIRECT =
        0, /* run by run, straight into final memory; for remote devices into staging, one behind the other */
    HR_WAY_STAGED = 1 /* [file_begin, file_end) as a whole, into a buffer, from where runs are copied to their places */
};

struct hr_plan_item {
    size_t tensor_index, file_index;
    size_t group_index;
    size_t chunk_first, chunk_count;   /* the chunks that hold its pieces; they follow each other */
    uint64_t bytes;                    /* of the item's elements as they are stored */
    uint64_t target_bytes;             /* of the same in the destination */
    uint32_t source_unit, target_unit; /* bytes of an element here and there, where it is converted; else 1 and 1 */
    uint64_t source_offset;            /* of the first run, from the start of the file */
    uint64_t run_bytes;                /* 0 when bytes is 0 */
    uint32_t dim_count;                /* 0: one run */
    uint32_t way;                      /* enum hr_way */
    uint32_t is_spread;                /* not 0: it comes by collectives and has no chunks */
    const struct hr_plan_dim *dims;    /* outermost first */
    uint64_t source_end;               /* behind the last run, from the start of the file */
    uint64_t target_offset; /* of the item's first byte in its group's arena; 0 for items with their own memory */
    void *into;             /* the caller's memory, or NULL */
    uint32_t device_index;
    uint32_t source_dtype, dtype; /* as stored, and in the destination */
    uint32_t rank;
    const uint64_t *shape;  /* of the slice */
    const int64_t *strides; /* bytes, of the destination */
};

struct hr_plan_piece {
    size_t item_index;
    uint64_t begin, end; /* of the item's byte stream; begin < end */
};

struct hr_plan_chunk {
    size_t file_index, group_index;
    uint64_t file_begin, file_end;   /* from the first needed byte to behind the last */
    uint64_t bytes;                  /* needed ones */
    size_t piece_first, piece_count; /* in the order of their position in the file */
    uint32_t way;
    uint32_t has_cast; /* not 0: some of its items are converted */
};

struct hr_plan_group {
    size_t order_first, item_count; /* into the plan's order */
    size_t chunk_first, chunk_count;
    uint64_t arena_bytes;  /* HR_OWN_ARENA: of the arena, 0 when all items have their own memory or no bytes */
    uint64_t window_bytes; /* what its destinations take: arena or the sum of its items, `into` excluded */
    uint32_t device_index;
    size_t key; /* of options.group_keys */
};

struct hr_plan_options {
    uint64_t chunk_bytes, arena_bytes, window_bytes; /* window 0: no bound; a chunk is no smaller than an element */
    uint32_t
        reader_count; /* chunks may be smaller, so that each of so many readers gets enough of them; 0: they may not */
    uint32_t ownership; /* enum hr_ownership */
    uint32_t device_count;
    uint64_t remote_devices;  /* bit i: readers cannot write device i; its chunks come to their place out of staging */
    int has_no_grid;          /* chunks end where they are full, not on multiples of chunk_bytes of the file */
    const size_t *group_keys; /* by item, or NULL; those of different keys share no group. Read during the call only */
    uint32_t group_rank,
        group_world; /* of a process group: what several ranks need has no chunks (spread.h); 0: none */
    uint64_t group_bytes;
};

struct hr_plan {
    struct hr_plan_item *items; /* as in the request */
    size_t *order;              /* plan order: items by (key of options.group_keys, file, offset, index) */
    size_t item_count;
    struct hr_plan_group *groups;
    struct hr_plan_chunk *chunks;
    struct hr_plan_piece *pieces;
    size_t group_count, chunk_count, piece_count;
    size_t file_count;         /* of the checkpoint */
    uint64_t bytes;            /* needed, in all */
    uint64_t target_bytes;     /* what they take in their destinations */
    uint64_t cast_bytes;       /* of `bytes`: of items that are converted */
    uint64_t read_bytes;       /* what the chunks will read */
    uint64_t read_bytes_cold;  /* past the page cache: ranges that fit into a chunk are read whole */
    uint64_t staged_bytes_max; /* largest chunk for host memory that needs a buffer, as it lies in that */
    struct hr_plan_options options;
    void *pool;               /* dims, shapes, strides */
    struct hr_spread *spread; /* of a process group of more than one rank; else NULL */
};

/*
 * Plans a request over a table of tensors. Checks every item: index in range, ranges within the shape, dtype as
 * stored or one that it converts to (others: HR_EUNSUPPORTED), strides that do not overflow, sub-byte dtypes cut on byte
 * boundaries. A chunk holds one element at least. Errors name the tensor; the message names the item. On success
 * hr_plan_release() frees what `plan` holds.
 */
int hr_plan_make(const struct hr_tensor *tensors, size_t tensor_count, size_t file_count, const struct hr_item *items,
                 size_t item_count, const struct hr_plan_options *options, struct hr_plan *ret_plan,
                 struct hr_error *err);
void hr_plan_release(struct hr_plan *plan);

/* Whether a device's memory is filled out of staging, not by readers. */
int hr_plan_is_remote(const struct hr_plan *plan, uint32_t device_index);

/* Whether an item is converted on the way, and what `bytes` of its stream (whole elements) take in the destination. */
int hr_plan_is_cast(const struct hr_plan_item *item);
uint64_t hr_plan_target_bytes(const struct hr_plan_item *item, uint64_t bytes);

/* Walks the runs of a piece in order. */
struct hr_run {
    uint64_t source_offset; /* from the start of the file */
    int64_t target_offset;  /* from the item's first byte in its destination; negative with negative strides */
    uint64_t bytes;         /* in the file */
};

struct hr_run_walk {
    const struct hr_plan_item *item;
    uint64_t position, end; /* in the byte stream */
    uint64_t run_left;      /* of the current run, from `position` on */
    uint64_t index[HR_RANK_MAX];
    uint64_t source_offset; /* of the byte at `position` */
    int64_t target_offset;
};

void hr_run_walk_init(struct hr_run_walk *walk, const struct hr_plan_item *item, const struct hr_plan_piece *piece);
/* 1 and the next run (cut to the piece), or 0 at its end. */
int hr_run_walk_next(struct hr_run_walk *walk, struct hr_run *ret_run);

/* Equal runs at equal distances; as a run where `count` is 1. */
struct hr_run_rows {
    struct hr_run run; /* the first one */
    uint64_t count;
    uint64_t source_stride;
    int64_t target_stride;
};

/* The same walk in larger steps: as many runs at once as the innermost dimension holds from here on. */
int hr_run_walk_rows(struct hr_run_walk *walk, struct hr_run_rows *ret_rows);

#endif
