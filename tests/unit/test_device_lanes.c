/*
 * test_device_lanes.c: lanes of one device beside each other, each on a thread of its own, out of one staging block.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "support/gpu_scene.h"
#include "support/test_model.h"

#define THREAD_COUNT 6
#define LANE_BYTES 300000u

static struct scene scene;

struct lane_work {
    size_t index;
    char *target;
    const char *failure;
};

/* Places the same bytes again and again, from its own part of the staging block to its own memory. */
static void *lane_main(void *argument)
{
    struct lane_work *work = argument;
    struct hr_lane *lane = NULL;
    struct hr_fence *fence = NULL;
    struct hr_place_counts counts = {0};
    struct hr_move *table = scene.moves + work->index * 100;
    work->failure = "opening";
    if (hr_lane_open(scene.device, &lane, NULL) || hr_fence_new(scene.device, &fence, NULL))
        return NULL;
    work->failure = "placing";
    for (int round = 0; round < 10; round++) {
        unsigned char *source = scene.source + work->index * 30000;
        memset(source, (int)work->index * 16 + round, 30000);
        for (size_t i = 0; i < 100; i++)
            table[i] =
                (struct hr_move){(uintptr_t)source + i * 2, (uintptr_t)work->target + i * 3000, 2900, 1, 0, 0, 0};
        if (hr_lane_place(lane, &scene.block, table, 100, &counts, NULL) || hr_fence_put(fence, lane, NULL) ||
            hr_fence_wait(fence, NULL) || hr_fence_poll(fence, NULL) != 1)
            return NULL;
    }
    hr_fence_free(fence);
    hr_lane_close(lane);
    work->failure = NULL;
    return NULL;
}

static void check_lane(const struct lane_work *work)
{
    static unsigned char found[LANE_BYTES];
    struct hr_error err = {0};
    assert_null(work->failure);
    assert_ok(hr_device_read(scene.device, found, work->target, LANE_BYTES, &err), err);
    for (size_t i = 0; i < LANE_BYTES; i++)
        if (i % 3000 < 2900 && found[i] != work->index * 16 + 9)
            fail_msg("lane %zu: byte %zu is %#x", work->index, i, found[i]);
}

static void begin(void)
{
    if (scene_fake())
        scene_fake()->reset();
    scene_open(&scene);
}

static void end(void)
{
    scene_close(&scene);
    scene_assert_nothing_live();
}

static void test_lanes_beside_each_other(void **state)
{
    struct lane_work works[THREAD_COUNT];
    pthread_t threads[THREAD_COUNT];
    struct hr_error err = {0};
    (void)state;
    for (size_t i = 0; i < THREAD_COUNT; i++) {
        works[i] = (struct lane_work){.index = i};
        assert_ok(hr_device_alloc(scene.device, LANE_BYTES, (void **)&works[i].target, &err), err);
        assert_int_equal(pthread_create(&threads[i], NULL, lane_main, &works[i]), 0);
    }
    for (size_t i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < THREAD_COUNT; i++) {
        check_lane(&works[i]);
        hr_device_free(scene.device, works[i].target, LANE_BYTES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_lanes_beside_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
