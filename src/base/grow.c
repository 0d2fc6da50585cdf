/*
 * grow.c: see grow.h.
 */
#include "base/grow.h"

#include "base/sys.h"

int hr_grow(void **array, size_t *capacity, size_t count, size_t element_bytes, const char *what, struct hr_error *err)
{
    if (count < *capacity)
        return 0;
    size_t grown = *capacity + *capacity / 2 + 16;
    size_t bytes = SIZE_MAX;
    void *memory = NULL;
    if (!__builtin_mul_overflow(grown, element_bytes, &bytes))
        memory = hr_sys->resize(*array, bytes);
    if (!memory)
        return hr_fail_memory(err, bytes, what);
    *array = memory;
    *capacity = grown;
    return 0;
}
