/*
 * convert_steps.h: the loops that a conversion is a chain of: from a dtype to its wide type, from one wide type to
 * another, and from there to a dtype (convert_parts.h). Each instruction set has a table of them.
 */
#ifndef HR_CONVERT_CONVERT_STEPS_H
#define HR_CONVERT_CONVERT_STEPS_H

#include <headrace/headrace.h>

/* Elements a turn of every loop: with a count that is known, compilers make vectors of them and no remainder. */
#define HR_STEP_ELEMENTS 64

/* `count` is a multiple of HR_STEP_ELEMENTS; no alignment is needed; the two do not overlap. */
typedef void hr_step(void *target, const void *source, uint64_t count);

/* By dtype; NULL where the dtype is its wide type, or of another kind. */
struct hr_steps {
    hr_step *f32_load[HR_DTYPE_COUNT], *f32_store[HR_DTYPE_COUNT];
    hr_step *i64_load[HR_DTYPE_COUNT], *i64_store[HR_DTYPE_COUNT];
    hr_step *f64_to_integer[HR_DTYPE_COUNT];
    hr_step *f8_to_bf16[HR_DTYPE_COUNT]; /* where there is a way without F32 */
    hr_step *f32_to_f64, *f64_to_f32;
    hr_step *i64_to_f32, *i64_to_f64, *u64_to_f32, *u64_to_f64;
};

extern const struct hr_steps hr_steps_portable;
#ifdef __x86_64__
extern const struct hr_steps hr_steps_avx2, hr_steps_avx512;
#endif

#endif
