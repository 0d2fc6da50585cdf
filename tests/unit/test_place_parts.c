/*
 * test_place_parts.c: the placing kernel, thread by thread on a processor, against a model that moves byte by byte. Every
 * byte of a target is written once and no other; every load is an aligned vector that holds a byte of a row.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/kernels/place_parts.h"

#define SPACE (1u << 18)
#define MIDDLE (SPACE / 2)
#define MOVE_MAX 200

/* Rows of sources are marked in `readable`; `written` counts stores. */
static _Alignas(128) unsigned char source_space[SPACE], target_space[SPACE], expected[SPACE];
static unsigned char readable[SPACE], written[SPACE];
static struct hr_move moves[MOVE_MAX];
static unsigned move_count;

static size_t place_in(const unsigned char *space, hr_place_u64 address, size_t size)
{
    size_t place = (size_t)(address - (uintptr_t)space);
    if (place > SPACE - size)
        fail_msg("%zu bytes at %lld of %u", size, (long long)place, SPACE);
    return place;
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

static void hr_vector_store(hr_place_u64 address, struct hr_vector vector)
{
    size_t place = place_in(target_space, address, 16);
    if (address % 16 != 0)
        fail_msg("a vector stored at %zu", place);
    memcpy(target_space + place, &vector, 16);
    for (size_t i = 0; i < 16; i++)
        written[place + i]++;
}

static void hr_byte_store(hr_place_u64 address, unsigned char byte)
{
    size_t place = place_in(target_space, address, 1);
    target_space[place] = byte;
    written[place]++;
}

/* ------------------------------------------------------------------------------------------------- the model */

/* The parts of both spaces that a test uses lie in [start, stop). */
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

/* `source` and `target` are places in the two spaces. */
static void add(size_t source, size_t target, unsigned long long bytes, unsigned long long rows, long long source_pitch,
                long long target_pitch)
{
    struct hr_move move = {
        (uintptr_t)source_space + source, (uintptr_t)target_space + target, bytes, rows, source_pitch, target_pitch, 0};
    assert_true(move_count < MOVE_MAX);
    moves[move_count++] = move;
    for (unsigned long long row = 0; row < rows; row++) {
        use((size_t)((long long)source + (long long)row * source_pitch), bytes);
        use((size_t)((long long)target + (long long)row * target_pitch), bytes);
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
        for (unsigned long long row = 0; row < moves[i].rows; row++) {
            size_t source = moves[i].source - (uintptr_t)source_space + row * (size_t)moves[i].source_pitch;
            size_t target = moves[i].target - (uintptr_t)target_space + row * (size_t)moves[i].target_pitch;
            memset(readable + source, 1, moves[i].bytes);
            memcpy(expected + target, source_space + source, moves[i].bytes);
        }
}

/* The kernel: what place.cu does around place_parts.h, one thread after the other. */
static void launch(unsigned block_count, unsigned thread_count)
{
    for (unsigned block = 0; block < block_count; block++) {
        const struct hr_place_walk walk = hr_place_walk(block, block_count, move_count);
        if (walk.part >= walk.parts)
            continue;
        for (hr_place_u64 first = walk.first; first < move_count; first += (hr_place_u64)walk.step * HR_PLACE_BATCH) {
            struct hr_move batch[HR_PLACE_BATCH];
            unsigned taken = hr_place_batch(first, walk.step, move_count);
            assert_in_range(taken, 1, HR_PLACE_BATCH);
            for (unsigned i = 0; i < taken; i++)
                batch[i] = moves[first + (hr_place_u64)i * walk.step];
            for (unsigned thread = 0; thread < thread_count; thread++)
                hr_place_moves(batch, taken, &walk, thread, thread_count);
        }
    }
}

static void check(unsigned block_count, unsigned thread_count)
{
    prepare();
    launch(block_count, thread_count);
    for (size_t i = used_start; i < used_stop; i++)
        if (target_space[i] != expected[i] || written[i] > 1)
            fail_msg(
                "%u blocks of %u threads, %u moves, the first of %llu rows of %llu bytes (source %llu, target %llu "
                "modulo 128, pitches %lld, %lld): byte %zu is %02x, not %02x, written %u times",
                block_count, thread_count, move_count, moves[0].rows, moves[0].bytes, moves[0].source % 128,
                moves[0].target % 128, moves[0].source_pitch, moves[0].target_pitch, i, target_space[i], expected[i],
                written[i]);
}

/* ------------------------------------------------------------------------------------------------- the tests */

/* All alignments of both sides, all lengths up to five vectors. */
static void test_single_rows(void **state)
{
    (void)state;
    for (unsigned source = 0; source < 16; source++)
        for (unsigned target = 0; target < 16; target++)
            for (unsigned bytes = 1; bytes <= 80; bytes++) {
                clear();
                add(MIDDLE + source, MIDDLE + target, bytes, 1, 0, 0);
                check(1, 32);
            }
}

/* Lines of 128 bytes, and lengths around the borders of spans, of what one warp makes and of what a block makes at once. */
static void test_long_rows(void **state)
{
    static const unsigned lengths[] = {511, 1024, 1040, 4096, 4112, 4113, 8192, 16384, 16400, 33000};
    (void)state;
    for (unsigned source = 0; source < 128; source += 5)
        for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int change = -1; change <= 1; change++) {
                clear();
                add(MIDDLE + source, MIDDLE + source * 7 % 31, lengths[i] + (unsigned)change, 1, 12345, -77);
                check(1, i % 2 ? 512 : 128);
            }
}

/* Narrow and wide rows with all small pitches of the target, in both directions. */
static void test_many_rows(void **state)
{
    (void)state;
    for (unsigned bytes = 1; bytes <= 40; bytes++)
        for (unsigned gap = 0; gap <= 17; gap++)
            for (unsigned rows = 2; rows <= 4; rows++)
                for (unsigned phase = 0; phase < 16; phase += 3)
                    for (int sign = -1; sign <= 1; sign += 2) {
                        clear();
                        add(MIDDLE + (phase * 5 + gap) % 16, MIDDLE + phase, bytes, rows, (long long)bytes + gap * 3,
                            sign * (long long)(bytes + gap));
                        check(1, 32);
                    }
}

/* Sources that go backwards, stand still, or overlap each other. */
static void test_odd_sources(void **state)
{
    static const long long pitches[] = {0, 1, -1, 3, -64, 1000, -1000};
    (void)state;
    for (unsigned i = 0; i < sizeof pitches / sizeof *pitches; i++)
        for (unsigned bytes = 1; bytes <= 70; bytes += 3) {
            clear();
            add(MIDDLE + i, MIDDLE + bytes, bytes, 50, pitches[i], (long long)bytes);
            check(2, 64);
        }
}

/* Moves of one to many warps' work, so that steps, jumps and shares of blocks meet all kinds of rows. */
static void test_shapes_of_launches(void **state)
{
    static const unsigned blocks[] = {1, 2, 3, 7, 64}, threads[] = {1, 7, 31, 32, 33, 100, 256, 512, 1024};
    static const unsigned shapes[][2] = {{2, 3000}, {6, 1001}, {16, 700}, {100, 90}, {520, 33}, {4099, 5}, {30000, 1}};
    (void)state;
    for (unsigned b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (unsigned t = 0; t < sizeof threads / sizeof *threads; t++)
            for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                unsigned bytes = shapes[s][0], rows = shapes[s][1];
                clear();
                add(MIDDLE + 3 * s, MIDDLE + 5, bytes, rows, (long long)bytes + 4, (long long)bytes + s % 3);
                check(blocks[b], threads[t]);
            }
}

/* Random moves that lie close to each other in the target: one to many more than there are blocks. */
static void test_mixed_launches(void **state)
{
    (void)state;
    srand(20240229);
    for (unsigned run = 0; run < 400; run++) {
        unsigned count = run < 40 ? run + 1 : 1 + (unsigned)rand() % MOVE_MAX;
        size_t target = 1024 + (unsigned)rand() % 64;
        clear();
        for (unsigned i = 0; i < count; i++) {
            unsigned kind = (unsigned)rand() % 8, bytes = 1 + (unsigned)rand() % (kind == 0 ? 6000 : 64);
            unsigned rows = kind < 3 ? 1 : 1 + (unsigned)rand() % 20, pitch = bytes + (unsigned)rand() % 9;
            int down = rand() % 2;
            if (target + (size_t)rows * pitch > SPACE - 1024)
                break;
            add(40000 + (unsigned)rand() % 100000, target + (down ? (rows - 1) * (size_t)pitch : 0), bytes, rows,
                (long long)bytes + rand() % 500 - 100, down ? -(long long)pitch : (long long)pitch);
            target += (rows - 1) * (size_t)pitch + bytes + (unsigned)rand() % 3;
        }
        check(1 + (unsigned)rand() % 64, rand() % 2 ? 512 : 1 + (unsigned)rand() % 200);
    }
}

/* Every move is in one batch, whatever the numbers, also those that end 32 bits. */
static void test_walk(void **state)
{
    (void)state;
    for (unsigned block_count = 1; block_count <= 40; block_count++)
        for (unsigned count = 1; count <= 700; count += count < 60 ? 1 : 37) {
            static unsigned char taken[700][40];
            unsigned parts[700] = {0};
            memset(taken, 0, sizeof taken);
            for (unsigned block = 0; block < block_count; block++) {
                struct hr_place_walk walk = hr_place_walk(block, block_count, count);
                for (hr_place_u64 first = walk.first; walk.part < walk.parts && first < count;
                     first += (hr_place_u64)walk.step * HR_PLACE_BATCH)
                    for (unsigned i = 0; i < hr_place_batch(first, walk.step, count); i++) {
                        assert_true(first + (hr_place_u64)i * walk.step < count);
                        taken[first + (hr_place_u64)i * walk.step][walk.part]++;
                        parts[first + (hr_place_u64)i * walk.step] = walk.parts;
                    }
            }
            for (unsigned i = 0; i < count; i++)
                for (unsigned part = 0; part < 40; part++)
                    assert_int_equal(taken[i][part], part < parts[i]);
        }
    assert_int_equal(hr_place_batch(4294967294u, 64, 4294967295u), 1);
    assert_int_equal(hr_place_batch(5, 64, 4294967295u), HR_PLACE_BATCH);
}

/* What makes it fast: no more vectors than rows need, and warps of a single row begin with a whole line of the source. */
static void test_economy(void **state)
{
    (void)state;
    for (unsigned bytes = 1; bytes <= 64; bytes *= 2) { /* a column of a matrix: every row in its own vectors only */
        struct hr_move move = {4096, 8192 + bytes, bytes, 100, 640, (long long)bytes * 3, 0};
        assert_int_equal(hr_place_shape(&move).per_row, (bytes + 15) / 16);
    }
    for (unsigned source = 4096; source < 4096 + 256; source++)
        for (unsigned target = 8192; target < 8192 + 16; target++) {
            struct hr_move move = {source, target, 10000, 1, 0, 0, 0};
            struct hr_place_shape shape = hr_place_shape(&move);
            assert_in_range(shape.skew, 0, 7);
            for (unsigned column = 128; column < 512; column += HR_PLACE_WARP) {
                struct hr_place_index index = {0, column};
                assert_int_equal(hr_place_piece(&move, shape.skew, &index).source % 128 / 16, 0);
            }
        }
}

/* Sizes and distances beyond 32 bits: the last vectors of rows and of moves that no test can hold. */
static void test_wide_arithmetic(void **state)
{
    (void)state;
    struct hr_move move = {0x7f0000000003, 0x7e0000000005, 1ull << 40, 1ull << 20, -(1ll << 41), (1ll << 41) + 16, 0};
    struct hr_place_shape shape = hr_place_shape(&move);
    assert_int_equal(shape.per_row, (1ull << 36) + 1);
    assert_false(hr_place_is_small(&move, &shape, 16));
    struct hr_place_index last = {(1ull << 20) - 1, shape.per_row - 1};
    struct hr_place_piece piece = hr_place_piece(&move, 0, &last);
    assert_int_equal(piece.target, 0x7e0000000000 + ((1ull << 20) - 1) * ((1ull << 41) + 16) + (1ull << 40));
    assert_int_equal(piece.source, move.source - ((1ull << 20) - 1) * (1ull << 41) + (1ull << 40) - 5);
    assert_int_equal(piece.range, 5u << 8);
    assert_true(hr_place_needs_lower(&piece));
    assert_true(hr_place_needs_upper(&piece));

    struct hr_move huge = {0,         0,         1ull << 35, 1ull << 33,
                           1ll << 35, 1ll << 35, 0}; /* 2^64 vectors, which is no small 0 */
    shape = hr_place_shape(&huge);
    assert_int_equal(shape.per_row, 1ull << 31);
    assert_false(hr_place_is_small(&huge, &shape, 16));

    struct hr_place_index index = hr_place_index(123456789012345, 1000), step = hr_place_index(1999, 1000);
    hr_place_advance(&index, &step, 1000);
    assert_int_equal(index.row * 1000 + index.column, 123456789012345 + 1999);
    assert_true(index.column < 1000);
}

int main(void)
{
    for (size_t i = 0; i < SPACE; i++)
        source_space[i] = (unsigned char)(i * 131 + i / 251 * 17 + i / 65521);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_rows),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_odd_sources),
        cmocka_unit_test(test_shapes_of_launches),
        cmocka_unit_test(test_mixed_launches),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_economy),
        cmocka_unit_test(test_wide_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
