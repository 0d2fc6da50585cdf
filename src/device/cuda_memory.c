/*
 * cuda_memory.c: device memory: made, freed, counted, read back.
 */
#include "base/sys.h"
#include "device/cuda_device.h"

static int fail_alloc(struct hr_device *device, hr_cu_result result, uint64_t bytes, struct hr_error *err)
{
    size_t free_bytes = 0, total = 0;
    if (result != HR_CU_ERROR_OUT_OF_MEMORY)
        return hr_cuda_check(device, result, "allocating memory", err);
    device->driver->cuMemGetInfo(&free_bytes, &total);
    return hr_fail_driver(err, HR_EOUT_OF_MEMORY, (int)result, hr_cuda_result_name(device->driver, result),
                          "cuda:%d: no memory for %llu bytes: %zu of %zu bytes are free; free some, take a smaller "
                          "window, or load to several devices",
                          device->info.ordinal, (unsigned long long)bytes, free_bytes, total);
}

int hr_cuda_alloc(struct hr_device *device, uint64_t bytes, void **ret_memory, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    hr_cu_address address = 0;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    hr_cu_result result = device->driver->cuMemAlloc(&address, bytes);
    if (result != HR_CU_SUCCESS)
        code = fail_alloc(device, result, bytes, err);
    else
        *ret_memory = (void *)(uintptr_t)address;
    hr_cuda_leave(device, &scope);
    return code;
}

int hr_cuda_is_captured(hr_cu_result result)
{
    return result >= HR_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= HR_CU_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

int hr_cuda_free(struct hr_device *device, void *memory)
{
    struct hr_cuda_scope scope;
    if (hr_cuda_enter_to_free(device, &scope))
        return 1; /* the memory went with its context */
    hr_cu_result result = device->driver->cuMemFree((uintptr_t)memory);
    hr_cuda_note(device, result);
    hr_cuda_leave(device, &scope);
    return !hr_cuda_is_captured(result);
}

void hr_cuda_memory(struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total)
{
    struct hr_cuda_scope scope;
    size_t free_bytes = 0, total = 0;
    *ret_free = *ret_total = 0;
    if (hr_cuda_enter(device, &scope, NULL))
        return;
    hr_cu_result result = device->driver->cuMemGetInfo(&free_bytes, &total);
    hr_cuda_note(device, result);
    if (result == HR_CU_SUCCESS) {
        *ret_free = free_bytes;
        *ret_total = total;
    }
    hr_cuda_leave(device, &scope);
}

/* A stream of its own: the default stream would wait for those of others, and break their captures. */
int hr_cuda_read(struct hr_device *device, void *ret_bytes, const void *memory, uint64_t bytes, struct hr_error *err)
{
    const struct hr_cuda_driver *driver = device->driver;
    struct hr_cuda_scope scope;
    hr_cu_stream stream;
    int code = hr_cuda_enter(device, &scope, err);
    if (code)
        return code;
    code = hr_cuda_check(device, driver->cuStreamCreate(&stream, HR_CU_STREAM_NON_BLOCKING), "making a stream", err);
    if (!code) {
        hr_cu_result result = driver->cuMemcpyDtoHAsync(ret_bytes, (uintptr_t)memory, bytes, stream);
        hr_cu_result ended = driver->cuStreamSynchronize(stream); /* also after a failure: nothing may be pending */
        code = hr_cuda_check(device, result != HR_CU_SUCCESS ? result : ended, "copying to host memory", err);
        driver->cuStreamDestroy(stream);
    }
    hr_cuda_leave(device, &scope);
    return code;
}
