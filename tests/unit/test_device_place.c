/*
 * test_device_place.c: hr_lane_place() against a model: every byte to its place and no other, for ranges and rows of
 * all kinds, with each of the ways into place that a machine may leave.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "support/gpu_scene.h"
#include "support/plan_model.h"

static struct scene scene;

/* What the fake driver is told to lack; a real one is taken as it is, in the first one only. */
struct way {
    const char *settings;
    int may_use_kernel; /* the counts must show it where it is usable at all */
};

static const struct way ways[] = {
    {"", 1},
    {"no_kernel=1", 0},
    {"register=refuse", 1},
    {"register=refuse,pinned=refuse", 0},
    {"register=refuse,pinned=refuse,no_kernel=1", 0},
    {"confidential=1", 1},
    {"confidential=1,no_kernel=1", 0},
};
#define WAY_COUNT (sizeof ways / sizeof ways[0])

/* Runs `body` with a scene of each way. */
static void in_all_ways(void (*body)(const struct way *way))
{
    const struct scene_fake *fake = scene_fake();
    for (size_t i = 0; i < (fake ? WAY_COUNT : 1); i++) {
        if (fake)
            scene_need_fake(ways[i].settings);
        scene_open(&scene);
        body(&ways[i]);
        scene_close(&scene);
        scene_assert_nothing_live();
    }
}

static int kernel_is_used(const struct way *way)
{
    char detail[240];
    int usable = hr_device_kernel(scene.device, detail, sizeof detail);
    assert_int_equal(usable, detail[0] == '\0');
    return usable && way->may_use_kernel;
}

static void one_long_range(const struct way *way)
{
    (void)way;
    scene_move(&scene, 3, 77, 1000001, 1, 0, 0);
    scene_place(&scene);
    scene_check(&scene);
    assert_int_equal(scene.counts.copy_count, 1);
    assert_int_equal(scene.counts.kernel_count, 0);
    assert_int_equal(scene.counts.bytes_sent, 1000001);
}

static void test_one_long_range(void **state)
{
    (void)state;
    in_all_ways(one_long_range);
}

static void nothing(const struct way *way)
{
    (void)way;
    scene_place(&scene);
    scene_check(&scene);
    assert_int_equal(scene.counts.bytes_sent, 0);
}

static void test_nothing(void **state)
{
    (void)state;
    in_all_ways(nothing);
}

/* Each alignment of source and target against each other, short and longer, with guards between all. */
static void alignments(const struct way *way)
{
    static const size_t sizes[] = {1, 2, 7, 15, 16, 17, 33, 64, 255};
    size_t target = 256;
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        for (size_t i = 0; i < 256; i++) {
            scene_move(&scene, 4096 + size * 512 + i / 16, target + i % 16, sizes[size], 1, 0, 0);
            target += (sizes[size] + 48) & ~(size_t)15;
        }
    scene_place(&scene);
    scene_check(&scene);
    assert_int_equal(scene.counts.kernel_count > 0, kernel_is_used(way));
}

static void test_alignments(void **state)
{
    (void)state;
    in_all_ways(alignments);
}

/* 1 byte to 64 KiB at any place. */
static void many_sizes(const struct way *way)
{
    uint64_t random = 99;
    size_t target = 1;
    (void)way;
    for (size_t size = 1; size <= 65536; size = size * 3 / 2 + 1) {
        scene_move(&scene, (size_t)model_random(&random, SCENE_SOURCE_BYTES - size), target, size, 1, 0, 0);
        target += size + 1 + (size_t)model_random(&random, 40);
    }
    scene_place(&scene);
    scene_check(&scene);
}

static void test_many_sizes(void **state)
{
    (void)state;
    in_all_ways(many_sizes);
}

