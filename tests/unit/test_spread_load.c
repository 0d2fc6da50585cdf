/*
 * test_spread_load.c: loads of process groups, whose ranks are threads, into host memory and to GPUs: every byte in its
 * place on every rank, whatever the windows; each byte read once; and whatever one rank cannot do, the others learn it,
 * nothing is left, and the next load works.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/faults.h"
#include "support/gpu.h"
#include "support/gpu_scene.h"
#include "support/page_cache.h"
#include "support/spread_scene.h"

static struct test_model mixed, small, twin; /* the last two are of the same content */

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "spread", 20);
    write_small(&small, "small");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    model_close(&small);
    return 0;
}

static void run_well(uint32_t world, const char *const *devices, struct hr_loader_options loader_options,
                     struct hr_load_options options, enum wait_by by)
{
    static struct scene_of_ranks scene;
    ranks_begin(&scene, &mixed, world, devices, loader_options);
    for (uint32_t r = 0; r < world; r++) {
        scene.jobs[r].options = options;
        scene.jobs[r].by = by;
        scene.group.ranks[r].uses_alloc = !devices && r % 2;
    }
    thread_group_run(&scene.group);
    check_all(&scene);
    ranks_end(&scene);
    if (devices)
        scene_assert_nothing_live();
}

/* ThreadSanitizer takes ten times as long: fewer worlds, and fewer of the calls that fail in turn. */
#ifdef HEADRACE_TSAN
#define WORLD_MAX 2
#define SWEEP_PART 3
#define TWICE_STEP 32
#else
#define WORLD_MAX 4
#define SWEEP_PART 15
#define TWICE_STEP 16
#endif

static void run_settings(const char *const *devices)
{
    static const uint64_t group_bytes[] = {0, 500 * KIB, 3000 * KIB};
    for (uint32_t world = devices ? 2 : 1; world <= WORLD_MAX; world++)
        for (int i = 0; i < 3; i++) {
            struct hr_loader_options loader = {.thread_count = 2, .route = HR_ROUTE_PREAD};
            struct hr_load_options options = {.group_bytes = group_bytes[i], .ownership = (world + i) % 2};
            run_well(world, devices, loader, options, i == 0 ? BY_ALL : BY_NEXT);
            if (i != (int)world % 3)
                continue;
            options.window_bytes = 100 * KIB;
            run_well(world, devices, loader, options, BY_NEXT);
            run_well(world, devices, loader, options, BY_BACKWARDS);
        }
}

/*
 * GPUs: parts are read ahead as far as the ring goes, be it a slot, a few, or more than the readers keep busy; from files
 * that are cached, not, or in turns.
 */
static void run_rings(const char *const *devices)
{
    static const uint64_t staging_bytes[] = {64 * KIB, 800 * KIB, 1600 * KIB, 0};
    for (int i = 0; i < 4; i++)
        for (uint32_t readers = 1; readers <= 5; readers += 4) {
            struct hr_loader_options loader = {.thread_count = readers,
                                               .route = i % 2 ? HR_ROUTE_PREAD : HR_ROUTE_AUTO,
                                               .chunk_bytes = 64 * KIB,
                                               .staging_bytes = staging_bytes[i]};
            struct hr_load_options options = {.group_bytes = 1000 * KIB};
            for (size_t f = 0; i % 2 == 0 && f < mixed.path_count; f += 1 + readers % 4)
                page_cache_drop(mixed.paths[f]);
            run_well(2 + (uint32_t)i % 2, devices, loader, options, BY_NEXT);
        }
}

static void test_host(void **state)
{
    (void)state;
    run_settings(NULL);
}

