/*
 * cuda_abi.h: the part of the CUDA driver's binary interface that the fake driver has, written down from the public
 * documentation and independently of the library's own table, so that a mistake there meets a different one here.
 */
#ifndef TESTS_FAKE_CUDA_ABI_H
#define TESTS_FAKE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct fake_context *CUcontext;
typedef struct fake_stream *CUstream;
typedef struct fake_event *CUevent;
typedef struct fake_module *CUmodule;
typedef struct fake_module *CUfunction;
typedef struct fake_graph *CUgraph;

typedef struct {
    char bytes[16];
} CUuuid;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908
};

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_HOST_PORTABLE = 1, CU_HOST_DEVICEMAP = 2 }; /* of registering and of allocating */
enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3, CU_MEMORY_UNIFIED = 4 };
enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1, CU_CAPTURE_INVALIDATED = 2 };

typedef struct {
    size_t srcXInBytes, srcY;
    unsigned int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    unsigned int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    int srcAccessOrder; /* 1: in stream order, 2: during the call, 3: any */
    CUmemLocation srcLocHint, dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;

/* The driver and its devices */
CUDA_API CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags);
CUDA_API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);
CUDA_API CUresult cuInit(unsigned int flags);
CUDA_API CUresult cuDriverGetVersion(int *version);
CUDA_API CUresult cuGetErrorName(CUresult error, const char **text);
CUDA_API CUresult cuGetErrorString(CUresult error, const char **text);
CUDA_API CUresult cuDeviceGetCount(int *count);
CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUDA_API CUresult cuDeviceGetName(char *name, int size, CUdevice device);
CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUDA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUDA_API CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device);
/* Contexts */
CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active);
CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context);
CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUDA_API CUresult cuCtxSetCurrent(CUcontext context);
CUDA_API CUresult cuCtxGetCurrent(CUcontext *context);
CUDA_API CUresult cuCtxGetDevice(CUdevice *device);
CUDA_API CUresult cuCtxSynchronize(void);
/* Memory */
CUDA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes);
CUDA_API CUresult cuMemFree_v2(CUdeviceptr memory);
CUDA_API CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags);
CUDA_API CUresult cuMemHostUnregister(void *memory);
CUDA_API CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags);
CUDA_API CUresult cuMemFreeHost(void *memory);
CUDA_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned int flags);
CUDA_API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer);
CUDA_API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **values, CUdeviceptr pointer);
/* Copies */
CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t bytes);
CUDA_API CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t bytes);
CUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream);
CUDA_API CUresult cuMemcpyBatchAsync(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                                     CUmemcpyAttributes *attributes, size_t *attribute_indexes, size_t attribute_count,
                                     size_t *fail_index, CUstream stream);
CUDA_API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                                        CUmemcpyAttributes *attributes, size_t *attribute_indexes,
                                        size_t attribute_count, CUstream stream);
CUDA_API CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream);
/* Streams, events, captures */
CUDA_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUDA_API CUresult cuStreamDestroy_v2(CUstream stream);
CUDA_API CUresult cuStreamSynchronize(CUstream stream);
CUDA_API CUresult cuStreamQuery(CUstream stream);
CUDA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUDA_API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument);
CUDA_API CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUDA_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUDA_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUDA_API CUresult cuGraphDestroy(CUgraph graph);
CUDA_API CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUDA_API CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUDA_API CUresult cuEventDestroy_v2(CUevent event);
CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream);
CUDA_API CUresult cuEventQuery(CUevent event);
CUDA_API CUresult cuEventSynchronize(CUevent event);
/* Kernels */
CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUDA_API CUresult cuModuleUnload(CUmodule module);
CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, CUstream stream, void **parameters, void **extra);

#endif
