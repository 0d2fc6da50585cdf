/*
 * test_convert.c: conversions of dtypes against a slow model that knows numbers as integers times powers of two; the loops
 * of every instruction set that this processor has against the conversion of one element; any alignment and count; and
 * the floating-point modes that a thread can be in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert.h"
#include "convert/convert_parts.h"
#include "convert/convert_steps.h"

/* ------------------------------------------------------------------------------------------ the model */

enum special { HAS_INFINITY, ONE_NAN, NO_NEGATIVE_ZERO };

struct model {
    unsigned mantissa_bits, exponent_bits;
    int bias;
    enum special special;
};

/* (-1)^negative * mantissa * 2^exponent */
struct number {
    int negative, is_nan, is_infinite, exponent;
    uint64_t mantissa; /* of a NaN: the payload, its first bit the highest of 52 */
};

static const struct model models[HR_DTYPE_COUNT] = {
    [HR_DTYPE_F64] = {52, 11, 1023, HAS_INFINITY},        [HR_DTYPE_F32] = {23, 8, 127, HAS_INFINITY},
    [HR_DTYPE_F16] = {10, 5, 15, HAS_INFINITY},           [HR_DTYPE_BF16] = {7, 8, 127, HAS_INFINITY},
    [HR_DTYPE_F8_E5M2] = {2, 5, 15, HAS_INFINITY},        [HR_DTYPE_F8_E4M3] = {3, 4, 7, ONE_NAN},
    [HR_DTYPE_F8_E4M3FNUZ] = {3, 4, 8, NO_NEGATIVE_ZERO}, [HR_DTYPE_F8_E5M2FNUZ] = {2, 5, 16, NO_NEGATIVE_ZERO},
};

static struct number model_load(uint32_t dtype, uint64_t bits)
{
    const struct model *model = &models[dtype];
    struct number number = {0};
    if (dtype == HR_DTYPE_F8_E8M0) {
        number.is_nan = bits == 0xff;
        number.mantissa = number.is_nan ? 1ull << 29 : 1; /* the payload of F32's 0x7f800001 */
        number.exponent = (int)bits - 127;
        return number;
    }
    unsigned width = 1 + model->exponent_bits + model->mantissa_bits;
    uint64_t mantissa = bits & ((1ull << model->mantissa_bits) - 1);
    int exponent = (int)(bits >> model->mantissa_bits & ((1u << model->exponent_bits) - 1));
    int top = exponent == (1 << model->exponent_bits) - 1;
    number.negative = (int)(bits >> (width - 1));
    if (model->special == NO_NEGATIVE_ZERO && bits == 0x80) {
        number.negative = 0;
        number.is_nan = 1;
        number.mantissa = 1ull << 29;
    } else if (top && (model->special == HAS_INFINITY || (model->special == ONE_NAN && mantissa == 7))) {
        number.is_nan = mantissa != 0;
        number.is_infinite = mantissa == 0;
        number.mantissa = mantissa << (52 - model->mantissa_bits);
    } else {
        number.mantissa = exponent ? mantissa | 1ull << model->mantissa_bits : mantissa;
        number.exponent = (exponent ? exponent : 1) - model->bias - (int)model->mantissa_bits;
    }
    return number;
}

/* mantissa / 2^shift to nearest even. */
static uint64_t model_round(uint64_t mantissa, int shift)
{
    if (shift <= 0)
        return mantissa << -shift;
    if (shift > 64)
        return 0;
    uint64_t whole = shift == 64 ? 0 : mantissa >> shift, rest = mantissa - (shift == 64 ? 0 : whole << shift);
    uint64_t half = 1ull << (shift - 1);
    return whole + (rest > half || (rest == half && whole & 1));
}

static uint64_t model_store_e8m0(struct number number)
{
    if (number.is_nan || number.is_infinite)
        return 0xff;
    if (number.mantissa == 0)
        return 0;
    while (number.mantissa < 1ull << 62) {
        number.mantissa <<= 1;
        number.exponent--;
    }
    int code = number.exponent + 62 + 127;
    int up = number.mantissa >= 3ull << 61; /* 1.5 and more */
    if (code == 0)                          /* between the two least all go up */
        up = number.mantissa > 1ull << 62;
    return code < 0 ? 0 : (uint64_t)(code + up);
}

