/*
 * heat.h: how each chunk is read with the route "auto": what the page cache holds is copied from there, the rest is read
 * past it. Files are looked at once, before the first of their chunks is read; all chunks of a file that is held in part
 * too, since reading what is cached makes the kernel read ahead, and more seem to be. It knows files and ranges; neither
 * slots nor threads.
 */
#ifndef HR_ENGINE_HEAT_H
#define HR_ENGINE_HEAT_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/load.h"
#include "io/storage.h"

/* What the page cache held of a file when it was looked at. */
enum file_heat { HEAT_UNKNOWN, HEAT_HOT, HEAT_COLD, HEAT_MIXED };

/* CHUNK_EDGE: cached, and so close before what is not that reading it makes the kernel read ahead. */
enum chunk_kind { CHUNK_UNKNOWN, CHUNK_HOT, CHUNK_COLD, CHUNK_EDGE, CHUNK_KIND_COUNT };

struct hr_heat {
    pthread_mutex_t lock;          /* held while a file is looked at: others that want to know wait for the answer */
    atomic_int is_mixed;           /* some file is: hot chunks and cold ones are taken side by side */
    _Atomic uint8_t *kinds;        /* by chunk, enum chunk_kind; known for files that are held in part */
    size_t next[CHUNK_KIND_COUNT]; /* by kind: no chunk of it before this one is left to take; under the load's lock */
    size_t cold_busy;              /* cold chunks that are taken and not done; under the load's lock, as is `edges`: */
    struct index_queue edges;      /*   chunks at edges that came in their turn meanwhile */
    struct heat_of_file {
        uint8_t heat;                    /* enum file_heat */
        uint8_t has_cold;                /* a chunk of it was not cached */
        int error;                       /* -errno when it cannot be told */
        uint64_t asked, resident;        /* bytes of the places that were asked about, and of these in the page cache */
        struct hr_storage storage;       /* unless it is hot */
        uint64_t ahead_begin, ahead_end; /* read ahead for this load */
    } files[];
};

int hr_heat_new(size_t file_count, size_t chunk_count, struct hr_heat **ret_heat, struct hr_error *err);
void hr_heat_free(struct hr_heat *heat); /* NULL is allowed */

/* What was read ahead of the load's checkpoint is the load's from now on; nobody reads ahead of it any more. Once. */
void hr_heat_take_ahead(struct hr_load *load);
/* The same of a load that reads for another one, which has taken it. */
void hr_heat_share_ahead(struct hr_load *load, const struct hr_load *main);

/* Looks at a file, unless that was done; `fd` as below. */
struct heat_of_file hr_heat_of_file(struct hr_load *load, size_t file_index, int fd);

/* How a chunk is read. */
struct hr_chunk_reading {
    uint32_t mode;             /* enum hr_read_mode */
    int is_cold;               /* storage has to deliver it: many at once, within the budget of bytes in flight */
    uint32_t memory_alignment; /* with O_DIRECT: of host memory that may be read to; 0: of none */
};

/* 1 with *ret_reading when that is known without looking at the file. */
int hr_heat_is_known(struct hr_load *load, const struct hr_plan_chunk *chunk, struct hr_chunk_reading *ret_reading);
/* `fd`: the chunk's file without O_DIRECT. May block on storage when a file of a filesystem is met for the first time. */
struct hr_chunk_reading hr_heat_of_chunk(struct hr_load *load, const struct hr_plan_chunk *chunk, int fd);

/* What an O_DIRECT read of the chunk's file that was refused leaves. */
struct hr_chunk_reading hr_heat_without_direct(struct hr_load *load, const struct hr_plan_chunk *chunk);
/* What was refused was to be read straight to its places: chunks of the file that begin later go through buffers. */
void hr_heat_without_places(struct hr_load *load, const struct hr_plan_chunk *chunk);

/*
 * For the statistics: how what was not cached is read, and why not better; of the first such file. "" while there is
 * none. Does not block: also "" while a file is being looked at.
 */
void hr_heat_describe(struct hr_load *load, char *text, size_t capacity);

#endif
