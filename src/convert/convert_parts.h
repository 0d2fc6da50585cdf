/*
 * convert_parts.h: the conversion of one element, in the C that nvcc and a C compiler share: the loops of the host and
 * the kernels of a device give the same bits because they are made of the same functions. Elements are passed as their
 * bits in the low end of an integer. With constant dtypes everything is inlined into a few operations without a branch.
 *
 * A value goes through at most two wide types: it is loaded as F32 (floats), F64 (itself) or I64 (integers; U64 as its
 * bits), changed to the wide type of its target, and stored from there. So F64 reaches what is narrower than F32
 * through F32, and is rounded twice, as torch does. The rules stand at hr_dtype_converts() in headrace.h.
 *
 * Only additions, comparisons and casts of floats are used, which IEEE 754 fixes bit for bit in the default mode
 * (round to nearest even, subnormals kept); NaNs are made by hand, since processors differ in them.
 */
#ifndef HR_CONVERT_CONVERT_PARTS_H
#define HR_CONVERT_CONVERT_PARTS_H

#include <headrace/headrace.h>

#ifdef __CUDACC__
#define HR_CONVERT_FN static __device__ __forceinline__
#else
#define HR_CONVERT_FN static inline __attribute__((always_inline, unused))
#endif

typedef unsigned short hr_bits16;
typedef unsigned hr_bits32;
typedef unsigned long long hr_bits64;

#define HR_F32_INFINITY 0x7f800000u
#define HR_F64_INFINITY 0x7ff0000000000000ull

HR_CONVERT_FN float hr_f32_of_bits(hr_bits32 bits)
{
    union {
        hr_bits32 bits;
        float value;
    } both = {bits};
    return both.value;
}

HR_CONVERT_FN hr_bits32 hr_bits_of_f32(float value)
{
    union {
        float value;
        hr_bits32 bits;
    } both = {value};
    return both.bits;
}

HR_CONVERT_FN double hr_f64_of_bits(hr_bits64 bits)
{
    union {
        hr_bits64 bits;
        double value;
    } both = {bits};
    return both.value;
}

HR_CONVERT_FN hr_bits64 hr_bits_of_f64(double value)
{
    union {
        double value;
        hr_bits64 bits;
    } both = {value};
    return both.bits;
}

/* ------------------------------------------------------------------------------------------ small floats */

/* A sign, an exponent with this bias, and `mantissa_bits`. */
struct hr_small_float {
    unsigned mantissa_bits, bias;
};

/*
 * The magnitude of an F8 as that of a BF16, which holds every one of them; codes that are special are taken for numbers.
 * BF16's bits, over the code, are a concave line of straight pieces, one for each power of two of the subnormals and
 * one for all other numbers: the least of these pieces is right, except at zero. All fits 16 bits.
 */
HR_CONVERT_FN hr_bits16 hr_f8_load(hr_bits16 magnitude, struct hr_small_float type)
{
    hr_bits16 least = (hr_bits16)((magnitude << (7 - type.mantissa_bits)) + ((127 - type.bias) << 7));
    for (unsigned i = 1; i <= type.mantissa_bits; i++) {
        hr_bits16 piece = (hr_bits16)((magnitude << (7 - type.mantissa_bits + i)) + ((127 - type.bias - i) << 7));
        least = piece < least ? piece : least;
    }
    return magnitude ? least : 0;
}

/* The magnitude of an F32, rounded to nearest even; whatever is too large becomes `most`. */
HR_CONVERT_FN hr_bits32 hr_small_store(hr_bits32 magnitude, struct hr_small_float type, hr_bits32 most)
{
    unsigned shift = 23 - type.mantissa_bits;
    hr_bits32 even = magnitude >> shift & 1;
    hr_bits32 normal = (magnitude + ((1u << (shift - 1)) - 1) + even - ((127 - type.bias) << 23)) >> shift;
    /* A power of two whose last place is that of the subnormals makes the addition round. */
    hr_bits32 power = (128 - type.bias + shift) << 23;
    hr_bits32 subnormal = hr_bits_of_f32(hr_f32_of_bits(magnitude) + hr_f32_of_bits(power)) - power;
    hr_bits32 rounded = magnitude < (128 - type.bias) << 23 ? subnormal : normal;
    return rounded < most ? rounded : most;
}

