/*
 * convert_avx512.c: the steps of conversions for x86-64 processors with the parts of AVX-512 that all of them have since
 * Skylake.
 */
#ifdef __x86_64__
#define HR_LOOP_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define HR_LOOP_TABLE hr_steps_avx512
#include "convert/convert_loops.h"
#endif
