/*
 * convert_avx2.c: the steps of conversions for x86-64 processors with AVX2.
 */
#ifdef __x86_64__
#include <immintrin.h>
#include <stdint.h>

#define HR_LOOP_TARGET __attribute__((target("avx2,f16c")))
#define HR_LOOP_TABLE hr_steps_avx2
#define HR_LOOP_HAS_F16

HR_LOOP_TARGET static void f32_load_F16(void *target_bytes, const void *source_bytes, uint64_t count)
{
    float *target = target_bytes;
    const uint16_t *source = source_bytes;
    for (uint64_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + i))));
}

HR_LOOP_TARGET static void f32_store_F16(void *target_bytes, const void *source_bytes, uint64_t count)
{
    uint16_t *target = target_bytes;
    const float *source = source_bytes;
    for (uint64_t i = 0; i < count; i += 8)
        _mm_storeu_si128((__m128i *)(target + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
}

#include "convert/convert_loops.h"
#endif
