/*
 * layout.h: where each byte of a checkpoint goes that is to be written: which file, at which offset, behind which header.
 * Pure: a table in, a table and headers out. It checks what is asked for, so that those behind it need not.
 *
 * The order within a file is the reference writer's: wider dtypes first (its own order, which is that of enum hr_dtype
 * backwards), then names by their bytes. With `align`, tensors that fill whole units of it stand before the others.
 */
#ifndef HR_WRITER_LAYOUT_H
#define HR_WRITER_LAYOUT_H

#include "base/error.h"
#include "base/text.h"

struct hr_layout_file {
    size_t first, count;  /* its tensors, in `order` */
    char *header;         /* length, JSON and padding: all that stands before the data section; NULL once given back */
    uint64_t data_offset; /* bytes of it */
    uint64_t size;        /* of the whole file */
};

/* Owns everything that its tensors point to. */
struct hr_layout {
    struct hr_tensor *tensors; /* in the order of the caller; file_index, offset and size are the new file's */
    size_t tensor_count;
    size_t *order; /* of tensors, by file and offset */
    struct hr_layout_file *files;
    size_t file_count; /* at least 1 */
    uint64_t data_bytes;
    char *names;
    uint64_t *shapes;
};

/* Of `options` metadata, align and shard_bytes are used. Errors name the tensor; nothing is to be released after one. */
int hr_layout_make(const struct hr_tensor *tensors, size_t tensor_count, const struct hr_write_options *options,
                   struct hr_layout *ret_layout, struct hr_error *err);
void hr_layout_release(struct hr_layout *layout);

/* The parts, each in a file of its own. */

/* What may not be written: names, dtypes, shapes; fills `size` of each. */
int hr_layout_check(struct hr_tensor *tensors, size_t tensor_count, struct hr_error *err);
int hr_layout_check_metadata(const struct hr_metadata *metadata, size_t count, struct hr_error *err);
/* Fills file_index; at least one file. `limit` 0: one. */
int hr_layout_split(struct hr_tensor *tensors, size_t tensor_count, uint64_t limit, size_t *ret_file_count,
                    struct hr_error *err);
/* The header of one file, whose tensors have offsets from the data section on. Once the header's size is known. */
int hr_layout_header(const struct hr_layout *layout, struct hr_layout_file *file,
                     const struct hr_write_options *options, struct hr_error *err);
/* The index of all files, whose names are `file_names`: text that the caller releases. */
int hr_layout_index(const struct hr_layout *layout, const char *const *file_names, struct hr_text *ret_text,
                    struct hr_error *err);

#endif
