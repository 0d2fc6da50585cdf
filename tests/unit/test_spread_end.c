/*
 * test_spread_end.c: ranks that have all they need before the others do. A load that is whole reads on for them, whichever
 * call its rank is in, and is freed at once afterwards; what fails meanwhile ends that, and is no error of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "support/gpu.h"
#include "support/gpu_scene.h"
#include "support/spread_scene.h"

/* Two heads, of which ranks from the third on get none, behind what all ranks get. */
static void write_heads(struct test_model *model)
{
    const struct test_tensor tensors[] = {
        {.name = "all", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {300 * KIB}, .seed = 3},
        {.name = "heads", .dtype = HR_DTYPE_U8, .rank = 3, .shape = {40000, 2, 8}, .seed = 4},
    };
    model_write(model, "heads", tensors, 2, 2, 0);
    model_open(model);
}

static struct test_model heads;

static int setup(void **state)
{
    (void)state;
    write_heads(&heads);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&heads);
    return 0;
}

/* Item 0 whole, of item 1 a block of the second dimension. */
static void heads_begin(struct scene_of_ranks *scene, uint32_t world, const char *const *devices, enum wait_by by)
{
    struct hr_loader_options options = {.thread_count = 2, .route = HR_ROUTE_PREAD, .chunk_bytes = 64 * KIB};
    ranks_begin(scene, &heads, world, devices, options);
    for (uint32_t r = 0; r < world; r++) {
        struct job *job = &scene->jobs[r];
        job->items[1].shard_dim = 1;
        job->items[1].shard_rank = r;
        job->items[1].shard_world = world;
        job->options.group_bytes = 200 * KIB;
        job->by = by;
        job->leaves = 1;
    }
}

/* The number of a collective `before` the last one, when some rank has all it needs. */
static unsigned late_call(unsigned before)
{
    static struct scene_of_ranks scene;
    heads_begin(&scene, 3, NULL, BY_ALL);
    thread_group_run(&scene.group);
    unsigned count = scene.group.ranks[0].call_count;
    ranks_end(&scene);
    assert_true(count > 12);
    return count - before;
}

static void run_leaving(uint32_t world, const char *const *devices, enum wait_by by, uint32_t late_rank)
{
    static struct scene_of_ranks scene;
    heads_begin(&scene, world, devices, by);
    if (late_rank < world)
        scene.group.ranks[late_rank].late_at = 8;
    thread_group_run(&scene.group);
    for (uint32_t r = 0; r < world; r++) {
        assert_ok(scene.jobs[r].code, scene.jobs[r].err);
        assert_int_equal(scene.jobs[r].stats.bytes_ready, 300 * KIB + (r < 2 ? 320000 : 0));
    }
    ranks_end(&scene);
    if (devices)
        scene_assert_nothing_live();
}

static void run_all_leaving(const char *const *devices)
{
    for (uint32_t world = 3; world <= THREAD_GROUP_MAX; world++)
        for (enum wait_by by = BY_ALL; by <= BY_BACKWARDS; by++)
            for (int turn = 0; turn < 5; turn++)
                run_leaving(world, devices, by, turn == 4 ? by % world : world);
}

static void test_leaving(void **state)
{
    (void)state;
    run_all_leaving(NULL);
}

static void test_leaving_gpus(void **state)
{
    const char *devices[THREAD_GROUP_MAX];
    (void)state;
    if (!gpu_name())
        skip();
    for (uint32_t r = 0; r < THREAD_GROUP_MAX; r++)
        devices[r] = gpu_name();
    run_all_leaving(devices);
}

/* Whose load is whole is not touched by what others do then: they cancel, or the transport loses one. */
static void test_failing_meanwhile(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    for (int lost = 0; lost < 2; lost++)
        for (enum wait_by by = BY_ALL; by <= BY_BACKWARDS; by++) {
            heads_begin(&scene, 3, NULL, by);
            if (lost)
                scene.group.ranks[0].fail_at = late_call(1);
            else
                scene.group.ranks[1].held_at = late_call(4);
            scene.jobs[0].by = lost ? by : BY_CANCEL;
            scene.jobs[0].stop_after = 1;
            thread_group_run(&scene.group);
            assert_code(scene.jobs[0].code, lost ? HR_EGROUP_ERROR : HR_ECANCELLED);
            assert_code(scene.jobs[1].code, HR_EGROUP_ERROR);
            assert_ok(scene.jobs[2].code, scene.jobs[2].err);
            ranks_end(&scene);
        }
}

/* A deadline bounds it, too, and is then what the others hear. */
static void test_deadline(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    for (enum wait_by by = BY_ALL; by <= BY_BACKWARDS; by++) {
        heads_begin(&scene, 3, NULL, by);
        scene.group.ranks[0].late_at = late_call(4);
        scene.group.late_ms = 700;
        scene.jobs[2].options.deadline_ns = 500000000; /* enough for what it needs */
        thread_group_run(&scene.group);
        assert_ok(scene.jobs[2].code, scene.jobs[2].err);
        assert_code(scene.jobs[0].code, HR_EGROUP_ERROR);
        assert_non_null(strstr(scene.jobs[0].err.message, "rank 2"));
        ranks_end(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_leaving_gpus),
        cmocka_unit_test(test_failing_meanwhile),
        cmocka_unit_test(test_deadline),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
