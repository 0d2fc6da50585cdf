/*
 * events.c: the calls about streams and events. An event stands for the point at which it was recorded last.
 */
#include <stdlib.h>

#include "driver_state.h"

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    CUresult result = fake_enter("cuStreamCreate", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    if (flags & ~1u)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    struct fake_stream *made = fake_stream_new(fake_current(), flags);
    if (made)
        *stream = made;
    return fake_leave(made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Does not wait: the work goes on. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult result = fake_enter("cuStreamDestroy", FAKE_NEEDS_CONTEXT | FAKE_TAKES_EFFECT);
    if (result)
        return result;
    if (!fake_object_alive(FAKE_STREAM, stream) || stream->destroyed || stream == stream->object.context->legacy)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    fake_stream_end(stream);
    return fake_leave(CUDA_SUCCESS);
}

/* Begins a call that looks at a stream's progress, with the lock. */
static CUresult enter_progress(const char *name, unsigned flags, CUstream handle, struct fake_stream **ret_stream)
{
    CUresult result = fake_enter(name, FAKE_NEEDS_CONTEXT | FAKE_UNSAFE | flags);
    if (result)
        return result;
    struct fake_stream *stream = *ret_stream = fake_stream_of(handle);
    if (!stream)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!stream->capture)
        return CUDA_SUCCESS;
    fake_capture_invalidate(stream);
    return fake_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    struct fake_stream *stream;
    CUresult result = enter_progress("cuStreamSynchronize", FAKE_TAKES_EFFECT, handle, &stream);
    if (result)
        return result;
    const struct fake_context *context = stream->object.context;
    fake_drain(NULL, stream);
    return fake_leave(context->poison);
}

CUresult cuStreamQuery(CUstream handle)
{
    struct fake_stream *stream;
    CUresult result = enter_progress("cuStreamQuery", 0, handle, &stream);
    if (result)
        return result;
    if (stream->object.context->poison)
        return fake_leave(stream->object.context->poison);
    return fake_leave(stream->head ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void *), void *argument)
{
    CUresult result = fake_enter("cuLaunchHostFunc", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    struct fake_op *op = stream ? fake_op_new(FAKE_OP_HOST, 0) : NULL;
    if (!op)
        return fake_leave(stream ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE);
    op->function = function;
    op->argument = argument;
    return fake_leave(fake_submit(stream, op));
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    CUresult result = fake_enter("cuEventCreate", FAKE_NEEDS_CONTEXT);
    if (result)
        return result;
    if (flags & ~7u)
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    struct fake_event *made = fake_object_new(FAKE_EVENT, sizeof *made);
    if (made)
        *event = made;
    return fake_leave(made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Begins a call with an event, with the lock. The other flags are as of fake_enter. */
static CUresult enter_event(const char *name, unsigned flags, CUevent event)
{
    CUresult result = fake_enter(name, FAKE_NEEDS_CONTEXT | flags);
    if (result)
        return result;
    return fake_object_alive(FAKE_EVENT, event) ? CUDA_SUCCESS : fake_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = enter_event("cuEventDestroy", FAKE_TAKES_EFFECT, event);
    if (result)
        return result;
    fake_point_unref(event->point);
    fake_object_unlink(event);
    free(event);
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
    CUresult result = enter_event("cuEventRecord", 0, event);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    if (!stream || event->object.context != stream->object.context)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    struct fake_op *op = fake_op_new(FAKE_OP_RECORD, 0);
    struct fake_point *point = op ? fake_point_new() : NULL;
    if (!point) {
        fake_op_free(op);
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    op->point = point;
    point->reference_count++;
    int captured = stream->capture != 0;
    result = fake_submit(stream, op);
    if (result) {
        fake_point_unref(point);
        return fake_leave(result);
    }
    fake_point_unref(event->point);
    event->point = point;
    event->captured = captured;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuEventQuery(CUevent event)
{
    CUresult result = enter_event("cuEventQuery", FAKE_UNSAFE, event);
    if (result)
        return result;
    if (event->captured)
        return fake_leave(CUDA_ERROR_CAPTURED_EVENT);
    if (event->object.context->poison)
        return fake_leave(event->object.context->poison);
    return fake_leave(event->point && !event->point->done ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = enter_event("cuEventSynchronize", FAKE_UNSAFE | FAKE_TAKES_EFFECT, event);
    if (result)
        return result;
    if (event->captured)
        return fake_leave(CUDA_ERROR_CAPTURED_EVENT);
    const struct fake_context *context = event->object.context;
    if (event->point)
        fake_point_wait(event->point);
    return fake_leave(context->poison);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    CUresult result = enter_event("cuStreamWaitEvent", 0, event);
    if (result)
        return result;
    struct fake_stream *stream = fake_stream_of(handle);
    if (!stream || flags > 1)
        return fake_leave(stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    if (event->captured && !stream->capture)
        return fake_leave(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (!event->point)
        return fake_leave(CUDA_SUCCESS);
    struct fake_op *op = fake_op_new(FAKE_OP_WAIT, 0);
    if (!op)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->point = event->point;
    op->point->reference_count++;
    return fake_leave(fake_submit(stream, op));
}