/* What a rank has, against a load of its own of the same items, to host memory. */
static void check_as_alone(struct scene_of_ranks *scene, uint32_t rank)
{
    struct job *job = &scene->jobs[rank];
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load;
    struct hr_error err = {0};
    assert_ok(job->code, job->err);
    assert_ok(hr_load_start(loader, job->checkpoint, job->items, job->model->count, NULL, &load, &err), err);
    assert_ok(hr_load_wait_all(load, &err), err);
    for (size_t i = 0; i < job->model->count; i++) {
        struct hr_view wanted = {.size = sizeof wanted}, view = {.size = sizeof view};
        assert_ok(hr_load_view(load, i, &wanted, &err), err);
        assert_ok(hr_load_view(job->load, i, &view, &err), err);
        assert_int_equal(view.dtype, wanted.dtype);
        assert_int_equal(view.bytes, wanted.bytes);
        unsigned char *bytes = malloc(view.bytes + 1);
        assert_ok(hr_load_read(job->load, i, 0, view.bytes, bytes, &err), err);
        assert_true(view.bytes == 0 || memcmp(bytes, wanted.data, view.bytes) == 0);
        free(bytes);
    }
    hr_load_free(load);
    hr_loader_free(loader);
}

/* Every second tensor that can be gets another dtype: wider, narrower, and of the same width. */
static void run_casts(uint32_t world, const char *const *devices, uint64_t group_bytes)
{
    static const uint32_t dtypes[] = {HR_DTYPE_F64, HR_DTYPE_F32, HR_DTYPE_BF16, HR_DTYPE_F8_E4M3, HR_DTYPE_I16};
    static struct scene_of_ranks scene;
    struct hr_loader_options loader_options = {.thread_count = 2, .route = HR_ROUTE_PREAD};
    ranks_begin(&scene, &mixed, world, devices, loader_options);
    for (uint32_t r = 0; r < world; r++) {
        scene.jobs[r].options.group_bytes = group_bytes;
        for (size_t i = 0; i < mixed.count; i++)
            if (i % 2 && hr_dtype_converts(mixed.tensors[i].dtype, dtypes[i / 2 % 5]))
                scene.jobs[r].items[i].dtype = dtypes[i / 2 % 5];
    }
    thread_group_run(&scene.group);
    for (uint32_t r = 0; r < world; r++) {
        check_as_alone(&scene, r);
        assert_true(scene.jobs[r].stats.bytes_converted > 0);
        assert_true(scene.jobs[r].stats.bytes_spread > 0);
    }
    ranks_end(&scene);
}

static void test_casts(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 4; world++) {
        run_casts(world, NULL, 0);
        run_casts(world, NULL, 500 * KIB);
    }
}

/* Ranks take turns on the devices that there are. */
static const char *const *gpu_names(void)
{
    static const char *names[THREAD_GROUP_MAX];
    struct hr_device_info info = {.size = sizeof info};
    if (!gpu_name())
        skip();
    int has_two = hr_device_find("cuda:1", &info, NULL) == 0;
    for (uint32_t r = 0; r < THREAD_GROUP_MAX; r++)
        names[r] = r % 2 && has_two ? "cuda:1" : "cuda:0";
    return names;
}

/*
 * A tensor as it is stored, and again as another dtype, whose elements must not be cut where those of bytes may be: so the
 * group's stream goes back in the file, and windows follow each other otherwise than files do.
 */
static void run_twice(uint32_t world, const char *const *devices)
{
    static const struct test_tensor tensors[] = {
        {.name = "a", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {1}, .seed = 1},
        {.name = "b", .dtype = HR_DTYPE_F32, .rank = 1, .shape = {8000}, .seed = 2},
        {.name = "c", .dtype = HR_DTYPE_F32, .rank = 1, .shape = {50}, .seed = 3},
    };
    static struct scene_of_ranks scene;
    struct test_model twice;
    model_write(&twice, "twice", tensors, 3, 3, 0);
    model_open(&twice);
    for (uint64_t bytes = 8; bytes <= 72; bytes += TWICE_STEP)
        for (uint32_t readers = 1; readers <= 3; readers += 2) {
            ranks_begin(&scene, &twice, world, devices,
                        (struct hr_loader_options){.thread_count = readers,
                                                   .chunk_bytes = 64 * KIB,
                                                   .staging_bytes = bytes % 32 == 8 ? 64 * KIB : 0});
            for (uint32_t r = 0; r < world; r++) {
                scene.jobs[r].options.group_bytes = bytes * KIB;
                scene.jobs[r].items[1].shard_world = 0;
                scene.jobs[r].items[2] =
                    (struct hr_item){.size = sizeof scene.jobs[r].items[2], .tensor_index = 1, .dtype = HR_DTYPE_F16};
            }
            thread_group_run(&scene.group);
            for (uint32_t r = 0; r < world; r++)
                check_as_alone(&scene, r);
            ranks_end(&scene);
        }
    model_close(&twice);
}

