/*
 * place_image.h: the placing kernel as the driver takes it. Constant bytes inside the library; any thread.
 */
#ifndef HR_DEVICE_PLACE_IMAGE_H
#define HR_DEVICE_PLACE_IMAGE_H

#include <stddef.h>

/*
 * The best image of this build. *ret_kind is "fatbin" (code for some GPUs, PTX for the others; builds where nvcc was
 * found) or "PTX". Never NULL.
 */
const void *hr_place_image(size_t *ret_size, const char **ret_kind);
/*
 * The PTX, which is always there: for drivers that are older than the fatbin and refuse it. It ends with a NUL, which
 * *ret_size counts.
 */
const void *hr_place_ptx(size_t *ret_size);

#endif
