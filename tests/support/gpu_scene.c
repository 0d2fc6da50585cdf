/*
 * gpu_scene.c: see gpu_scene.h.
 */
#include "support/gpu_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/make_files.h"
#include "support/test_model.h"

#define SEED 11

/* Never closed: a driver stays. */
static void *library(void)
{
    static void *handle;
    if (!handle)
        handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        print_message("skipped: %s\n", dlerror());
        skip();
    }
    return handle;
}

static void load_symbol(void *ret_function, const char *name)
{
    void *symbol = dlsym(library(), name);
    memcpy(ret_function, &symbol, sizeof symbol);
}

const struct scene_driver *scene_driver(void)
{
    static struct scene_driver driver;
    struct hr_device_info info = {.size = sizeof info};
    struct hr_error err = {0};
    if (hr_device_find("cuda", &info, &err)) {
        print_message("skipped: %s\n", err.message);
        skip();
    }
#define LOAD(name) load_symbol(&driver.name, #name);
    SCENE_DRIVER_LIST(LOAD)
#undef LOAD
    return &driver;
}

const struct scene_fake *scene_fake(void)
{
    static struct scene_fake fake;
    load_symbol(&fake.configure, "fake_cuda_configure");
    load_symbol(&fake.reset, "fake_cuda_reset");
    load_symbol(&fake.fail_nth, "fake_cuda_fail_nth");
    load_symbol(&fake.fired, "fake_cuda_fired");
    load_symbol(&fake.calls, "fake_cuda_calls");
    load_symbol(&fake.live, "fake_cuda_live");
    return fake.configure ? &fake : NULL;
}

const struct scene_fake *scene_need_fake(const char *settings)
{
    const struct scene_fake *fake = scene_fake();
    if (!fake) {
        print_message("skipped: this needs the fake driver\n");
        skip();
    }
    fake->reset();
    assert_int_equal(fake->configure(settings), 0);
    return fake;
}

static int anything_live(struct fake_cuda_live *ret_live)
{
    scene_fake()->live(ret_live);
    const struct fake_cuda_live *live = ret_live;
    return live->allocation_count || live->registered_bytes || live->pinned_count || live->stream_count ||
           live->event_count || live->module_count || live->retain_count || live->context_depth;
}

void scene_assert_nothing_live(void)
{
    struct fake_cuda_live live;
    struct timespec time = {0, 1000000};
    if (!scene_fake())
        return;
    for (int i = 0; i < 3000 && anything_live(&live); i++) /* a reaper lets its device go when it ends */
        nanosleep(&time, NULL);
    if (anything_live(&live))
        fail_msg("left alive: %ld allocations, %ld registered bytes, %ld pinned, %ld streams, %ld events, %ld modules, "
                 "%ld contexts; %ld current",
                 live.allocation_count, live.registered_bytes, live.pinned_count, live.stream_count, live.event_count,
                 live.module_count, live.retain_count, live.context_depth);
    if (live.abandoned_count && !scene_fake()->fired())
        fail_msg("the context took %ld things with it when it ended", live.abandoned_count);
}

void scene_open(struct scene *scene)
{
    struct hr_error err = {0};
    size_t table_bytes = SCENE_MOVE_MAX * sizeof(struct hr_move);
    scene_driver();
    memset(scene, 0, sizeof *scene);
    assert_ok(hr_device_open("cuda", &scene->device, &err), err);
    hr_device_kernel(scene->device, scene->detail, sizeof scene->detail); /* before streams are kept busy */
    assert_ok(hr_staging_block_make(scene->device, SCENE_SOURCE_BYTES + table_bytes, -1, &scene->block, scene->detail,
                                    sizeof scene->detail, &err),
              err);
    assert_ok(hr_lane_open(scene->device, &scene->lane, &err), err);
    assert_ok(hr_fence_new(scene->device, &scene->fence, &err), err);
    assert_ok(hr_device_alloc(scene->device, SCENE_TARGET_BYTES, (void **)&scene->target, &err), err);
    scene->source = (unsigned char *)scene->block.memory;
    scene->moves = (struct hr_move *)(scene->block.memory + SCENE_SOURCE_BYTES);
    scene->expected = malloc(SCENE_TARGET_BYTES);
    assert_non_null(scene->expected);
    scene_clear(scene);
}

