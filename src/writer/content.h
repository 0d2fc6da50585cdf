/*
 * content.h: the bytes of a tensor that is to be written, wherever they are and however they lie. A tensor's stream is its
 * elements in row-major order, as in the file.
 */
#ifndef HR_WRITER_CONTENT_H
#define HR_WRITER_CONTENT_H

#include "base/error.h"
#include "device/device.h"

struct hr_content_devices {
    struct hr_device **devices;
    size_t count;
};

/* Opens what the options name; "cpu" when they name none. Released after a failure too. */
int hr_content_open_devices(struct hr_content_devices *devices, const struct hr_write_options *options,
                            struct hr_error *err);
void hr_content_close_devices(struct hr_content_devices *devices);

/* Reads a caller's source of any version, and refuses what cannot be written. Errors name the tensor. */
int hr_content_check(const struct hr_content_devices *devices, const struct hr_tensor *tensor,
                     const struct hr_source *given, struct hr_source *ret_source, struct hr_error *err);

/* The stream's byte `begin` and all after it where they are plain memory, else NULL. */
const char *hr_content_memory(const struct hr_content_devices *devices, const struct hr_source *source, uint64_t begin);

/* Copies `size` bytes of the stream. Any thread; blocks. */
int hr_content_copy(const struct hr_content_devices *devices, const struct hr_tensor *tensor,
                    const struct hr_source *source, uint64_t begin, size_t size, char *ret_bytes, struct hr_error *err);

#endif
