/*
 * entry.c: how each call begins and ends, the table behind cuGetProcAddress, the names of errors, and the start.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_state.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_progress = PTHREAD_COND_INITIALIZER;

static pid_t owner; /* threads and memory are this process's */
static _Atomic unsigned long forked_call_count;
static int initialized;
static _Thread_local int pending_failure;

__attribute__((constructor)) static void start(void)
{
    owner = getpid();
    fake_settings_reset();
}

/* Errors after which a real context is of no use. */
static int is_sticky(int code)
{
    return code == 214 || code == 220 || code == 700 || code == 702 ||
           (code >= 710 && code != 712 && code != 713 && code <= 719);
}

/* Without a current context all are meant. */
static void poison(const struct fake_context *context, int code)
{
    for (int i = 0; i < FAKE_DEVICE_MAX; i++)
        if (fake_contexts[i].retain_count && (!context || context == &fake_contexts[i]))
            fake_contexts[i].poison = code;
}

static int is_any_poisoned(void)
{
    int poisoned = 0;
    for (int i = 0; i < FAKE_DEVICE_MAX; i++)
        poisoned |= fake_contexts[i].poison;
    return poisoned;
}

static int failure_of(const char *name, unsigned flags)
{
    struct fake_context *context = fake_current();
    int code = fake_must_fail(name, !(flags & FAKE_NOT_COUNTED));
    if (is_sticky(code))
        poison(context, code);
    if (code)
        return code;
    if ((flags & FAKE_NEEDS_INIT) && !initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((flags & FAKE_NEEDS_CONTEXT) != FAKE_NEEDS_CONTEXT)
        return 0;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->retain_count)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context->poison;
}

/* Whoever hears of a fault may take memory away at once: a GPU has stopped by then, and its pages stay pinned. */
static void stop_after_fault(void)
{
    while (fake_moving_count && is_any_poisoned())
        pthread_cond_wait(&fake_progress, &fake_lock);
}

CUresult fake_enter(const char *name, unsigned flags)
{
    if (owner != getpid()) {
        forked_call_count++;
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&fake_lock);
    int code = failure_of(name, flags);
    int has_effect = (flags & FAKE_TAKES_EFFECT) && code != CUDA_ERROR_NOT_INITIALIZED &&
                     code != CUDA_ERROR_INVALID_CONTEXT && code != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
                     !(code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && code < 910); /* a capture forbids */
    pending_failure = has_effect ? code : 0;
    if (!code && (flags & FAKE_UNSAFE))
        code = fake_capture_forbids();
    else if (has_effect)
        code = 0;
    stop_after_fault();
    if (code)
        pthread_mutex_unlock(&fake_lock);
    return code;
}

CUDA_API unsigned long fake_cuda_forked_calls(void)
{
    return forked_call_count;
}

CUresult fake_leave(CUresult result)
{
    int failure = pending_failure;
    pending_failure = 0;
    stop_after_fault();
    pthread_mutex_unlock(&fake_lock);
    return failure ? failure : result;
}

