/*
 * place.cu: the placing kernel: the moves of device/place.h, 48 GB/s from pinned host memory where the link gives 50.
 * What a thread does is in place_parts.h; here is how a block gets its moves. Any number of blocks and of threads a block
 * will do.
 *
 * Sources change between launches, never during one, so ordinary cached loads see them as they are. Two launches
 * at once must not share a line of 128 bytes of which the host fills a part between their starts: staging slots lie on
 * pages.
 */
#include "device/kernels/kernel_memory.h"

extern "C" __global__ void __launch_bounds__(1024) hr_place(const struct hr_move *moves, unsigned count)
{
    __shared__ struct hr_move batch[HR_PLACE_BATCH];
    if (count == 0)
        return;
    const struct hr_place_walk walk = hr_place_walk(blockIdx.x, gridDim.x, count);
    if (walk.part >= walk.parts)
        return;
    for (hr_place_u64 first = walk.first; first < count; first += (hr_place_u64)walk.step * HR_PLACE_BATCH) {
        unsigned taken = hr_place_batch(first, walk.step, count);
        for (unsigned i = threadIdx.x; i < taken; i += blockDim.x)
            batch[i] = moves[first + (hr_place_u64)i * walk.step];
        __syncthreads();
        hr_place_moves(batch, taken, &walk, threadIdx.x, blockDim.x);
        __syncthreads();
    }
}
