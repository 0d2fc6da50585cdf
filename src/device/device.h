/*
 * device.h: the contract of devices: memory that is filled by copies from staging. A device knows neither tensors nor
 * plans nor chunks: it moves byte ranges. Host memory is a device too, of which only alloc, free and read are used.
 *
 * Threads   A device and its lanes may be used by any threads at once; a fence belongs to one thread at a time. The CUDA
 *           context that is current on the calling thread is the same after every call, and the calls are made in relaxed
 *           capture mode, so that a graph capture anywhere in the process is neither broken by them nor forbids them.
 * Errors    HR_EDEVICE_ERROR with the driver's code and its name; HR_EOUT_OF_MEMORY. After a fault that has destroyed the
 *           context, every call fails at once and says that this process cannot use the device any more.
 * Fork      Nothing here may be called in a child of fork() for a device that was opened before it.
 */
#ifndef HR_DEVICE_DEVICE_H
#define HR_DEVICE_DEVICE_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "device/place.h"

struct hr_device;

/* Names as of hr_device_find(). *ret_device has one reference. Blocks while the driver starts. */
int hr_device_open(const char *name, struct hr_device **ret_device, struct hr_error *err);
/* Any thread. The last unref lets the primary context go; it must not be a driver's callback. NULL is allowed. */
void hr_device_ref(struct hr_device *device);
void hr_device_unref(struct hr_device *device);
const struct hr_device_info *hr_device_info(const struct hr_device *device);
/* 1 for host memory: written by anybody, no lanes, no staging. */
int hr_device_is_host(const struct hr_device *device);

/* ------------------------------------------------------------------------------------------ memory */

/*
 * Memory on 256 bytes or better. The caller remembers `bytes`. Where it is short, blocks until the reaper has freed what
 * it was given so far; an error says how much was needed and how much is free.
 */
int hr_device_alloc(struct hr_device *device, uint64_t bytes, void **ret_memory, struct hr_error *err);
/* Blocks until the device's work that may still use it is done. NULL is allowed. */
void hr_device_free(struct hr_device *device, void *memory, uint64_t bytes);
/*
 * The same, at once, on any thread, with kernels pending and during graph captures: a reaper thread frees it when that is
 * safe and holds a reference to the device meanwhile.
 */
void hr_device_free_later(struct hr_device *device, void *memory, uint64_t bytes);
/* Blocks until the reaper has freed all that it was given so far. */
void hr_device_reap(struct hr_device *device);
/* Free and total bytes of the device's memory as its driver tells them; 0 and 0 when it does not. */
void hr_device_memory(struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total);
/* Copies device memory to host memory. Blocks. */
int hr_device_read(struct hr_device *device, void *ret_bytes, const void *memory, uint64_t bytes, struct hr_error *err);

/* ----------------------------------------------------------------------------------------- staging */

enum hr_staging_kind {
    HR_STAGING_REGISTERED = 0, /* huge pages of ours, pinned by the driver, for all devices of the process */
    HR_STAGING_PINNED = 1,     /* memory that the driver made */
    HR_STAGING_PAGEABLE = 2    /* ordinary memory: the driver copies through buffers of its own */
};

/* A block of host memory that devices copy from. */
struct hr_staging_block {
    char *memory; /* on a page */
    uint64_t bytes;
    uint32_t kind;        /* enum hr_staging_kind */
    int64_t device_shift; /* device address = host address + this, for kernels; meaningless when pageable */
};

/*
 * Makes, touches and pins a block (of a host device: only makes it, and it is pageable): registered, else made by the
 * driver, else pageable. Its pages come from NUMA node `node`, if that has room; -1: from where the calling thread
 * runs. `detail` (of `capacity`) gets the reason when it is not the best kind or the node was refused, else "". Fails
 * only without memory. Not inherited by a fork.
 */
int hr_staging_block_make(struct hr_device *device, uint64_t bytes, int node, struct hr_staging_block *ret_block,
                          char *detail, size_t capacity, struct hr_error *err);
/* No copy from it may be pending. */
void hr_staging_block_free(struct hr_device *device, struct hr_staging_block *block);

/* ------------------------------------------------------------------------------------------- lanes */