static uint64_t model_store(uint32_t dtype, struct number number)
{
    if (dtype == HR_DTYPE_F8_E8M0)
        return model_store_e8m0(number);
    const struct model *model = &models[dtype];
    unsigned sign_bit = model->exponent_bits + model->mantissa_bits;
    uint64_t sign = (uint64_t)number.negative << sign_bit;
    uint64_t infinity = ((1ull << model->exponent_bits) - 1) << model->mantissa_bits;
    uint64_t quiet = 1ull << (model->mantissa_bits - 1);
    uint64_t most = model->special == HAS_INFINITY ? infinity : model->special == ONE_NAN ? 0x7e : 0x80;
    if (model->special == NO_NEGATIVE_ZERO && (number.is_nan || number.is_infinite))
        return 0x80;
    if (number.is_nan && sign_bit == 7)
        return sign | 0x7f;
    if (number.is_nan)
        return sign | infinity | quiet | number.mantissa >> (52 - model->mantissa_bits);
    if (number.is_infinite)
        return sign | most;
    if (number.mantissa == 0)
        return model->special == NO_NEGATIVE_ZERO ? 0 : sign;
    int highest = 63; /* bit of the mantissa */
    while (highest > 0 && !(number.mantissa >> highest))
        highest--;
    int least = 1 - model->bias - (int)model->mantissa_bits; /* exponent of the last place of subnormals */
    int place = number.exponent + highest - (int)model->mantissa_bits;
    place = place < least ? least : place;
    uint64_t code =
        ((uint64_t)(place - least) << model->mantissa_bits) + model_round(number.mantissa, place - number.exponent);
    code = code < most ? code : most;
    return model->special == NO_NEGATIVE_ZERO && (code == 0 || code == most) ? code : sign | code;
}

static int is_signed_integer(uint32_t dtype)
{
    return dtype == HR_DTYPE_I8 || dtype == HR_DTYPE_I16 || dtype == HR_DTYPE_I32 || dtype == HR_DTYPE_I64;
}

static struct number model_load_integer(uint32_t dtype, uint64_t bits)
{
    unsigned width = hr_dtype_bits(dtype);
    struct number number = {.mantissa = bits};
    if (dtype == HR_DTYPE_BOOL)
        number.mantissa = bits != 0;
    if (is_signed_integer(dtype) && bits >> (width - 1)) {
        number.negative = 1;
        number.mantissa = width == 64 ? 0 - bits : (1ull << width) - bits;
    }
    return number;
}

static uint64_t model_integer(uint32_t dtype, struct number number)
{
    unsigned width = (dtype == HR_DTYPE_I8 || dtype == HR_DTYPE_I16 || dtype == HR_DTYPE_I32) ? 32 : 64;
    uint64_t lowest = width == 32 ? 0xffffffff80000000u : 1ull << 63;
    if (dtype == HR_DTYPE_BOOL)
        return number.is_nan || number.is_infinite || number.mantissa != 0;
    if (number.is_nan || number.is_infinite)
        return lowest;
    unsigned __int128 whole = number.mantissa;
    if (number.exponent < 0)
        whole = number.exponent <= -64 ? 0 : whole >> -number.exponent;
    else if (whole)
        whole = number.exponent > 64 ? (unsigned __int128)1 << 100 : whole << number.exponent;
    unsigned __int128 end = (unsigned __int128)1 << (width - 1);
    if (dtype == HR_DTYPE_U64 && !number.negative)
        end *= 2;
    if (number.negative ? whole > end : whole >= end)
        return lowest;
    return number.negative ? 0 - (uint64_t)whole : (uint64_t)whole;
}

static uint64_t mask_of(uint32_t dtype)
{
    return ~0ull >> (64 - hr_dtype_bits(dtype));
}

static uint64_t model_convert(uint32_t from, uint32_t to, uint64_t bits)
{
    if (from == HR_DTYPE_BF16 && to == HR_DTYPE_F32)
        return bits << 16;
    if (hr_dtype_is_integer(from) && hr_dtype_is_integer(to)) {
        struct number number = model_load_integer(from, bits);
        uint64_t wide = number.negative ? 0 - number.mantissa : number.mantissa;
        return (to == HR_DTYPE_BOOL ? wide != 0 : wide) & mask_of(to);
    }
    struct number number = hr_dtype_is_integer(from) ? model_load_integer(from, bits) : model_load(from, bits);
    if (hr_dtype_is_integer(to))
        return model_integer(to, number) & mask_of(to);
    int f8_nan = number.is_nan && hr_dtype_bits(from) == 8 && !hr_dtype_is_integer(from);
    if (f8_nan && to == HR_DTYPE_F32 && number.mantissa == 1ull << 29)
        return 0x7f800001;
    if (to != HR_DTYPE_F64 && to != HR_DTYPE_F32) /* by way of F32 */
        number = model_load(HR_DTYPE_F32, model_store(HR_DTYPE_F32, number));
    return model_store(to, number);
}

