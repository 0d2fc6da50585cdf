/*
 * load.h: one running load, as its parts share it. prepare.c makes it, load.c starts and ends it, load_stats.c tells what
 * it did, window.c makes destinations, chunks.c gives chunks out, reader.c and reader_moves.c move them, wait.c hands
 * items out, deliver.c describes and exports them.
 *
 * One lock guards everything that is not marked otherwise; it is never held across a system call, a callback or
 * another lock. Readers sleep on `work`, waiters on `done`.
 *
 * The life of an item:  PLANNED -> ADMITTED (its memory exists, its chunks are queued) -> READY (its last byte has
 * landed and its file was found unchanged after that). An error ends the load: what is READY stays usable, what
 * is not never becomes so.
 */
#ifndef HR_ENGINE_LOAD_H
#define HR_ENGINE_LOAD_H

#include <headrace/headrace.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "catalog/checkpoint.h"
#include "engine/block.h"
#include "engine/files.h"
#include "engine/loader.h"
#include "io/io.h"
#include "plan/plan.h"

enum item_status { ITEM_PLANNED, ITEM_ADMITTED, ITEM_READY };

struct load_item {
    _Atomic uint64_t bytes_left; /* of its stream; readers subtract, the one that reaches 0 makes it ready */
    struct hr_block *block;      /* NULL: the caller's memory, no memory, or dropped */
    char *data;                  /* set before ADMITTED, then constant */
    uint8_t status;              /* enum item_status */
    uint8_t handed_out, dropped, urgent;
    uint8_t mapped; /* its bytes need no reading; constant once ADMITTED */
};

enum group_status {
    GROUP_PLANNED,
    GROUP_BEING_MADE, /* some thread is making its destinations */
    GROUP_ADMITTED
};

struct load_group {
    uint8_t status;
    size_t items_left; /* not handed out */
};

/* COLD: it was known then that storage has to deliver it, and hr_heat.cold_busy counts it. */
enum chunk_taken { CHUNK_FREE, CHUNK_TAKEN, CHUNK_TAKEN_COLD };

/* A queue of indices that never holds more than it was made for. */
struct index_queue {
    size_t *indices;
    size_t first, count, capacity;
};

/* The groups of one device whose memory exists, in the order of admission. */
struct device_queue {
    struct index_queue groups;
    size_t chunk_next; /* how far the first of them was given out */
};

/* Who converts what goes to GPUs. */
struct load_casts {
    /* constant after the start */
    int on_gpu, gpu_can; /* something does; all GPUs that it goes to have what they need for it */
    char why_not[120];
    atomic_int by_host; /* some reader had to convert for a GPU */
};

/* What a reader waits for storage with; written by it, read by anybody. */
struct reader_activity {
    _Atomic uint64_t since_ns; /* of its last progress while reads are in flight; 0: none are */
    _Atomic size_t file_index; /* of the read that was started last */
    _Atomic uint64_t offset;
};

/* A chunk that was read into its staging slot, and waits for the gate (gate.h). */
struct held_chunk {
    const struct hr_plan_chunk *chunk;
    struct hr_staging *ring;
    struct hr_staging_slot *staging;
    char *buffer; /* as of struct slot */
    int is_span;
};

/* Slots on a device that a feed (feed.h) reads to, borrowed. */
struct hr_feed_slots {
    char *memory;
    struct hr_lane **lanes; /* GPUs: by slot, what goes there goes by it */
};

struct hr_load {
    /* constant after the start */
    struct hr_loader *loader;
    const struct hr_checkpoint *checkpoint;
    struct hr_load_options options;
    void **streams; /* by device, or NULL: a copy of the option's */
    struct hr_plan plan;
    struct hr_files *files;
    size_t file_count;              /* that have chunks */
    struct hr_gds_files *gds_files; /* HR_ROUTE_GDS; else NULL */
    const struct hr_io_backend *backend;
    const struct hr_io_backend *cold_backend; /* with `heat`: for what storage must deliver */
    uint32_t cold_depth;                      /* reads of that in flight for each reader */
    struct hr_heat *heat;                     /* NULL: all chunks are read alike */
    struct load_casts casts;
    uint32_t route;
    char route_reason[160];
    uint32_t queue_depth;
    int has_group; /* of several ranks */
    struct hr_group group;
    struct hr_spreader *spreader;    /* what it spreads (spreader.h); NULL: nothing */
    int is_feed;                     /* the reading of another load's spread items (feed.h) */
    struct hr_feed_slots feed_slots; /* is_feed: where they go */
    uint64_t feed_slot_bytes;
    int storage_node; /* of the first file's drive; -1: not known, or of no interest */
    int fork_generation;
    uint64_t start_ns;
    pthread_t *threads;
    uint32_t thread_count;              /* started; constant after the start */
    uint32_t thread_wanted;             /* readers that there is work for */
    struct reader_activity *activities; /* by reader */
    uint32_t activity_count;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct load_item *items;
    struct load_group *groups;
    uint8_t *chunk_taken; /* enum chunk_taken */
    size_t *left_chunks;  /* taken and left again, in no order */
    size_t left_count;
    struct hr_block **file_maps; /* by file, HR_ROUTE_MMAP */
    struct index_queue urgent;   /* items that somebody waits for; their chunks come first */
    size_t urgent_chunk;         /* how far the first of them was given out */
    struct device_queue *queued; /* one for each device of the loader */
    struct index_queue ready;    /* items, in the order of readiness */
    /* gate.h: groups whose places are free, and those of them whose lanes wait for nothing; set under the lock */
    _Atomic size_t gate, gate_clear;
    size_t gate_ahead; /* chunks that may be early; constant after the start */
    struct held_chunk *held_chunks;
    size_t held_count, gate_waiter_count;
    size_t needed_group;   /* that the spreader waits for, or SIZE_MAX: who sleeps makes it */
    uint32_t device_turn;  /* whose chunk comes next */
    uint32_t reader_limit; /* readers from this index on end; constant once bytes may be read */
    int unmet;             /* the ranks have not met: nothing may be read */
    int spread_is_over;    /* this rank takes part in no further collective of the load */
    size_t group_next;     /* the first group that may still be PLANNED */
    size_t items_ready, items_handed_out;
    uint64_t progress_next_ns; /* when the callback is due, whoever waits then */
    uint64_t event_count;      /* items made ready, groups published, window opened: who saw fewer has to look again */
    uint64_t window_bytes, window_peak_bytes;
    uint64_t ready_ns;              /* when the last item became ready */
    struct hr_reader *spare_reader; /* sequential loads: kept for the next waiting thread */
    atomic_int stopping;            /* set under the lock; readers begin nothing more */
    struct hr_error error;          /* the first one; code 0 while there is none */