static void test_twice(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 3; world++)
        run_twice(world, NULL);
    if (scene_fake())
        scene_need_fake("devices=2,delay_us=50");
    for (uint32_t world = 2; world <= 3; world++)
        run_twice(world, gpu_names());
}

/* ------------------------------------------------------------------------------------- what goes wrong */

#define SMALL_BYTES (24 * KIB)

/* Ranks over the small model, the last of them over its twin. */
static void small_begin(struct scene_of_ranks *scene, uint32_t world, const char *const *devices)
{
    struct hr_error err = {0};
    struct hr_loader_options options = {.thread_count = 2, .route = HR_ROUTE_PREAD};
    write_small(&twin, "twin");
    ranks_begin(scene, &small, world, devices, options);
    struct job *last = &scene->jobs[world - 1];
    hr_checkpoint_close(last->checkpoint);
    assert_ok(hr_checkpoint_open(twin.paths, twin.path_count, NULL, &last->checkpoint, &err), err);
    for (uint32_t r = 0; r < world; r++) {
        scene->jobs[r].options.group_bytes = devices ? 3 * SMALL_BYTES : SMALL_BYTES;
        scene->jobs[r].options.window_bytes = r == 1 ? 30000 : 0;
        scene->jobs[r].by = BY_NEXT;
    }
}

static void small_end(struct scene_of_ranks *scene, const char *const *devices)
{
    ranks_end(scene);
    model_close(&twin);
    if (devices)
        scene_assert_nothing_live();
}

static void small_works(const char *const *devices)
{
    static struct scene_of_ranks scene;
    small_begin(&scene, 2, devices);
    thread_group_run(&scene.group);
    check_all(&scene);
    small_end(&scene, devices);
}

/* One rank has an error of its own, and all others say which rank it was. */
static void check_blame(struct scene_of_ranks *scene, uint32_t guilty, int code, const char *words)
{
    for (uint32_t r = 0; r < scene->group.world; r++) {
        struct job *job = &scene->jobs[r];
        assert_code(job->code, r == guilty ? code : HR_EGROUP_ERROR);
        if (r != guilty && !strstr(job->err.message, words))
            fail_msg("rank %u: '%s' has no '%s'", r, job->err.message, words);
    }
}

static void test_own_errors(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    for (uint32_t world = 2; world <= 4; world++) {
        char words[64];
        small_begin(&scene, world, NULL);
        assert_int_equal(truncate(twin.paths[1], 60000), 0);
        thread_group_run(&scene.group);
        snprintf(words, sizeof words, "rank %u: FileChanged: ", world - 1);
        check_blame(&scene, world - 1, HR_EFILE_CHANGED, words);
        small_end(&scene, NULL);

        small_begin(&scene, world, NULL);
        scene.jobs[1].options.deadline_ns = 1;
        thread_group_run(&scene.group);
        check_blame(&scene, 1, HR_EDEADLINE_EXCEEDED, "rank 1: DeadlineExceeded: the load did not finish");
        small_end(&scene, NULL);

        small_begin(&scene, world, NULL);
        scene.jobs[0].declines = 1;
        thread_group_run(&scene.group);
        check_blame(&scene, 0, HR_ESHARD_MISSING, "rank 0 cannot start: ShardMissing: no shard");
        small_end(&scene, NULL);

        small_begin(&scene, world, NULL);
        scene.jobs[1].items[3].dtype = HR_DTYPE_F4; /* which nothing is converted to */
        thread_group_run(&scene.group);
        check_blame(&scene, 1, HR_EUNSUPPORTED, "rank 1 cannot start: Unsupported: tensor 't03' is stored as F32");
        small_end(&scene, NULL);
    }
    small_works(NULL);
}

