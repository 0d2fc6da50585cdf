/*
 * test_cast_parts.c: the converting kernel, thread by thread on a processor, against hr_convert(). Every element of a
 * target is written once and no other byte; every load is an aligned vector that holds a byte of a row; what is stored at
 * once lies on its own size.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert.h"
#include "device/device.h"
#include "device/kernels/cast_parts.h"

#define SPACE (1u << 20)
#define MIDDLE (SPACE / 2)
#define MOVE_MAX 100

static _Alignas(128) unsigned char source_space[SPACE], target_space[SPACE], expected[SPACE];
static unsigned char readable[SPACE], written[SPACE];
static struct hr_move moves[MOVE_MAX];
static unsigned move_count;

static size_t place_in(const unsigned char *space, hr_place_u64 address, size_t size)
{
    size_t place = (size_t)(address - (uintptr_t)space);
    if (place <= SPACE - size)
        return place;
    fail_msg("%zu bytes at %lld of %u", size, (long long)place, SPACE);
    return 0;
}

static struct hr_vector hr_vector_load(hr_place_u64 address)
{
    static const unsigned char none[16];
    size_t place = place_in(source_space, address, 16);
    struct hr_vector vector;
    if (address % 16 != 0 || memcmp(readable + place, none, 16) == 0)
        fail_msg("a load at %zu that no row asks for", place);
    memcpy(&vector, source_space + place, 16);
    return vector;
}

static void store(hr_place_u64 address, const void *bytes, size_t size)
{
    size_t place = place_in(target_space, address, size);
    if (address % size != 0)
        fail_msg("%zu bytes stored at %zu", size, place);
    memcpy(target_space + place, bytes, size);
    for (size_t i = 0; i < size; i++)
        written[place + i]++;
}

static void hr_vector_store(hr_place_u64 address, struct hr_vector vector)
{
    store(address, &vector, 16);
}

static void hr_word_store(hr_place_u64 address, hr_place_u64 word, unsigned bytes)
{
    assert_true(bytes == 8 || bytes == 4);
    store(address, &word, bytes);
}

static void hr_byte_store(hr_place_u64 address, unsigned char byte)
{
    store(address, &byte, 1);
}

/* ------------------------------------------------------------------------------------------------- the model */

static size_t used_start, used_stop;

static void clear(void)
{
    move_count = 0;
    used_start = SPACE;
    used_stop = 0;
}

static void use(size_t place, size_t size)
{
    used_start = place < used_start ? place : used_start;
    used_stop = place + size > used_stop ? place + size : used_stop;
}

/* `count` elements a row; `source` and `target` are places in the two spaces. */
static void add(uint32_t from, uint32_t to, size_t source, size_t target, uint64_t count, uint64_t rows,
                long long source_pitch, long long target_pitch)
{
    uint64_t bytes = count * hr_dtype_bits(from) / 8;
    struct hr_move move = {.source = (uintptr_t)source_space + source,
                           .target = (uintptr_t)target_space + target,
                           .bytes = bytes,
                           .rows = rows,
                           .source_pitch = source_pitch,
                           .target_pitch = target_pitch,
                           .cast = hr_cast_code(from, to)};
    assert_true(move_count < MOVE_MAX);
    moves[move_count++] = move;
    for (uint64_t row = 0; row < rows; row++) {
        use((size_t)((long long)source + (long long)row * source_pitch), bytes);
        use((size_t)((long long)target + (long long)row * target_pitch), count * hr_dtype_bits(to) / 8);
    }
}

static void prepare(void)
{
    assert_true(used_start >= 64 && used_stop + 64 <= SPACE);
    used_start -= 64;
    used_stop += 64;
    size_t size = used_stop - used_start;
    memset(readable + used_start, 0, size);
    memset(written + used_start, 0, size);
    memset(target_space + used_start, 0xEE, size);
    memset(expected + used_start, 0xEE, size);
    for (unsigned i = 0; i < move_count; i++)
        for (uint64_t row = 0; row < moves[i].rows; row++) {
            size_t source = moves[i].source - (uintptr_t)source_space + row * (size_t)moves[i].source_pitch;
            size_t target = moves[i].target - (uintptr_t)target_space + row * (size_t)moves[i].target_pitch;
            uint32_t from = moves[i].cast & 255, to = moves[i].cast >> 8 & 255;
            memset(readable + source, 1, moves[i].bytes);
            hr_convert(from, to, expected + target, source_space + source, moves[i].bytes / (hr_dtype_bits(from) / 8));
        }
}