/* Rows of many widths; the target's pitch up, down, tight; the source's down too. */
static void rows(const struct way *way)
{
    static const size_t widths[] = {1, 2, 3, 16, 31, 100, 511, 512, 513, 3000};
    size_t target = 64;
    (void)way;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        size_t width = widths[i], pitch = width + i * 5 + 1;
        long up = (long)pitch, source_up = (long)(2 * width + i);
        scene_move(&scene, i, target, width, 9, source_up, up);
        scene_move(&scene, i + 7, target + 19 * pitch, width, 9, source_up, -up);
        scene_move(&scene, i + 20 * (size_t)source_up, target + 20 * pitch, width, 9, -source_up, up);
        scene_move(&scene, i + 50, target + 30 * pitch, width, 9, source_up, (long)width);
        scene_move(&scene, i + 90, target + 42 * pitch, width, 9, 0, up);
        target += 55 * pitch;
    }
    scene_place(&scene);
    scene_check(&scene);
}

static void test_rows(void **state)
{
    (void)state;
    in_all_ways(rows);
}

/* Enough bytes for the copy engine, in rows that it can and that it cannot take. */
static void large_rows(const struct way *way)
{
    scene_move(&scene, 5, 100, 1024, 400, 2048, 1500);
    scene_move(&scene, 6, 1000000, 100, 3000, 200, 130);
    scene_move(&scene, 7, 2900000, 1024, 400, 1024, -2000);
    scene_place(&scene);
    scene_check(&scene);
    assert_true(scene.counts.copy_count >= 1);
    assert_int_equal(scene.counts.kernel_count > 0, kernel_is_used(way));
}

static void test_large_rows(void **state)
{
    (void)state;
    in_all_ways(large_rows);
}

/* Rows that touch each other in both memories are one range. */
static void touching_rows(const struct way *way)
{
    (void)way;
    scene_move(&scene, 9, 33, 100, 5010, 100, 100);
    scene_place(&scene);
    scene_check(&scene);
    assert_int_equal(scene.counts.copy_count, 1);
    assert_int_equal(scene.counts.kernel_count, 0);
}

/* In one of both memories only: they are not. */
static void rows_apart(const struct way *way)
{
    (void)way;
    for (size_t i = 0; i < 20; i++) {
        scene_move(&scene, 9 + 100 * i, 33 + 101 * i, 100, 1, 0, 0);
        scene_move(&scene, 5000 + 101 * i, 5000 + 100 * i, 100, 1, 0, 0);
    }
    scene_place(&scene);
    scene_check(&scene);
}

static void test_touching_rows(void **state)
{
    (void)state;
    in_all_ways(touching_rows);
    in_all_ways(rows_apart);
}

static void ten_thousand(const struct way *way)
{
    (void)way;
    for (size_t i = 0; i < 10000; i++)
        scene_move(&scene, i * 101 % 1000000, 3 + 240 * i, 1 + i % 239, 1, 0, 0);
    scene_place(&scene);
    scene_check(&scene);
}

static void test_ten_thousand(void **state)
{
    (void)state;
    in_all_ways(ten_thousand);
}

/* Anything, in an order that does not rise, several times through the same lane. */
static void mixtures(const struct way *way)
{
    uint64_t random = 5;
    (void)way;
    for (int round = 0; round < 4; round++) {
        size_t end = SCENE_TARGET_BYTES - 700000;
        for (int i = 0; i < 200 && end > 40000; i++) {
            size_t bytes = 1 + (size_t)model_random(&random, model_random(&random, 4) ? 300 : 9000);
            size_t row_count = model_random(&random, 3) ? 1 : 1 + (size_t)model_random(&random, 4);
            size_t pitch = bytes + (size_t)model_random(&random, 30);
            end -= row_count * pitch;
            scene_move(&scene, (size_t)model_random(&random, 500000), end, bytes, row_count,
                       (long)model_random(&random, 20000), (long)pitch);
        }
        scene_move(&scene, 1, SCENE_TARGET_BYTES - 600001, 600000, 1, 0, 0);
        scene_place(&scene);
        scene_check(&scene);
    }
}

static void test_mixtures(void **state)
{
    (void)state;
    in_all_ways(mixtures);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_long_range), cmocka_unit_test(test_nothing),      cmocka_unit_test(test_alignments),
        cmocka_unit_test(test_many_sizes),     cmocka_unit_test(test_rows),         cmocka_unit_test(test_large_rows),
        cmocka_unit_test(test_touching_rows),  cmocka_unit_test(test_ten_thousand), cmocka_unit_test(test_mixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