static void test_differences(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    small_begin(&scene, 3, NULL);
    scene.jobs[2].options.group_bytes += 10 * KIB;
    thread_group_run(&scene.group);
    check_blame(&scene, 9, 0, "rank(s) 2 differ from rank 0 in the sizes of windows");
    small_end(&scene, NULL);

    small_begin(&scene, 3, NULL);
    scene.jobs[1].items[4].tensor_index = 5;
    thread_group_run(&scene.group);
    check_blame(&scene, 9, 0, "rank(s) 1 differ from rank 0 in the items");
    small_end(&scene, NULL);

    small_begin(&scene, 3, NULL);
    struct hr_error err = {0};
    hr_checkpoint_close(scene.jobs[0].checkpoint);
    assert_ok(hr_checkpoint_open(mixed.paths, mixed.path_count, NULL, &scene.jobs[0].checkpoint, &err), err);
    for (uint32_t r = 0; r < 3; r++) /* as far as the tables allow them */
        for (size_t i = 0; i < small.count; i++)
            scene.jobs[r].items[i].shard_world = scene.jobs[r].items[i].shard_rank = 0;
    thread_group_run(&scene.group);
    check_blame(&scene, 9, 0, "rank(s) 1, 2 differ from rank 0 in the checkpoint");
    small_end(&scene, NULL);
}

static void test_stopping(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    for (size_t after = 0; after <= small.count; after += 3)
        for (enum wait_by by = BY_CANCEL; by <= BY_FREE; by++)
            for (uint32_t world = 2; world <= 3; world++) {
                small_begin(&scene, world, NULL);
                scene.jobs[1].by = by;
                scene.jobs[1].stop_after = after;
                thread_group_run(&scene.group);
                for (uint32_t r = 0; r < world; r++) {
                    const struct job *job = &scene.jobs[r];
                    if (r == 1)
                        assert_true(job->code == 0 || (by == BY_CANCEL && job->code == HR_ECANCELLED));
                    else if (job->code)
                        assert_non_null(strstr(job->err.message, "rank 1 stopped early"));
                }
                if (after == 0)
                    assert_code(scene.jobs[0].code, HR_EGROUP_ERROR);
                small_end(&scene, NULL);
            }
    small_works(NULL);
}

static void test_late(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    small_begin(&scene, 3, NULL);
    scene.group.ranks[2].late_at = 3;
    thread_group_run(&scene.group);
    check_all(&scene);
    assert_true(scene.jobs[0].stats.group_wait_ns > 100000000);
    small_end(&scene, NULL);
}

/* Whatever call it is that a rank's transport fails in. */
static void run_lost(const char *const *devices)
{
    static struct scene_of_ranks scene;
    for (unsigned n = 1;; n++) {
        small_begin(&scene, 2, devices);
        scene.group.ranks[n % 2].fail_at = n;
        thread_group_run(&scene.group);
        int is_over = scene.group.ranks[n % 2].call_count < n;
        if (is_over)
            check_all(&scene);
        for (uint32_t r = 0; r < 2 && !is_over; r++)
            if (scene.jobs[r].code) {
                assert_code(scene.jobs[r].code, HR_EGROUP_ERROR);
                assert_non_null(strstr(scene.jobs[r].err.message, "lost its connection"));
            }
        assert_true(is_over || scene.jobs[n % 2].code);
        small_end(&scene, devices);
        if (is_over)
            break;
    }
}

static void test_lost(void **state)
{
    (void)state;
    run_lost(NULL);
    small_works(NULL);
}

