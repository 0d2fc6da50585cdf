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

/* HR_EFORKED in a forked child of the process that made an object, when hr_fork_generation() was `generation`. */
int hr_fork_check(int generation, const char *what, struct hr_error *err);

/*
 * Copies a caller's option struct of `given_size` bytes (its first member) over `known_size` bytes of ours. What
 * the caller lacks stays zero; a longer struct is refused unless its tail is zero. `given` may be NULL.
 */
int hr_options_copy(void *ours, size_t known_size, const void *given, const char *what, struct hr_error *err);

#endif
