/*
 * spread_scene.c: see spread_scene.h.
 */
#include "support/spread_scene.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void write_small(struct test_model *model, const char *name)
{
    static char names[12][16];
    struct test_tensor tensors[12];
    for (size_t i = 0; i < 12; i++) {
        snprintf(names[i], sizeof names[i], "t%02zu", i);
        tensors[i] = (struct test_tensor){
            .name = names[i], .dtype = HR_DTYPE_F32, .rank = 2, .shape = {60 + i, 50}, .seed = i + 1};
    }
    model_write(model, name, tensors, 12, 6, 3);
}

static int wait_for(struct thread_rank *rank)
{
    struct job *job = rank->context;
    size_t count = job->model->count, index;
    int code = 0;
    if (job->by == BY_ALL)
        return hr_load_wait_all(job->load, &job->err);
    for (size_t i = 0; code == 0 && i < count; i++) {
        if (job->by >= BY_CANCEL && i == job->stop_after) {
            if (job->by == BY_FREE)
                return 0;
            hr_load_cancel(job->load);
            thread_group_release(rank->group);
        }
        code = job->by == BY_BACKWARDS ? hr_load_wait(job->load, count - 1 - i, &job->err)
                                       : hr_load_next(job->load, &index, &job->err);
    }
    if (code == 0 && job->by == BY_NEXT && hr_load_next(job->load, &index, NULL) != HR_EEND)
        return HR_EINVALID_ARGUMENT;
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
    if (job->code == 0 && job->pause_ns)
        nanosleep(&(struct timespec){0, (long)job->pause_ns}, NULL);
    if (job->code == 0)
        job->code = wait_for(rank);
    if (job->load) {
        job->stats.size = sizeof job->stats;
        hr_load_stats(job->load, &job->stats);
    }
    if (job->load && ((job->code && !job->stays) || job->by == BY_FREE || job->leaves)) {
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

void ranks_begin(struct scene_of_ranks *scene, const struct test_model *model, uint32_t world,
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

void ranks_end(struct scene_of_ranks *scene)
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

static void check_loaded(struct job *job, size_t index, struct hr_view *view)
{
    struct hr_error err = {0};
    unsigned char *bytes = malloc(view->bytes + 1);
    assert_ok(hr_load_read(job->load, index, 0, view->bytes, bytes, &err), err);
    view->data = bytes;
    check_view(&job->model->tensors[index], job->ranges[index], view);
    free(bytes);
}

void check_rank(struct scene_of_ranks *scene, uint32_t rank)
{
    struct job *job = &scene->jobs[rank];
    for (size_t i = 0; i < job->model->count; i++) {
        struct hr_view view = {.size = sizeof view};
        struct hr_error err = {0};
        assert_ok(hr_load_view(job->load, i, &view, &err), err);
        check_loaded(job, i, &view);
    }
}

void check_ready(struct scene_of_ranks *scene, uint32_t rank)
{
    struct job *job = &scene->jobs[rank];
    for (size_t i = 0; job->load && i < job->model->count; i++) {
        struct hr_view view = {.size = sizeof view};
        if (hr_load_view(job->load, i, &view, NULL) == 0)
            check_loaded(job, i, &view);
    }
}

static uint64_t file_bytes(const struct hr_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t f = 0; f < hr_checkpoint_file_count(checkpoint); f++)
        bytes += hr_checkpoint_file(checkpoint, f)->size;
    return bytes;
}

static uint64_t tensor_bytes(const struct hr_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < hr_checkpoint_count(checkpoint); i++)
        bytes += hr_checkpoint_at(checkpoint, i)->size;
    return bytes;
}

void check_all(struct scene_of_ranks *scene)
{
    uint64_t read = 0, least = tensor_bytes(scene->jobs[0].checkpoint), most = file_bytes(scene->jobs[0].checkpoint);
    int is_direct = 0;
    for (uint32_t r = 0; r < scene->group.world; r++) {
        struct job *job = &scene->jobs[r];
        assert_ok(job->code, job->err);
        check_rank(scene, r);
        read += job->stats.bytes_read;
        is_direct |= job->stats.bytes_direct != 0; /* in whole pages, some of them twice */
        assert_int_equal(job->stats.bytes_ready, job->stats.bytes_needed);
        if (scene->group.world > 1) {
            assert_true(job->stats.bytes_spread > 0 && job->stats.bytes_spread < job->stats.bytes_needed);
            assert_true(job->stats.collective_count > 0 && job->stats.bytes_received >= job->stats.bytes_spread);
        }
    }
    if (read < least || (read > most && !is_direct))
        fail_msg("%llu bytes were read of %llu to %llu", (unsigned long long)read, (unsigned long long)least,
                 (unsigned long long)most);
}
