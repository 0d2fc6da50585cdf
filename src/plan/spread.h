/*
 * spread.h: what a process group reads once and spreads. Pure, and a function of the request and of the rank alone, so
 * that all ranks cut the same windows. The engine moves them (engine/spreader.h).
 *
 * An item is *spread* when several ranks need it, or when their blocks of it lie between each other in the file; its
 * range of the file covers what all ranks need. The others are *local*: each rank reads its own.
 *
 * The ranges of all spread items, in file order, are laid behind each other to one *stream*. Ranges that touch or
 * overlap are one *extent*; extents begin on HR_TENSOR_ALIGNMENT. The stream is cut into *windows* of equal length, only
 * the last is shorter, and each window into `world` *parts* of equal length. Rank r reads part r of every window, so each
 * byte of an extent is read by one rank. A window is an all-gather of the parts; or, where no rank needs much of any
 * part, a scatter of *segments*: what rank j needs of rank r's part, item by item, all segments of one length.
 *
 * What an item needs of a range of the stream is one piece of its own byte stream, since both follow the file.
 */
#ifndef HR_PLAN_SPREAD_H
#define HR_PLAN_SPREAD_H

#include "plan/plan.h"
#include "plan/plan_request.h"

/* Why an item is spread, or not. */
enum hr_spread_choice {
    HR_LOCAL_EMPTY = 0,  /* no rank needs a byte */
    HR_LOCAL_CONTIGUOUS, /* each rank's block lies in one piece */
    HR_LOCAL_SPARSE,     /* the ranks together need too little of the range */
    HR_LOCAL_OTHER,      /* sharded otherwise than by the group's ranks */
    HR_LOCAL_BITS,       /* some block ends inside a byte */
    HR_SPREAD_REPLICATED,
    HR_SPREAD_SHARDED,
};

/* One line for people. */
const char *hr_spread_reason(uint32_t choice);

struct hr_spread_item {
    size_t item_index, file_index;
    size_t extent;       /* its number */
    uint64_t begin, end; /* in the stream */
    uint64_t source;     /* of `begin`, in the file */
    const struct hr_tensor *tensor;
    struct hr_item whole; /* the slice that the ranks share; shard_world 0: it is replicated */
};

struct hr_spread {
    uint32_t rank, world;
    uint32_t depth;               /* windows in flight */
    uint32_t buffer_count;        /* that windows are received in, in turn; at most as many as are in flight */
    struct hr_spread_item *items; /* by `begin` */
    size_t item_count;
    uint8_t *choices; /* by item of the request: enum hr_spread_choice */
    uint64_t stream_bytes;
    uint64_t part_bytes; /* of all windows but the last */
    size_t window_count;
    uint64_t *segment_bytes; /* by window; 0: an all-gather */
    uint64_t slot_bytes;     /* where a part is read to: its bytes, and the rank's status behind them */
    size_t slot_count;
    size_t spare_slots;      /* that nothing is read to: of host memory one, for what goes out with bad news */
    uint64_t buffer_bytes;   /* of a buffer: what a window brings, and what is packed for it */
    size_t scratch_words;    /* for hr_spread_geometry() */
    struct hr_range *ranges; /* of all items' slices */
    uint64_t digest_items, digest_windows;
};

/*
 * For GPUs: windows that a rank calls before it has seen the end of the first of them, since the host learns of an end
 * late and is slow to call; and buffers that they come into, whose order the device keeps.
 */
#define HR_SPREAD_DEPTH_REMOTE 4
#define HR_SPREAD_BUFFERS_REMOTE 2

/* Bytes that each part and each segment carry behind their own: the rank's status. */
#define HR_SPREAD_STATUS_BYTES 256u

struct hr_spread_window {
    size_t index;
    uint64_t begin, end; /* in the stream */
    uint64_t part_bytes, segment_bytes;
};

/*
 * Chooses, marks the plan's spread items, and cuts windows; the plan's items and order are made. HR_EUNSUPPORTED for
 * items of several devices, HR_EINVALID_ARGUMENT when group_bytes is too small. On failure hr_spread_free() frees what
 * plan->spread holds.
 */
int hr_spread_make(struct hr_plan *plan, const struct hr_request *request, struct hr_error *err);
void hr_spread_free(struct hr_spread *spread);

/* What is sent and received in takes so many bytes: slots, buffers, and the statuses of windows in flight. */
uint64_t hr_spread_memory(const struct hr_spread *spread);

struct hr_spread_window hr_spread_window_at(const struct hr_spread *spread, size_t index);

/* Rank `rank`'s part of a window, in the stream; empty at the end of the last one. */
struct hr_range hr_spread_part(const struct hr_spread_window *window, uint32_t rank);

/* The first item that may have bytes at or behind `begin`, from `first` on, which is that of an earlier place. */
size_t hr_spread_first(const struct hr_spread *spread, size_t first, uint64_t begin);

/*
 * What of the item's byte stream, as `geometry` lays it, lies in [begin, end) of the group's stream: 1, or 0 when nothing.
 */
int hr_spread_piece(const struct hr_spread_item *item, const struct hr_plan_item *geometry, uint64_t begin,
                    uint64_t end, struct hr_plan_piece *ret_piece);

/*
 * The item as rank `rank` needs it: in the file as there, in its destination compact. Takes memory of `scratch` (of
 * scratch_words), which *ret_geometry lives in.
 */
void hr_spread_geometry(const struct hr_spread_item *item, uint32_t rank, uint64_t *scratch,
                        struct hr_plan_item *ret_geometry);

/* A contiguous range of a file within a part. */
struct hr_spread_range {
    size_t file_index;
    uint64_t file_begin, file_end;
    uint64_t begin; /* in the stream */
    size_t item;    /* of the spread; the first one in it */
};

/*
 * The ranges of [begin, end) of the stream, in its order: 1 and the next one, or 0 at the end. *item_next is the walk's
 * place: what hr_spread_first() gives for `begin`, at first; it ends at the first item behind the range.
 */
int hr_spread_range_next(const struct hr_spread *spread, uint64_t begin, uint64_t end, size_t *item_next,
                         struct hr_spread_range *ret_range);

#endif
