/*
 * place_image.h: the code of the placing kernel, as it is embedded in the library.
 */
#ifndef HR_DEVICE_PLACE_IMAGE_H
#define HR_DEVICE_PLACE_IMAGE_H

#include <stddef.h>

/* Never NULL: a fatbin, or PTX that ends in NUL. *ret_kind is "fatbin" or "PTX". Static storage, thread-safe. */
const void *hr_place_image(size_t *ret_size, const char **ret_kind);

#endif
