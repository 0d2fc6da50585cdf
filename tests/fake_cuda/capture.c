/*
 * capture.c: graph captures, as far as they stand in the way of others: which calls they forbid, to whom, and that a
 * forbidden call destroys the capture. What is captured is forgotten; a graph is a handle and no more.
 */
#include "driver_state.h"

static _Thread_local int thread_mode = CU_CAPTURE_GLOBAL;
static char graph; /* its address is the handle */

void fake_capture_invalidate(struct fake_stream *stream)
{
    stream->capture = CU_CAPTURE_INVALIDATED;
}

/* Whether this thread may not do what is unsafe while the stream is captured. */
static int is_in_the_way(const struct fake_stream *stream)
{
    if (stream->capture != CU_CAPTURE_ACTIVE || stream->capture_mode == CU_CAPTURE_RELAXED)
        return 0;
    if (pthread_equal(stream->capture_thread, pthread_self()))
        return thread_mode != CU_CAPTURE_RELAXED;
    return thread_mode == CU_CAPTURE_GLOBAL && stream->capture_mode == CU_CAPTURE_GLOBAL;
}

CUresult fake_capture_forbids(void)
{
    CUresult result = CUDA_SUCCESS;
    for (struct fake_object *object = fake_objects; object; object = object->next) {
        struct fake_stream *stream = (struct fake_stream *)object;
        if (object->kind != FAKE_STREAM || !is_in_the_way(stream))
            continue;
        fake_capture_invalidate(stream);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult fake_capture_legacy(const struct fake_context *context)
{
    for (struct fake_object *object = fake_objects; object; object = object->next) {
        struct fake_stream *stream = (struct fake_stream *)object;
        if (object->kind != FAKE_STREAM || object->context != context || !stream->capture ||
            (stream->flags & CU_STREAM_NON_BLOCKING))
            continue;
        fake_capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return CUDA_SUCCESS;
}

/* Asking does no harm, but in the default stream it cannot be answered while one that it waits for is captured. */
static CUresult default_is_concerned(const struct fake_context *context)
{
    for (const struct fake_object *object = fake_objects; object; object = object->next) {
        const struct fake_stream *stream = (const struct fake_stream *)object;
        if (object->kind == FAKE_STREAM && object->context == context && stream->capture &&
            !(stream->flags & CU_STREAM_NON_BLOCKING))
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    CUresult result = fake_enter("cuStreamIsCapturing", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    const struct fake_stream *stream = fake_stream_of(handle);
    if (!stream)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream == stream->object.context->legacy)
        result = default_is_concerned(stream->object.context);
    if (!result)
        *status = stream->capture;
    return fake_leave(result);
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    CUresult result = fake_enter("cuStreamBeginCapture", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    if (!stream || mode < CU_CAPTURE_GLOBAL || mode > CU_CAPTURE_RELAXED)
        return fake_leave(stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    if (stream == stream->object.context->legacy)
        return fake_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream->capture)
        return fake_leave(CUDA_ERROR_ILLEGAL_STATE);
    stream->capture = CU_CAPTURE_ACTIVE;
    stream->capture_mode = mode;
    stream->capture_thread = pthread_self();
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *ret_graph)
{
    CUresult result = fake_enter("cuStreamEndCapture", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    if (!stream || !stream->capture)
        return fake_leave(stream ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture_mode != CU_CAPTURE_RELAXED && !pthread_equal(stream->capture_thread, pthread_self()))
        return fake_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    int is_whole = stream->capture == CU_CAPTURE_ACTIVE;
    stream->capture = CU_CAPTURE_NONE;
    *ret_graph = is_whole ? (CUgraph)(void *)&graph : NULL;
    return fake_leave(is_whole ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

CUresult cuGraphDestroy(CUgraph handle)
{
    return handle == (CUgraph)(void *)&graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Fails by name only: whoever relaxes a thread must be able to put it back. */
CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    CUresult result = fake_enter("cuThreadExchangeStreamCaptureMode", FAKE_NOT_COUNTED);
    if (result)
        return result;
    if (*mode < CU_CAPTURE_GLOBAL || *mode > CU_CAPTURE_RELAXED)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return fake_leave(CUDA_SUCCESS);
}