/* The kernel: what cast.cu does around cast_parts.h, one thread after the other. */
static void launch(unsigned block_count, unsigned thread_count)
{
    for (unsigned block = 0; block < block_count; block++) {
        const struct hr_place_walk walk = hr_place_walk(block, block_count, move_count);
        if (walk.part >= walk.parts)
            continue;
        for (hr_place_u64 first = walk.first; first < move_count; first += (hr_place_u64)walk.step * HR_PLACE_BATCH) {
            struct hr_move batch[HR_PLACE_BATCH];
            unsigned taken = hr_place_batch(first, walk.step, move_count);
            for (unsigned i = 0; i < taken; i++)
                batch[i] = moves[first + (hr_place_u64)i * walk.step];
            for (unsigned thread = 0; thread < thread_count; thread++)
                hr_cast_moves(batch, taken, &walk, thread, thread_count);
        }
    }
}

static void check(unsigned block_count, unsigned thread_count)
{
    prepare();
    launch(block_count, thread_count);
    for (size_t i = used_start; i < used_stop; i++)
        if (target_space[i] != expected[i] || written[i] > 1)
            fail_msg("%s to %s, %u blocks of %u threads, %u moves, the first of %llu rows of %llu bytes (source %llu, "
                     "target %llu modulo 128, pitches %lld, %lld): byte %zu is %02x, not %02x, written %u times",
                     hr_dtype_name(moves[0].cast & 255), hr_dtype_name(moves[0].cast >> 8 & 255), block_count,
                     thread_count, move_count, moves[0].rows, moves[0].bytes, moves[0].source % 128,
                     moves[0].target % 128, moves[0].source_pitch, moves[0].target_pitch, i, target_space[i],
                     expected[i], written[i]);
}

/* ------------------------------------------------------------------------------------------------- the tests */

static void for_each_pair(void (*test)(uint32_t from, uint32_t to))
{
    unsigned count = 0;
    for (uint32_t from = 1; from < HR_DTYPE_COUNT; from++)
        for (uint32_t to = 1; to < HR_DTYPE_COUNT; to++)
            if (hr_dtype_converts(from, to)) {
                test(from, to);
                count++;
            }
    assert_true(count > 150);
}

/* Both alignments, those that elements have not too, and all counts up to several units. */
static void single_rows(uint32_t from, uint32_t to)
{
    for (unsigned source = 0; source < 16; source++)
        for (unsigned target = 0; target < 16; target++)
            for (unsigned count = 1; count <= 40; count += count < 18 ? 1 : 11) {
                clear();
                add(from, to, MIDDLE + source, MIDDLE + target, count, 1, 0, 0);
                check(1, 32);
            }
}

/* Around the borders of spans, of what one warp makes and of what a block makes at once; starts in a line of 128 bytes. */
static void long_rows(uint32_t from, uint32_t to)
{
    static const unsigned counts[] = {511, 1024, 4096, 4113, 16400};
    uint32_t size = hr_dtype_bits(to) / 8;
    for (unsigned source = 0; source < 128; source += 37)
        for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
            clear();
            add(from, to, MIDDLE + source, MIDDLE + source * 7 % 31 * size, counts[i] + source % 3, 1, 0, 0);
            check(1 + i, i % 2 ? 512 : 128);
        }
}

/* Rows narrow and wide, targets in both directions, on their elements' size and off it. */
static void many_rows(uint32_t from, uint32_t to)
{
    long long from_size = hr_dtype_bits(from) / 8, to_size = hr_dtype_bits(to) / 8;
    for (unsigned count = 1; count <= 21; count += 4)
        for (unsigned gap = 0; gap <= 9; gap += 3)
            for (unsigned phase = 0; phase < 16; phase += 5)
                for (int sign = -1; sign <= 1; sign += 2) {
                    clear();
                    add(from, to, MIDDLE + phase, MIDDLE + phase, count, 3, count * from_size + gap,
                        sign * (count * to_size + (long long)gap));
                    check(2, 64);
                }
}

static void test_single_rows(void **state)
{
    (void)state;
    for_each_pair(single_rows);
}

static void test_long_rows(void **state)
{
    (void)state;
    for_each_pair(long_rows);
}

static void test_many_rows(void **state)
{
    (void)state;
    for_each_pair(many_rows);
}

static void random_pair(uint32_t *ret_from, uint32_t *ret_to)
{
    do {
        *ret_from = (uint32_t)rand() % HR_DTYPE_COUNT;
        *ret_to = (uint32_t)rand() % HR_DTYPE_COUNT;
    } while (!hr_dtype_converts(*ret_from, *ret_to));
}