/* ------------------------------------------------------------------------------------------ inputs */

struct inputs {
    uint64_t *bits;
    size_t count;
};

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void add(struct inputs *inputs, uint32_t dtype, uint64_t bits)
{
    inputs->bits[inputs->count++] = bits & mask_of(dtype);
}

/* Both signs of every exponent: halves of every last place, their neighbours, and random mantissas. */
static void add_floats(struct inputs *inputs, uint32_t dtype)
{
    unsigned mantissa_bits = models[dtype].mantissa_bits;
    for (uint64_t top = 0; top <= mask_of(dtype) >> mantissa_bits; top++) {
        for (int i = 0; i < 40; i++)
            add(inputs, dtype, top << mantissa_bits | (random_bits() & ((1ull << mantissa_bits) - 1)));
        for (unsigned place = 0; place < mantissa_bits; place++)
            for (int near = -1; near <= 1; near++) {
                uint64_t above = place + 1 < mantissa_bits ? random_bits() << (place + 1) : 0;
                uint64_t mantissa = (above | 1ull << place) + (uint64_t)near;
                add(inputs, dtype, top << mantissa_bits | (mantissa & ((1ull << mantissa_bits) - 1)));
            }
    }
}

/* Integers of every size, powers of two and halves between floats with their neighbours. */
static void add_integers(struct inputs *inputs, uint32_t dtype)
{
    unsigned width = hr_dtype_bits(dtype);
    for (unsigned shift = 0; shift < width; shift++)
        for (int i = 0; i < 400; i++) {
            uint64_t value = (random_bits() & mask_of(dtype)) >> shift;
            unsigned cut = (unsigned)(random_bits() % width);
            uint64_t half = (value >> cut | 1) << cut;
            add(inputs, dtype, value);
            add(inputs, dtype, 0 - value);
            add(inputs, dtype, half + (uint64_t)(i % 3) - 1);
            add(inputs, dtype, (1ull << shift) + (uint64_t)(i % 3) - 1);
        }
}

static struct inputs inputs_of(uint32_t dtype)
{
    struct inputs inputs = {malloc(sizeof(uint64_t) * (1u << 20)), 0};
    assert_non_null(inputs.bits);
    if (hr_dtype_bits(dtype) <= 16)
        for (uint64_t bits = 0; bits <= mask_of(dtype); bits++)
            add(&inputs, dtype, bits);
    else if (hr_dtype_is_integer(dtype))
        add_integers(&inputs, dtype);
    else
        add_floats(&inputs, dtype);
    assert_true(inputs.count <= 1u << 20);
    return inputs;
}

/* Elements as they lie in memory; the caller frees them. */
static unsigned char *packed(uint32_t dtype, const uint64_t *bits, size_t count)
{
    size_t bytes = hr_dtype_bits(dtype) / 8;
    unsigned char *memory = malloc(count * bytes + 1);
    assert_non_null(memory);
    for (size_t i = 0; i < count; i++)
        memcpy(memory + i * bytes, &bits[i], bytes);
    return memory;
}

static uint64_t element(const unsigned char *memory, uint32_t dtype, size_t index)
{
    uint64_t bits = 0;
    memcpy(&bits, memory + index * hr_dtype_bits(dtype) / 8, hr_dtype_bits(dtype) / 8);
    return bits;
}

/* ------------------------------------------------------------------------------------------ tests */

static void test_pairs(void **state)
{
    (void)state;
    unsigned count = 0;
    for (uint32_t from = 0; from < HR_DTYPE_COUNT + 2; from++)
        for (uint32_t to = 0; to < HR_DTYPE_COUNT + 2; to++) {
            assert_int_equal(hr_dtype_converts(from, to), hr_convert_is_known(from, to));
            assert_int_equal(hr_dtype_converts(from, to), hr_dtype_converts(to, from));
            count += (unsigned)hr_dtype_converts(from, to);
        }
    assert_int_equal(count, 13 * 12 + 2 * 5 * 4);
    assert_true(hr_dtype_converts(HR_DTYPE_F32, HR_DTYPE_BF16));
    assert_true(hr_dtype_converts(HR_DTYPE_F8_E8M0, HR_DTYPE_F64));
    assert_false(hr_dtype_converts(HR_DTYPE_F8_E4M3, HR_DTYPE_F8_E5M2));
    assert_false(hr_dtype_converts(HR_DTYPE_F8_E4M3, HR_DTYPE_U8));
    assert_false(hr_dtype_converts(HR_DTYPE_F4, HR_DTYPE_F32));
    assert_false(hr_dtype_converts(HR_DTYPE_C64, HR_DTYPE_F32));
    assert_false(hr_dtype_converts(HR_DTYPE_F32, HR_DTYPE_F32));
}

