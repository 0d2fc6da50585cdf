/*
 * streams.c: objects with handles, and streams: each one a detached thread that runs its queue. A destroyed stream
 * ends after its work, as a real one does, without anybody waiting for it.
 */
#include <stdlib.h>

#include "driver_state.h"

struct fake_object *fake_objects;
long fake_thread_count;

static uint64_t op_number; /* of the operation that was submitted last */

void *fake_object_new(enum fake_kind kind, size_t bytes)
{
    struct fake_object *object = calloc(1, bytes);
    if (!object)
        return NULL;
    object->kind = kind;
    object->context = fake_current();
    object->next = fake_objects;
    fake_objects = object;
    return object;
}

int fake_object_alive(enum fake_kind kind, const void *handle)
{
    for (const struct fake_object *object = fake_objects; object; object = object->next)
        if (object == handle)
            return object->kind == kind;
    return 0;
}

void fake_object_unlink(void *handle)
{
    for (struct fake_object **link = &fake_objects; *link; link = &(*link)->next)
        if (*link == handle) {
            *link = (*link)->next;
            return;
        }
}

void fake_objects_end(struct fake_context *context)
{
    struct fake_object *object = fake_objects;
    while (object) {
        struct fake_object *next = object->next;
        if (object->context == context && object->kind == FAKE_STREAM) {
            fake_stream_end((struct fake_stream *)object);
        } else if (object->context == context) {
            if (object->kind == FAKE_EVENT)
                fake_point_unref(((struct fake_event *)object)->point);
            fake_object_unlink(object);
            free(object);
        }
        object = next;
    }
}

struct fake_point *fake_point_new(void)
{
    struct fake_point *point = calloc(1, sizeof *point);
    if (point)
        point->reference_count = 1;
    return point;
}

void fake_point_unref(struct fake_point *point)
{
    if (point && !--point->reference_count)
        free(point);
}

void fake_point_wait(struct fake_point *point)
{
    point->reference_count++;
    while (!point->done)
        pthread_cond_wait(&fake_progress, &fake_lock);
    fake_point_unref(point);
}

struct fake_op *fake_op_new(enum fake_op_kind kind, size_t piece_count)
{
    struct fake_op *op = calloc(1, sizeof *op);
    if (!op)
        return NULL;
    op->kind = kind;
    op->piece_count = piece_count;
    op->pieces = piece_count ? calloc(piece_count, sizeof *op->pieces) : NULL;
    if (piece_count && !op->pieces) {
        free(op);
        return NULL;
    }
    return op;
}

void fake_op_free(struct fake_op *op)
{
    if (!op)
        return;
    fake_point_unref(op->point);
    free(op->staged);
    free(op->pieces);
    free(op);
}

static void *stream_main(void *argument)
{
    struct fake_stream *stream = argument;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        while (!stream->head && !stream->destroyed)
            pthread_cond_wait(&stream->work, &fake_lock);
        struct fake_op *op = stream->head;
        if (!op)
            break;
        fake_execute(stream, op);
        stream->head = op->next;
        if (!stream->head)
            stream->tail = &stream->head;
        fake_op_free(op);
        pthread_cond_broadcast(&fake_progress);
    }
    fake_object_unlink(stream);
    pthread_cond_destroy(&stream->work);
    free(stream);
    fake_thread_count--;
    pthread_cond_broadcast(&fake_progress);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

struct fake_stream *fake_stream_new(struct fake_context *context, unsigned flags)
{
    static uint64_t number;
    struct fake_stream *stream = fake_object_new(FAKE_STREAM, sizeof *stream);
    if (!stream)
        return NULL;
    stream->object.context = context;
    stream->flags = flags;
    stream->tail = &stream->head;
    stream->random = (uint64_t)fake_settings.seed * 0x9e3779b97f4a7c15u + ++number;
    pthread_cond_init(&stream->work, NULL);
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int error = pthread_create(&thread, &detached, stream_main, stream);
    pthread_attr_destroy(&detached);
    if (error) {
        fake_object_unlink(stream);
        free(stream);
        return NULL;
    }
    fake_thread_count++;
    return stream;
}

