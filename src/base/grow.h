/*
 * grow.h: arrays whose length nobody knows before.
 */
#ifndef HR_BASE_GROW_H
#define HR_BASE_GROW_H

#include <stddef.h>

#include "base/error.h"

/*
 * Makes room for one element more than `count`; *array (NULL at first, freed with hr_free) and *capacity grow
 * together, by half. On failure both stay; `what` they are for goes into the message.
 */
int hr_grow(void **array, size_t *capacity, size_t count, size_t element_bytes, const char *what, struct hr_error *err);

#endif
