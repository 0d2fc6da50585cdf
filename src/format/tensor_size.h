/*
 * tensor_size.h: how many bytes a tensor has by its shape and dtype.
 */
#ifndef HR_FORMAT_TENSOR_SIZE_H
#define HR_FORMAT_TENSOR_SIZE_H

#include <headrace/headrace.h>

/*
 * Bytes of a tensor whose dtype is known, or HR_EVALIDATION_OVERFLOW, or HR_EMISALIGNED_SLICE for sub-byte elements
 * that do not fill whole bytes. Errors get the byte offset `at`; the caller adds tensor and file.
 */
int hr_tensor_size(const struct hr_tensor *tensor, uint64_t at, uint64_t *ret_size, struct hr_error *err);

#endif
