/*
 * staging.h: the ring of pinned memory through which loads reach devices. It belongs to a loader, grows slot by slot as
 * readers find none free, up to a bound, and stays for the next load. Blocks are made by the readers that want them, so
 * that pages are touched in parallel and the first slots are in use while others are still being pinned. What was given
 * back last is taken first: a ring that is larger than needed does not leave the processor's cache.
 * It knows neither loads nor chunks. Thread-safe.
 */
#ifndef HR_ENGINE_STAGING_H
#define HR_ENGINE_STAGING_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "device/gds.h"
#include "io/io.h"

struct hr_staging;

struct hr_staging_slot {
    char *memory;               /* at least as many bytes as were asked for, on a page */
    struct hr_io_buffer buffer; /* the same memory, for reads into it */
    struct hr_move *moves;
    size_t move_capacity;
    const struct hr_staging_block *block; /* that both lie in */
    struct hr_gds *gds;                   /* of a ring on a device: whose slot `gds_index` the memory is; else NULL */
    uint32_t gds_index;
    /* the ring's own */
    uint8_t is_early;
    struct staging_piece *piece;
    struct hr_staging_slot *next;
};

/*
 * `device`: any that will copy from it; borrowed. `slot_bytes`: of each slot's memory. `bytes`: most pinned memory;
 * `node`: of the memory, as of hr_staging_block_make().
 */
int hr_staging_new(struct hr_device *device, uint64_t slot_bytes, uint64_t bytes, int node,
                   struct hr_staging **ret_staging, struct hr_error *err);
/*
 * A ring whose slots' memory is that of a ring on the device (device/gds.h), borrowed; only the tables of moves are
 * staging. It has all its slots at once, does not grow, and is not to be trimmed.
 */
int hr_staging_new_on_device(struct hr_device *device, struct hr_gds *gds, struct hr_staging **ret_staging,
                             struct hr_error *err);
/* Every slot must have been given back. NULL is allowed. */
void hr_staging_free(struct hr_staging *staging);
/* In a forked child: frees what is the process's own, and leaves alone what the driver knows. */
void hr_staging_forget(struct hr_staging *staging);

/*
 * Takes a slot; `grow_count`: slots to make at once if none is free and there may be more; *ret_grown: the bytes that
 * were pinned for that, or unchanged. 1 when none is free and the ring has all its slots: give one's own back, or
 * hr_staging_wait(). Negative only while the ring has no slot at all.
 *
 * `is_early`: the slot may be kept until others have come further, who need slots for that; so an eighth of the slots, and
 * one at least, is never taken so. 1 when no more can be.
 */
int hr_staging_take(struct hr_staging *staging, size_t grow_count, int is_early, struct hr_staging_slot **ret_slot,
                    uint64_t *ret_grown, struct hr_error *err);
void hr_staging_give(struct hr_staging *staging, struct hr_staging_slot *slot);
/* Blocks until a slot is free or may be made; the caller holds none. */
void hr_staging_wait(struct hr_staging *staging);

/* Frees the blocks that are wholly unused, but for what early slots must leave to others; returns their bytes. */
uint64_t hr_staging_trim(struct hr_staging *staging);
/* Most slots that are ever taken early, where memory does not run short. */
size_t hr_staging_early_max(const struct hr_staging *staging);
/* Most bytes that it will pin. */
uint64_t hr_staging_bytes_max(const struct hr_staging *staging);
/* Bytes that are pinned now, and what kind they are, with the reason when it is not the best. */
uint64_t hr_staging_describe(struct hr_staging *staging, char *text, size_t capacity);

#endif
