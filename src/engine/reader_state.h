/*
 * reader_state.h: a reader, as its three files share it: reader.c begins chunks and decides what to wait for, reader_moves.c
 * sees them through their reads and copies, and reader_again.c begins reads anew.
 */
#ifndef HR_ENGINE_READER_STATE_H
#define HR_ENGINE_READER_STATE_H

#include "engine/load.h"
#include "engine/slot.h"

/* As the load's of these names. Readers add to those once a chunk: runs can be short, and the load's are shared. */
struct counters {
    uint64_t bytes_read, bytes_direct, bytes_in_place, read_count, read_ns, place_ns, copy_wait_ns;
    struct hr_place_counts placed;
};

struct hr_reader {
    struct hr_load *load;
    struct hr_io *io;      /* of the load's backend */
    struct hr_io *cold_io; /* of its cold backend; NULL until a chunk wants it */
    uint32_t index;        /* among the load's readers */
    uint32_t slot_count;
    uint32_t depth, cold_depth;          /* reads that may be in flight */
    uint32_t reading, cold_reading;      /* reads in flight */
    uint32_t free_count;                 /* slots without a chunk */
    struct slot *read_last;              /* read, and about to be placed; NULL: none */
    struct slot *blocked;                /* ready to read, but the budget was spent */
    struct slot *copy_first, *copy_last; /* slots whose copies are under way, oldest first */
    const struct hr_plan_chunk *wanted;  /* taken and left again: there was no descriptor or no staging slot for it */
    struct hr_staging *waits_for;        /* the ring that had none; NULL: the gate, or a descriptor */
    int waits_at_gate;
    struct hr_fence **fences; /* of each slot and device */
    char *scratch;            /* of hr_chunk_send() */
    uint64_t cpu_from_ns;     /* processor time that the load knows of */
    struct counters counters; /* not yet added to the load's */
    struct slot slots[];
};

/* reader_moves.c. Errors go to the load. */
/* Starts the next operation of a slot's chunk, or has it placed, or ends it when the load is stopping. */
void hr_reader_advance(struct hr_reader *reader, struct slot *slot);
/*
 * Waits for one operation, one being in flight, and goes on with its chunk. The slot, when all of that was read: its share
 * of the budget is free, and it is to be placed; else NULL.
 */
struct slot *hr_reader_complete_read(struct hr_reader *reader);
/* The chunk has been read: on to its places, or behind the gate until that is open. */
void hr_reader_place(struct hr_reader *reader, struct slot *slot);
/* What was held behind the gate goes on, in a free slot. */
void hr_reader_take_over(struct hr_reader *reader, struct slot *slot, const struct held_chunk *held);
/* Whether a read has ended that nobody has seen yet. Those out of the page cache often end while they are started. */
int hr_reader_has_read(const struct hr_reader *reader);
/* Finishes the oldest copy if it is done, or with `block` once it is: 1, or 0 when it is not or there is none. */
int hr_reader_finish_copy(struct hr_reader *reader, int block);
/* Adds what the reader has counted to the load's counters. */
void hr_reader_add_counters(struct hr_reader *reader);

/* reader_again.c */
/* All of the chunk is read anew, into its buffer. */
void hr_reader_read_into_buffer(struct hr_reader *reader, struct slot *slot);
/* The operation has failed: 1 when the chunk is read again in another way, 0 when there is none, or a negative code. */
int hr_reader_read_again(struct hr_reader *reader, struct slot *slot, struct hr_error *err);

#endif
