/*
 * header.h: the header of one safetensors file as a table. Pure: bytes in, table out.
 */
#ifndef HR_FORMAT_HEADER_H
#define HR_FORMAT_HEADER_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "format/names.h"

struct hr_metadata_pair {
    const char *key; /* NUL-terminated, borrowed from the header's text */
    size_t key_size;
    const char *value; /* likewise */
    size_t value_size;
};

/* Owns everything that its tensors point to. */
struct hr_header {
    struct hr_tensor *tensors; /* sorted by (offset, end, position in the header); file_index is 0 */
    uint64_t *hashes;          /* of the names, parallel to tensors */
    size_t tensor_count;
    struct hr_names names; /* from names to positions in tensors */
    struct hr_metadata_pair *metadata;
    size_t metadata_count;
    uint64_t data_offset; /* 8 + the JSON's size */
    char *text;           /* the JSON, names unescaped and terminated in place */
    uint64_t *shapes;
};

/* Bytes at the start of a file that hold the JSON's size. */
#define HR_HEADER_PREFIX_BYTES 8u

/*
 * FORMAT's rule 1: the JSON's size, from the first bytes of a file (`prefix_size` of them are known, at least 8
 * unless the file is shorter).
 */
int hr_header_length(const unsigned char *prefix, size_t prefix_size, uint64_t file_size, size_t *ret_json_size,
                     struct hr_error *err);

/*
 * Parses and validates a header by FORMAT's rules 2 to 7. `json` (json_size bytes; one byte more must be writable)
 * is owned by the header from the call on, success or not, and was allocated through hr_sys. `file_size` is the
 * whole file's. Errors carry the offset from the start of the file and the tensor; the caller adds the file.
 */
int hr_header_parse(char *json, size_t json_size, uint64_t file_size, const struct hr_open_options *options,
                    struct hr_header *ret_header, struct hr_error *err);
void hr_header_release(struct hr_header *header);

#endif
