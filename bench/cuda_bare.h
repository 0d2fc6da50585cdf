/*
 * cuda_bare.h: the few calls of the CUDA driver that the ruler makes, by dlopen, with declarations of its own. It knows
 * nothing of headrace, so that what headrace is measured against does not lean on it.
 *
 * The primary context of the device is retained by cuda_open() for the life of the process and is current on the thread
 * that called it; other threads call cuda_enter(). A failed call ends the process.
 */
#ifndef BENCH_CUDA_BARE_H
#define BENCH_CUDA_BARE_H

#include <stddef.h>
#include <stdint.h>

/* X(name here, name in the driver, parameters) */
/* clang-format off */
#define CUDA_CALLS(X)                                                                    \
    X(init, cuInit, (unsigned flags))                                                    \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                               \
    X(device_name, cuDeviceGetName, (char *name, int capacity, int device))              \
    X(driver_version, cuDriverGetVersion, (int *version))                                \
    X(context_retain, cuDevicePrimaryCtxRetain, (void **context, int device))            \
    X(context_set, cuCtxSetCurrent, (void *context))                                     \
    X(memory_info, cuMemGetInfo_v2, (size_t *free, size_t *total))                       \
    X(memory_alloc, cuMemAlloc_v2, (uint64_t *address, size_t bytes))                    \
    X(host_register, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags)) \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                    \
    X(stream_synchronize, cuStreamSynchronize, (void *stream))                           \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                       \
    X(event_record, cuEventRecord, (void *event, void *stream))                          \
    X(event_synchronize, cuEventSynchronize, (void *event))                              \
    X(copy_to_device, cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream))
/* clang-format on */

struct cuda_calls {
#define CUDA_POINTER(name, symbol, parameters) int(*name) parameters;
    CUDA_CALLS(CUDA_POINTER)
#undef CUDA_POINTER
};

extern struct cuda_calls cuda; /* written by cuda_open() only */

#define CUDA(name, ...) cuda_check(cuda.name(__VA_ARGS__), #name)
void cuda_check(int code, const char *what);

/* 0, or -1 where there is no driver or no such device: then `reason` says why. */
int cuda_open(int ordinal, const char **reason);
void cuda_enter(void);
void cuda_name(int ordinal, char *name, size_t capacity);

void *cuda_stream(void);
/* An event without a time, on which threads sleep instead of spinning. */
void *cuda_event(void);
/* The same, for which no thread sleeps. */
void *cuda_event_to_poll(void);
uint64_t cuda_alloc(uint64_t bytes);
uint64_t cuda_free_bytes(void);
/* Waits until nothing is being given back to the device any more. Returns cuda_free_bytes(). */
uint64_t cuda_settle(void);

/* Touched host memory in huge pages where the system gives them, pinned. */
char *cuda_pinned(uint64_t bytes);

#endif
