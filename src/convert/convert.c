/*
 * convert.c: which pairs there are, and how one is made of steps: the source's elements are taken in blocks that stay in the
 * first-level cache, and each block goes through the one to four steps of its chain, the middle ones by way of a buffer
 * on the stack.
 */
#include "convert/convert.h"

#include <assert.h>
#include <string.h>

#include "convert/convert_parts.h"
#include "convert/convert_steps.h"

/* A multiple of HR_STEP_ELEMENTS. */
#define BLOCK_ELEMENTS 256
#define STEPS_MAX 4
#define WIDEST_BYTES 8

struct chain {
    hr_step *steps[STEPS_MAX];
    unsigned count; /* 0: the bits stay as they are */
};

/* ------------------------------------------------------------------------------------------ pairs */

static int is_wide_float(uint32_t dtype)
{
    return dtype == HR_DTYPE_F64 || dtype == HR_DTYPE_F32 || dtype == HR_DTYPE_F16 || dtype == HR_DTYPE_BF16;
}

static int is_f8(uint32_t dtype)
{
    return dtype == HR_DTYPE_F8_E4M3 || dtype == HR_DTYPE_F8_E5M2 || dtype == HR_DTYPE_F8_E4M3FNUZ ||
           dtype == HR_DTYPE_F8_E5M2FNUZ || dtype == HR_DTYPE_F8_E8M0;
}

int hr_convert_is_known(uint32_t from, uint32_t to)
{
    if (from == to)
        return 0;
    if (is_f8(from) || is_f8(to))
        return is_wide_float(from) || is_wide_float(to);
    return (is_wide_float(from) || hr_dtype_is_integer(from)) && (is_wide_float(to) || hr_dtype_is_integer(to));
}

int hr_dtype_converts(uint32_t from, uint32_t to)
{
    return hr_convert_is_known(from, to);
}

/* ------------------------------------------------------------------------------------------ chains */

static const struct hr_steps *steps_of_this_processor(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &hr_steps_avx512;
    if (__builtin_cpu_supports("avx2")) /* these have F16C too, which not every compiler can ask about */
        return &hr_steps_avx2;
#endif
    return &hr_steps_portable;
}

static void chain_add(struct chain *chain, hr_step *step)
{
    if (step)
        chain->steps[chain->count++] = step;
}

static void chain_from_integer(struct chain *chain, const struct hr_steps *steps, uint32_t from, uint32_t to)
{
    chain_add(chain, steps->i64_load[from]);
    if (hr_dtype_is_integer(to)) {
        chain_add(chain, steps->i64_store[to]);
    } else if (to == HR_DTYPE_F64) {
        chain_add(chain, from == HR_DTYPE_U64 ? steps->u64_to_f64 : steps->i64_to_f64);
    } else {
        chain_add(chain, from == HR_DTYPE_U64 ? steps->u64_to_f32 : steps->i64_to_f32);
        chain_add(chain, steps->f32_store[to]);
    }
}

static void chain_from_float(struct chain *chain, const struct hr_steps *steps, uint32_t from, uint32_t to)
{
    if (to == HR_DTYPE_BF16 && steps->f8_to_bf16[from]) {
        chain_add(chain, steps->f8_to_bf16[from]);
        return;
    }
    chain_add(chain, steps->f32_load[from]);
    if (to == HR_DTYPE_F64 || hr_dtype_is_integer(to)) {
        chain_add(chain, from == HR_DTYPE_F64 ? NULL : steps->f32_to_f64);
        chain_add(chain, steps->f64_to_integer[to]);
    } else {
        chain_add(chain, from == HR_DTYPE_F64 ? steps->f64_to_f32 : NULL);
        chain_add(chain, steps->f32_store[to]);
    }
}

static struct chain chain_of(uint32_t from, uint32_t to)
{
    struct chain chain = {{NULL}, 0};
    const struct hr_steps *steps = steps_of_this_processor();
    if (hr_dtype_is_integer(from))
        chain_from_integer(&chain, steps, from, to);
    else
        chain_from_float(&chain, steps, from, to);
    return chain;
}

/* `count` is a multiple of HR_STEP_ELEMENTS, at most BLOCK_ELEMENTS where there are middle steps. */
static void chain_run(const struct chain *chain, void *target, const void *source, uint64_t count)
{
    _Alignas(64) unsigned char buffers[2][BLOCK_ELEMENTS * WIDEST_BYTES];
    for (unsigned i = 0; i < chain->count; i++) {
        void *into = i + 1 < chain->count ? buffers[i % 2] : target;
        chain->steps[i](into, source, count);
        source = into;
    }
}

/* ------------------------------------------------------------------------------------------ the loop */

/*
 * Casts and additions of floats depend on the thread's mode, which a thread has from the one that made it: programs
 * flush subnormals. Sets it and returns what it was.
 */
static uint64_t float_mode_swap(uint64_t mode)
{
#if defined(__x86_64__)
    uint64_t old = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((unsigned)mode);
    return old;
#elif defined(__aarch64__)
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
    return old;
#else
    return mode;
#endif
}

#ifdef __x86_64__
#define FLOAT_MODE_DEFAULT 0x1f80 /* every exception masked */
#else
#define FLOAT_MODE_DEFAULT 0
#endif

void hr_convert(uint32_t from, uint32_t to, void *target, const void *source, uint64_t count)
{
    assert(hr_convert_is_known(from, to));
    const struct chain chain = chain_of(from, to);
    const uint64_t from_bytes = hr_dtype_bits(from) / 8, to_bytes = hr_dtype_bits(to) / 8;
    unsigned char *out = target;
    const unsigned char *in = source;
    if (chain.count == 0) {
        memcpy(target, source, count * from_bytes);
        return;
    }
    const uint64_t mode = float_mode_swap(FLOAT_MODE_DEFAULT);
    while (count >= HR_STEP_ELEMENTS) {
        uint64_t taken = count / HR_STEP_ELEMENTS * HR_STEP_ELEMENTS;
        if (chain.count > 1 && taken > BLOCK_ELEMENTS)
            taken = BLOCK_ELEMENTS;
        chain_run(&chain, out, in, taken);
        in += taken * from_bytes;
        out += taken * to_bytes;
        count -= taken;
    }
    if (count > 0) { /* what is left, in a place of its own */
        unsigned char last_in[HR_STEP_ELEMENTS * WIDEST_BYTES] = {0}, last_out[HR_STEP_ELEMENTS * WIDEST_BYTES];
        memcpy(last_in, in, count * from_bytes);
        chain_run(&chain, last_out, last_in, HR_STEP_ELEMENTS);
        memcpy(out, last_out, count * to_bytes);
    }
    float_mode_swap(mode);
}
