/*
 * kernel_memory.h: how a kernel touches memory: the functions that place_parts.h and cast_parts.h leave to whoever
 * includes them. For nvcc only.
 */
#ifndef HR_DEVICE_KERNELS_KERNEL_MEMORY_H
#define HR_DEVICE_KERNELS_KERNEL_MEMORY_H

#include "device/kernels/place_parts.h"

HR_PLACE_FN struct hr_vector hr_vector_load(hr_place_u64 address)
{
    struct hr_vector vector;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(vector.low), "=l"(vector.high) : "l"(address));
    return vector;
}

HR_PLACE_FN void hr_vector_store(hr_place_u64 address, struct hr_vector vector)
{
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(vector.low), "l"(vector.high) : "memory");
}

HR_PLACE_FN void hr_byte_store(hr_place_u64 address, unsigned char byte)
{
    asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "r"((unsigned)byte) : "memory");
}

#endif
