/*
 * convert_loops.h: the steps of convert_steps.h, for the instruction set that whoever includes this names: HR_LOOP_TARGET is
 * the attribute of its functions, HR_LOOP_TABLE the table to define. Not guarded, since each of its files includes it once.
 */
#include "convert/convert_parts.h"
#include "convert/convert_steps.h"

/* Elements wherever they lie. */
typedef uint8_t loop_u8;
typedef uint16_t loop_u16 __attribute__((aligned(1)));
typedef uint32_t loop_u32 __attribute__((aligned(1)));
typedef uint64_t loop_u64 __attribute__((aligned(1)));

#define LOOP(name, target_type, source_type, expression)                                                            \
    HR_LOOP_TARGET static void name(void *restrict target_bytes, const void *restrict source_bytes, uint64_t count) \
    {                                                                                                               \
        target_type *target = target_bytes;                                                                         \
        const source_type *source = source_bytes;                                                                   \
        for (uint64_t at = 0; at < count; at += HR_STEP_ELEMENTS)                                                   \
            for (unsigned i = 0; i < HR_STEP_ELEMENTS; i++) {                                                       \
                source_type bits = source[at + i];                                                                  \
                target[at + i] = (target_type)(expression);                                                         \
            }                                                                                                       \
    }

/* X(dtype, the unsigned integer that holds it) */
#define OTHER_SMALL_FLOATS(X) \
    X(BF16, loop_u16)         \
    X(F8_E4M3, loop_u8) X(F8_E5M2, loop_u8) X(F8_E4M3FNUZ, loop_u8) X(F8_E5M2FNUZ, loop_u8) X(F8_E8M0, loop_u8)
#define SMALL_FLOATS(X) X(F16, loop_u16) OTHER_SMALL_FLOATS(X)
#define NARROW_INTEGERS(X) \
    X(BOOL, loop_u8)       \
    X(I8, loop_u8) X(U8, loop_u8) X(I16, loop_u16) X(U16, loop_u16) X(I32, loop_u32) X(U32, loop_u32)
#define INTEGERS(X) NARROW_INTEGERS(X) X(I64, loop_u64) X(U64, loop_u64)

/* Where processors convert F16 themselves, whoever includes this has these two loops. */
#ifndef HR_LOOP_HAS_F16
LOOP(f32_load_F16, loop_u32, loop_u16, hr_f32_load(HR_DTYPE_F16, bits))
LOOP(f32_store_F16, loop_u16, loop_u32, hr_f32_store(HR_DTYPE_F16, bits))
#endif

#define FLOAT_LOOPS(dtype, type)                                                \
    LOOP(f32_load_##dtype, loop_u32, type, hr_f32_load(HR_DTYPE_##dtype, bits)) \
    LOOP(f32_store_##dtype, type, loop_u32, hr_f32_store(HR_DTYPE_##dtype, bits))
OTHER_SMALL_FLOATS(FLOAT_LOOPS)

/* The frequent pairs for which the way through F32 would cost more than all the rest. */
LOOP(bf16_of_e4m3, loop_u16, loop_u8, hr_bf16_of_e4m3(bits))
LOOP(bf16_of_e5m2, loop_u16, loop_u8, hr_bf16_of_e5m2(bits))

#define INTEGER_LOOPS(dtype, type)                                              \
    LOOP(i64_load_##dtype, loop_u64, type, hr_i64_load(HR_DTYPE_##dtype, bits)) \
    LOOP(i64_store_##dtype, type, loop_u64, hr_i64_store(HR_DTYPE_##dtype, bits))
NARROW_INTEGERS(INTEGER_LOOPS)

#define F64_LOOP(dtype, type) LOOP(f64_to_integer_##dtype, type, loop_u64, hr_integer_of_f64(HR_DTYPE_##dtype, bits))
INTEGERS(F64_LOOP)

LOOP(f32_to_f64, loop_u64, loop_u32, hr_f64_of_f32(bits))
LOOP(f64_to_f32, loop_u32, loop_u64, hr_f32_of_f64(bits))
LOOP(i64_to_f32, loop_u32, loop_u64, hr_f32_of_integer(HR_DTYPE_I64, bits))
LOOP(i64_to_f64, loop_u64, loop_u64, hr_f64_of_integer(HR_DTYPE_I64, bits))
LOOP(u64_to_f32, loop_u32, loop_u64, hr_f32_of_integer(HR_DTYPE_U64, bits))
LOOP(u64_to_f64, loop_u64, loop_u64, hr_f64_of_integer(HR_DTYPE_U64, bits))

#define ENTRY_F32_LOAD(dtype, type) [HR_DTYPE_##dtype] = f32_load_##dtype,
#define ENTRY_F32_STORE(dtype, type) [HR_DTYPE_##dtype] = f32_store_##dtype,
#define ENTRY_I64_LOAD(dtype, type) [HR_DTYPE_##dtype] = i64_load_##dtype,
#define ENTRY_I64_STORE(dtype, type) [HR_DTYPE_##dtype] = i64_store_##dtype,
#define ENTRY_F64(dtype, type) [HR_DTYPE_##dtype] = f64_to_integer_##dtype,

const struct hr_steps HR_LOOP_TABLE = {
    .f32_load = {SMALL_FLOATS(ENTRY_F32_LOAD)},
    .f32_store = {SMALL_FLOATS(ENTRY_F32_STORE)},
    .i64_load = {NARROW_INTEGERS(ENTRY_I64_LOAD)},
    .i64_store = {NARROW_INTEGERS(ENTRY_I64_STORE)},
    .f64_to_integer = {INTEGERS(ENTRY_F64)},
    .f8_to_bf16 = {[HR_DTYPE_F8_E4M3] = bf16_of_e4m3, [HR_DTYPE_F8_E5M2] = bf16_of_e5m2},
    .f32_to_f64 = f32_to_f64,
    .f64_to_f32 = f64_to_f32,
    .i64_to_f32 = i64_to_f32,
    .i64_to_f64 = i64_to_f64,
    .u64_to_f32 = u64_to_f32,
    .u64_to_f64 = u64_to_f64,
};