void fake_stream_end(struct fake_stream *stream)
{
    stream->destroyed = 1;
    pthread_cond_broadcast(&stream->work);
}

struct fake_stream *fake_stream_of(CUstream handle)
{
    struct fake_context *context = fake_current();
    if ((uintptr_t)handle <= 2) /* the default stream: NULL, legacy; that of the thread is taken for it too */
        return context->legacy;
    if (!fake_object_alive(FAKE_STREAM, handle) || handle->destroyed || handle->object.context != context)
        return NULL;
    return handle;
}

static void append(struct fake_stream *stream, struct fake_op *op)
{
    op->next = NULL;
    op->number = ++op_number;
    *stream->tail = op;
    stream->tail = &op->next;
    pthread_cond_broadcast(&stream->work);
}

/* What `stream` gets from now on waits for what `other` holds. */
static CUresult follow(struct fake_stream *stream, struct fake_stream *other)
{
    if (!other->head)
        return CUDA_SUCCESS;
    struct fake_op *record = fake_op_new(FAKE_OP_RECORD, 0), *wait = fake_op_new(FAKE_OP_WAIT, 0);
    struct fake_point *point = fake_point_new();
    if (!record || !wait || !point) {
        fake_op_free(record);
        fake_op_free(wait);
        fake_point_unref(point);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    point->reference_count++;
    record->point = wait->point = point;
    append(other, record);
    append(stream, wait);
    return CUDA_SUCCESS;
}

/* The default stream and those that are not non-blocking wait for each other. */
static CUresult follow_default(struct fake_stream *stream)
{
    struct fake_context *context = stream->object.context;
    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return CUDA_SUCCESS;
    if (stream != context->legacy)
        return follow(stream, context->legacy);
    CUresult result = fake_capture_legacy(context);
    for (struct fake_object *object = fake_objects; object && !result; object = object->next) {
        struct fake_stream *other = (struct fake_stream *)object;
        if (object->kind == FAKE_STREAM && object->context == context && other != stream &&
            !(other->flags & CU_STREAM_NON_BLOCKING))
            result = follow(stream, other);
    }
    return result;
}

CUresult fake_submit(struct fake_stream *stream, struct fake_op *op)
{
    if (stream->capture) {
        fake_op_free(op);
        return stream->capture == CU_CAPTURE_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    CUresult result = follow_default(stream);
    if (result)
        fake_op_free(op);
    else
        append(stream, op);
    return result;
}

void fake_drain(struct fake_context *context, const struct fake_stream *stream)
{
    uint64_t limit = op_number;
    struct fake_object *object = fake_objects;
    while (object) {
        const struct fake_stream *other = (const struct fake_stream *)object;
        if (object->kind != FAKE_STREAM || !other->head || other->head->number > limit ||
            (context && object->context != context) || (stream && other != stream)) {
            object = object->next;
            continue;
        }
        pthread_cond_wait(&fake_progress, &fake_lock);
        object = fake_objects; /* anything may have changed meanwhile */
    }
}

static int touches(uint64_t address, uint64_t bytes, uint64_t begin, uint64_t size)
{
    return address < begin + size && begin < address + bytes;
}

static int op_touches(const struct fake_op *op, uint64_t begin, uint64_t bytes)
{
    if (op->kind == FAKE_OP_KERNEL && touches(op->moves, 1, begin, bytes))
        return 1;
    for (size_t i = 0; i < op->piece_count; i++) {
        const struct fake_piece *piece = &op->pieces[i];
        if ((!(piece->flags & FAKE_SOURCE_RAW) && touches(piece->source, piece->bytes, begin, bytes)) ||
            touches(piece->target, piece->bytes, begin, bytes))
            return 1;
    }
    return 0;
}

int fake_pending(uint64_t begin, uint64_t bytes)
{
    for (const struct fake_object *object = fake_objects; object; object = object->next) {
        const struct fake_stream *stream = (const struct fake_stream *)object;
        for (const struct fake_op *op = object->kind == FAKE_STREAM ? stream->head : NULL; op; op = op->next)
            if (op_touches(op, begin, bytes))
                return 1;
    }
    return 0;
}
