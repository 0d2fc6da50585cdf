/*
 * contexts.c: devices, their primary contexts, and each thread's stack of current contexts.
 */
#include <stdio.h>
#include <string.h>

#include "driver_state.h"

struct fake_context fake_contexts[FAKE_DEVICE_MAX];

static _Thread_local struct fake_context *stack[FAKE_STACK_MAX];
static _Thread_local int depth;
static long abandoned_count;

struct fake_context *fake_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

long fake_context_depth(void)
{
    return depth;
}

int fake_context_device(const struct fake_context *context)
{
    for (int ordinal = 0; ordinal < FAKE_DEVICE_MAX; ordinal++)
        if (fake_visible_device(ordinal) == (int)(context - fake_contexts))
            return ordinal;
    return -1;
}

/* Begins a call about a device, with the lock; *ret_index is the one behind the ordinal. */
static CUresult enter_device(const char *name, unsigned flags, CUdevice device, int *ret_index)
{
    CUresult result = fake_enter(name, FAKE_NEEDS_INIT | flags);
    if (result)
        return result;
    *ret_index = fake_visible_device(device);
    return *ret_index >= 0 ? CUDA_SUCCESS : fake_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = fake_enter("cuDeviceGetCount", FAKE_NEEDS_INIT);
    if (result)
        return result;
    *count = fake_visible_count();
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    int index;
    CUresult result = enter_device("cuDeviceGet", 0, ordinal, &index);
    if (result)
        return result;
    *device = ordinal;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    int index;
    CUresult result = enter_device("cuDeviceGetName", 0, device, &index);
    if (result)
        return result;
    snprintf(name, (size_t)size, "Fake H%d00%s", index + 1, fake_settings.mig ? " MIG 1g.18gb" : "");
    return fake_leave(CUDA_SUCCESS);
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device, int is_instance)
{
    int index;
    CUresult result = enter_device("cuDeviceGetUuid", 0, device, &index);
    if (result)
        return result;
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)(0x11 * i + index + (is_instance ? 0x40 : 0));
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return get_uuid(uuid, device, 0);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return get_uuid(uuid, device, fake_settings.mig != 0);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    int index;
    CUresult result = enter_device("cuDeviceTotalMem", 0, device, &index);
    if (result)
        return result;
    *bytes = (size_t)fake_settings.memory_bytes;
    return fake_leave(CUDA_SUCCESS);
}

static int pci_bus(int index)
{
    return 0x1b + 0x10 * index;
}