HR_CONVERT_FN hr_bits32 hr_f16_load(hr_bits32 bits)
{
    hr_bits32 magnitude = bits & 0x7fff, lifted = (magnitude << 13) + ((127 - 15) << 23);
    /* With an exponent that is one higher a subnormal is 2^-14 too large. */
    hr_bits32 one = (128 - 15) << 23;
    hr_bits32 subnormal = hr_bits_of_f32(hr_f32_of_bits(lifted + (1u << 23)) - hr_f32_of_bits(one));
    hr_bits32 loaded = magnitude < 0x400 ? subnormal : lifted;
    hr_bits32 special = lifted | HR_F32_INFINITY | (magnitude > 0x7c00 ? 0x400000 : 0);
    return (magnitude < 0x7c00 ? loaded : special) | (bits & 0x8000) << 16;
}

HR_CONVERT_FN hr_bits32 hr_f16_store(hr_bits32 bits)
{
    struct hr_small_float type = {10, 15};
    hr_bits32 magnitude = bits & 0x7fffffff, nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    return (magnitude > HR_F32_INFINITY ? nan : hr_small_store(magnitude, type, 0x7c00)) | (bits >> 16 & 0x8000);
}

HR_CONVERT_FN hr_bits32 hr_bf16_store(hr_bits32 bits)
{
    hr_bits32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (bits & 0x7fffffff) > HR_F32_INFINITY ? nan : rounded;
}

/* E4M3 has no infinity, and one NaN of each sign; what is too large becomes the largest number. */
HR_CONVERT_FN hr_bits16 hr_bf16_of_e4m3(hr_bits16 bits)
{
    struct hr_small_float type = {3, 7};
    hr_bits16 magnitude = bits & 0x7f, loaded = hr_f8_load(magnitude, type);
    hr_bits16 known = magnitude == 0x7f ? 0x7ff0 : loaded;
    return (hr_bits16)(known | (hr_bits16)(bits & 0x80) << 8);
}

HR_CONVERT_FN hr_bits32 hr_e4m3_store(hr_bits32 bits)
{
    struct hr_small_float type = {3, 7};
    hr_bits32 magnitude = bits & 0x7fffffff;
    return (magnitude > HR_F32_INFINITY ? 0x7f : hr_small_store(magnitude, type, 0x7e)) | (bits >> 24 & 0x80);
}

/* Infinities, and above them NaNs, which become quiet. */
HR_CONVERT_FN hr_bits16 hr_bf16_of_e5m2(hr_bits16 bits)
{
    struct hr_small_float type = {2, 15};
    hr_bits16 magnitude = bits & 0x7f, loaded = hr_f8_load(magnitude, type);
    hr_bits16 special = (hr_bits16)((magnitude << 5 | 0x7f80) | (magnitude > 0x7c ? 0x40 : 0));
    hr_bits16 known = magnitude < 0x7c ? loaded : special;
    return (hr_bits16)(known | (hr_bits16)(bits & 0x80) << 8);
}

HR_CONVERT_FN hr_bits32 hr_e5m2_store(hr_bits32 bits)
{
    struct hr_small_float type = {2, 15};
    hr_bits32 magnitude = bits & 0x7fffffff;
    return (magnitude > HR_F32_INFINITY ? 0x7f : hr_small_store(magnitude, type, 0x7c)) | (bits >> 24 & 0x80);
}

/* FNUZ: no infinity, no negative zero; its code is the one NaN, which is also what is too large. */
HR_CONVERT_FN hr_bits32 hr_fnuz_load(hr_bits32 bits, struct hr_small_float type)
{
    hr_bits32 loaded = (hr_bits32)hr_f8_load((hr_bits16)(bits & 0x7f), type) << 16 | (bits & 0x80) << 24;
    return bits == 0x80 ? HR_F32_INFINITY + 1 : loaded;
}

HR_CONVERT_FN hr_bits32 hr_fnuz_store(hr_bits32 bits, struct hr_small_float type)
{
    hr_bits32 stored = hr_small_store(bits & 0x7fffffff, type, 0x80);
    return stored ? stored | (bits >> 24 & 0x80) : 0;
}

