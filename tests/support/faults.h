/*
 * faults.h: a system table that counts calls, fails chosen ones, and knows what is still alive. It wraps the table
 * in force when it is installed, so it can be put over a fake storage. Thread-safe; install, remove and the sweep
 * belong to one thread, while no object of the library exists.
 */
#ifndef TESTS_SUPPORT_FAULTS_H
#define TESTS_SUPPORT_FAULTS_H

#include <headrace/headrace.h>

enum fault_class {
    FAULT_MEMORY = 1 << 0, /* alloc, resize */
    FAULT_MAP = 1 << 1,    /* map, advise, mincore; unmap is counted and never fails */
    FAULT_OPEN = 1 << 2,   /* open, duplicate */
    FAULT_CLOSE = 1 << 3,  /* closes, and says that it failed */
    FAULT_STAT = 1 << 4,   /* stat, fstat, cachestat, and what else is asked about files */
    FAULT_READ = 1 << 5,   /* preadv */
    FAULT_DIR = 1 << 6,    /* dir_open, dir_next */
    FAULT_THREAD = 1 << 7,
    FAULT_RING = 1 << 8,      /* ring_init, ring_submit, ring_wait */
    FAULT_ADVICE = 1 << 9,    /* fadvise */
    FAULT_BIND = 1 << 10,     /* affinity_get, affinity_set, memory_prefer */
    FAULT_WRITE = 1 << 11,    /* create, pwritev, allocate, set_mode, sync, rename; unlink never fails */
    FAULT_REGISTER = 1 << 12, /* ring_buffers, ring_buffer_set; ring_buffers_free is never failed */
    FAULT_CLASS_COUNT = 13,
    FAULT_ALL = (1 << 13) - 1
};

/* What was made and not given back since faults_install. */
struct faults_live {
    long allocation_count;
    long mapping_bytes; /* whole pages */
    long descriptor_count;
    long dir_count;
    long ring_count;
    long thread_count; /* whose main function has not returned */
};

void faults_install(void); /* nothing fails until faults_fail() */
void faults_remove(void);  /* puts the table back that was wrapped */

/*
 * Fails the n-th call from now of `classes`, counted together; n = 0: none any more. The call returns -error, or
 * NULL where it returns memory; error 0: what fits the class (ENOMEM, EIO, EMFILE, EAGAIN for threads).
 */
void faults_fail(unsigned classes, unsigned long n, int error);
/* The same for the n-th and every later one. */
void faults_fail_from(unsigned classes, unsigned long n, int error);
/* Calls that were failed since the last faults_fail or faults_fail_from. */
unsigned long faults_fired(void);
/* Calls of `classes` since the installation. */
unsigned long faults_count(unsigned classes);

struct faults_live faults_live(void);
/* Fails the running cmocka test when something is alive. */
void faults_assert_nothing_live(void);

/*
 * One use of the library from nothing to nothing. Returns 0 or the library's code, with `err` as the library left
 * it. It checks itself what it got: bytes on success, untouched outputs on failure.
 */
typedef int (*fault_scenario)(void *context, struct hr_error *err);

/*
 * Runs `scenario` failing the n-th call of `classes` for n = 1, 2, 3 ... until a run meets no failure. Each failing
 * run must end in success (what failed was not needed) or in a listed code with a message and err->code the same;
 * it must leave nothing alive, and a clean run after it must succeed. A violation prints n and fails the test.
 * Returns the number of runs that met a failure. Installs and removes the table itself.
 */
unsigned long faults_sweep(unsigned classes, int error, fault_scenario scenario, void *context);

#endif