/* The n-th call of some kind fails, on whichever rank it is; all come back, and nothing is left. */
static void sweep(unsigned classes, unsigned step)
{
    static struct scene_of_ranks scene;
    for (unsigned long n = 1;; n += step) {
        faults_install();
        small_begin(&scene, 2, NULL);
        faults_fail(classes, n, 0);
        thread_group_run(&scene.group);
        int fired = faults_fired() != 0;
        faults_fail(0, 0, 0);
        for (uint32_t r = 0; r < 2; r++) {
            const struct job *job = &scene.jobs[r];
            if (job->code && (!fired || (job->code != HR_EGROUP_ERROR && job->code != HR_EIO_ERROR &&
                                         job->code != HR_EOUT_OF_MEMORY)))
                fail_msg("call %lu: rank %u: %s: %s", n, r, hr_error_kind(job->code), job->err.message);
        }
        if (scene.jobs[0].code == 0 && scene.jobs[1].code == 0)
            check_all(&scene);
        small_end(&scene, NULL);
        faults_assert_nothing_live();
        faults_remove();
        if (!fired)
            break;
    }
}

static void test_faults(void **state)
{
    (void)state;
    sweep(FAULT_READ, 1);
    sweep(FAULT_MEMORY | FAULT_MAP, 1);
    sweep(FAULT_THREAD, 1);
    sweep(FAULT_OPEN | FAULT_STAT, 1);
    small_works(NULL);
}

/* ------------------------------------------------------------------------------------------ GPUs */

static void test_gpu(void **state)
{
    (void)state;
    const struct scene_fake *fake = scene_fake();
    if (fake)
        scene_need_fake("devices=2,delay_us=5");
    run_settings(gpu_names());
    run_rings(gpu_names());
    run_casts(2, gpu_names(), 0);
    run_casts(3, gpu_names(), 600 * KIB);
    if (!fake)
        return;
    scene_need_fake("devices=2,no_kernel=1");
    run_well(2, gpu_names(), (struct hr_loader_options){0}, (struct hr_load_options){.group_bytes = 600 * KIB}, BY_ALL);
    scene_need_fake("devices=2,confidential=1");
    run_well(2, gpu_names(), (struct hr_loader_options){0}, (struct hr_load_options){.group_bytes = 600 * KIB}, BY_ALL);
    scene_need_fake("");
}

static void test_gpu_lost(void **state)
{
    (void)state;
    if (scene_fake())
        scene_need_fake("devices=2,delay_us=5");
    run_lost(gpu_names());
    small_works(gpu_names());
}

#define SLOW_CALLS 30u

/*
 * The n-th call of the driver fails, the library's or the transport's: no rank hangs. Returns whether there was one;
 * *error_count grows by the ranks that failed, and *ret_call_count is that of the load's calls.
 */
static int gpu_fault(const char *settings, unsigned long n, unsigned long *error_count, unsigned long *ret_call_count)
{
    static struct scene_of_ranks scene;
    const struct scene_fake *fake = scene_need_fake(settings);
    small_begin(&scene, 2, gpu_names());
    unsigned long before = fake->calls();
    fake->fail_nth(n, 1);
    thread_group_run(&scene.group);
    int fired = fake->fired() != 0;
    fake->fail_nth(0, 0);
    *ret_call_count = fake->calls() - before;
    for (uint32_t r = 0; r < 2; r++) {
        const struct job *job = &scene.jobs[r];
        *error_count += job->code != 0;
        if (job->code && job->code != HR_EGROUP_ERROR && job->code != HR_EDEVICE_ERROR)
            fail_msg("call %lu: rank %u: %s: %s", n, r, hr_error_kind(job->code), job->err.message);
        if (strstr(job->err.message, "in vain"))
            fail_msg("call %lu: rank %u: %s", n, r, job->err.message);
    }
    if (scene.jobs[0].code == 0 && scene.jobs[1].code == 0)
        check_all(&scene);
    small_end(&scene, gpu_names());
    return fired;
}

/* From the first call to the last; then those in the middle of a load whose copies take longer. The next load works. */
static void test_gpu_faults(void **state)
{
    static const char quick[] = "devices=2,delay_us=5", slow[] = "devices=2,delay_us=200";
    unsigned long error_count = 0, call_count = 0, middle;
    (void)state;
    for (unsigned long n = 1; gpu_fault(quick, n, &error_count, &call_count);)
        n += 1 + n / SWEEP_PART;
    assert_true(error_count > 20);
    gpu_fault(slow, 0, &error_count, &call_count);
    middle = call_count / 2;
    assert_true(middle > SLOW_CALLS);
    error_count = 0;
    for (unsigned long n = middle - SLOW_CALLS / 2; n < middle + SLOW_CALLS / 2; n++)
        gpu_fault(slow, n, &error_count, &call_count);
    assert_true(error_count > SLOW_CALLS / 2);
    scene_need_fake(quick);
    small_works(gpu_names());
}

