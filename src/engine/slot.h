/*
 * slot.h: one chunk on its way, and the read operations that bring it. A direct chunk for host memory is read run by
 * run into its destinations, a staged one whole into a buffer; a chunk for another device goes into a buffer either way.
 * It knows runs and vectors; neither threads, queues nor devices.
 */
#ifndef HR_ENGINE_SLOT_H
#define HR_ENGINE_SLOT_H

#include "base/limits.h"
#include "engine/load.h"
#include "engine/staging.h"
#include "io/io.h"

struct slot {
    struct hr_io_op op;
    const struct hr_plan_chunk *chunk; /* NULL: free */
    int fd;
    char *buffer; /* where the chunk's bytes go; NULL: to their destinations */
    char *bounce; /* host memory of this slot's own, for staged chunks of host memory */
    /* reading */
    size_t piece_index; /* the next piece to walk */
    struct hr_run_walk walk;
    int walking, has_run;
    struct hr_run run;       /* taken from the walk and not yet part of an operation */
    char *run_data;          /* where the run goes */
    uint64_t packed;         /* bytes of the runs so far, of a direct chunk that goes into a buffer */
    uint64_t bytes_expected; /* of the operation in flight */
    uint64_t bytes_done;     /* of a staged chunk */
    int vector_first, vector_count;
    struct iovec vectors[HR_IOV_MAX];
    uint64_t begin_ns; /* of the operation, then of the copy */
    /* copying to a device */
    struct hr_staging_slot *staging;
    struct hr_fence **fences; /* by device; NULL for host memory */
    struct slot *copy_next;   /* the next one that its reader sent */
};

/* Takes a chunk up. `buffer`: room for its bytes, or NULL for a direct chunk of host memory. */
void hr_slot_begin(struct slot *slot, const struct hr_plan_chunk *chunk, int fd, char *buffer);
/* Sets the vectors of the next read operation; 0 when the chunk has no more. */
int hr_slot_fill(const struct hr_load *load, struct slot *slot);
/* `bytes` of the operation have arrived. */
void hr_slot_advance(struct slot *slot, uint64_t bytes);
/* Copies the runs of a staged chunk from its buffer to their places in host memory. */
void hr_slot_scatter(const struct hr_load *load, struct slot *slot);

#endif
