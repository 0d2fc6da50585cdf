/*
 * cuda_driver.h: what is used of the CUDA driver, declared by ourselves so that nothing of CUDA is needed to build. The
 * names are the driver's; types carry an own prefix, but for the tags of its handles. tests/unit/test_cuda_driver.c
 * compares all of it with a real cuda.h.
 *
 * Source: the CUDA driver API reference, and the versions of cuGetProcAddress() in cudaTypedefs.h.
 */
#ifndef HR_DEVICE_CUDA_DRIVER_H
#define HR_DEVICE_CUDA_DRIVER_H

#include <stddef.h>

#include "base/error.h"

typedef struct CUctx_st *hr_cu_context;
typedef struct CUstream_st *hr_cu_stream;
typedef struct CUevent_st *hr_cu_event;
typedef struct CUmod_st *hr_cu_module;
typedef struct CUfunc_st *hr_cu_function;
typedef unsigned long long hr_cu_address;
typedef unsigned hr_cu_result;

/* X(name, value): enumerators and flags. Ours are HR_CU_name, the driver's CU_name. */
/* clang-format off */
#define HR_CU_VALUE_LIST(X)                                             \
    X(DEVICE_ATTRIBUTE_MAX_PITCH, 11)                                   \
    X(DEVICE_ATTRIBUTE_INTEGRATED, 18)                                  \
    X(DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 19)                         \
    X(DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                                \
    X(DEVICE_ATTRIBUTE_PCI_BUS_ID, 33)                                  \
    X(DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34)                               \
    X(DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40)                          \
    X(DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50)                               \
    X(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                    \
    X(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                    \
    X(DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)                     \
    X(COMPUTEMODE_PROHIBITED, 2)                                        \
    X(MEMHOSTREGISTER_PORTABLE, 1) X(MEMHOSTREGISTER_DEVICEMAP, 2)      \
    X(MEMHOSTALLOC_PORTABLE, 1) X(MEMHOSTALLOC_DEVICEMAP, 2)            \
    X(MEMORYTYPE_HOST, 1) X(MEMORYTYPE_DEVICE, 2)                       \
    X(STREAM_NON_BLOCKING, 1)                                           \
    X(EVENT_BLOCKING_SYNC, 1) X(EVENT_DISABLE_TIMING, 2)                \
    X(STREAM_CAPTURE_MODE_RELAXED, 2) X(STREAM_CAPTURE_STATUS_NONE, 0)  \
    X(GET_PROC_ADDRESS_LEGACY_STREAM, 1)

/* X(name, value): results. Ours are HR_CU_name, the driver's CUDA_name. */
#define HR_CU_RESULT_LIST(X)                                                              \
    X(SUCCESS, 0) X(ERROR_OUT_OF_MEMORY, 2) X(ERROR_NOT_INITIALIZED, 3)                   \
    X(ERROR_DEINITIALIZED, 4) X(ERROR_STUB_LIBRARY, 34) X(ERROR_NO_DEVICE, 100)           \
    X(ERROR_ECC_UNCORRECTABLE, 214) X(ERROR_NVLINK_UNCORRECTABLE, 220)                    \
    X(ERROR_NOT_READY, 600) X(ERROR_ILLEGAL_ADDRESS, 700) X(ERROR_LAUNCH_TIMEOUT, 702)    \
    X(ERROR_CONTEXT_IS_DESTROYED, 709) X(ERROR_ASSERT, 710)                               \
    X(ERROR_HARDWARE_STACK_ERROR, 714) X(ERROR_ILLEGAL_INSTRUCTION, 715)                  \
    X(ERROR_MISALIGNED_ADDRESS, 716) X(ERROR_INVALID_ADDRESS_SPACE, 717)                  \
    X(ERROR_INVALID_PC, 718) X(ERROR_LAUNCH_FAILED, 719)                                  \
    X(ERROR_SYSTEM_DRIVER_MISMATCH, 803) X(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)         \
    X(ERROR_STREAM_CAPTURE_IMPLICIT, 906) X(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)

enum {
#define HR_CU_ENUM(name, value) HR_CU_##name = value,
    HR_CU_VALUE_LIST(HR_CU_ENUM) HR_CU_RESULT_LIST(HR_CU_ENUM)
#undef HR_CU_ENUM
};
/* clang-format on */

struct hr_cu_uuid {
    char bytes[16];
};

struct hr_cu_memcpy_2d {
    size_t srcXInBytes, srcY;
    unsigned srcMemoryType;
    const void *srcHost;
    hr_cu_address srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    unsigned dstMemoryType;
    void *dstHost;
    hr_cu_address dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
};

struct hr_cu_memory_location {
    unsigned type;
    int id;
};

/* Of the copies of a batch. */
struct hr_cu_memcpy_attributes {
    unsigned srcAccessOrder;
    struct hr_cu_memory_location srcLocHint, dstLocHint;
    unsigned flags;
};
#define HR_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM 1

/*
 * X(name, version, parameters): version is the CUDA version that brought in the binary interface declared here; the
 * driver is asked for that one, so that a later one of the same name never takes its place.
 */
/* clang-format off */
#define HR_CU_FUNCTION_LIST(X)                                                                                       \
    X(cuInit, 2000, (unsigned flags))                                                                                \
    X(cuGetErrorName, 6000, (hr_cu_result result, const char **ret_name))                                            \
    X(cuDeviceGetCount, 2000, (int *ret_count))                                                                      \
    X(cuDeviceGet, 2000, (int *ret_device, int ordinal))                                                             \
    X(cuDeviceGetName, 2000, (char *ret_name, int capacity, int device))                                             \
    X(cuDeviceGetAttribute, 2000, (int *ret_value, unsigned attribute, int device))                                  \
    X(cuDeviceTotalMem, 3020, (size_t *ret_bytes, int device))                                                       \
    X(cuDevicePrimaryCtxRetain, 7000, (hr_cu_context *ret_context, int device))                                      \
    X(cuDevicePrimaryCtxRelease, 11000, (int device))                                                                \
    X(cuCtxPushCurrent, 4000, (hr_cu_context context))                                                               \
    X(cuCtxPopCurrent, 4000, (hr_cu_context *ret_context))                                                           \
    X(cuThreadExchangeStreamCaptureMode, 10010, (unsigned *mode))                                                    \
    X(cuMemGetInfo, 3020, (size_t *ret_free, size_t *ret_total))                                                     \
    X(cuMemAlloc, 3020, (hr_cu_address *ret_memory, size_t bytes))                                                   \
    X(cuMemFree, 3020, (hr_cu_address memory))                                                                       \
    X(cuMemHostRegister, 6050, (void *memory, size_t bytes, unsigned flags))                                         \
    X(cuMemHostUnregister, 4000, (void *memory))                                                                     \
    X(cuMemHostAlloc, 2020, (void **ret_memory, size_t bytes, unsigned flags))                                       \
    X(cuMemFreeHost, 2000, (void *memory))                                                                           \
    X(cuMemHostGetDevicePointer, 3020, (hr_cu_address *ret_address, void *memory, unsigned flags))                   \
    X(cuMemcpyHtoDAsync, 3020, (hr_cu_address target, const void *source, size_t bytes, hr_cu_stream stream))        \
    X(cuMemcpyDtoHAsync, 3020, (void *target, hr_cu_address source, size_t bytes, hr_cu_stream stream))              \
    X(cuMemcpyDtoDAsync, 3020, (hr_cu_address target, hr_cu_address source, size_t bytes, hr_cu_stream stream))      \
    X(cuStreamCreate, 2000, (hr_cu_stream *ret_stream, unsigned flags))                                              \
    X(cuStreamDestroy, 4000, (hr_cu_stream stream))                                                                  \
    X(cuStreamSynchronize, 2000, (hr_cu_stream stream))                                                              \
    X(cuStreamWaitEvent, 3020, (hr_cu_stream stream, hr_cu_event event, unsigned flags))                             \
    X(cuStreamIsCapturing, 10000, (hr_cu_stream stream, unsigned *ret_status))                                       \
    X(cuEventCreate, 2000, (hr_cu_event *ret_event, unsigned flags))                                                 \
    X(cuEventDestroy, 4000, (hr_cu_event event))                                                                     \
    X(cuEventRecord, 2000, (hr_cu_event event, hr_cu_stream stream))                                                 \
    X(cuEventQuery, 2000, (hr_cu_event event))                                                                       \
    X(cuEventSynchronize, 2000, (hr_cu_event event))

/* What older drivers lack, or what only the kernel needs; NULL in the table when it is not there. */
#define HR_CU_OPTIONAL_FUNCTION_LIST(X)                                                                              \
    X(cuDeviceGetUuid, 11040, (struct hr_cu_uuid *ret_uuid, int device))                                             \
    X(cuMemcpy2DAsync, 3020, (const struct hr_cu_memcpy_2d *copy, hr_cu_stream stream))                              \
    X(cuMemcpyBatchAsync, 12080, (hr_cu_address *targets, hr_cu_address *sources, size_t *sizes, size_t count,       \
      struct hr_cu_memcpy_attributes *attributes, size_t *attribute_indices, size_t attribute_count,                 \
      size_t *ret_fail_index, hr_cu_stream stream))                                                                  \
    X(cuModuleLoadData, 2000, (hr_cu_module *ret_module, const void *image))                                         \
    X(cuModuleUnload, 2000, (hr_cu_module module))                                                                   \
    X(cuModuleGetFunction, 2000, (hr_cu_function *ret_function, hr_cu_module module, const char *name))              \
    X(cuLaunchKernel, 4000, (hr_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,             \
      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, hr_cu_stream stream,              \
      void **parameters, void **extra))

struct hr_cuda_driver {
#define HR_CU_MEMBER(name, version, parameters) hr_cu_result (*name) parameters;
    HR_CU_FUNCTION_LIST(HR_CU_MEMBER) HR_CU_OPTIONAL_FUNCTION_LIST(HR_CU_MEMBER)
#undef HR_CU_MEMBER
};
/* clang-format on */

/*
 * The driver, started (cuInit); once per process, and never unloaded. HR_EDEVICE_UNAVAILABLE with cause and remedy; a
 * later call tries again. Any thread; blocks while the driver starts. In a child of fork() HR_EFORKED when the parent
 * had started it.
 */
int hr_cuda_driver_get(const struct hr_cuda_driver **ret_driver, struct hr_error *err);

/* "CUDA_ERROR_...", never NULL. */
const char *hr_cuda_result_name(const struct hr_cuda_driver *driver, hr_cu_result result);

#endif