static int attribute_of(int attribute, int index)
{
    switch (attribute) {
    case 1: /* threads of a block */
        return 1024;
    case 5:  /* blocks of a grid */
    case 11: /* pitch */
        return 0x7fffffff;
    case 10: /* threads of a warp */
        return 32;
    case 16: /* multiprocessors */
        return 132;
    case 15: /* copies overlap kernels */
    case 19: /* maps host memory */
    case 31: /* concurrent kernels */
    case 41: /* unified addresses */
        return 1;
    case 33:
        return pci_bus(index);
    case 40: /* copy engines */
        return 3;
    case 75: /* compute capability, then its minor */
        return 9;
    case 99: /* registers host memory */
        return !fake_settings.confidential;
    default: /* PCI device and domain, 91: host addresses for registered memory, NUMA nodes, all others */
        return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    int index;
    CUresult result = enter_device("cuDeviceGetAttribute", 0, device, &index);
    if (result)
        return result;
    *value = attribute_of(attribute, index);
    return fake_leave(attribute < 1 || attribute > 150 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device)
{
    int index;
    CUresult result = enter_device("cuDeviceGetPCIBusId", 0, device, &index);
    if (result)
        return result;
    int needed = snprintf(text, (size_t)size, "0000:%02X:00.0", pci_bus(index)); /* upper case, as the real one */
    return fake_leave(needed < size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    int index;
    CUresult result = enter_device("cuDevicePrimaryCtxRetain", 0, device, &index);
    if (result)
        return result;
    struct fake_context *primary = &fake_contexts[index];
    if (!primary->legacy)
        primary->legacy = fake_stream_new(primary, 0);
    if (!primary->legacy)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    primary->retain_count++;
    *context = primary;
    return fake_leave(CUDA_SUCCESS);
}

/* A destroyed stream without work is as good as gone, though its thread may not have come to ending yet. */
static int stream_lives(const struct fake_stream *stream)
{
    return stream != stream->object.context->legacy && !(stream->destroyed && !stream->head);
}

static void count_objects(const struct fake_context *context, struct fake_cuda_live *live)
{
    for (const struct fake_object *object = fake_objects; object; object = object->next) {
        if (context && object->context != context)
            continue;
        live->event_count += object->kind == FAKE_EVENT;
        live->module_count += object->kind == FAKE_MODULE;
        live->stream_count += object->kind == FAKE_STREAM && stream_lives((const struct fake_stream *)object);
    }
}

static void count_abandoned(const struct fake_context *context)
{
    struct fake_cuda_live live = {0};
    count_objects(context, &live);
    fake_ranges_count(context, &live);
    if (!context->poison)
        abandoned_count += live.event_count + live.module_count + live.stream_count + live.allocation_count +
                           live.pinned_count + (live.registered_bytes > 0);
}

/* With a context all that was made in it goes. */
static void end_context(struct fake_context *context)
{
    fake_drain(context, NULL);
    fake_objects_end(context);
    fake_ranges_drop(context);
    context->legacy = NULL; /* one of the objects */
    context->retain_count = 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    int index;
    CUresult result = enter_device("cuDevicePrimaryCtxRelease", FAKE_TAKES_EFFECT, device, &index);
    if (result)
        return result;
    struct fake_context *primary = &fake_contexts[index];
    if (!primary->retain_count)
        return fake_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (primary->retain_count == 1) {
        count_abandoned(primary);
        end_context(primary);
    } else {
        primary->retain_count--;
    }
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    int index;
    CUresult result = enter_device("cuDevicePrimaryCtxGetState", 0, device, &index);
    if (result)
        return result;
    *flags = 0;
    *active = fake_contexts[index].retain_count > 0;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = fake_enter("cuCtxPushCurrent", FAKE_NEEDS_INIT);
    if (result)
        return result;
    if (context < fake_contexts || context >= fake_contexts + FAKE_DEVICE_MAX || !context->retain_count ||
        depth == FAKE_STACK_MAX)
        return fake_leave(CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = context;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = fake_enter("cuCtxPopCurrent", FAKE_NEEDS_INIT | FAKE_TAKES_EFFECT);
    if (result)
        return result;
    if (!depth)
        return fake_leave(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth];
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = fake_enter("cuCtxSetCurrent", FAKE_NEEDS_INIT);
    if (result)
        return result;
    if (context && !context->retain_count)
        return fake_leave(CUDA_ERROR_INVALID_CONTEXT);
    depth -= depth > 0;
    if (context)
        stack[depth++] = context;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = fake_enter("cuCtxGetCurrent", FAKE_NEEDS_INIT);
    if (result)
        return result;
    *context = fake_current();
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = fake_enter("cuCtxGetDevice", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    *device = fake_context_device(fake_current());
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
    CUresult result = fake_enter("cuCtxSynchronize", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE | FAKE_TAKES_EFFECT);
    if (result)
        return result;
    struct fake_context *context = fake_current();
    fake_drain(context, NULL);
    return fake_leave(context->poison);
}

CUDA_API void fake_cuda_reset(void)
{
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_DEVICE_MAX; i++) {
        end_context(&fake_contexts[i]);
        memset(&fake_contexts[i], 0, sizeof fake_contexts[i]);
    }
    while (fake_thread_count)
        pthread_cond_wait(&fake_progress, &fake_lock);
    depth = 0;
    abandoned_count = 0;
    fake_settings_reset();
    pthread_mutex_unlock(&fake_lock);
}

CUDA_API void fake_cuda_live(struct fake_cuda_live *ret_live)
{
    struct fake_cuda_live live = {.context_depth = depth};
    pthread_mutex_lock(&fake_lock);
    live.abandoned_count = abandoned_count;
    for (int i = 0; i < FAKE_DEVICE_MAX; i++)
        live.retain_count += fake_contexts[i].retain_count;
    count_objects(NULL, &live);
    fake_ranges_count(NULL, &live);
    pthread_mutex_unlock(&fake_lock);
    *ret_live = live;
}
