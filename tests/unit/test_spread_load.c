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
#include "support/test_model.h"
#include "support/thread_group.h"

#define KIB UINT64_C(1024)

enum wait_by { BY_ALL, BY_NEXT, BY_BACKWARDS, BY_CANCEL, BY_FREE };

/* One rank's load: what it is asked for, and what became of it. */
struct job {
    const struct test_model *model;
    struct hr_checkpoint *checkpoint; /* the rank's own: as in a process of its own */
    struct hr_loader *loader;
    struct hr_load_options options;
    struct hr_item *items;
    struct hr_range (*ranges)[8]; /* of this rank, spelled out */
    enum wait_by by;
    size_t stop_after; /* BY_CANCEL, BY_FREE: so many items */
    int declines;
    struct hr_load *load;
    struct hr_stats stats;
    int code;
    struct hr_error err;
};

static struct test_model mixed;

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "spread", 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    return 0;
}

/* -------------------------------------------------------------------------------------------- ranks */

static int wait_for(struct job *job)
{
    size_t count = job->model->count, index;
    int code = 0;
    if (job->by == BY_ALL)
        return hr_load_wait_all(job->load, &job->err);
    for (size_t i = 0; code == 0 && i < count; i++) {
        if (job->by >= BY_CANCEL && i == job->stop_after) {
            if (job->by == BY_FREE)
                return 0;
            hr_load_cancel(job->load);
        }
        code = job->by == BY_BACKWARDS ? hr_load_wait(job->load, count - 1 - i, &job->err)
                                       : hr_load_next(job->load, &index, &job->err);
    }
    return code;
}

static void rank_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    struct hr_group group = thread_group_of(rank);
    job->options.size = sizeof job->options;
    job->options.group = &group;
    if (job->declines) {
        hr_group_decline(&group, &(struct hr_error){.code = HR_ESHARD_MISSING, .message = "no shard"}, &job->err);
        job->code = HR_ESHARD_MISSING;
        return;
    }
    job->code = hr_load_start(job->loader, job->checkpoint, job->items, job->model->count, &job->options, &job->load,
                              &job->err);
    if (job->code == 0)
        job->code = wait_for(job);
    if (job->load) {
        job->stats.size = sizeof job->stats;
        hr_load_stats(job->load, &job->stats);
    }
    if (job->load && (job->code || job->by == BY_FREE)) {
        hr_load_free(job->load);
        job->load = NULL;
    }
}

/* Of every third tensor all, of the others a block of some dimension, by turns. */
static void make_items(struct job *job, uint32_t rank, uint32_t world)
{
    job->items = model_items(job->model);
    job->ranges = calloc(job->model->count, sizeof *job->ranges);
    for (size_t i = 0; i < job->model->count; i++) {
        const struct test_tensor *tensor = &job->model->tensors[i];
        struct hr_item *item = &job->items[i];
        for (uint32_t d = 0; d < tensor->rank; d++)
            job->ranges[i][d] = (struct hr_range){0, tensor->shape[d], 1};
        uint32_t dim = tensor->rank ? (uint32_t)(i / 3) % tensor->rank : 0;
        if (i % 3 == 0 || tensor->rank == 0 || (hr_dtype_bits(tensor->dtype) < 8 && dim == tensor->rank - 1))
            continue;
        item->shard_dim = dim;
        item->shard_rank = rank;
        item->shard_world = world;
        hr_shard_range(tensor->shape[dim], rank, world, &job->ranges[i][dim]);
    }
}

struct scene_of_ranks {
    struct thread_group group;
    struct job jobs[THREAD_GROUP_MAX];
};

static void ranks_begin(struct scene_of_ranks *scene, const struct test_model *model, uint32_t world,
                        const char *const *devices, struct hr_loader_options loader_options)
{
    struct hr_error err = {0};
    thread_group_begin(&scene->group, world, devices);
    memset(scene->jobs, 0, sizeof scene->jobs);
    for (uint32_t r = 0; r < world; r++) {
        struct job *job = &scene->jobs[r];
        loader_options.size = sizeof loader_options;
        loader_options.devices = devices ? &devices[r] : NULL;
        loader_options.device_count = devices != NULL;
        job->model = model;
        assert_ok(hr_checkpoint_open(model->paths, model->path_count, NULL, &job->checkpoint, &err), err);
        job->loader = loader_make(&loader_options);
        make_items(job, r, world);
        scene->group.ranks[r].main = rank_main;
        scene->group.ranks[r].context = job;
    }
}

static void ranks_end(struct scene_of_ranks *scene)
{
    for (uint32_t r = 0; r < scene->group.world; r++) {
        struct job *job = &scene->jobs[r];
        hr_load_free(job->load);
        hr_loader_free(job->loader);
        hr_checkpoint_close(job->checkpoint);
        free(job->items);
        free(job->ranges);
    }
    thread_group_end(&scene->group);
}

static void check_rank(struct scene_of_ranks *scene, uint32_t rank)
{
    struct job *job = &scene->jobs[rank];
    for (size_t i = 0; i < job->model->count; i++) {
        struct hr_view view = {.size = sizeof view};
        struct hr_error err = {0};
        assert_ok(hr_load_view(job->load, i, &view, &err), err);
        unsigned char *bytes = malloc(view.bytes + 1);
        assert_ok(hr_load_read(job->load, i, 0, view.bytes, bytes, &err), err);
        view.data = bytes;
        check_view(&job->model->tensors[i], job->ranges[i], &view);
        free(bytes);
    }
}

static uint64_t file_bytes(const struct hr_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t f = 0; f < hr_checkpoint_file_count(checkpoint); f++)
        bytes += hr_checkpoint_file(checkpoint, f)->size;
    return bytes;
}

/* All ranks have all of it, and together they have read no byte twice. */
static void check_all(struct scene_of_ranks *scene)
{
    uint64_t read = 0, most = file_bytes(scene->jobs[0].checkpoint);
    for (uint32_t r = 0; r < scene->group.world; r++) {
        struct job *job = &scene->jobs[r];
        assert_ok(job->code, job->err);
        check_rank(scene, r);
        read += job->stats.bytes_read;
        assert_int_equal(job->stats.bytes_ready, job->stats.bytes_needed);
        if (scene->group.world > 1) {
            assert_true(job->stats.bytes_spread > 0 && job->stats.bytes_spread < job->stats.bytes_needed);
            assert_true(job->stats.collective_count > 0 && job->stats.bytes_received >= job->stats.bytes_spread);
        }
    }
    if (read > most)
        fail_msg("%llu bytes were read of %llu", (unsigned long long)read, (unsigned long long)most);
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
}

static void run_settings(const char *const *devices)
{
    static const uint64_t group_bytes[] = {0, 64 * KIB, 1200 * KIB};
    for (uint32_t world = 1; world <= 4; world++)
        for (int i = 0; i < 3; i++) {
            struct hr_loader_options loader = {.thread_count = 2, .route = HR_ROUTE_PREAD};
            struct hr_load_options options = {.group_bytes = group_bytes[i]};
            run_well(world, devices, loader, options, BY_ALL);
            options.ownership = HR_OWN_EACH;
            run_well(world, devices, loader, options, BY_NEXT);
            options.window_bytes = 100 * KIB;
            run_well(world, devices, loader, options, BY_NEXT);
            run_well(world, devices, loader, options, BY_BACKWARDS);
        }
}

static void test_host(void **state)
{
    (void)state;
    run_settings(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