/* E8M0: powers of two from 2^-127 on and a NaN. */
HR_CONVERT_FN hr_bits32 hr_e8m0_load(hr_bits32 bits)
{
    return bits == 0xff ? HR_F32_INFINITY + 1 : bits ? bits << 23 : 0x400000;
}

/* Without the sign; halves go up, and so does all between the two least codes. Infinities are NaN. */
HR_CONVERT_FN hr_bits32 hr_e8m0_store(hr_bits32 bits)
{
    hr_bits32 exponent = bits >> 23 & 0xff, half = bits >> 22 & 1;
    return exponent == 0xff ? 0xff : exponent + (half & ((bits & 0x3fffff) != 0 || exponent != 0));
}

/* ------------------------------------------------------------------------------------------ wide types */

/* The bits of a float that is no wider than F32, as F32. */
HR_CONVERT_FN hr_bits32 hr_f32_load(hr_bits32 dtype, hr_bits32 bits)
{
    struct hr_small_float e4m3fnuz = {3, 8}, e5m2fnuz = {2, 16};
    switch (dtype) {
    case HR_DTYPE_F16:
        return hr_f16_load(bits);
    case HR_DTYPE_BF16:
        return bits << 16;
    case HR_DTYPE_F8_E4M3:
        return (hr_bits32)hr_bf16_of_e4m3((hr_bits16)bits) << 16;
    case HR_DTYPE_F8_E5M2:
        return (hr_bits32)hr_bf16_of_e5m2((hr_bits16)bits) << 16;
    case HR_DTYPE_F8_E4M3FNUZ:
        return hr_fnuz_load(bits, e4m3fnuz);
    case HR_DTYPE_F8_E5M2FNUZ:
        return hr_fnuz_load(bits, e5m2fnuz);
    case HR_DTYPE_F8_E8M0:
        return hr_e8m0_load(bits);
    default: /* F32 */
        return bits;
    }
}

HR_CONVERT_FN hr_bits32 hr_f32_store(hr_bits32 dtype, hr_bits32 bits)
{
    struct hr_small_float e4m3fnuz = {3, 8}, e5m2fnuz = {2, 16};
    switch (dtype) {
    case HR_DTYPE_F16:
        return hr_f16_store(bits);
    case HR_DTYPE_BF16:
        return hr_bf16_store(bits);
    case HR_DTYPE_F8_E4M3:
        return hr_e4m3_store(bits);
    case HR_DTYPE_F8_E5M2:
        return hr_e5m2_store(bits);
    case HR_DTYPE_F8_E4M3FNUZ:
        return hr_fnuz_store(bits, e4m3fnuz);
    case HR_DTYPE_F8_E5M2FNUZ:
        return hr_fnuz_store(bits, e5m2fnuz);
    case HR_DTYPE_F8_E8M0:
        return hr_e8m0_store(bits);
    default: /* F32 */
        return bits;
    }
}

HR_CONVERT_FN hr_bits64 hr_f64_of_f32(hr_bits32 bits)
{
    hr_bits64 nan = (hr_bits64)(bits >> 31) << 63 | 0x7ff8000000000000ull | (hr_bits64)(bits & 0x7fffff) << 29;
    hr_bits64 value = hr_bits_of_f64((double)hr_f32_of_bits(bits));
    return (bits & 0x7fffffff) > HR_F32_INFINITY ? nan : value;
}

HR_CONVERT_FN hr_bits32 hr_f32_of_f64(hr_bits64 bits)
{
    hr_bits32 nan = (hr_bits32)(bits >> 63) << 31 | 0x7fc00000u | (hr_bits32)(bits >> 29 & 0x7fffff);
    hr_bits32 value = hr_bits_of_f32((float)hr_f64_of_bits(bits));
    return (bits & ~(1ull << 63)) > HR_F64_INFINITY ? nan : value;
}

/* The bits of an integer or BOOL, as I64; those of U64 as they are. */
HR_CONVERT_FN hr_bits64 hr_i64_load(hr_bits32 dtype, hr_bits64 bits)
{
    switch (dtype) {
    case HR_DTYPE_BOOL:
        return (bits & 0xff) != 0;
    case HR_DTYPE_I8:
        return (hr_bits64)(long long)(signed char)bits;
    case HR_DTYPE_U8:
        return (unsigned char)bits;
    case HR_DTYPE_I16:
        return (hr_bits64)(long long)(short)bits;
    case HR_DTYPE_U16:
        return (unsigned short)bits;
    case HR_DTYPE_I32:
        return (hr_bits64)(long long)(int)bits;
    case HR_DTYPE_U32:
        return (hr_bits32)bits;
    default: /* I64, U64 */
        return bits;
    }
}

