/*
 * block.h: destination memory with a reference count. A block is one arena, one tensor's own memory, or one
 * private mapping of a file; every item and every tensor handed out that lies in it holds a reference. It knows
 * neither loads nor plans, because it outlives them.
 */
#ifndef HR_ENGINE_BLOCK_H
#define HR_ENGINE_BLOCK_H

#include <headrace/headrace.h>
#include <stdint.h>

#include "device/device.h"

struct hr_block;

/*
 * A block of `bytes` (not 0) on 256 bytes of a device's memory, from the caller's allocator where it has one, else the
 * library's own. *ret_block has one reference, and one to the device. HR_EOUT_OF_MEMORY, HR_EDEVICE_ERROR.
 */
int hr_block_alloc(struct hr_device *device, const struct hr_allocator *allocator,
                   const struct hr_allocation *allocation, struct hr_block **ret_block, struct hr_error *err);

/* A private, writable mapping of a whole file; the caller keeps `fd`. */
int hr_block_map(int fd, uint64_t bytes, const char *path, struct hr_block **ret_block, struct hr_error *err);

void *hr_block_memory(const struct hr_block *block);

/*
 * Any thread, also with kernels pending and during a graph capture: a device's memory is freed by its reaper, when that
 * is safe. The last unref frees the memory; NULL is allowed.
 */
void hr_block_ref(struct hr_block *block);
void hr_block_unref(struct hr_block *block);

#endif
