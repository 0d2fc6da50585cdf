/*
 * cuda_lane.c: lanes are streams that wait for no default stream; fences are events whose waiting blocks. Both hold a
 * reference to their device.
 */
#include "base/sys.h"
#include "device/cuda_device.h"

#define EVENT_FLAGS (HR_CU_EVENT_BLOCKING_SYNC | HR_CU_EVENT_DISABLE_TIMING)

struct hr_fence {
    struct hr_device *device;
    hr_cu_event event;
};

/* In the device's context. */
static int lane_open(struct hr_lane *lane, struct hr_error *err)
{
    const struct hr_cuda_driver *driver = lane->device->driver;
    hr_cu_result result = driver->cuStreamCreate(&lane->stream, HR_CU_STREAM_NON_BLOCKING);
    int code = hr_cuda_check(lane->device, result, "making a stream", err);
    if (code)
        return code;
    code = hr_cuda_check(lane->device, driver->cuEventCreate(&lane->followed, EVENT_FLAGS), "making an event", err);
    if (code)
        driver->cuStreamDestroy(lane->stream);
    return code;
}

int hr_lane_open(struct hr_device *device, struct hr_lane **ret_lane, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_lane *lane = hr_alloc(sizeof *lane);
    if (!lane)
        return hr_fail_memory(err, sizeof *lane, "a lane");
    lane->device = device;
    pthread_mutex_init(&lane->lock, NULL);
    int code = hr_cuda_enter(device, &scope, err);
    if (!code) {
        code = lane_open(lane, err);
        hr_cuda_leave(device, &scope);
    }
    if (code) {
        pthread_mutex_destroy(&lane->lock);
        hr_free(lane);
        return code;
    }
    hr_device_ref(device);
    *ret_lane = lane;
    return 0;
}

void hr_lane_close(struct hr_lane *lane)
{
    struct hr_cuda_scope scope;
    if (!lane)
        return;
    struct hr_device *device = lane->device;
    if (hr_cuda_enter_to_free(device, &scope) == 0) {
        hr_cuda_note(device, device->driver->cuStreamSynchronize(lane->stream));
        hr_lane_buffer_release(lane, &lane->sources);
        hr_lane_buffer_release(lane, &lane->table);
        device->driver->cuEventDestroy(lane->followed);
        device->driver->cuStreamDestroy(lane->stream);
        hr_cuda_leave(device, &scope);
    }
    pthread_mutex_destroy(&lane->lock);
    hr_free(lane);
    hr_device_unref(device);
}

/* In the device's context. An event recorded in a stream that is captured would pull the lane into the graph. */
static int lane_follow(struct hr_lane *lane, hr_cu_stream stream, struct hr_error *err)
{
    struct hr_device *device = lane->device;
    const struct hr_cuda_driver *driver = device->driver;
    unsigned status = HR_CU_STREAM_CAPTURE_STATUS_NONE;
    hr_cu_result result = driver->cuStreamIsCapturing(stream, &status);
    if (result == HR_CU_ERROR_STREAM_CAPTURE_IMPLICIT ||
        (result == HR_CU_SUCCESS && status != HR_CU_STREAM_CAPTURE_STATUS_NONE))
        return hr_fail(err, HR_EUNSUPPORTED,
                       "cuda:%d: the stream that the load has to wait for is being captured into a graph; load before "
                       "the capture begins, or give another stream",
                       device->info.ordinal);
    int code = hr_cuda_check(device, result, "looking at the caller's stream", err);
    if (!code)
        code = hr_cuda_check(device, driver->cuEventRecord(lane->followed, stream),
                             "recording an event in the caller's stream", err);
    if (!code)
        code = hr_cuda_check(device, driver->cuStreamWaitEvent(lane->stream, lane->followed, 0),
                             "waiting for the caller's stream", err);
    return code;
}

int hr_lane_follow(struct hr_lane *lane, void *stream, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(lane->device, &scope, err);
    if (code)
        return code;
    pthread_mutex_lock(&lane->lock);
    code = lane_follow(lane, stream, err);
    pthread_mutex_unlock(&lane->lock);
    hr_cuda_leave(lane->device, &scope);
    return code;
}

