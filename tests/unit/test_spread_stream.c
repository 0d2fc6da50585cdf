/*
 * test_spread_stream.c: groups on GPUs whose collectives wait for each other in their streams, as NCCL's do: as many
 * windows in flight as there may be, in buffers that follow each other on the device alone. Ranks are late there, have no
 * memory for the next window, stop, or have calls of the driver that fail: what is ready is right, and who waits does not
 * burn a processor. For the fake driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/gpu_scene.h"
#include "support/spread_scene.h"

#define SECOND UINT64_C(1000000000)

/* ThreadSanitizer takes ten times as long. */
#ifdef HEADRACE_TSAN
#define SEED_COUNT 1
#define SWEEP_PART 2
#define SPIN_FACTOR 20
#else
#define SEED_COUNT 3
#define SWEEP_PART 7
#define SPIN_FACTOR 1
#endif

static struct test_model mixed, small;

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "streams", 20);
    write_small(&small, "small_streams");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    model_close(&small);
    return 0;
}

static const struct scene_fake *begin(struct scene_of_ranks *scene, const struct test_model *model, uint32_t world,
                                      const char *settings)
{
    static const char *const names[THREAD_GROUP_MAX] = {"cuda:0", "cuda:1", "cuda:0", "cuda:1"};
    const struct scene_fake *fake = scene_need_fake(settings);
    ranks_begin(scene, model, world, names,
                (struct hr_loader_options){.thread_count = 2, .route = HR_ROUTE_PREAD, .chunk_bytes = 64 * KIB});
    scene->group.driver = scene_driver();
    for (uint32_t r = 0; r < world; r++) {
        scene->jobs[r].options.group_bytes = 300 * KIB;
        scene->jobs[r].by = BY_NEXT;
        scene->jobs[r].stays = 1;
    }
    return fake;
}

static void end(struct scene_of_ranks *scene)
{
    ranks_end(scene);
    scene_assert_nothing_live();
}

static uint64_t processor_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void test_many_in_flight(void **state)
{
    static struct scene_of_ranks scene;
    char settings[64];
    (void)state;
    for (unsigned seed = 1; seed <= SEED_COUNT; seed++)
        for (uint32_t world = 2; world <= 4; world++) {
            snprintf(settings, sizeof settings, "devices=2,delay_us=%u,seed=%u", seed % 3 * 150 + 5, seed);
            begin(&scene, &mixed, world, settings);
            for (uint32_t r = 0; r < world; r++) {
                scene.jobs[r].options.group_bytes = (150 + seed * 70) * KIB;
                scene.jobs[r].options.ownership = seed % 2;
                scene.jobs[r].options.window_bytes = seed % 3 == 0 ? 100 * KIB : 0;
                scene.jobs[r].by = seed % 3 == 1 ? BY_BACKWARDS : BY_NEXT;
            }
            thread_group_run(&scene.group);
            check_all(&scene);
            end(&scene);
        }
}

/* A rank is late on its device: the others, whose next windows are ready, wait for it without much ado. */
static void test_late_on_device(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    begin(&scene, &small, 2, "devices=2,delay_us=5");
    for (uint32_t r = 0; r < 2; r++)
        scene.jobs[r].options.group_bytes = 40 * KIB;
    scene.group.ranks[1].late_at = 8;
    uint64_t from = processor_ns();
    thread_group_run(&scene.group);
    assert_true(processor_ns() - from < SPIN_FACTOR * SECOND * 3 / 10);
    check_all(&scene);
    assert_true(scene.jobs[0].stats.group_wait_ns > SECOND * 3 / 10);
    end(&scene);
}

/* The same where a window's destinations are lacking, on one rank earlier than on the other. */
static void test_late_consumer(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    begin(&scene, &small, 2, "devices=2,delay_us=5");
    for (uint32_t r = 0; r < 2; r++) {
        scene.jobs[r].options.group_bytes = 40 * KIB;
        scene.jobs[r].options.window_bytes = (r ? 30 : 60) * KIB;
        scene.jobs[r].pause_ns = SECOND / 2;
    }
    uint64_t from = processor_ns();
    thread_group_run(&scene.group);
    assert_true(processor_ns() - from < SPIN_FACTOR * SECOND * 3 / 10);
    check_all(&scene);
    end(&scene);
}

/* A rank stops while another is late on its device. */
static void test_stopping(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    for (unsigned at = 3; at <= 9; at += 6)
        for (enum wait_by by = BY_CANCEL; by <= BY_FREE; by++) {
            begin(&scene, &small, 3, "devices=2,delay_us=5");
            for (uint32_t r = 0; r < 3; r++)
                scene.jobs[r].options.group_bytes = 60 * KIB;
            scene.group.ranks[2].late_at = at;
            scene.jobs[1].by = by;
            scene.jobs[1].stop_after = 1;
            thread_group_run(&scene.group);
            for (uint32_t r = 0; r < 3; r++)
                check_ready(&scene, r);
            if (scene.jobs[0].code)
                assert_non_null(strstr(scene.jobs[0].err.message, "rank 1 stopped early"));
            end(&scene);
        }
}

/* The n-th call of the driver fails on some rank: no rank hangs, and what was ready is right. */
static int fault(const char *settings, unsigned long n, unsigned long *error_count)
{
    static struct scene_of_ranks scene;
    const struct scene_fake *fake = begin(&scene, &small, 2, settings);
    for (uint32_t r = 0; r < 2; r++)
        scene.jobs[r].options.group_bytes = 60 * KIB;
    fake->fail_nth(n, 1);
    thread_group_run(&scene.group);
    int fired = fake->fired() != 0;
    fake->fail_nth(0, 0);
    for (uint32_t r = 0; r < 2; r++) {
        const struct job *job = &scene.jobs[r];
        *error_count += job->code != 0;
        if (job->code && job->code != HR_EGROUP_ERROR && job->code != HR_EDEVICE_ERROR)
            fail_msg("call %lu: rank %u: %s: %s", n, r, hr_error_kind(job->code), job->err.message);
        if (strstr(job->err.message, "in vain"))
            fail_msg("call %lu: rank %u: %s", n, r, job->err.message);
        if (job->code)
            check_ready(&scene, r);
        else
            check_rank(&scene, r);
    }
    end(&scene);
    return fired;
}

static void test_faults(void **state)
{
    unsigned long error_count = 0;
    (void)state;
    for (unsigned long n = 1; fault("devices=2,delay_us=200", n, &error_count);)
        n += 1 + n / SWEEP_PART;
    assert_true(error_count > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_in_flight), cmocka_unit_test(test_late_on_device),
        cmocka_unit_test(test_late_consumer),  cmocka_unit_test(test_stopping),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
