/*
 * loader.h: what loads of one loader share: checked options and what was probed once. Immutable after
 * hr_loader_new().
 */
#ifndef HR_ENGINE_LOADER_H
#define HR_ENGINE_LOADER_H

#include <headrace/headrace.h>

struct hr_loader {
    uint32_t route;        /* as asked for */
    uint32_t thread_count; /* most reader threads of a load */
    uint64_t chunk_bytes, arena_bytes;
    uint32_t queue_depth;
    uint32_t device_count;
    struct hr_allocator allocator;
    int uring_usable;
    char uring_detail[120]; /* why not */
    int fork_generation;
};

#endif
