/*
 * cast.cu: the converting kernel: moves of device/place.h whose elements become those of another dtype, read from where
 * they are, pinned host memory mostly, and written to where they belong, so that a conversion takes no memory. What a
 * thread does is in cast_parts.h; here is how a block gets its moves. Any number of blocks, of at most 512 threads.
 */
#include "device/kernels/cast_parts.h"
#include "device/kernels/kernel_memory.h"

HR_PLACE_FN void hr_word_store(hr_place_u64 address, hr_place_u64 word, unsigned bytes)
{
    if (bytes == 8)
        asm volatile("st.global.u64 [%0], %1;" : : "l"(address), "l"(word) : "memory");
    else
        asm volatile("st.global.u32 [%0], %1;" : : "l"(address), "r"((unsigned)word) : "memory");
}

extern "C" __global__ void __launch_bounds__(512) hr_cast(const struct hr_move *moves, unsigned count)
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
        hr_cast_moves(batch, taken, &walk, threadIdx.x, blockDim.x);
        __syncthreads();
    }
}
