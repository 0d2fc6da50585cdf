/*
 * header_build.h: a header while it is read. Shared by the header's three parts: header.c (the outer object and
 * __metadata__), header_tensor.c (one tensor), header_check.c (order, duplicates, bounds).
 */
#ifndef HR_FORMAT_HEADER_BUILD_H
#define HR_FORMAT_HEADER_BUILD_H

#include "format/header.h"
#include "format/json.h"

struct hr_header_build {
    struct hr_json json;
    struct hr_header header; /* until checked, a tensor's offset and size hold its begin and end, its shape NULL */
    size_t tensor_capacity, shape_capacity, metadata_capacity;
    size_t shape_count; /* of all tensors together, in the order of the header */
    uint64_t file_size;
    uint64_t seed; /* of hashes */
    int is_strict, allow_trailing;
    int is_sorted;       /* by (begin, end), so far */
    uint32_t last_dtype; /* of the tensor before; its name has last_dtype_size bytes, SIZE_MAX for none */
    size_t last_dtype_size;
    struct hr_error *err;
};

/* Reads the value of a tensor's key and appends the tensor. */
int hr_header_read_tensor(struct hr_header_build *build, const struct hr_json_string *name);
/* All that follows the JSON: shapes attached, duplicates, order, rules 5 to 7. */
int hr_header_check(struct hr_header_build *build);

#endif