struct hr_lane;  /* copies that run in order, aside from those of other lanes */
struct hr_fence; /* a point in a lane */

int hr_lane_open(struct hr_device *device, struct hr_lane **ret_lane, struct hr_error *err);
/* Waits for its copies. NULL is allowed. */
void hr_lane_close(struct hr_lane *lane);
/* What is put into the lane from now on waits for what `stream` (a CUstream; NULL: the legacy default) holds now. */
int hr_lane_follow(struct hr_lane *lane, void *stream, struct hr_error *err);

/* And back: what is put into `stream` from now on waits for what the lane holds now. */
int hr_lane_lead(struct hr_lane *lane, void *stream, struct hr_error *err);
/* What is put into the lane from now on waits for what the fence stands for: one that was put. */
int hr_lane_await(struct hr_lane *lane, struct hr_fence *fence, struct hr_error *err);

/* What placing did, to be added up. */
struct hr_place_counts {
    uint64_t bytes_sent, copy_count, kernel_count;
};

/*
 * Puts moves into the lane: long ranges by the copy engine, wide rows by 2D copies, the others by the placing kernel,
 * where there is one and it may read the source, else by batched copies. `moves` lies in a staging block (`block`), as
 * do the sources, given as host addresses; targets are device memory, each move's of one allocation: the driver refuses
 * copies that go from one into its neighbour. `moves` is used up: its memory and that of the sources must stay as it is
 * until a fence put in afterwards is done. Counts are added to *counts. Moves with a cast (hr_cast_code()) are for the
 * converting kernel: only where hr_lane_converts().
 */
int hr_lane_place(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves, size_t move_count,
                  struct hr_place_counts *counts, struct hr_error *err);

/*
 * The same for moves whose sources are memory of the lane's device (device/gds.h), and the table alone lies in `block`:
 * nothing crosses the link, and bytes_sent is not counted. Moves with a cast: only where hr_device_converts().
 */
int hr_lane_spread(struct hr_lane *lane, const struct hr_staging_block *block, struct hr_move *moves, size_t move_count,
                   struct hr_place_counts *counts, struct hr_error *err);

/* Puts a copy from the device's memory into `ret_bytes`, which lies in a staging block, into the lane. */
int hr_lane_fetch(struct hr_lane *lane, void *ret_bytes, const void *memory, uint64_t bytes, struct hr_error *err);

int hr_fence_new(struct hr_device *device, struct hr_fence **ret_fence, struct hr_error *err);
void hr_fence_free(struct hr_fence *fence); /* NULL is allowed */
/* The fence stands for all that the lane holds now. */
int hr_fence_put(struct hr_fence *fence, struct hr_lane *lane, struct hr_error *err);
/* 1 when all of it is done, 0 when not yet, or an error. */
int hr_fence_poll(struct hr_fence *fence, struct hr_error *err);
/* The same; looks again and again for at most so long. */
int hr_fence_poll_for(struct hr_fence *fence, uint64_t nanoseconds, struct hr_error *err);
/* Blocks, without spinning, until it is. */
int hr_fence_wait(struct hr_fence *fence, struct hr_error *err);
/*
 * What will be done at once, and is waited for by others, is looked at again and again for so long: a thread that waits
 * without spinning is woken by an interrupt, which took some 0.1 ms (H200).
 */
#define HR_FENCE_SPIN_NS 300000u
/* The same for that: spins so long first. */
int hr_fence_wait_soon(struct hr_fence *fence, struct hr_error *err);

/* 1 when the placing kernel can be used with this device; else 0 and the reason. Loads it on first use. */
int hr_device_kernel(struct hr_device *device, char *detail, size_t capacity);
/* The same of the converting kernel, which reads memory of the device. */
int hr_device_converts(struct hr_device *device, char *detail, size_t capacity);
/* Whether it may read such a block, too. */
int hr_lane_converts(struct hr_lane *lane, const struct hr_staging_block *block);

/* hr_move.cast of a pair that hr_dtype_converts(), and what a row of a move takes in the target. */
uint64_t hr_cast_code(uint32_t from, uint32_t to);
uint64_t hr_move_target_bytes(const struct hr_move *move);

#endif
