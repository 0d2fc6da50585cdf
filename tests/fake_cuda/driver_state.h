/*
 * driver_state.h: what the parts of the fake driver share. One lock guards all state; it is not held while bytes move,
 * while an operation is delayed, nor in host functions. Every entry point is fake_enter(), work, fake_leave().
 */
#ifndef TESTS_FAKE_DRIVER_STATE_H
#define TESTS_FAKE_DRIVER_STATE_H

#include <pthread.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "fake_cuda.h"

#define FAKE_DEVICE_MAX 8
#define FAKE_STACK_MAX 16

struct fake_settings {
    long device_count, memory_bytes, version, init_code, mig, confidential, register_limit, pinned_refused, no_kernel,
        no_batch, capture_refusals, delay_us, seed, abort;
};

/* Heads of all objects with a handle: linked, so that a handle is known to be alive before it is looked at. */
enum fake_kind { FAKE_STREAM, FAKE_EVENT, FAKE_MODULE };
struct fake_object {
    enum fake_kind kind;
    struct fake_context *context;
    struct fake_object *next;
};

/* The primary context of a device; static. */
struct fake_context {
    long retain_count, used_bytes;
    int poison; /* the code that every call returns from now on */
    struct fake_stream *legacy;
};

/* Something that will be done once; shared by those who wait for it. */
struct fake_point {
    int reference_count, done;
};

/* A copy. Addresses are those of `fake_find`, or host pointers as they are. */
enum { FAKE_SOURCE_RAW = 1, FAKE_TARGET_RAW = 2, FAKE_BY_KERNEL = 4 };
struct fake_piece {
    uint64_t target, source, bytes, rows;
    int64_t target_pitch, source_pitch;
    unsigned flags;
    uint64_t cast; /* as hr_move.cast */
};

enum fake_op_kind { FAKE_OP_COPY, FAKE_OP_FILL, FAKE_OP_KERNEL, FAKE_OP_RECORD, FAKE_OP_WAIT, FAKE_OP_HOST };
struct fake_op {
    struct fake_op *next;
    enum fake_op_kind kind;
    uint64_t number;           /* rises in the order of submission, over all streams */
    struct fake_piece *pieces; /* owned */
    size_t piece_count;
    void *staged; /* owned: bytes of a pageable source */
    unsigned char fill;
    uint64_t moves; /* kernel: device address of the table */
    unsigned move_count;
    int converts;
    struct fake_point *point; /* one reference */
    void (*function)(void *);
    void *argument;
};

struct fake_stream {
    struct fake_object object;
    unsigned flags;
    struct fake_op *head, **tail;
    pthread_cond_t work;
    int destroyed;
    uint64_t random;
    int capture, capture_mode; /* CU_CAPTURE_... */
    pthread_t capture_thread;
};

struct fake_event {
    struct fake_object object;
    struct fake_point *point; /* NULL: never recorded */
    int captured;
};

struct fake_module {
    struct fake_object object;
    int converts; /* the kernel that was asked for is the converting one */
};

/* Memory that the driver knows, by the address under which it is found. Pinned memory has two: the host's, the GPU's. */
enum fake_memory { FAKE_DEVICE_MEMORY, FAKE_REGISTERED, FAKE_PINNED, FAKE_MAPPED };
struct fake_range {
    uint64_t begin, bytes;
    enum fake_memory memory;
    char *storage; /* where the bytes are */
    struct fake_context *context;
    unsigned flags;
    uint64_t alias; /* of FAKE_REGISTERED and FAKE_PINNED: the range that the GPU uses, or 0 */
    long pin_count; /* running operations that use it */
    char *reserved; /* address space without access behind a range of a GPU */
    size_t reserved_bytes;
};

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_progress; /* something became done */
extern struct fake_settings fake_settings;
extern struct fake_context fake_contexts[FAKE_DEVICE_MAX];
extern struct fake_object *fake_objects;
extern long fake_thread_count; /* of streams */
extern long fake_moving_count; /* copies that run at this moment */

/* ---- entry.c: begins and ends each call */
enum {
    FAKE_NEEDS_INIT = 1,
    FAKE_NEEDS_CONTEXT = 3, /* and init */
    FAKE_UNSAFE = 4,        /* forbidden to threads that are not relaxed while a stream is captured */
    FAKE_TAKES_EFFECT = 8,  /* takes effect even when it is said to fail, and with a poisoned context */
    FAKE_NOT_COUNTED = 16   /* fails by name only */
};
/* With the lock on success; else the code to return, without it. */
CUresult fake_enter(const char *name, unsigned flags);
/* Gives the lock back and returns what the call returns. */
CUresult fake_leave(CUresult result);
/* What would corrupt memory: says so and aborts if asked, else poisons. Locked. Returns the code. */
CUresult fake_corrupt(struct fake_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- settings.c */
int fake_settings_apply(const char *text);
void fake_settings_reset(void);
/* The code with which this call has to fail, or 0. */
int fake_must_fail(const char *name, int counted);
int fake_visible_count(void);
int fake_visible_device(int ordinal); /* the device behind an ordinal */

/* ---- contexts.c */
struct fake_context *fake_current(void); /* of this thread, or NULL */
long fake_context_depth(void);

int fake_context_device(const struct fake_context *context);

/* ---- ranges.c; locked */
struct fake_range *fake_find(uint64_t address, uint64_t bytes); /* the live range that holds all of it, or NULL */
int fake_overlaps(uint64_t address, uint64_t bytes);
/* Copies *range into the table; NULL without memory. Pointers are valid until the next change of the table. */
struct fake_range *fake_range_add(const struct fake_range *range);
void fake_range_remove(uint64_t begin);
/* Address space that nobody can touch, at `*ret_begin`. 0 on failure. */
int fake_reserve(struct fake_range *range, uint64_t bytes);
void fake_ranges_drop(struct fake_context *context); /* all of a context */
/* Adds those of a context; NULL: of all. */
void fake_ranges_count(const struct fake_context *context, struct fake_cuda_live *live);

/* ---- streams.c; locked */
void *fake_object_new(enum fake_kind kind, size_t bytes);
int fake_object_alive(enum fake_kind kind, const void *handle);
void fake_object_unlink(void *handle);
void fake_objects_end(struct fake_context *context); /* all of a context */
struct fake_stream *fake_stream_new(struct fake_context *context, unsigned flags);
void fake_stream_end(struct fake_stream *stream);
/* The stream behind a handle for work of the current context; NULL when it is none. */
struct fake_stream *fake_stream_of(CUstream handle);
/* Takes the op. A captured stream swallows it. */
CUresult fake_submit(struct fake_stream *stream, struct fake_op *op);
struct fake_op *fake_op_new(enum fake_op_kind kind, size_t piece_count);
void fake_op_free(struct fake_op *op);
struct fake_point *fake_point_new(void);
void fake_point_unref(struct fake_point *point);
void fake_point_wait(struct fake_point *point); /* gives the lock away meanwhile */
/* Waits for all that a stream holds now; NULL: all streams of the context, of all contexts. */
void fake_drain(struct fake_context *context, const struct fake_stream *stream);
int fake_pending(uint64_t begin, uint64_t bytes); /* operations that read or write there */

/* ---- execute.c; locked, gives the lock away while bytes move */
void fake_execute(struct fake_stream *stream, struct fake_op *op);

/* ---- capture.c; locked */
CUresult fake_capture_forbids(void);                              /* calls that are unsafe during a capture */
CUresult fake_capture_legacy(const struct fake_context *context); /* work in the default stream */
void fake_capture_invalidate(struct fake_stream *stream);

#endif
