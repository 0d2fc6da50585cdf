/*
 * cuda_device.h: what the files of GPUs share: the device, how a thread enters and leaves its context, and how a
 * driver's result becomes an error.
 */
#ifndef HR_DEVICE_CUDA_DEVICE_H
#define HR_DEVICE_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/cuda_driver.h"
#include "device/device.h"
#include "device/kernel_image.h"

/* Memory that the reaper has to free. */
struct hr_reaped {
    struct hr_reaped *next;
    void *memory;
    uint64_t bytes;
};

struct hr_reaper {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* by CLOCK_MONOTONIC; a thread has freed something, or the reaper's own has ended */
    struct hr_reaped *list;
    unsigned freeing_count; /* threads that are freeing what they took from the list */
    int has_thread;         /* it holds a reference to the device */
};

enum hr_kernel_state { HR_KERNEL_UNKNOWN = 0, HR_KERNEL_USABLE, HR_KERNEL_MISSING };

/* A kernel of the device. State and the rest are written under the device's lock once; state is the last. */
struct hr_device_kernel {
    atomic_int state; /* enum hr_kernel_state */
    hr_cu_module module;
    hr_cu_function function;
    char detail[240];
};

/* Host memory is the one with driver == NULL; it is static and counts no references. */
struct hr_device {
    struct hr_device *next; /* in the list of open GPUs */
    const struct hr_cuda_driver *driver;
    struct hr_device_info info;
    int number; /* the driver's CUdevice */
    hr_cu_context context;
    unsigned reference_count; /* under the lock of that list */
    atomic_uint fault;        /* the driver's code that has destroyed the context; 0: none */
    int reads_host;           /* kernels may read pinned host memory */
    int registers_host;
    uint64_t pitch_bytes_max; /* of 2D copies */
    struct hr_reaper reaper;
    pthread_mutex_t kernel_lock;
    struct hr_device_kernel kernels[HR_KERNEL_COUNT];
};

/* ------------------------------------------------------------------------------- cuda_device.c */

/* How many devices the driver shows; HR_EDEVICE_UNAVAILABLE when none. */
int hr_cuda_count(const struct hr_cuda_driver *driver, int *ret_count, struct hr_error *err);
/* Describes device `ordinal` without making a context; all of *ret_device that is not a resource. */
int hr_cuda_describe(const struct hr_cuda_driver *driver, int ordinal, struct hr_device *ret_device,
                     struct hr_error *err);
/* A reference to the one object of a device that was described; the first one retains the primary context. */
int hr_cuda_open(const struct hr_device *described, struct hr_device **ret_device, struct hr_error *err);
void hr_cuda_ref(struct hr_device *device);
void hr_cuda_unref(struct hr_device *device);
/* Does nothing and returns 0 when this is the only reference. */
int hr_cuda_unref_unless_last(struct hr_device *device);

/* What the thread was like before hr_cuda_enter(). */
struct hr_cuda_scope {
    unsigned capture_mode;
};

/*
 * The device's context becomes current and the thread's capture mode relaxed, until hr_cuda_leave(). Fails at once after
 * a fault. Scopes do not nest and stay on their thread.
 */
int hr_cuda_enter(struct hr_device *device, struct hr_cuda_scope *ret_scope, struct hr_error *err);
/*
 * The same for who gives back what the driver has made: is tried again where it fails, since nobody would give that back
 * later. What a fault has destroyed cannot be given back.
 */
int hr_cuda_enter_to_free(struct hr_device *device, struct hr_cuda_scope *ret_scope);
void hr_cuda_leave(struct hr_device *device, struct hr_cuda_scope *scope);

/* 0 for success; else HR_EDEVICE_ERROR (or HR_EOUT_OF_MEMORY), with `what` could not be done. Remembers faults. */
int hr_cuda_check(struct hr_device *device, hr_cu_result result, const char *what, struct hr_error *err);
/* Remembers a fault that has destroyed the context; for results that are no error of the caller's. */
void hr_cuda_note(struct hr_device *device, hr_cu_result result);

/* ------------------------------------------------------------------------------- cuda_memory.c */

int hr_cuda_alloc(struct hr_device *device, uint64_t bytes, void **ret_memory, struct hr_error *err);
void hr_cuda_memory(struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total);
int hr_cuda_read(struct hr_device *device, void *ret_bytes, const void *memory, uint64_t bytes, struct hr_error *err);
/* Whether a call has had no effect since a graph capture forbids it. */
int hr_cuda_is_captured(hr_cu_result result);
/* 0 when a graph capture forbids it now; else it is freed, or will never be. */
int hr_cuda_free(struct hr_device *device, void *memory);

/* ------------------------------------------------------------------------------------ reaper.c */

int hr_reaper_init(struct hr_reaper *reaper);
void hr_reaper_release(struct hr_reaper *reaper);
void hr_reaper_add(struct hr_device *device, void *memory, uint64_t bytes);
/* Frees what is on the list, on this thread, and waits for what other threads are freeing. */
void hr_reaper_drain(struct hr_device *device);

/* --------------------------------------------------------------------- cuda_lane.c, cuda_kernel.c */

/* Memory on the device that the placing kernel reads where it cannot read the host's: in stream order, one lane's. */
struct hr_lane_buffer {
    hr_cu_address memory; /* 0: none yet */
    uint64_t bytes;
};

struct hr_lane {
    struct hr_device *device;
    hr_cu_stream stream;
    pthread_mutex_t lock; /* of the rest: a lane is used by several threads */
    hr_cu_event followed; /* recorded in streams that the lane waits for */
    struct hr_lane_buffer sources, table;
};

/* Rows that follow each other in both memories become one range. */
void hr_move_flatten(struct hr_move *move);
/* Brings the moves with a cast to the end of the table; how many there are. */
size_t hr_moves_part(struct hr_move *moves, size_t move_count);

/* The next three are called in the device's context. */
void hr_lane_buffer_release(struct hr_lane *lane, struct hr_lane_buffer *buffer);
/*
 * Launches a kernel for moves at the front of the caller's table, all of its kind, and uses them up. *ret_done is 0 when
 * it cannot serve them: then nothing has begun, and the moves are as they were.
 */
int hr_lane_launch(struct hr_lane *lane, enum hr_kernel kernel, const struct hr_staging_block *block,
                   struct hr_move *moves, size_t move_count, struct hr_place_counts *counts, int *ret_done,
                   struct hr_error *err);
/* The same for sources in the memory of the lane's device. */
int hr_lane_launch_resident(struct hr_lane *lane, enum hr_kernel kernel, const struct hr_staging_block *block,
                            struct hr_move *moves, size_t move_count, struct hr_place_counts *counts, int *ret_done,
                            struct hr_error *err);

#endif
