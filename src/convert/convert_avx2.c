/*
 * convert_avx2.c: the steps of conversions for x86-64 processors with AVX2.
 */
#ifdef __x86_64__
#define HR_LOOP_TARGET __attribute__((target("avx2")))
#define HR_LOOP_TABLE hr_steps_avx2
#include "convert/convert_loops.h"
#endif
