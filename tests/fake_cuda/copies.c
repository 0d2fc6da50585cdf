/*
 * copies.c: copies and fills from their arguments to operations in a stream. A pageable source is read during the call,
 * as the real driver does; a pageable target makes the call wait.
 */
#include <stdlib.h>
#include <string.h>

#include "driver_state.h"

/* Whether memory of the GPU (or a pinned twin) begins at the address and goes on for that long. */
static int is_device(uint64_t address, uint64_t bytes)
{
    const struct fake_range *range = fake_find(address, bytes);
    return range && (range->memory == FAKE_DEVICE_MEMORY || range->memory == FAKE_MAPPED);
}

static int is_host(uint64_t address, uint64_t bytes)
{
    const struct fake_range *range = fake_find(address, bytes);
    if (!range) /* pageable, but not in part */
        return !fake_overlaps(address, bytes);
    return range->memory == FAKE_REGISTERED || range->memory == FAKE_PINNED;
}

static uint64_t span_of(const struct fake_piece *piece, int64_t pitch)
{
    return (uint64_t)pitch * (piece->rows - 1) + piece->bytes;
}

/* Copies the bytes of pageable sources now. */
static CUresult stage(struct fake_op *op)
{
    uint64_t total = 0;
    for (size_t i = 0; i < op->piece_count; i++)
        if (!fake_find(op->pieces[i].source, span_of(&op->pieces[i], op->pieces[i].source_pitch)))
            total += span_of(&op->pieces[i], op->pieces[i].source_pitch);
    if (!total)
        return CUDA_SUCCESS;
    char *next = op->staged = malloc(total);
    if (!next)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < op->piece_count; i++) {
        struct fake_piece *piece = &op->pieces[i];
        uint64_t bytes = span_of(piece, piece->source_pitch);
        if (fake_find(piece->source, bytes))
            continue;
        for (uint64_t row = 0; row < piece->rows; row++) {
            uint64_t offset = row * (uint64_t)piece->source_pitch;
            memcpy(next + offset, (const char *)(uintptr_t)piece->source + offset, piece->bytes);
        }
        piece->source = (uint64_t)(uintptr_t)next;
        piece->flags |= FAKE_SOURCE_RAW;
        next += bytes;
    }
    return CUDA_SUCCESS;
}

/* Submits a copy whose pieces are filled in, and takes it. */
static CUresult submit_copy(struct fake_op *op, CUstream handle, int waits)
{
    struct fake_stream *stream = fake_stream_of(handle);
    CUresult result = stream ? stage(op) : CUDA_ERROR_INVALID_HANDLE;
    if (result) {
        fake_op_free(op);
        return result;
    }
    struct fake_context *context = stream->object.context;
    result = fake_submit(stream, op);
    if (result || !waits)
        return result;
    fake_drain(context, stream);
    return context->poison;
}

static CUresult copy_one(uint64_t target, uint64_t source, uint64_t bytes, unsigned flags, CUstream stream, int waits)
{
    if (!bytes)
        return CUDA_SUCCESS;
    struct fake_op *op = fake_op_new(FAKE_OP_COPY, 1);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op->pieces = (struct fake_piece){.target = target, .source = source, .bytes = bytes, .rows = 1, .flags = flags};
    return submit_copy(op, stream, waits);
}

static CUresult host_to_device(const char *name, unsigned flags, CUdeviceptr target, const void *source, size_t bytes,
                               CUstream stream, int waits)
{
    CUresult result = fake_enter(name, FAKE_NEEDS_CONTEXT | flags);
    if (result)
        return result;
    uint64_t from = (uint64_t)(uintptr_t)source;
    if (bytes && (!is_device(target, bytes) || !is_host(from, bytes)))
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    return fake_leave(copy_one(target, from, bytes, 0, stream, waits));
}

static CUresult device_to_host(const char *name, unsigned flags, void *target, CUdeviceptr source, size_t bytes,
                               CUstream stream, int waits)
{
    CUresult result = fake_enter(name, FAKE_NEEDS_CONTEXT | flags);
    if (result)
        return result;
    uint64_t to = (uint64_t)(uintptr_t)target;
    if (bytes && (!is_device(source, bytes) || !is_host(to, bytes)))
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    int pageable = !fake_find(to, bytes);
    return fake_leave(copy_one(to, source, bytes, pageable ? FAKE_TARGET_RAW : 0, stream, waits || pageable));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t bytes)
{
    return host_to_device("cuMemcpyHtoD", FAKE_UNSAFE, target, source, bytes, NULL, 1);
}

CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t bytes)
{
    return device_to_host("cuMemcpyDtoH", FAKE_UNSAFE, target, source, bytes, NULL, 1);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream)
{
    return host_to_device("cuMemcpyHtoDAsync", 0, target, source, bytes, stream, 0);
}

CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    return device_to_host("cuMemcpyDtoHAsync", 0, target, source, bytes, stream, 0);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    CUresult result = fake_enter("cuMemcpyDtoDAsync", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    if (bytes && (!is_device(target, bytes) || !is_device(source, bytes)))
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    return fake_leave(copy_one(target, source, bytes, 0, stream, 0));
}

/* One side of a 2D copy as an address; 0 for what is not supported. */
static uint64_t side(unsigned type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch)
{
    uint64_t address = type == CU_MEMORY_HOST ? (uint64_t)(uintptr_t)host : device;
    return type == CU_MEMORY_ARRAY || !address ? 0 : address + y * pitch + x;
}

static CUresult check_2d(const CUDA_MEMCPY2D *copy, const struct fake_piece *piece)
{
    if (!piece->target || !piece->source || copy->srcPitch > 0x7fffffff || copy->dstPitch > 0x7fffffff ||
        copy->WidthInBytes > copy->srcPitch || copy->WidthInBytes > copy->dstPitch)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(piece->target, span_of(piece, piece->target_pitch)))
        return CUDA_ERROR_INVALID_VALUE; /* this driver has copies to devices only */
    uint64_t bytes = span_of(piece, piece->source_pitch);
    int found = copy->srcMemoryType == CU_MEMORY_HOST ? is_host(piece->source, bytes) : is_device(piece->source, bytes);
    return found || copy->srcMemoryType == CU_MEMORY_UNIFIED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    CUresult result = fake_enter("cuMemcpy2DAsync", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    if (!copy->WidthInBytes || !copy->Height)
        return fake_leave(CUDA_SUCCESS);
    struct fake_piece piece = {
        .source =
            side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcPitch),
        .target =
            side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstPitch),
        .bytes = copy->WidthInBytes,
        .rows = copy->Height,
        .source_pitch = (int64_t)copy->srcPitch,
        .target_pitch = (int64_t)copy->dstPitch,
    };
    result = check_2d(copy, &piece);
    if (result)
        return fake_leave(result);
    struct fake_op *op = fake_op_new(FAKE_OP_COPY, 1);
    if (!op)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *op->pieces = piece;
    return fake_leave(submit_copy(op, stream, 0));
}

/* Attributes: the first is for copy 0, each for a later copy than the one before. */
static int attributes_valid(const CUmemcpyAttributes *attributes, const size_t *indexes, size_t attribute_count,
                            size_t count)
{
    if (!attributes || !indexes || !attribute_count || attribute_count > count || indexes[0])
        return 0;
    for (size_t i = 0; i < attribute_count; i++)
        if (attributes[i].srcAccessOrder < 1 || attributes[i].srcAccessOrder > 3 || indexes[i] >= count ||
            (i && indexes[i] <= indexes[i - 1]))
            return 0;
    return 1;
}

static CUresult batch(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count,
                      size_t *ret_failed, CUstream stream)
{
    struct fake_op *op = fake_op_new(FAKE_OP_COPY, count);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        op->pieces[i] = (struct fake_piece){.target = targets[i], .source = sources[i], .bytes = sizes[i], .rows = 1};
        if (sizes[i] && is_device(targets[i], sizes[i]) &&
            (is_host(sources[i], sizes[i]) || is_device(sources[i], sizes[i])))
            continue;
        *ret_failed = i;
        fake_op_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return submit_copy(op, stream, 0);
}

static CUresult enter_batch(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count,
                            const CUmemcpyAttributes *attributes, const size_t *indexes, size_t attribute_count,
                            size_t *ret_failed, CUstream stream)
{
    CUresult result = fake_enter("cuMemcpyBatchAsync", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    *ret_failed = SIZE_MAX;
    if (!count || (uintptr_t)stream < 2 || !attributes_valid(attributes, indexes, attribute_count, count))
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    return fake_leave(batch(targets, sources, sizes, count, ret_failed, stream));
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *attribute_indexes, size_t attribute_count,
                            size_t *fail_index, CUstream stream)
{
    return enter_batch(targets, sources, sizes, count, attributes, attribute_indexes, attribute_count, fail_index,
                       stream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *attribute_indexes, size_t attribute_count,
                               CUstream stream)
{
    size_t failed;
    return enter_batch(targets, sources, sizes, count, attributes, attribute_indexes, attribute_count, &failed, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream handle)
{
    CUresult result = fake_enter("cuMemsetD8Async", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    if (!stream || !is_device(target, bytes))
        return fake_leave(stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    struct fake_op *op = fake_op_new(FAKE_OP_FILL, 1);
    if (!op)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *op->pieces = (struct fake_piece){.target = target, .bytes = bytes, .rows = 1, .flags = FAKE_SOURCE_RAW};
    op->fill = value;
    return fake_leave(fake_submit(stream, op));
}
