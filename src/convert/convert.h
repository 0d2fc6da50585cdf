/*
 * convert.h: elements of one dtype made into those of another, on the host. Knows dtypes and bytes and nothing else; no
 * thread, no system call. What a pair gives is said at hr_dtype_converts() in headrace.h; one element is done by
 * convert_parts.h, and the loops over many stand in convert_loops.h, built for several instruction sets.
 */
#ifndef HR_CONVERT_CONVERT_H
#define HR_CONVERT_CONVERT_H

#include <stdint.h>

/* 1 for a pair that hr_convert() takes; a dtype and itself are none. */
int hr_convert_is_known(uint32_t from, uint32_t to);

/*
 * Converts `count` elements that lie one behind the other. The pair is a known one. Neither side needs any alignment;
 * they do not overlap. Exactly the elements are read and written. The thread's floating-point mode and flags are as
 * before, and the result does not depend on them. Thread-safe.
 */
void hr_convert(uint32_t from, uint32_t to, void *target, const void *source, uint64_t count);

#endif