static void check_pair(uint32_t from, uint32_t to, const struct inputs *inputs, const unsigned char *source)
{
    unsigned char *target = malloc(inputs->count * 8 + 1);
    assert_non_null(target);
    hr_convert(from, to, target, source, inputs->count);
    for (size_t i = 0; i < inputs->count; i++) {
        uint64_t expected = model_convert(from, to, inputs->bits[i]);
        uint64_t one = hr_convert_bits(from, to, inputs->bits[i]) & mask_of(to), got = element(target, to, i);
        if (got != expected || one != expected)
            fail_msg("%s %#llx to %s: %#llx by the loops, %#llx by itself, not %#llx", hr_dtype_name(from),
                     (unsigned long long)inputs->bits[i], hr_dtype_name(to), (unsigned long long)got,
                     (unsigned long long)one, (unsigned long long)expected);
    }
    free(target);
}

static void test_model(void **state)
{
    (void)state;
    for (uint32_t from = 1; from < HR_DTYPE_COUNT; from++) {
        if (!hr_dtype_converts(from, HR_DTYPE_F32) && from != HR_DTYPE_F32)
            continue;
        struct inputs inputs = inputs_of(from);
        unsigned char *source = packed(from, inputs.bits, inputs.count);
        for (uint32_t to = 1; to < HR_DTYPE_COUNT; to++)
            if (hr_dtype_converts(from, to))
                check_pair(from, to, &inputs, source);
        free(source);
        free(inputs.bits);
    }
}

#ifdef __x86_64__ /* elsewhere there is one table */

/* One step over inputs, element by element with what the same step of another table gives. */
static void check_step(hr_step *step, hr_step *other, uint32_t from, uint32_t to)
{
    assert_int_equal(step != NULL, other != NULL);
    if (!step)
        return;
    struct inputs inputs = inputs_of(from);
    inputs.count -= inputs.count % HR_STEP_ELEMENTS;
    unsigned char *source = packed(from, inputs.bits, inputs.count);
    unsigned char *target = calloc(inputs.count, 8), *expected = calloc(inputs.count, 8);
    assert_true(target && expected);
    step(target, source, inputs.count);
    other(expected, source, inputs.count);
    for (size_t i = 0; i < inputs.count; i++)
        if (element(target, to, i) != element(expected, to, i))
            fail_msg("%s %#llx to %s: %#llx, not %#llx", hr_dtype_name(from), (unsigned long long)inputs.bits[i],
                     hr_dtype_name(to), (unsigned long long)element(target, to, i),
                     (unsigned long long)element(expected, to, i));
    free(inputs.bits);
    free(source);
    free(target);
    free(expected);
}

static void check_table(const struct hr_steps *table)
{
    const struct hr_steps *known = &hr_steps_portable;
    for (uint32_t dtype = 1; dtype < HR_DTYPE_COUNT; dtype++) {
        check_step(table->f32_load[dtype], known->f32_load[dtype], dtype, HR_DTYPE_F32);
        check_step(table->f32_store[dtype], known->f32_store[dtype], HR_DTYPE_F32, dtype);
        check_step(table->i64_load[dtype], known->i64_load[dtype], dtype, HR_DTYPE_I64);
        check_step(table->i64_store[dtype], known->i64_store[dtype], HR_DTYPE_I64, dtype);
        check_step(table->f64_to_integer[dtype], known->f64_to_integer[dtype], HR_DTYPE_F64, dtype);
        check_step(table->f8_to_bf16[dtype], known->f8_to_bf16[dtype], dtype, HR_DTYPE_BF16);
    }
    check_step(table->f32_to_f64, known->f32_to_f64, HR_DTYPE_F32, HR_DTYPE_F64);
    check_step(table->f64_to_f32, known->f64_to_f32, HR_DTYPE_F64, HR_DTYPE_F32);
    check_step(table->i64_to_f32, known->i64_to_f32, HR_DTYPE_I64, HR_DTYPE_F32);
    check_step(table->i64_to_f64, known->i64_to_f64, HR_DTYPE_I64, HR_DTYPE_F64);
    check_step(table->u64_to_f32, known->u64_to_f32, HR_DTYPE_U64, HR_DTYPE_F32);
    check_step(table->u64_to_f64, known->u64_to_f64, HR_DTYPE_U64, HR_DTYPE_F64);
}

#endif

