/*
 * test_device_order.c: what waits for what: fences, streams of the caller, memory that is
 * given back while work is pending, and captures, which nothing may disturb. The caller's thread is as it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "support/gpu_scene.h"
#include "support/test_model.h"

#define NON_BLOCKING 1
#define GLOBAL 0
#define THREAD_COUNT 6

static struct scene scene;

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

static void pause_ms(long ms)
{
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

static void add_moves(void)
{
    for (size_t i = 0; i < 100; i++)
        scene_move(&scene, i * 300, 5 + i * 200, 150, 1, 0, 0);
    scene_move(&scene, 1, 500000, 900000, 1, 0, 0);
}

static void test_follow(void **state)
{
    struct hr_error err = {0};
    struct scene_busy busy;
    (void)state;
    scene_busy_start(&busy, NON_BLOCKING);
    assert_ok(hr_lane_follow(scene.lane, busy.stream, &err), err);
    add_moves();
    scene_place(&scene);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(hr_fence_poll(scene.fence, &err), 0);
        pause_ms(2);
    }
    scene_busy_go();
    scene_check(&scene);
    assert_int_equal(hr_fence_poll(scene.fence, &err), 1);
    scene_busy_end(&busy);
}

/* The stream's write comes first, so the copy is what stays. */
static void test_follow_order(void **state)
{
    struct hr_error err = {0};
    struct scene_busy busy;
    (void)state;
    scene_busy_start(&busy, NON_BLOCKING);
    assert_int_equal(scene_driver()->cuMemsetD8Async((uintptr_t)scene.target + 500000, 1, 900000, busy.stream), 0);
    assert_ok(hr_lane_follow(scene.lane, busy.stream, &err), err);
    add_moves();
    scene_place(&scene);
    scene_busy_go();
    scene_check(&scene);
    scene_busy_end(&busy);
}

/* The default stream waits for streams that are not non-blocking; a lane that follows it does too. Without, it does not. */
static void test_default_stream(void **state)
{
    struct hr_error err = {0};
    struct scene_busy busy;
    (void)state;
    scene_busy_start(&busy, 0);
    add_moves();
    scene_place(&scene);
    scene_check(&scene);
    assert_ok(hr_lane_follow(scene.lane, NULL, &err), err);
    scene_move(&scene, 3, 40000, 3000, 1, 0, 0);
    scene_place(&scene);
    pause_ms(10);
    assert_int_equal(hr_fence_poll(scene.fence, &err), 0);
    scene_busy_go();
    scene_check(&scene);
    scene_busy_end(&busy);
}

static void test_follow_captured(void **state)
{
    struct hr_error err = {0};
    struct scene_busy busy;
    CUgraph graph = NULL;
    (void)state;
    scene_busy_start(&busy, 0);
    scene_busy_go();
    assert_int_equal(scene_driver()->cuStreamBeginCapture_v2(busy.stream, GLOBAL), 0);
    assert_int_equal(hr_lane_follow(scene.lane, busy.stream, &err), HR_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "captured"));
    assert_int_equal(hr_lane_follow(scene.lane, NULL, &err), HR_EUNSUPPORTED);
    assert_int_equal(scene_driver()->cuStreamEndCapture(busy.stream, &graph), 0);
    assert_int_equal(scene_driver()->cuGraphDestroy(graph), 0);
    assert_ok(hr_lane_follow(scene.lane, busy.stream, &err), err);
    scene_busy_end(&busy);
}

/* All that a load does, on the capturing thread and in its mode, while the strictest capture runs. */
static void everything_once(void)
{
    struct hr_error err = {0};
    struct hr_staging_block block;
    struct hr_fence *fence;
    struct hr_lane *lane;
    uint64_t free_bytes, total;
    char detail[160];
    void *memory;
    assert_ok(hr_staging_block_make(scene.device, 100000, -1, &block, detail, sizeof detail, &err), err);
    assert_ok(hr_lane_open(scene.device, &lane, &err), err);
    assert_ok(hr_fence_new(scene.device, &fence, &err), err);
    assert_ok(hr_device_alloc(scene.device, 100000, &memory, &err), err);
    add_moves();
    scene_place(&scene);
    scene_check(&scene);
    hr_device_memory(scene.device, &free_bytes, &total);
    hr_device_kernel(scene.device, detail, sizeof detail);
    hr_device_free_later(scene.device, memory, 100000);
    hr_fence_free(fence);
    hr_lane_close(lane);
    hr_staging_block_free(scene.device, &block);
}

static void test_capture_is_not_disturbed(void **state)
{
    struct scene_busy busy;
    CUgraph graph = NULL;
    (void)state;
    for (unsigned flags = 0; flags <= NON_BLOCKING; flags++) {
        scene_busy_start(&busy, flags);
        scene_busy_go();
        assert_int_equal(scene_driver()->cuStreamSynchronize(busy.stream), 0);
        assert_int_equal(scene_driver()->cuStreamBeginCapture_v2(busy.stream, GLOBAL), 0);
        everything_once();
        assert_int_equal(scene_driver()->cuStreamEndCapture(busy.stream, &graph), 0);
        assert_int_equal(scene_driver()->cuGraphDestroy(graph), 0);
        hr_device_reap(scene.device);
        scene_busy_end(&busy);
    }
}

