/*
 * in_place.h: what of a run O_DIRECT can bring straight to its place in host memory: whole pages of the file that lie in
 * the run, where the place agrees with the file to what the drive asks of addresses (statx: stx_dio_mem_align; 4 bytes
 * for NVMe, 512 for most virtual drives). The rest of the run, up to a page at each end, goes through a buffer, so nothing
 * is ever written beside a run. It knows runs and pages; neither slots nor files.
 */
#ifndef HR_ENGINE_IN_PLACE_H
#define HR_ENGINE_IN_PLACE_H

#include "plan/plan.h"

/* Of the file; empty: begin == end, and both are where the run begins. */
struct in_place_range {
    uint64_t begin, end;
};

/*
 * Whether memory is worth reading to. Of small pages each is an entry of the drive's list: on a virtual drive that took
 * 0.07 s of processor time a GB, more than the copy that it saves, and a third of the bandwidth was left. Makes pages that
 * do not exist yet.
 */
int hr_in_large_pages(const void *memory, uint64_t bytes);

/* `place`: where the run's first byte belongs. `memory_alignment`: a power of two; 0: nothing is in place. */
struct in_place_range hr_in_place(const struct hr_run *run, const char *place, uint32_t memory_alignment);

#endif
