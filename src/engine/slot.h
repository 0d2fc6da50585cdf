/*
 * slot.h: one chunk on its way, and the read operations that bring it. Its bytes come in one of three shapes:
 *   in place  run by run into their destinations, which are host memory; never where one of them is converted
 *   packed    run by run into a buffer, one behind the other
 *   as a span all of [file_begin, file_end) into a buffer, with O_DIRECT in whole pages of the file; of long runs for host
 *             memory all but the ends may go past the buffer to their places (in_place.h), in the same operation
 * It knows runs and vectors; neither threads, queues nor devices.
 */
#ifndef HR_ENGINE_SLOT_H
#define HR_ENGINE_SLOT_H

#include "base/limits.h"
#include "engine/load.h"
#include "engine/staging.h"
#include "io/io.h"

/* Each is a vector, and so is what lies between them. As many as long runs fit into 2 MiB. */
#define HR_SLOT_PLACES_MAX 32

struct slot {
    struct hr_io_op op;
    const struct hr_plan_chunk *chunk; /* NULL: free */
    int fd;
    uint32_t mode; /* enum hr_read_mode */
    int is_cold;   /* read beside others, within the budget of bytes in flight */
    char *buffer;  /* where the chunk's first byte goes, packed or as a span; NULL: in place */
    int is_span;
    uint32_t memory_alignment; /* of places that a span may be read to; 0: all of it goes to the buffer */
    int has_places;            /* the operation reads to places beside the buffer */
    uint64_t fork_mark;        /* of base/fork.h, when the operation began */
    /* what of the runs is read to its place, in the order of the file; settled before the first operation */
    struct place {
        uint64_t begin, end; /* of the file */
        char *memory;
    } places[HR_SLOT_PLACES_MAX];
    int place_count; /* -1: not settled */
    /* reading */
    size_t piece_index; /* the next piece to walk */
    struct hr_run_walk walk;
    int walking, has_run;
    struct hr_run run;       /* taken from the walk and not yet part of an operation */
    char *run_data;          /* where the run goes */
    uint64_t packed;         /* bytes of the runs so far */
    uint64_t span_begin;     /* where reading a span begins in the file, */
    uint64_t span_end;       /*   and where it ends unless the file does before */
    uint64_t bytes_done;     /* of the span */
    unsigned stall_count;    /* operations in a row that brought nothing new of it */
    uint64_t bytes_expected; /* of the operation in flight */
    int vector_first, vector_count;
    struct iovec vectors[HR_IOV_MAX];
    uint64_t begin_ns;   /* of the operation, then of the copy */
    uint64_t flow_bytes; /* counted in the budget */
    uint64_t flow_ns;    /* since when */
    /* copying to a device */
    struct hr_staging *ring;         /* what the buffer was taken from, */
    struct hr_staging_slot *staging; /*   and what it is a part of */
    struct hr_fence **fences;        /* by device; NULL without devices */
    struct slot *copy_next;          /* the next one that its reader sent */
    int has_left;                    /* its file was compared and released: all of it is in the buffer */
    int has_landed;                  /* a feed's: it was counted when it was sent */
};

/*
 * Takes a chunk up, to be read by `mode`. `memory`: on a page, room for the chunk and HR_SLOT_SLACK_BYTES more; NULL:
 * the chunk is direct and converts nothing, and is read in place.
 */
void hr_slot_begin(struct slot *slot, const struct hr_plan_chunk *chunk, uint32_t mode, int fd, char *memory);
/* The same again, by another mode or another `memory_alignment`, after nothing could be read or be relied on. */
void hr_slot_restart(struct slot *slot, uint32_t mode, int fd);
/* Sets the vectors of the next read operation; 0 when the chunk has no more. */
int hr_slot_fill(const struct hr_load *load, struct slot *slot);
/* `bytes` of the operation have arrived. 0 when they bring nothing new: the file ends too early. */
int hr_slot_advance(struct slot *slot, uint64_t bytes);
/*
 * Copies the runs in the slot's buffer to their places in host memory, and converts those that get another dtype; returns
 * the bytes that were there.
 */
uint64_t hr_slot_scatter(const struct hr_load *load, const struct slot *slot);

/* For the page that a span begins in and the one that it ends in. */
#define HR_SLOT_SLACK_BYTES (2 * HR_CUT_ALIGNMENT)

#endif
