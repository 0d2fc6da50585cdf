/*
 * gds_read.h: a chunk by GPUDirect Storage: read into a slot of device memory, and spread from there. It knows chunks,
 * slots and lanes; neither threads nor queues.
 */
#ifndef HR_ENGINE_GDS_READ_H
#define HR_ENGINE_GDS_READ_H

#include "device/gds.h"
#include "engine/load.h"
#include "engine/staging.h"

/* What reading did, to be added up. */
struct gds_counts {
    uint64_t bytes_read, read_count, read_ns, copy_wait_ns;
};

/*
 * Reads the chunk's runs, in pages of the alignment, and puts their moves into the lane; `fence` stands for all of it
 * afterwards. What does not fit into the slot at once goes through it in parts. `fd` is the chunk's file. Blocks. On
 * failure nothing of it is in the lane any more.
 */
int hr_gds_read_chunk(struct hr_load *load, const struct hr_plan_chunk *chunk, int fd,
                      const struct hr_staging_slot *slot, struct hr_lane *lane, struct hr_fence *fence,
                      uint32_t reader_index, struct gds_counts *counts, struct hr_place_counts *placed,
                      struct hr_error *err);

#endif
