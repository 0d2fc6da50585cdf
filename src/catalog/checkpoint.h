/*
 * checkpoint.h: a checkpoint as the engine sees it. Immutable once hr_checkpoint_open() has returned it, but
 * for what is read ahead of its files.
 *
 * The catalog turns paths into files, reads their headers, hands the bytes to format/, and joins the results
 * into one table. It knows nothing of requests and plans.
 */
#ifndef HR_CATALOG_CHECKPOINT_H
#define HR_CATALOG_CHECKPOINT_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "catalog/ahead.h"

/* What says that a file is still the one that was opened. */
struct hr_identity {
    uint64_t device, inode, size;
    uint64_t mtime_ns; /* modulo 2^64: any time can be set on a file */
};

struct hr_checkpoint {
    /* in file order, then by (offset, end, position in the header or in the caller's table) */
    struct hr_tensor *tensors;
    size_t tensor_count;
    struct hr_file *files;
    struct hr_identity *identities; /* one per file */
    const char **open_paths;        /* where each is opened again, whatever folder is the current one by then */
    size_t file_count;
    struct hr_ahead *ahead;     /* all that changes after the open */
    struct hr_catalog *catalog; /* what holds the names, the shapes, the metadata and the name table */
};

/*
 * Byte ranges of an open checkpoint's files as tensors, tensor i for extent i whatever the order of offsets (so
 * `tensor_first` and `tensor_count` of the files say nothing). Checks as hr_checkpoint_from_table(), but names may be
 * NULL or equal: tensors are known by index, and hr_checkpoint_find() finds none. Touches no file: paths and identities
 * are those of `of`, which may be closed afterwards. Time and memory are linear. Thread-safe. The caller closes it.
 */
int hr_checkpoint_extents(const struct hr_checkpoint *of, const struct hr_extent *extents, size_t extent_count,
                          struct hr_checkpoint **ret_checkpoint, struct hr_error *err);

void hr_identity_of(const struct stat *stat, struct hr_identity *ret_identity);

/*
 * 0, or HR_EFILE_CHANGED with what differs (size first: "is 10 bytes shorter"), or HR_ENOT_A_REGULAR_FILE.
 * Sets err->file.
 */
int hr_identity_check(const struct hr_identity *opened, const struct stat *now, const char *path, struct hr_error *err);

#endif