void scene_close(struct scene *scene)
{
    hr_fence_free(scene->fence);
    hr_lane_close(scene->lane);
    hr_staging_block_free(scene->device, &scene->block);
    hr_device_free(scene->device, scene->target, SCENE_TARGET_BYTES);
    hr_device_unref(scene->device);
    free(scene->expected);
}

void scene_clear(struct scene *scene)
{
    memset(scene->source, SCENE_GUARD, SCENE_SOURCE_BYTES);
    scene->move_count = 0;
    for (size_t done = 0; done < SCENE_TARGET_BYTES; done += SCENE_SOURCE_BYTES)
        scene_move(scene, 0, done, SCENE_SOURCE_BYTES, 1, 0, 0);
    scene_place(scene);
    scene_check(scene);
    test_fill(scene->source, SEED, 0, SCENE_SOURCE_BYTES);
    scene->counts = (struct hr_place_counts){0};
}

void scene_move(struct scene *scene, size_t source, size_t target, size_t bytes, size_t rows, long source_pitch,
                long target_pitch)
{
    assert_true(scene->move_count < SCENE_MOVE_MAX);
    scene->moves[scene->move_count++] = (struct hr_move){.source = (uintptr_t)scene->source + source,
                                                         .target = (uintptr_t)scene->target + target,
                                                         .bytes = bytes,
                                                         .rows = rows,
                                                         .source_pitch = source_pitch,
                                                         .target_pitch = target_pitch};
    for (size_t row = 0; row < rows; row++) {
        size_t from = source + (size_t)((long)row * source_pitch), to = target + (size_t)((long)row * target_pitch);
        if (from + bytes > SCENE_SOURCE_BYTES || to + bytes > SCENE_TARGET_BYTES)
            fail_msg("the test's move leaves its memory: %zu bytes from %zu to %zu", bytes, from, to);
        memcpy(scene->expected + to, scene->source + from, bytes);
    }
}

void scene_place(struct scene *scene)
{
    struct hr_error err = {0};
    assert_ok(hr_lane_place(scene->lane, &scene->block, scene->moves, scene->move_count, &scene->counts, &err), err);
    assert_ok(hr_fence_put(scene->fence, scene->lane, &err), err);
    scene->move_count = 0;
}

void scene_check(struct scene *scene)
{
    struct hr_error err = {0};
    unsigned char *found = malloc(SCENE_TARGET_BYTES);
    assert_non_null(found);
    assert_ok(hr_fence_wait(scene->fence, &err), err);
    assert_ok(hr_device_read(scene->device, found, scene->target, SCENE_TARGET_BYTES, &err), err);
    for (size_t i = 0; i < SCENE_TARGET_BYTES; i++)
        if (found[i] != scene->expected[i])
            fail_msg("byte %zu is %#x, not %#x", i, found[i], scene->expected[i]);
    free(found);
}

void scene_context_push(void)
{
    CUcontext context;
    assert_int_equal(scene_driver()->cuDevicePrimaryCtxRetain(&context, 0), 0);
    assert_int_equal(scene_driver()->cuCtxPushCurrent_v2(context), 0);
}

void scene_context_pop(void)
{
    CUcontext context;
    assert_int_equal(scene_driver()->cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(scene_driver()->cuDevicePrimaryCtxRelease_v2(0), 0);
}

/* Not in the test's memory: a test that fails leaves it while the stream still waits. */
static sem_t busy_go;
static int is_busy;

static void wait_for_go(void *argument)
{
    (void)argument;
    while (sem_wait(&busy_go))
        ;
}

void scene_busy_start(struct scene_busy *busy, unsigned flags)
{
    scene_context_push();
    sem_init(&busy_go, 0, 0);
    assert_int_equal(scene_driver()->cuStreamCreate(&busy->stream, flags), 0);
    assert_int_equal(scene_driver()->cuLaunchHostFunc(busy->stream, wait_for_go, NULL), 0);
    is_busy = 1;
}

void scene_busy_go(void)
{
    if (is_busy)
        sem_post(&busy_go);
    is_busy = 0;
}

void scene_busy_end(struct scene_busy *busy)
{
    scene_busy_go();
    assert_int_equal(scene_driver()->cuStreamSynchronize(busy->stream), 0);
    assert_int_equal(scene_driver()->cuStreamDestroy_v2(busy->stream), 0);
    scene_context_pop();
}

void scene_run(void **state)
{
    const struct scene_body *body = *state;
    scene_busy_go(); /* of a test that failed */
    body->begin();
    body->run(state);
    body->end();
}