CUresult fake_corrupt(struct fake_context *context, const char *format, ...)
{
    if (fake_settings.abort) {
        va_list arguments;
        va_start(arguments, format);
        fputs("fake libcuda: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
        abort();
    }
    if (context && !context->poison)
        context->poison = CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult cuInit(unsigned int flags)
{
    CUresult result = fake_enter("cuInit", 0);
    if (result)
        return result;
    if (flags)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    if (!fake_settings.init_code && !fake_visible_count())
        return fake_leave(CUDA_ERROR_NO_DEVICE);
    initialized = !fake_settings.init_code;
    return fake_leave((int)fake_settings.init_code);
}

CUresult cuDriverGetVersion(int *version)
{
    CUresult result = fake_enter("cuDriverGetVersion", 0);
    if (result)
        return result;
    *version = (int)fake_settings.version;
    return fake_leave(CUDA_SUCCESS);
}

/* By base name, versions rising: the last one that is not above what is asked for is meant. */
struct entry {
    const char *symbol;
    int version;
    void *function;
};

#define PLAIN(name, version)         \
    {                                \
#name, version, (void *)name \
    }
#define SECOND(name, version)             \
    {                                     \
#name, version, (void *)name##_v2 \
    }
static const struct entry entries[] = {
    PLAIN(cuGetProcAddress, 11030),
    SECOND(cuGetProcAddress, 12000),
    PLAIN(cuInit, 2000),
    PLAIN(cuDriverGetVersion, 2020),
    PLAIN(cuGetErrorName, 6000),
    PLAIN(cuGetErrorString, 6000),
    PLAIN(cuDeviceGetCount, 2000),
    PLAIN(cuDeviceGet, 2000),
    PLAIN(cuDeviceGetName, 2000),
    PLAIN(cuDeviceGetUuid, 9020),
    SECOND(cuDeviceGetUuid, 11040),
    SECOND(cuDeviceTotalMem, 3020),
    PLAIN(cuDeviceGetAttribute, 2000),
    PLAIN(cuDeviceGetPCIBusId, 4010),
    PLAIN(cuDevicePrimaryCtxRetain, 7000),
    SECOND(cuDevicePrimaryCtxRelease, 11000),
    PLAIN(cuDevicePrimaryCtxGetState, 7000),
    SECOND(cuCtxPushCurrent, 4000),
    SECOND(cuCtxPopCurrent, 4000),
    PLAIN(cuCtxSetCurrent, 4000),
    PLAIN(cuCtxGetCurrent, 4000),
    PLAIN(cuCtxGetDevice, 2000),
    PLAIN(cuCtxSynchronize, 2000),
    SECOND(cuMemGetInfo, 3020),
    SECOND(cuMemAlloc, 3020),
    SECOND(cuMemFree, 3020),
    SECOND(cuMemHostRegister, 6050),
    PLAIN(cuMemHostUnregister, 4000),
    PLAIN(cuMemHostAlloc, 2020),
    PLAIN(cuMemFreeHost, 2000),
    SECOND(cuMemHostGetDevicePointer, 3020),
    PLAIN(cuPointerGetAttribute, 4000),
    PLAIN(cuPointerGetAttributes, 7000),
    SECOND(cuMemcpyHtoD, 3020),
    SECOND(cuMemcpyDtoH, 3020),
    SECOND(cuMemcpyHtoDAsync, 3020),
    SECOND(cuMemcpyDtoHAsync, 3020),
    SECOND(cuMemcpyDtoDAsync, 3020),
    SECOND(cuMemcpy2DAsync, 3020),
    PLAIN(cuMemcpyBatchAsync, 12080),
    SECOND(cuMemcpyBatchAsync, 13000),
    PLAIN(cuMemsetD8Async, 3020),
    PLAIN(cuStreamCreate, 2000),
    SECOND(cuStreamDestroy, 4000),
    PLAIN(cuStreamSynchronize, 2000),
    PLAIN(cuStreamQuery, 2000),
    PLAIN(cuStreamWaitEvent, 3020),
    PLAIN(cuLaunchHostFunc, 10000),
    PLAIN(cuStreamIsCapturing, 10000),
    SECOND(cuStreamBeginCapture, 10010),
    PLAIN(cuStreamEndCapture, 10000),
    PLAIN(cuGraphDestroy, 10000),
    PLAIN(cuThreadExchangeStreamCaptureMode, 10010),
    PLAIN(cuEventCreate, 2000),
    SECOND(cuEventDestroy, 4000),
    PLAIN(cuEventRecord, 2000),
    PLAIN(cuEventQuery, 2000),
    PLAIN(cuEventSynchronize, 2000),
    PLAIN(cuModuleLoadData, 2000),
    PLAIN(cuModuleUnload, 2000),
    PLAIN(cuModuleGetFunction, 2000),
    PLAIN(cuLaunchKernel, 4000),
};

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
    (void)flags;
    CUresult result = fake_enter("cuGetProcAddress", 0);
    if (result)
        return result;
    if (!symbol || !pfn || version > fake_settings.version)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    int found = 0;
    *pfn = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].symbol, symbol) || (fake_settings.no_batch && strstr(symbol, "Batch")))
            continue;
        found = 1;
        if (entries[i].version <= version)
            *pfn = entries[i].function;
    }
    if (status)
        *status = *pfn ? 0 : found ? 2 : 1; /* success, version not sufficient, not found */
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
    CUresult result = cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
    return result ? result : *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing one"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_text(CUresult error, int is_name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) {
            *text = is_name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    return error_text(error, 1, text);
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    return error_text(error, 0, text);
}
