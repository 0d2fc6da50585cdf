/*
 * spread_scene.h: loads of a process group whose ranks are threads (thread_group.h), each with a checkpoint and a loader
 * of its own, and checks of what they got. Whatever fails here ends the running cmocka test.
 */
#ifndef TESTS_SUPPORT_SPREAD_SCENE_H
#define TESTS_SUPPORT_SPREAD_SCENE_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "support/test_model.h"
#include "support/thread_group.h"

#define KIB UINT64_C(1024)

enum wait_by { BY_ALL, BY_NEXT, BY_BACKWARDS, BY_CANCEL, BY_FREE };

/* One rank's load: what it is asked for, and what became of it. */
struct job {
    const struct test_model *model;
    struct hr_checkpoint *checkpoint; /* the rank's own: as in a process of its own */
    struct hr_loader *loader;
    struct hr_load_options options;
    struct hr_item *items;
    struct hr_range (*ranges)[8]; /* of this rank, spelled out */
    enum wait_by by;
    size_t stop_after; /* BY_CANCEL, BY_FREE: so many items */
    int declines;
    int leaves;        /* the load is freed as soon as it has ended, well or not */
    int stays;         /* it is not, though it failed */
    uint64_t pause_ns; /* before the first wait */
    struct hr_load *load;
    struct hr_stats stats;
    int code;
    struct hr_error err;
};

struct scene_of_ranks {
    struct thread_group group;
    struct job jobs[THREAD_GROUP_MAX];
};

/* A model of twelve small tensors in two files; the same content whatever its name. */
void write_small(struct test_model *model, const char *name);

/*
 * Loaders, checkpoints and items for ranks that load `model` by their main function; what else they are asked for is set
 * in their jobs. `devices`: one for each rank, or NULL: host memory.
 */
void ranks_begin(struct scene_of_ranks *scene, const struct test_model *model, uint32_t world,
                 const char *const *devices, struct hr_loader_options loader_options);
void ranks_end(struct scene_of_ranks *scene);

/* The rank has every byte of its items. */
void check_rank(struct scene_of_ranks *scene, uint32_t rank);
/* What is ready on a rank, whose load may have failed and stays, is right. */
void check_ready(struct scene_of_ranks *scene, uint32_t rank);
/* All ranks have all of it, and together they have read each byte, and none twice. */
void check_all(struct scene_of_ranks *scene);

#endif