int hr_lane_lead(struct hr_lane *lane, void *stream, struct hr_error *err)
{
    struct hr_device *device = lane->device;
    const struct hr_cuda_driver *driver = device->driver;
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    pthread_mutex_lock(&lane->lock);
    code = hr_cuda_check(device, driver->cuEventRecord(lane->followed, lane->stream), "recording an event", err);
    if (!code)
        code = hr_cuda_check(device, driver->cuStreamWaitEvent(stream, lane->followed, 0),
                             "making the caller's stream wait", err);
    pthread_mutex_unlock(&lane->lock);
    hr_cuda_leave(device, &scope);
    return code;
}

int hr_lane_fetch(struct hr_lane *lane, void *ret_bytes, const void *memory, uint64_t bytes, struct hr_error *err)
{
    struct hr_device *device = lane->device;
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    code = hr_cuda_check(device, device->driver->cuMemcpyDtoHAsync(ret_bytes, (uintptr_t)memory, bytes, lane->stream),
                         "copying to host memory", err);
    hr_cuda_leave(device, &scope);
    return code;
}

/* ------------------------------------------------------------------------------------------ fences */

int hr_fence_new(struct hr_device *device, struct hr_fence **ret_fence, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_fence *fence = hr_alloc(sizeof *fence);
    if (!fence)
        return hr_fail_memory(err, sizeof *fence, "a fence");
    fence->device = device;
    int code = hr_cuda_enter(device, &scope, err);
    if (!code) {
        code = hr_cuda_check(device, device->driver->cuEventCreate(&fence->event, EVENT_FLAGS), "making an event", err);
        hr_cuda_leave(device, &scope);
    }
    if (code) {
        hr_free(fence);
        return code;
    }
    hr_device_ref(device);
    *ret_fence = fence;
    return 0;
}

void hr_fence_free(struct hr_fence *fence)
{
    struct hr_cuda_scope scope;
    if (!fence)
        return;
    struct hr_device *device = fence->device;
    if (hr_cuda_enter_to_free(device, &scope) == 0) {
        device->driver->cuEventDestroy(fence->event);
        hr_cuda_leave(device, &scope);
    }
    hr_free(fence);
    hr_device_unref(device);
}

int hr_fence_put(struct hr_fence *fence, struct hr_lane *lane, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_device *device = lane->device;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    code = hr_cuda_check(device, device->driver->cuEventRecord(fence->event, lane->stream), "recording an event", err);
    hr_cuda_leave(device, &scope);
    return code;
}

int hr_lane_await(struct hr_lane *lane, struct hr_fence *fence, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_device *device = lane->device;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    code = hr_cuda_check(device, device->driver->cuStreamWaitEvent(lane->stream, fence->event, 0),
                         "waiting for other copies", err);
    hr_cuda_leave(device, &scope);
    return code;
}

int hr_fence_poll(struct hr_fence *fence, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_device *device = fence->device;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    hr_cu_result result = device->driver->cuEventQuery(fence->event);
    if (result == HR_CU_ERROR_NOT_READY)
        code = 0;
    else
        code = result == HR_CU_SUCCESS ? 1 : hr_cuda_check(device, result, "copying to the device", err);
    hr_cuda_leave(device, &scope);
    return code;
}

/* Between two looks at an event, each of which takes a lock of the driver. */
static void pause_shortly(void)
{
    for (int i = 0; i < 64; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

int hr_fence_poll_for(struct hr_fence *fence, uint64_t nanoseconds, struct hr_error *err)
{
    uint64_t until = hr_sys->clock_ns() + nanoseconds;
    int code;
    while ((code = hr_fence_poll(fence, err)) == 0 && hr_sys->clock_ns() < until)
        pause_shortly();
    return code;
}

int hr_fence_wait_soon(struct hr_fence *fence, struct hr_error *err)
{
    int code = hr_fence_poll_for(fence, HR_FENCE_SPIN_NS, err);
    return code == 0 ? hr_fence_wait(fence, err) : code < 0 ? code : 0;
}

int hr_fence_wait(struct hr_fence *fence, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_device *device = fence->device;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    code = hr_cuda_check(device, device->driver->cuEventSynchronize(fence->event), "copying to the device", err);
    hr_cuda_leave(device, &scope);
    return code;
}