/* Random moves of all conversions in one launch, close to each other in the target: one to many more than blocks. */
static void test_mixed_launches(void **state)
{
    (void)state;
    srand(20240229);
    for (unsigned run = 0; run < 300; run++) {
        unsigned count = run < 40 ? run + 1 : 1 + (unsigned)rand() % MOVE_MAX;
        size_t target = 1024 + (unsigned)rand() % 64;
        clear();
        for (unsigned i = 0; i < count; i++) {
            uint32_t from, to;
            random_pair(&from, &to);
            unsigned elements = 1 + (unsigned)rand() % (rand() % 8 == 0 ? 3000 : 40);
            unsigned rows = rand() % 2 ? 1 : 1 + (unsigned)rand() % 20;
            unsigned bytes = elements * hr_dtype_bits(to) / 8, pitch = bytes + (unsigned)rand() % 9;
            if (target + (size_t)rows * pitch > SPACE - 1024)
                break;
            add(from, to, 140000 + (unsigned)rand() % 100000, target, elements, rows,
                (long long)(elements * hr_dtype_bits(from) / 8) + rand() % 500 - 100, (long long)pitch);
            target += (rows - 1) * (size_t)pitch + bytes + (unsigned)rand() % 3;
        }
        if (move_count)
            check(1 + (unsigned)rand() % 64, rand() % 2 ? 512 : 1 + (unsigned)rand() % 200);
    }
}

/* What makes it fast: no more units than rows need, and warps of a single row begin with a whole line of the source. */
static void test_economy(void **state)
{
    (void)state;
    for (unsigned source = 4096; source < 4096 + 256; source += 4)
        for (unsigned target = 8192; target < 8192 + 16; target += 2) {
            struct hr_move move = {.source = source,
                                   .target = target,
                                   .bytes = 40000,
                                   .rows = 1,
                                   .cast = hr_cast_code(HR_DTYPE_F32, HR_DTYPE_BF16)};
            struct hr_cast cast = hr_cast_decode(move.cast);
            struct hr_place_shape shape = hr_cast_shape(&move, &cast);
            assert_in_range(shape.skew, 0, 3);
            assert_in_range(shape.per_row, 20000 / 16, 20000 / 16 + 4);
            struct hr_place_index index = {0, 32};
            struct hr_cast_piece piece = hr_cast_piece(&move, &cast, shape.skew, &index);
            assert_true(piece.source % 128 < 32); /* in the first of its four units */
        }
    struct hr_cast narrow = hr_cast_decode(hr_cast_code(HR_DTYPE_F64, HR_DTYPE_U8));
    assert_int_equal(narrow.unit, 4); /* 32 bytes of the source at most */
    struct hr_cast wide = hr_cast_decode(hr_cast_code(HR_DTYPE_U8, HR_DTYPE_F64));
    assert_int_equal(wide.count, 2);
}

/* Sizes and distances beyond 32 bits: the last units of rows and of moves that no test can hold. */
static void test_wide_arithmetic(void **state)
{
    (void)state;
    struct hr_move move = {.source = 0x7f0000000003,
                           .target = 0x7e0000000002,
                           .bytes = 1ull << 40,
                           .rows = 1ull << 20,
                           .source_pitch = -(1ll << 41),
                           .target_pitch = 1ll << 41,
                           .cast = hr_cast_code(HR_DTYPE_F32, HR_DTYPE_BF16)};
    struct hr_cast cast = hr_cast_decode(move.cast);
    struct hr_place_shape shape = hr_cast_shape(&move, &cast);
    assert_int_equal(shape.per_row, (1ull << 35) + 1);
    struct hr_place_index last = {(1ull << 20) - 1, shape.per_row - 1};
    struct hr_cast_piece piece = hr_cast_piece(&move, &cast, 0, &last);
    assert_int_equal(piece.start, 0);
    assert_int_equal(piece.stop, 1);
    assert_int_equal(piece.target, 0x7e0000000000 + ((1ull << 20) - 1) * (1ull << 41) + (1ull << 39));
    assert_int_equal(piece.source, move.source - ((1ull << 20) - 1) * (1ull << 41) + (1ull << 40) - 4);
    assert_int_equal(hr_move_target_bytes(&move), 1ull << 39);
}

int main(void)
{
    srand(7);
    for (size_t i = 0; i < SPACE; i++)
        source_space[i] = (unsigned char)(rand() >> 7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_rows),    cmocka_unit_test(test_long_rows), cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_mixed_launches), cmocka_unit_test(test_economy),   cmocka_unit_test(test_wide_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
