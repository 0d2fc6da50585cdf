/*
 * gpu.h: a GPU for tests, the first one that the driver has, be it a real one or the fake of tests/fake_cuda. Whatever
 * fails here ends the running cmocka test.
 */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <stddef.h>

/* "cuda:0", or NULL where there is no GPU; says so once. */
const char *gpu_name(void);
/* Whether the route gds can be used on it, which is with the fake cuFile; says so once where it cannot. */
int gds_usable(void);
/* Device memory on 256 bytes; NULL when there is none. */
void *gpu_try_alloc(size_t bytes);
/* The same, every byte `value`. */
void *gpu_alloc(size_t bytes, int value);
void gpu_free(void *memory, size_t bytes);
/* What was freed without blocking is free, and no thread of that runs any more. */
void gpu_reap(void);
void gpu_write(void *memory, const void *bytes, size_t size);
void gpu_read(void *ret_bytes, const void *memory, size_t size);

#endif
