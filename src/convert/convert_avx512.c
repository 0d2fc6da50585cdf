/*
 * convert_avx512.c: the steps of conversions for x86-64 processors with the parts of AVX-512 that all of them have since
 * Skylake.
 */
#ifdef __x86_64__
#include <immintrin.h>
#include <stdint.h>

#define HR_LOOP_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define HR_LOOP_TABLE hr_steps_avx512
#define HR_LOOP_HAS_F16

HR_LOOP_TARGET static void f32_load_F16(void *target_bytes, const void *source_bytes, uint64_t count)
{
    float *target = target_bytes;
    const uint16_t *source = source_bytes;
    for (uint64_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(target + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(source + i))));
}

HR_LOOP_TARGET static void f32_store_F16(void *target_bytes, const void *source_bytes, uint64_t count)
{
    uint16_t *target = target_bytes;
    const float *source = source_bytes;
    for (uint64_t i = 0; i < count; i += 16)
        _mm256_storeu_si256((__m256i *)(target + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
}

#include "convert/convert_loops.h"
#endif
