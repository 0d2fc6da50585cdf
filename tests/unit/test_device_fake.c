/*
 * test_device_fake.c: the fake driver is as strict as the other tests take it to be: it is late, it forgets, it cannot
 * be touched, and it refuses what a GPU would only be corrupted by. Not run with a real driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/gpu_scene.h"

#define BYTES 65536u

static const struct scene_driver *driver;
static CUdeviceptr memory;
static CUstream stream;
static unsigned char *pinned;

static void begin(void)
{
    scene_need_fake("");
    driver = scene_driver();
    scene_context_push();
    pinned = aligned_alloc(4096, BYTES);
    assert_non_null(pinned);
    memset(pinned, 1, BYTES);
    assert_int_equal(driver->cuMemHostRegister_v2(pinned, BYTES, CU_HOST_DEVICEMAP), 0);
    assert_int_equal(driver->cuMemAlloc_v2(&memory, BYTES), 0);
    assert_int_equal(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
}

/* Whatever state the context is in. */
static void end(void)
{
    scene_fake()->reset();
    free(pinned);
}

static struct scene_busy busy;

/* What is put into the busy stream waits until the stream is told to go on. */
static void busy_copy(void)
{
    scene_busy_start(&busy, CU_STREAM_NON_BLOCKING);
    assert_int_equal(driver->cuMemcpyHtoDAsync_v2(memory, pinned, BYTES, busy.stream), 0);
}

static void test_sources_are_read_late(void **state)
{
    unsigned char *found = malloc(BYTES);
    (void)state;
    assert_int_equal(driver->cuMemcpyDtoH_v2(found, memory, BYTES), 0);
    assert_int_equal(found[0], FAKE_CUDA_POISON);
    assert_int_equal(found[BYTES - 1], FAKE_CUDA_POISON);
    busy_copy();
    memset(pinned, 2, BYTES);
    scene_busy_end(&busy);
    assert_int_equal(driver->cuMemcpyDtoH_v2(found, memory, BYTES), 0);
    assert_int_equal(found[BYTES / 2], 2);
    free(found);
}

static void test_host_cannot_touch_device_memory(void **state)
{
    int status;
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)(uintptr_t)memory = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void test_pinned_memory_in_use(void **state)
{
    (void)state;
    busy_copy();
    scene_busy_go();
    scene_busy_end(&busy);
    assert_int_equal(driver->cuMemHostUnregister(pinned), 0);
    assert_int_equal(driver->cuMemHostUnregister(pinned), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_int_equal(driver->cuMemHostRegister_v2(pinned, BYTES, 0), 0);
    assert_int_equal(driver->cuMemHostRegister_v2(pinned + 100, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_int_equal(scene_fake()->configure("delay_us=20000"), 0);
    for (int i = 0; i < 20; i++) /* some of them are late */
        assert_int_equal(driver->cuMemcpyHtoDAsync_v2(memory, pinned, BYTES, stream), 0);
    assert_int_equal(driver->cuMemHostUnregister(pinned), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(driver->cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void test_bounds(void **state)
{
    (void)state;
    assert_int_equal(driver->cuMemcpyHtoDAsync_v2(memory + 1, pinned, BYTES, stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuMemcpyHtoDAsync_v2(memory - 1, pinned, 10, stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuMemcpyDtoH_v2(pinned, memory + BYTES - 5, 6), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuMemsetD8Async(memory + BYTES, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuMemFree_v2(memory + 512), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuMemFree_v2(memory), 0);
    assert_int_equal(driver->cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuMemcpyHtoDAsync_v2(memory, pinned, 10, stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver->cuStreamSynchronize(stream), 0);
}

static void test_contexts_and_handles(void **state)
{
    CUcontext other, ignored;
    CUdeviceptr none;
    (void)state;
    assert_int_equal(driver->cuDevicePrimaryCtxRetain(&other, 1), 0);
    assert_int_equal(driver->cuCtxPushCurrent_v2(other), 0);
    assert_int_equal(driver->cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(driver->cuCtxPopCurrent_v2(&ignored), 0);
    assert_int_equal(driver->cuDevicePrimaryCtxRelease_v2(1), 0);
    assert_int_equal(driver->cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(driver->cuStreamDestroy_v2(stream), 0);
    assert_int_equal(driver->cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(driver->cuCtxPopCurrent_v2(&ignored), 0);
    assert_int_equal(driver->cuMemAlloc_v2(&none, 10), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(driver->cuCtxPopCurrent_v2(&ignored), CUDA_ERROR_INVALID_CONTEXT);
}

/* A strict capture is destroyed by what a thread that is not relaxed does, and spared by one that is. */
static void test_captures(void **state)
{
    CUdeviceptr more;
    CUgraph graph;
    int mode = CU_CAPTURE_RELAXED;
    (void)state;
    assert_int_equal(driver->cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL), 0);
    assert_int_equal(driver->cuMemAlloc_v2(&more, 10), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(driver->cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(driver->cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL), 0);
    assert_int_equal(driver->cuThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(driver->cuMemAlloc_v2(&more, 10), 0);
    assert_int_equal(driver->cuMemsetD8Async(more, 1, 10, stream), 0); /* into the graph, not to the memory */
    assert_int_equal(driver->cuThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(driver->cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(driver->cuMemcpyDtoH_v2(pinned, more, 10), 0);
    assert_int_equal(pinned[0], FAKE_CUDA_POISON);
}

static void test_failures(void **state)
{
    CUdeviceptr more;
    struct fake_cuda_live live;
    (void)state;
    assert_int_equal(scene_fake()->configure("fail_call=cuMemAlloc:2:999"), 0);
    assert_int_equal(driver->cuMemAlloc_v2(&more, 10), 0);
    assert_int_equal(driver->cuMemAlloc_v2(&more, 10), 999);
    assert_int_equal(scene_fake()->fired(), 1);
    scene_fake()->fail_nth(1, 999); /* a release takes effect all the same */
    assert_int_equal(driver->cuMemFree_v2(memory), 999);
    scene_fake()->live(&live);
    assert_int_equal(live.allocation_count, 1);
    scene_fake()->fail_nth(1, 719);
    assert_int_equal(driver->cuMemAlloc_v2(&more, 10), 719);
    assert_int_equal(driver->cuMemAlloc_v2(&more, 10), 719);
    assert_int_equal(scene_fake()->configure("nonsense=1"), -1);
    assert_int_equal(scene_fake()->configure("memory=much"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_sources_are_read_late),
        SCENE_TEST(test_host_cannot_touch_device_memory),
        SCENE_TEST(test_pinned_memory_in_use),
        SCENE_TEST(test_bounds),
        SCENE_TEST(test_contexts_and_handles),
        SCENE_TEST(test_captures),
        SCENE_TEST(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