/* ------------------------------------------------------------------------------- whose memory it is */

/* The caller's memory, with strides, filled behind what its stream holds. */
static void test_into(void **state)
{
    static struct scene_of_ranks scene;
    (void)state;
    small_begin(&scene, 3, NULL);
    for (uint32_t r = 0; r < 3; r++)
        for (size_t i = 0; i < small.count; i++) {
            const struct test_tensor *tensor = &small.tensors[i];
            int64_t *strides = malloc(2 * sizeof *strides);
            strides[0] = 4; /* transposed, with a gap */
            strides[1] = 4 * ((int64_t)tensor->shape[0] + 3);
            scene.jobs[r].items[i].into = malloc((size_t)strides[1] * tensor->shape[1]);
            scene.jobs[r].items[i].into_strides = strides;
        }
    thread_group_run(&scene.group);
    for (uint32_t r = 0; r < 3; r++) {
        struct job *job = &scene.jobs[r];
        assert_ok(job->code, job->err);
        for (size_t i = 0; i < small.count; i++) {
            struct hr_view view = {.size = sizeof view};
            assert_ok(hr_load_view(job->load, i, &view, &job->err), job->err);
            assert_ptr_equal(view.data, job->items[i].into);
            check_view(&small.tensors[i], job->ranges[i], &view);
        }
    }
    for (uint32_t r = 0; r < 3; r++)
        for (size_t i = 0; i < small.count; i++) {
            free(scene.jobs[r].items[i].into);
            free((void *)scene.jobs[r].items[i].into_strides);
        }
    small_end(&scene, NULL);
}

/* What a load of a group cannot be is refused by name, on all ranks. */
static void test_refused(void **state)
{
    static struct scene_of_ranks scene;
    struct hr_error err = {0};
    (void)state;
    small_begin(&scene, 2, NULL);
    for (uint32_t r = 0; r < 2; r++)
        scene.jobs[r].options.sequential = 1;
    thread_group_run(&scene.group);
    for (uint32_t r = 0; r < 2; r++) {
        assert_code(scene.jobs[r].code, HR_EUNSUPPORTED);
        assert_int_equal(scene.group.ranks[r].call_count, 1);
    }
    struct hr_group group = thread_group_of(&scene.group.ranks[0]), bad[4] = {group, group, group, group};
    bad[0].rank = 2;
    bad[1].all_gather = NULL;
    bad[2].world = 2000;
    bad[3].alloc = (void *(*)(void *, uint64_t))(uintptr_t)test_refused;
    for (size_t i = 0; i < 4; i++) {
        struct hr_load_options options = {.size = sizeof options, .group = &bad[i]};
        struct hr_load *load = NULL;
        assert_code(hr_load_start(scene.jobs[0].loader, scene.jobs[0].checkpoint, scene.jobs[0].items, small.count,
                                  &options, &load, &err),
                    HR_EINVALID_ARGUMENT);
        assert_code(hr_group_decline(&bad[i], &(struct hr_error){.code = HR_EIO_ERROR}, &err), HR_EINVALID_ARGUMENT);
        assert_null(load);
    }
    assert_code(hr_group_decline(&group, NULL, &err), HR_EINVALID_ARGUMENT);
    assert_int_equal(scene.group.ranks[0].call_count, 1);
    small_end(&scene, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),        cmocka_unit_test(test_twice),      cmocka_unit_test(test_casts),
        cmocka_unit_test(test_into),        cmocka_unit_test(test_refused),    cmocka_unit_test(test_own_errors),
        cmocka_unit_test(test_differences), cmocka_unit_test(test_stopping),   cmocka_unit_test(test_late),
        cmocka_unit_test(test_lost),        cmocka_unit_test(test_faults),     cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_gpu_lost),    cmocka_unit_test(test_gpu_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
