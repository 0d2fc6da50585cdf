/*
 * modules.c: modules and launches. The kernels there are are run by execute.c; what a module's image holds is not
 * looked at, only whether it is one: it is taken to be that whose entry was asked for last.
 */
#include <stdlib.h>
#include <string.h>

#include "device/place.h"
#include "driver_state.h"

/* A fat binary, with or without its wrapper, a cubin, or PTX as text. */
static int is_image(const void *image)
{
    static const unsigned char fat[] = {0x50, 0xed, 0x55, 0xba}, wrapper[] = {0xb1, 0x43, 0x62, 0x46};
    return image && (!memcmp(image, fat, 4) || !memcmp(image, wrapper, 4) || !memcmp(image, "\177ELF", 4) ||
                     strstr(image, ".version"));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUresult result = fake_enter("cuModuleLoadData", FAKE_NEEDS_CONTEXT | FAKE_UNSAFE);
    if (result)
        return result;
    if (fake_settings.no_kernel)
        return fake_leave(CUDA_ERROR_NO_BINARY_FOR_GPU);
    if (!is_image(image))
        return fake_leave(CUDA_ERROR_INVALID_IMAGE);
    struct fake_module *made = fake_object_new(FAKE_MODULE, sizeof *made);
    if (made)
        *module = made;
    return fake_leave(made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Kernels of it that run or wait are a mistake. */
CUresult cuModuleUnload(CUmodule module)
{
    CUresult result = fake_enter("cuModuleUnload", FAKE_NEEDS_CONTEXT | FAKE_TAKES_EFFECT);
    if (result)
        return result;
    if (!fake_object_alive(FAKE_MODULE, module))
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    fake_object_unlink(module);
    free(module);
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult result = fake_enter("cuModuleGetFunction", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    if (!fake_object_alive(FAKE_MODULE, module))
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    struct fake_module *known = module;
    if (strcmp(name, HR_PLACE_KERNEL_NAME) && strcmp(name, HR_CAST_KERNEL_NAME))
        return fake_leave(CUDA_ERROR_NOT_FOUND);
    known->converts = strcmp(name, HR_CAST_KERNEL_NAME) == 0;
    *function = module;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream handle, void **parameters, void **extra)
{
    CUresult result = fake_enter("cuLaunchKernel", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    if (!fake_object_alive(FAKE_MODULE, function) || function->object.context != fake_current() || !stream)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (!grid_x || !grid_y || !grid_z || !threads || threads > 1024 || shared_bytes > 48u << 10 || !parameters || extra)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    struct fake_op *op = fake_op_new(FAKE_OP_KERNEL, 0);
    if (!op)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->moves = *(const CUdeviceptr *)parameters[0];
    op->move_count = *(const unsigned *)parameters[1];
    op->converts = ((const struct fake_module *)function)->converts;
    return fake_leave(fake_submit(stream, op));
}
