/*
 * fake_storage.h: a disk that misbehaves, under preadv and under io_uring alike. It wraps the table in force when it
 * is installed. What is random follows from the seed and the order of reads. Thread-safe; install and remove belong
 * to one thread, while no load runs.
 *
 * With io_uring the data goes past us: results are rewritten when they are fetched, and what is then said not to have
 * arrived is scribbled over. Completions that are there together are fetched in any order.
 *
 * A short read by O_DIRECT ends on 512 bytes, as a drive's would.
 */
#ifndef TESTS_SUPPORT_FAKE_STORAGE_H
#define TESTS_SUPPORT_FAKE_STORAGE_H

#include <stdint.h>

#include "base/sys.h"

/* Zero: everything works. */
struct fake_storage {
    uint64_t seed;
    unsigned short_percent;   /* of reads return fewer bytes than there are, at least one */
    unsigned eintr_percent;   /* of reads return -EINTR */
    unsigned eagain_percent;  /* of reads return -EAGAIN */
    uint64_t delay_ns;        /* each read takes that much longer */
    uint64_t delay_random_ns; /* and up to that much more */
    unsigned slow_percent;    /* of reads take slow_ns on top: the long tail of a distribution */
    uint64_t slow_ns;
    /* A drive that all reads share: each takes its turn at the bandwidth, and the latency on top. 0: as fast as it is. */
    double bandwidth; /* bytes a ns, which is GB/s */
    uint64_t latency_ns;
    unsigned reorder_percent; /* of completions of io_uring are overtaken by another; threads overtake by delays */
    int cold;                 /* cachestat and reads without waiting find nothing in the page cache, ... */
    uint64_t warm_bytes;      /* ... but the first bytes of each file */
    uint64_t descriptor_max;  /* the limit of descriptors that the library is told; 0: the real one */

    uint64_t fail_begin, fail_end; /* a read that touches these bytes of the file fails; empty range: none */
    const char *fail_path;         /* of this file only; NULL: of any file */
    int fail_error;                /* 0: EIO */

    /* what a kernel or a filesystem lacks: such calls fail with this errno; 0: they work */
    int cachestat_error, fadvise_error, mincore_error, may_write_error, alignment_error;
    int direct_open_error, direct_read_error; /* with O_DIRECT */
    int flags_error;                          /* reads with RWF_* */
    struct hr_direct_alignment alignment;     /* what O_DIRECT is said to want; zeros: the truth */
    int plays_direct;                         /* `alignment` is all that O_DIRECT wants, and it is held to */
    int small_pages;                          /* with plays_direct: memory is in small pages, else all in huge ones */
    uint32_t fs_magic;                        /* the filesystem's number; 0: the real one */

    unsigned long event_at; /* before the n-th read (from 1) `event` is called, once; 0: never */
    void (*event)(void *context);
    void *event_context;
};

/* `options` is copied; its pointers are borrowed until the removal. */
void fake_storage_install(const struct fake_storage *options);
void fake_storage_remove(void);

/* Reads that were started since the installation. */
unsigned long fake_storage_read_count(void);
/* With plays_direct: those that were refused since their alignment was wrong. */
unsigned long fake_storage_misaligned_count(void);

/* Ready-made events. */
struct fake_truncation {
    const char *path;
    uint64_t size;
};
void fake_event_truncate(void *truncation); /* struct fake_truncation */

void fake_event_refuse_direct(void *unused); /* from now on reads with O_DIRECT fail, EINVAL */
void fake_event_want_pages(void *unused);    /* from now on O_DIRECT wants memory on pages */

struct fake_replacement {
    const char *from, *to; /* rename(from, to) */
};
void fake_event_replace(void *replacement); /* struct fake_replacement */

#endif