/* Which low bits of the result are stored is the target's matter. */
HR_CONVERT_FN hr_bits64 hr_i64_store(hr_bits32 dtype, hr_bits64 bits)
{
    return dtype == HR_DTYPE_BOOL ? bits != 0 : bits;
}

HR_CONVERT_FN hr_bits32 hr_f32_of_integer(hr_bits32 dtype, hr_bits64 bits)
{
    return hr_bits_of_f32(dtype == HR_DTYPE_U64 ? (float)bits : (float)(long long)bits);
}

HR_CONVERT_FN hr_bits64 hr_f64_of_integer(hr_bits32 dtype, hr_bits64 bits)
{
    return hr_bits_of_f64(dtype == HR_DTYPE_U64 ? (double)bits : (double)(long long)bits);
}

HR_CONVERT_FN hr_bits64 hr_i32_of_f64(hr_bits64 bits)
{
    double value = hr_f64_of_bits(bits);
    int fits = value > -2147483649.0 && value < 2147483648.0;
    return (hr_bits64)(fits ? (int)value : -2147483647 - 1);
}

HR_CONVERT_FN hr_bits64 hr_i64_of_f64(hr_bits64 bits)
{
    double value = hr_f64_of_bits(bits);
    int fits = value >= -9223372036854775808.0 && value < 9223372036854775808.0;
    return fits ? (hr_bits64)(long long)value : 1ull << 63;
}

/* An integer or BOOL of this dtype. */
HR_CONVERT_FN hr_bits64 hr_integer_of_f64(hr_bits32 dtype, hr_bits64 bits)
{
    double value = hr_f64_of_bits(bits);
    switch (dtype) {
    case HR_DTYPE_BOOL:
        return bits << 1 != 0;
    case HR_DTYPE_I8:
    case HR_DTYPE_I16:
    case HR_DTYPE_I32:
        return hr_i32_of_f64(bits);
    case HR_DTYPE_U64:
        if (value >= 9223372036854775808.0 && value < 18446744073709551616.0)
            return (hr_bits64)value;
        return hr_i64_of_f64(bits);
    default: /* U8, U16, U32, I64 */
        return hr_i64_of_f64(bits);
    }
}

/* ------------------------------------------------------------------------------------------ any pair */

/* BOOL counts as an integer. */
HR_CONVERT_FN int hr_dtype_is_integer(hr_bits32 dtype)
{
    switch (dtype) {
    case HR_DTYPE_BOOL:
    case HR_DTYPE_I8:
    case HR_DTYPE_U8:
    case HR_DTYPE_I16:
    case HR_DTYPE_U16:
    case HR_DTYPE_I32:
    case HR_DTYPE_U32:
    case HR_DTYPE_I64:
    case HR_DTYPE_U64:
        return 1;
    default:
        return 0;
    }
}

/* One element of a pair that hr_convert_is_known(); only the target's bits of the result count. */
HR_CONVERT_FN hr_bits64 hr_convert_bits(hr_bits32 from, hr_bits32 to, hr_bits64 bits)
{
    int to_integer = hr_dtype_is_integer(to);
    if (hr_dtype_is_integer(from)) {
        hr_bits64 integer = hr_i64_load(from, bits);
        if (to_integer)
            return hr_i64_store(to, integer);
        if (to == HR_DTYPE_F64)
            return hr_f64_of_integer(from, integer);
        return hr_f32_store(to, hr_f32_of_integer(from, integer));
    }
    if (to == HR_DTYPE_F64 || to_integer) {
        hr_bits64 wide = from == HR_DTYPE_F64 ? bits : hr_f64_of_f32(hr_f32_load(from, (hr_bits32)bits));
        return to_integer ? hr_integer_of_f64(to, wide) : wide;
    }
    return hr_f32_store(to, from == HR_DTYPE_F64 ? hr_f32_of_f64(bits) : hr_f32_load(from, (hr_bits32)bits));
}

#endif
