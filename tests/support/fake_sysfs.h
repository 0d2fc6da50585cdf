/*
 * fake_sysfs.h: a machine made of files: what lies below /sys comes from a tree that the test describes, the affinity of
 * every thread is the test's, and binding is recorded instead of done. The table in force is wrapped, under faults.h
 * when that is installed afterwards. Install and remove belong to one thread, while no load runs.
 */
#ifndef TESTS_SUPPORT_FAKE_SYSFS_H
#define TESTS_SUPPORT_FAKE_SYSFS_H

#include "topo/cpu_set.h"

/* One entry of the tree; its folders are made as they are needed. */
struct sysfs_entry {
    const char *path;   /* below /sys */
    const char *text;   /* of the file; NULL: a link */
    const char *target; /* of the link, below /sys */
};

struct fake_sysfs {
    const struct sysfs_entry *entries;
    size_t entry_count;
    uint32_t cpu_count;   /* for siblings */
    uint32_t core_stride; /* CPU i and i + core_stride share a core; 0: each its own */
    const char *affinity; /* as a list; NULL: it cannot be read */
    int refusal;          /* errno of binding threads and memory; 0 */
};

/* What was bound since the installation. */
struct fake_sysfs_bound {
    unsigned long thread_count; /* calls, refused ones too */
    unsigned long own_count;    /* of them on the thread that installed this */
    struct hr_cpu_set cpus;     /* of the last call */
    unsigned long memory_count;
    int node; /* of the last call */
};

void fake_sysfs_install(const struct fake_sysfs *machine);
void fake_sysfs_remove(void);
struct fake_sysfs_bound fake_sysfs_bound(void);

#endif
