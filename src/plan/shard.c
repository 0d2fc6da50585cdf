/*
 * shard.c: the block rule of tensor parallelism.
 */
#include <headrace/headrace.h>

void hr_shard_range(uint64_t extent, uint32_t rank, uint32_t world, struct hr_range *ret_range)
{
    struct hr_range range = {0, 0, 1};
    if (extent && rank < world) {
        uint64_t block = extent / world + (extent % world != 0);
        range.start = rank <= extent / block ? rank * block : extent;
        range.stop = extent - range.start < block ? extent : range.start + block;
    }
    *ret_range = range;
}
