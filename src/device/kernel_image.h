/*
 * kernel_image.h: the kernels as the driver takes them. Constant bytes inside the library; any thread.
 */
#ifndef HR_DEVICE_KERNEL_IMAGE_H
#define HR_DEVICE_KERNEL_IMAGE_H

#include <stddef.h>

/* What there is for a GPU to run: moves as they are, and moves that convert (device/place.h). */
enum hr_kernel { HR_KERNEL_PLACE = 0, HR_KERNEL_CAST = 1, HR_KERNEL_COUNT };

/* The name of its entry. */
const char *hr_kernel_name(enum hr_kernel kernel);
/*
 * The best image of this build. *ret_kind is "fatbin" (code for some GPUs, PTX for the others; builds where nvcc was
 * found) or "PTX". Never NULL.
 */
const void *hr_kernel_image(enum hr_kernel kernel, size_t *ret_size, const char **ret_kind);
/*
 * The PTX, which is always there: for drivers that are older than the fatbin and refuse it. It ends with a NUL, which
 * *ret_size counts.
 */
const void *hr_kernel_ptx(enum hr_kernel kernel, size_t *ret_size);

#endif