static void test_thread_is_as_it_was(void **state)
{
    const struct scene_driver *driver = scene_driver();
    CUcontext context, before;
    int mode = 1; /* of this thread only */
    (void)state;
    assert_int_equal(driver->cuCtxGetCurrent(&before), 0);
    assert_null(before);
    assert_int_equal(driver->cuThreadExchangeStreamCaptureMode(&mode), 0);
    everything_once();
    int now = mode;
    assert_int_equal(driver->cuThreadExchangeStreamCaptureMode(&now), 0);
    assert_int_equal(now, 1);
    assert_int_equal(driver->cuCtxGetCurrent(&context), 0);
    assert_null(context);
    scene_context_push();
    assert_int_equal(driver->cuCtxGetCurrent(&before), 0);
    everything_once();
    assert_int_equal(driver->cuCtxGetCurrent(&context), 0);
    assert_ptr_equal(context, before);
    scene_context_pop();
    hr_device_reap(scene.device);
}

/* Another device's context is current on this thread. */
static void test_other_context(void **state)
{
    const struct scene_driver *driver = scene_driver();
    CUcontext other, context;
    (void)state;
    if (driver->cuDevicePrimaryCtxRetain(&other, 1)) {
        print_message("skipped: there is one device only\n");
        skip();
    }
    assert_int_equal(driver->cuCtxPushCurrent_v2(other), 0);
    everything_once();
    hr_device_reap(scene.device);
    assert_int_equal(driver->cuCtxGetCurrent(&context), 0);
    assert_ptr_equal(context, other);
    assert_int_equal(driver->cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(driver->cuDevicePrimaryCtxRelease_v2(1), 0);
}

/* Memory that a pending operation writes is given back at once and stays until that is done. */
static void test_free_later_with_pending_work(void **state)
{
    struct hr_error err = {0};
    struct scene_busy busy;
    void *memory;
    (void)state;
    assert_ok(hr_device_alloc(scene.device, 1 << 20, &memory, &err), err);
    scene_busy_start(&busy, NON_BLOCKING);
    assert_int_equal(scene_driver()->cuMemsetD8Async((uintptr_t)memory, 1, 1 << 20, busy.stream), 0);
    hr_device_free_later(scene.device, memory, 1 << 20); /* comes back, though the stream is stuck */
    pause_ms(10);
    scene_busy_go();
    hr_device_reap(scene.device);
    assert_int_equal(scene_driver()->cuStreamSynchronize(busy.stream), 0);
    scene_busy_end(&busy);
    add_moves();
    scene_place(&scene);
    scene_check(&scene); /* nothing was written to what was not there any more */
}

static void *free_many(void *argument)
{
    (void)argument;
    for (int i = 0; i < 30; i++) {
        void *memory;
        if (hr_device_alloc(scene.device, 1000 + (size_t)i, &memory, NULL))
            return argument;
        hr_device_free_later(scene.device, memory, 1000 + (size_t)i);
        if (i % 10 == 9)
            hr_device_reap(scene.device);
    }
    return NULL;
}

static void test_free_later_from_many_threads(void **state)
{
    pthread_t threads[THREAD_COUNT];
    void *result;
    (void)state;
    for (size_t i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, free_many, &scene), 0);
    for (size_t i = 0; i < THREAD_COUNT; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
    hr_device_reap(scene.device);
    struct fake_cuda_live live;
    if (scene_fake()) {
        scene_fake()->live(&live);
        assert_int_equal(live.allocation_count, 1);
    }
}

/* A driver that says for a while that a capture forbids freeing: nothing is lost and nothing freed twice. */
static void test_free_later_while_captured(void **state)
{
    struct hr_error err = {0};
    struct fake_cuda_live live;
    void *memory[3];
    (void)state;
    if (!scene_fake()) {
        print_message("skipped: this needs the fake driver\n");
        skip();
    }
    for (size_t i = 0; i < 3; i++)
        assert_ok(hr_device_alloc(scene.device, 5000, &memory[i], &err), err);
    assert_int_equal(scene_fake()->configure("capture=5"), 0);
    hr_device_free(scene.device, memory[0], 5000);
    hr_device_free_later(scene.device, memory[1], 5000);
    hr_device_free_later(scene.device, memory[2], 5000);
    hr_device_reap(scene.device);
    scene_fake()->live(&live);
    assert_int_equal(live.allocation_count, 1);
}

/* The buffers of a lane that ends meanwhile, where kernels read sources in device memory. */
static void test_lane_closed_while_captured(void **state)
{
    struct fake_cuda_live live;
    (void)state;
    const struct scene_fake *fake = scene_need_fake("confidential=1");
    scene_open(&scene);
    add_moves();
    scene_place(&scene);
    scene_check(&scene);
    fake->live(&live);
    assert_int_equal(live.allocation_count, 3);
    assert_int_equal(fake->configure("capture=5"), 0);
    hr_lane_close(scene.lane);
    scene.lane = NULL;
    hr_device_reap(scene.device);
    fake->live(&live);
    assert_int_equal(live.allocation_count, 1);
    end();
}

/* The reaper has the device to itself when all others let it go. */
static void test_last_reference(void **state)
{
    struct hr_device *device;
    struct hr_error err = {0};
    void *memory;
    (void)state;
    assert_ok(hr_device_open("cuda", &device, &err), err);
    assert_ok(hr_device_alloc(device, 5000, &memory, &err), err);
    hr_device_ref(device);
    hr_device_unref(device);
    hr_device_free_later(device, memory, 5000);
    hr_device_reap(device);
    hr_device_unref(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_follow),
        SCENE_TEST(test_follow_order),
        SCENE_TEST(test_default_stream),
        SCENE_TEST(test_follow_captured),
        SCENE_TEST(test_capture_is_not_disturbed),
        SCENE_TEST(test_thread_is_as_it_was),
        SCENE_TEST(test_other_context),
        SCENE_TEST(test_free_later_with_pending_work),
        SCENE_TEST(test_free_later_from_many_threads),
        SCENE_TEST(test_free_later_while_captured),
        cmocka_unit_test(test_lane_closed_while_captured),
        SCENE_TEST(test_last_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