/* Which table hr_convert() takes depends on the processor: each that this one has gives what the portable one gives. */
static void test_tables(void **state)
{
    (void)state;
    unsigned tried = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        check_table(&hr_steps_avx2);
        tried++;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        check_table(&hr_steps_avx512);
        tried++;
    }
#endif
    if (tried == 0)
        skip();
}

/* The portable table is what the others are compared with, so it is compared with the conversion of one element. */
static void test_portable(void **state)
{
    (void)state;
    const struct hr_steps *table = &hr_steps_portable;
    for (uint32_t dtype = 1; dtype < HR_DTYPE_COUNT; dtype++) {
        hr_step *steps[] = {table->f32_load[dtype], table->f32_store[dtype], table->f8_to_bf16[dtype]};
        const uint32_t ends[][2] = {{dtype, HR_DTYPE_F32}, {HR_DTYPE_F32, dtype}, {dtype, HR_DTYPE_BF16}};
        for (unsigned i = 0; i < 3; i++) {
            if (!steps[i])
                continue;
            struct inputs inputs = inputs_of(ends[i][0]);
            size_t count = inputs.count - inputs.count % HR_STEP_ELEMENTS;
            unsigned char *source = packed(ends[i][0], inputs.bits, count), *target = malloc(count * 8);
            assert_non_null(target);
            steps[i](target, source, count);
            for (size_t k = 0; k < count; k++)
                assert_int_equal(element(target, ends[i][1], k),
                                 hr_convert_bits(ends[i][0], ends[i][1], inputs.bits[k]) & mask_of(ends[i][1]));
            free(inputs.bits);
            free(source);
            free(target);
        }
    }
}

enum { SPACE = 1024 * 8 + 128 };

/* Nothing beside the elements is written, and nothing depends on where they lie. */
static void check_place(uint32_t from, uint32_t to, size_t count, size_t source_skew, size_t target_skew)
{
    static unsigned char source[SPACE], target[SPACE], expected[SPACE];
    size_t from_bytes = hr_dtype_bits(from) / 8, to_bytes = hr_dtype_bits(to) / 8;
    assert_true(64 + count * 8 <= SPACE - 64);
    memset(target, 0xa5, sizeof target);
    memset(expected, 0xa5, sizeof expected);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits() & mask_of(from), result = model_convert(from, to, bits);
        memcpy(source + source_skew + i * from_bytes, &bits, from_bytes);
        memcpy(expected + 32 + target_skew + i * to_bytes, &result, to_bytes);
    }
    hr_convert(from, to, target + 32 + target_skew, source + source_skew, count);
    assert_memory_equal(target, expected, sizeof target);
}

static void test_places(void **state)
{
    (void)state;
    for (uint32_t from = 1; from < HR_DTYPE_COUNT; from++)
        for (uint32_t to = 1; to < HR_DTYPE_COUNT; to++) {
            if (!hr_dtype_converts(from, to))
                continue;
            for (size_t count = 0; count <= 70; count++)
                check_place(from, to, count, random_bits() % 16, random_bits() % 16);
            for (size_t skew = 0; skew < 9; skew++)
                check_place(from, to, 256 + skew, skew, 8 - skew);
            check_place(from, to, 1000, 1, 3);
        }
}

/* What a thread's mode can be: other roundings and, here, subnormals that are flushed. */
static void test_modes(void **state)
{
    (void)state;
    static const int roundings[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(fesetround(roundings[i]), 0);
#ifdef __x86_64__
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
        unsigned before = __builtin_ia32_stmxcsr();
#endif
        for (uint32_t from = 1; from < HR_DTYPE_COUNT; from++)
            for (uint32_t to = 1; to < HR_DTYPE_COUNT; to++)
                if (hr_dtype_converts(from, to))
                    check_place(from, to, 100, 0, 0);
        check_place(HR_DTYPE_F64, HR_DTYPE_F32, 1000, 0, 0);
        const uint64_t tiny = 0x36a0000000000000; /* 2^-149: F32's least subnormal */
        float least = 0;
        hr_convert(HR_DTYPE_F64, HR_DTYPE_F32, &least, &tiny, 1);
        uint32_t least_bits;
        memcpy(&least_bits, &least, sizeof least_bits);
        assert_int_equal(least_bits, 1);
        assert_int_equal(fegetround(), roundings[i]);
#ifdef __x86_64__
        assert_int_equal(__builtin_ia32_stmxcsr(), before);
        __builtin_ia32_ldmxcsr(0x1f80);
#endif
        fesetround(FE_TONEAREST);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),    cmocka_unit_test(test_model),  cmocka_unit_test(test_tables),
        cmocka_unit_test(test_portable), cmocka_unit_test(test_places), cmocka_unit_test(test_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
