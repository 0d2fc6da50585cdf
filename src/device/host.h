/*
 * host.h: host memory for destinations and bounce buffers. Every block starts on 256 bytes (HR_TENSOR_ALIGNMENT);
 * blocks of 2 MiB and more start on 2 MiB and ask for huge pages. Contents are undefined. The caller remembers the
 * size and does the accounting. Thread-safe.
 */
#ifndef HR_DEVICE_HOST_H
#define HR_DEVICE_HOST_H

#include <stdint.h>

/* 0, or HR_EOUT_OF_MEMORY; the caller says what it was for. */
int hr_host_alloc(uint64_t bytes, void **ret_memory);
/* `bytes` as it was asked for. NULL is allowed. */
void hr_host_free(void *memory, uint64_t bytes);

#endif
