/*
 * spreader_state.h: what the files of the spreader share. All of it belongs to its thread, but for what has a lock.
 */
#ifndef HR_ENGINE_SPREADER_STATE_H
#define HR_ENGINE_SPREADER_STATE_H

#include <pthread.h>

#include "engine/feed.h"
#include "engine/group.h"
#include "engine/send.h"
#include "engine/spreader.h"
#include "plan/spread.h"

/*
 * A status is copied at the latest before its window's collective ends, which has ended when the slot is opened for the
 * next but one: two rounds of slots are enough, of at least as many as windows are in flight.
 */
#define SLOT_ROUNDS 2

/* A window between the call of its collective and its end. */
struct flight {
    struct hr_spread_window window;
    char *part;                         /* this rank's, and behind it what the rank has to say */
    char *send;                         /* that, or what is packed of it */
    char *receive;                      /* a buffer: what comes; behind it what is packed for a scatter */
    char *gathered;                     /* the statuses of all ranks, together: GPUs */
    struct hr_group_status *statuses;   /* the same in pinned memory: GPUs */
    struct hr_move *moves, *pack_moves; /* tables: GPUs */
    struct hr_fence *fence, *pack_fence;
    int is_wanted; /* this rank is well, and its destinations exist */
    int is_placed; /* all that came is on its way there */
    int has_end;   /* `fence` stands for it */
};

struct hr_spreader {
    struct hr_load *load;
    const struct hr_spread *spread;
    const struct hr_group *group;
    struct hr_device *device;
    struct hr_lane *lane; /* that places what came. NULL: host memory */
    struct hr_lane *
        *slot_lanes; /* by slot: its parts, statuses and what is packed of it, in the order of the slot; GPUs */
    struct hr_feed *feed;
    uint64_t magic;
    void *base;                            /* memory, with slack around it */
    char *memory;                          /* slots, spare ones, buffers, then statuses of flights */
    uint64_t memory_bytes;                 /* of `base` */
    struct hr_staging_block block;         /* tables and statuses; GPUs */
    struct hr_group_status *slot_statuses; /* as they are copied behind the slots: of SLOT_ROUNDS rounds; GPUs */
    struct hr_move *slot_moves;            /* by status: how */
    struct hr_fence *status_fence;         /* a status that is to be another one; GPUs */
    size_t opened;                         /* windows that have had a slot */
    int is_shut;                           /* no more get one: a lane would not wait for who reads it */
    size_t finished;                       /* windows whose end was seen */
    char *buffers;                         /* of buffer_bytes each */
    struct flight flights[HR_SPREAD_DEPTH_REMOTE];
    uint64_t *scratch;
    size_t item_first;    /* of windows that begin at or behind the last one issued */
    size_t landing_first; /* of those that ended */
    int is_broken;        /* a collective failed: none may be called again */
    struct hr_place_counts counts;
    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t turn;
    unsigned allocating_count, flying_count;
    int is_stopping; /* who waits for its turn to allocate looks at the load */
};

/* ---------------------------------------------------------------------- spreader_window.c */

/* Slots are free, or will be, for the windows before `end`: their statuses go ahead, their parts are read. */
void hr_spreader_open(struct hr_spreader *s, size_t end);
/*
 * Calls the collective of a window whose turn it is, and puts behind it what brings into place what comes. Where it
 * cannot be called, none is any more.
 */
void hr_spreader_send(struct hr_spreader *s, struct flight *flight);
/* Waits for a window's end; GPUs. A call that fails once is made again. */
void hr_spreader_wait(struct hr_spreader *s, struct flight *flight);
/* The window has ended: 1 when all ranks go on, else 0. */
int hr_spreader_take(struct hr_spreader *s, struct flight *flight);
/* What a window brought may not be in place. */
void hr_spreader_fail(struct hr_spreader *s, struct flight *flight, const struct hr_error *error);

/* ----------------------------------------------------------------------- spreader_moves.c */

/* Where what is packed for all ranks goes. */
char *hr_spreader_packed(const struct hr_spreader *s, const struct flight *flight);
/* Packs this rank's part of a window for each rank, their statuses behind. In the slot's lane; or at once. */
int hr_spreader_pack(struct hr_spreader *s, struct flight *flight, struct hr_error *err);
/* Brings what a window has brought into place, and the statuses to where the host reads them. In the lane; or at once. */
int hr_spreader_place(struct hr_spreader *s, struct flight *flight, struct hr_error *err);
/* Where rank `rank`'s status lies in what came. */
char *hr_spreader_status(const struct flight *flight, uint32_t rank);
/* The window has ended well: counts its bytes for its items. */
void hr_spreader_landed(struct hr_spreader *s, const struct flight *flight);

/* ------------------------------------------------------------------------ spreader_make.c */

/* Lanes, fences, memory, tables. On failure hr_spreader_release_all() frees what was made. */
int hr_spreader_make_all(struct hr_spreader *s, struct hr_error *err);
void hr_spreader_release_all(struct hr_spreader *s);

/*
 * What is sent in place of a part, with a cause: after a read that failed others of the same part may still write to the
 * slot. On a GPU that is no harm, and who sends takes the slot.
 */
static inline char *spreader_spare(const struct hr_spreader *s)
{
    return s->memory + s->spread->slot_count * s->spread->slot_bytes;
}

/* The lane of its slot, or NULL: host memory. */
static inline struct hr_lane *spreader_slot_lane(const struct hr_spreader *s, size_t window_index)
{
    return s->slot_lanes ? s->slot_lanes[window_index % s->spread->slot_count] : NULL;
}

/* Where this rank's part of a window is read to; its status is behind the window's part_bytes. */
static inline char *spreader_slot(const struct hr_spreader *s, size_t window_index)
{
    return s->memory + window_index % s->spread->slot_count * s->spread->slot_bytes;
}

/* Where a window is in flight. */
static inline struct flight *spreader_flight(struct hr_spreader *s, size_t window_index)
{
    return &s->flights[window_index % s->spread->depth];
}

/*
 * The window in flight that has the buffer of this one, or NULL. Both ends of it must be known to come before: what it
 * brought is in place, and what it sent has been read.
 */
static inline struct flight *spreader_flight_before(struct hr_spreader *s, size_t window_index)
{
    size_t buffer_count = s->spread->buffer_count;
    return window_index >= s->finished + buffer_count ? spreader_flight(s, window_index - buffer_count) : NULL;
}

#endif
