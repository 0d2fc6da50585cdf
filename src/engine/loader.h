/*
 * loader.h: what loads of one loader share: checked options, what was probed once, devices with their lanes, and the
 * staging rings. Immutable after hr_loader_new(), but for the rings, which have locks of their own.
 */
#ifndef HR_ENGINE_LOADER_H
#define HR_ENGINE_LOADER_H

#include <headrace/headrace.h>

#include "base/limits.h"
#include "device/device.h"
#include "engine/flow.h"
#include "engine/staging.h"
#include "topo/placement.h"

struct loader_device {
    struct hr_device *device;
    struct hr_lane *lanes[HR_LANE_COUNT_MAX];
    uint32_t lane_count;            /* 0: host memory */
    struct hr_gds *gds;             /* HR_ROUTE_GDS: a ring of the device's memory; else NULL */
    struct hr_staging *device_ring; /* its slots */
};

struct hr_loader {
    uint32_t route;                /* as asked for */
    uint32_t thread_count;         /* most reader threads of a load */
    int threads_are_asked;         /* the caller gave that number */
    struct hr_placement placement; /* of its readers and staging */
    uint64_t chunk_bytes, arena_bytes;
    int chunk_is_asked; /* chunk_bytes was; else short loads may have smaller chunks */
    uint32_t queue_depth;
    struct loader_device *devices;
    uint32_t device_count;
    uint64_t remote_devices;    /* bit i: device i is filled out of staging */
    struct hr_staging *staging; /* NULL without such devices */
    struct hr_staging *bounces; /* the same for host memory: what is not read straight into place */
    struct hr_flow *flow;       /* its share of the process's budget of reads in flight */
    int keep_cache;             /* what storage delivers stays in the page cache */
    struct hr_allocator allocator;
    int uring_usable;
    char uring_detail[120]; /* why not */
    int fork_generation;
};

/* Cores for readers: those of the placement, else those of the process's affinity. */
uint32_t hr_loader_core_count(const struct hr_loader *loader);

#endif
