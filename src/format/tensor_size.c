/*
 * tensor_size.c: see tensor_size.h. Counted in bits, since elements may be smaller than a byte.
 */
#include "format/tensor_size.h"

#include "base/error.h"

int hr_tensor_size(const struct hr_tensor *tensor, uint64_t at, uint64_t *ret_size, struct hr_error *err)
{
    uint64_t elements = 1, bits;
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(elements, tensor->shape[i], &elements))
            return hr_fail_at(err, HR_EVALIDATION_OVERFLOW, at,
                              "the product of the shape overflows 64 bits at dimension %u", i);
    if (__builtin_mul_overflow(elements, (uint64_t)hr_dtype_bits(tensor->dtype), &bits))
        return hr_fail_at(err, HR_EVALIDATION_OVERFLOW, at, "%llu elements of %s have more bits than 64 bits can count",
                          (unsigned long long)elements, hr_dtype_name(tensor->dtype));
    if (bits % 8)
        return hr_fail_at(err, HR_EMISALIGNED_SLICE, at, "%llu elements of %s do not fill whole bytes",
                          (unsigned long long)elements, hr_dtype_name(tensor->dtype));
    *ret_size = bits / 8;
    return 0;
}
