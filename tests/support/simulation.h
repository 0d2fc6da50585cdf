/*
 * simulation.h: a random load: a checkpoint, a request over it, host memory or a GPU or both, options, a disk that
 * misbehaves, and what goes wrong otherwise. Everything follows from one seed; which read meets which fault also depends on how the threads run.
 * Knows what may come of a scenario; running it and judging what came is the test's.
 */
#ifndef TESTS_SUPPORT_SIMULATION_H
#define TESTS_SUPPORT_SIMULATION_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "support/counting_allocator.h"
#include "support/fake_storage.h"
#include "support/test_model.h"

#define SIM_TENSOR_MAX 24
#define SIM_ITEM_MAX 32
#define SIM_GUARD_BYTES 64
#define SIM_SEEDS_PER_MODEL 16 /* neighbours share a checkpoint, because writing one takes longer than loading it */

enum sim_change { SIM_TRUNCATE, SIM_GROW, SIM_REGROW, SIM_REPLACE, SIM_REWRITE, SIM_REMOVE, SIM_CHANGE_COUNT };

/* What happens to a file; done without the library and on any thread. */
struct sim_mutation {
    enum sim_change change;
    const char *path, *other_path; /* `other_path`: an equally large file of other content */
    uint64_t size, offset;         /* of the file before; where it is cut or rewritten */
};

enum sim_order { SIM_NEXT, SIM_WAIT_IN_ORDER, SIM_WAIT_SHUFFLED, SIM_WAIT_ALL, SIM_MIXED, SIM_ORDER_COUNT };
enum sim_stop { SIM_STOP_NOT, SIM_STOP_CANCEL, SIM_STOP_FREE };

/* What can make a load end early; a load without any of them must deliver everything. */
enum sim_cause {
    SIM_BAD_PLACE = 1 << 0,
    SIM_CHANGED = 1 << 1,
    SIM_CANCELLED = 1 << 2,
    SIM_DEADLINE = 1 << 3,
    SIM_NO_MEMORY = 1 << 4,
    SIM_ANY_CALL = 1 << 5
};

/* An item's slice and, where the caller owns its memory, that memory between two guards. */
struct sim_item {
    struct hr_range ranges[8];
    int64_t strides[8];
    uint8_t *buffer;     /* on the item's device */
    size_t buffer_bytes; /* without the guards */
};

struct sim {
    uint64_t seed, random;
    const struct test_model *model;
    struct hr_item items[SIM_ITEM_MAX];
    struct sim_item parts[SIM_ITEM_MAX];
    size_t item_count;
    const char *devices[2];
    size_t device_count; /* 0: host memory without its being named */
    struct hr_loader_options loader_options;
    struct hr_load_options load_options;
    struct counting_allocator counting;
    struct fake_storage storage;
    struct sim_mutation mutation;
    int mutate, mutate_first; /* at all; before the load begins */
    unsigned fault_classes;
    unsigned long fault_at; /* 0: none */
    unsigned causes;        /* enum sim_cause */
    enum sim_order order;
    size_t wait_order[SIM_ITEM_MAX];
    int helper; /* a second thread waits too */
    enum sim_stop stop;
    size_t stop_after;         /* items that were handed out */
    atomic_long progress_left; /* calls until the callback cancels; not above 0: never */
    atomic_int progress_wrong; /* it was told nonsense */
};

/* The checkpoint that belongs to a seed; its files are old, so that any change shows in their mtime. */
void sim_model_make(struct test_model *model, uint64_t seed);

/* A GPU must be open already (gpu.h): what opening it makes would count as the load's. */
void sim_init(struct sim *sim, uint64_t seed, const struct test_model *model);
void sim_release(struct sim *sim);

/* Whether a device of the loader's is a GPU. */
int sim_on_gpu(const struct sim *sim, uint32_t device_index);

/* struct sim_mutation */
void sim_mutate(void *mutation);
/* Fails the test when memory around the caller's buffers was written. */
void sim_check_guards(const struct sim *sim);
/* Whether the scenario may end with this code. */
int sim_allows(const struct sim *sim, int code);

#endif