    atomic_int binding_error; /* errno of a reader that could not be bound; 0 */
    atomic_int has_fixed;     /* of hr_io_backend: the worst of all readers */

    /* counters: readers and waiters add, anybody reads */
    _Atomic uint64_t bytes_ready, bytes_landed, bytes_read, bytes_allocated, read_count;
    _Atomic uint64_t bytes_direct, bytes_in_place, bytes_sent, copy_count, kernel_count;
    _Atomic uint64_t bytes_received, bytes_spread, collective_count, group_wait_ns;
    _Atomic uint64_t plan_ns, allocate_ns, wait_ns, read_ns, place_ns, idle_ns, copy_wait_ns, cpu_ns;
};

/*
 * window.c. The lock is not held; a failure is recorded as the load's and returned.
 * Makes the destinations of a group on this thread and queues its chunks, unless that was done before.
 */
int hr_load_admit_group(struct hr_load *load, size_t group_index);
/* Admits groups in plan order as far as the window allows. */
int hr_load_admit_window(struct hr_load *load);

/* What a feed has beyond a load of the caller's. */
struct hr_load_feed {
    const size_t *group_keys; /* as of hr_plan_options */
    uint64_t chunk_bytes;
    int has_no_grid;
};

/*
 * prepare.c: a load that is planned and has moved nothing yet. `feed`: NULL for the caller's. On success hr_load_free()
 * ends it.
 */
int hr_load_prepare(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                    size_t item_count, const struct hr_load_options *options, const struct hr_load_feed *feed,
                    struct hr_load **ret_load, struct hr_error *err);

/* load.c */
/* Starts as many readers as there is work for. */
int hr_load_start_readers(struct hr_load *load, struct hr_error *err);
/* Records the first error and wakes everybody; the lock is not held. */
void hr_load_fail(struct hr_load *load, const struct hr_error *err);
/* The load's error, copied to `err`; the lock is held. */
int hr_load_error(const struct hr_load *load, struct hr_error *err);
/* Marks an item ready; the lock is held. The caller broadcasts `done`. */
void hr_load_item_ready(struct hr_load *load, size_t item_index);
/*
 * wait.c: a load that has all its items reads on for other ranks, until they need nothing more of this one, or something
 * fails, or the deadline passes.
 */
void hr_load_serve(struct hr_load *load);
/*
 * wait.c: of a waiting thread that sleeps elsewhere: does what is due now, deadline and progress, and says when it must be
 * called again. Negative: the load's error. The lock is not held.
 */
int hr_load_do_due(struct hr_load *load, uint64_t *ret_next_ns, struct hr_error *err);
/* Wakes `count` of the readers that sleep, or all where some wait for a chunk of their own. The lock is held. */
void hr_load_wake_readers(struct hr_load *load, size_t count);
/* chunks.c: the pieces are in their places. The lock is not held. */
void hr_load_pieces_landed(struct hr_load *load, const struct hr_plan_piece *pieces, size_t piece_count);
/* load_stats.c: where readers and staging are, or why not at the GPU's node; of a load to GPUs. */
void hr_load_describe_placement(const struct hr_load *load, char *text, size_t capacity);
/* Fails unless there is a load and it is of this process; and unless the item exists. */
int hr_load_check(const struct hr_load *load, struct hr_error *err);
int hr_load_check_item(const struct hr_load *load, size_t item_index, struct hr_error *err);

void hr_queue_push(struct index_queue *queue, size_t index);
size_t hr_queue_pop(struct index_queue *queue);

#endif
