/*
 * cold_subject.h: headrace with one device and one route, its loader kept, and what series of its loads took. In host
 * memory it loads into the caller's, touched before; on a GPU into arenas of the library, made anew in each load.
 */
#ifndef BENCH_COLD_SUBJECT_H
#define BENCH_COLD_SUBJECT_H

#include <headrace/headrace.h>

#include "raw_reader.h"
#include "report.h"

struct cold_subject {
    const char *device;
    enum hr_route route;
    const struct hr_checkpoint *checkpoint;
    const struct raw_files *files; /* of the checkpoint */
    struct hr_loader *loader;
    struct hr_item *items;
    uint64_t bytes; /* of all tensors */
};

/* Loads of a subject, or reads of the raw reader, one a round. */
struct series {
    size_t count;
    uint64_t bytes; /* of one trial */
    double seconds[TRIALS_MAX], cpu[TRIALS_MAX];
    double gained[TRIALS_MAX]; /* bytes of the files that the page cache held after, less those before */
    double direct[TRIALS_MAX]; /* bytes read past the page cache */
    double ratio[TRIALS_MAX];  /* as fast as what it is compared with */
    double share[TRIALS_MAX];  /* half resident only: of the files' bytes, in the page cache before */
    struct hr_stats stats;     /* of the last one */
    uint64_t compared_bytes;   /* with the files; of the last one, where that was asked for */
};

/* Bytes that cold_subject_open() wants as memory of host loads. */
uint64_t cold_memory_bytes(const struct hr_checkpoint *checkpoint);

/* `subject` has all but loader, items, bytes. `memory` is for host memory only. 0, or a code of `err`. */
int cold_subject_open(struct cold_subject *subject, char *memory, struct hr_error *err);
void cold_subject_close(struct cold_subject *subject);

/* One load. Afterwards, untimed and `compare` not 0: what was loaded is compared with the files (some bytes). */
void cold_subject_trial(const struct cold_subject *subject, struct series *series, int compare);

/* Bytes of all files that are in the page cache. */
uint64_t cold_resident(const struct raw_files *files);

#endif
