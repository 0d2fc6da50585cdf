/*
 * sniff.h: says what a file is when it is not safetensors. Pure.
 */
#ifndef HR_FORMAT_SNIFF_H
#define HR_FORMAT_SNIFF_H

#include <stddef.h>

#include "base/error.h"

/* As many bytes of a file's start are worth having. */
#define HR_SNIFF_BYTES 512u

/* What the file is and what to do ("a Git LFS pointer; ..."), or NULL when nothing is known or it may be safetensors. */
const char *hr_sniff(const unsigned char *start, size_t size);

/*
 * After rules 1 to 4 have failed with `code`, *err filled: when the file is something else, strict mode makes it
 * HR_ENOT_SAFETENSORS; compat keeps the code and only says it. Returns the code.
 */
int hr_sniff_refine(int code, const unsigned char *start, size_t size, int is_strict, struct hr_error *err);

#endif
