/*
 * files.h: the open files of one load: opened when first needed, checked against the identity of the open,
 * closed when their last chunk is done, and never more of them at once than the descriptor limit allows.
 * Thread-safe.
 */
#ifndef HR_ENGINE_FILES_H
#define HR_ENGINE_FILES_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "catalog/checkpoint.h"
#include "io/storage.h"

struct hr_files;

/* `use_counts[i]`: how many times file i will be acquired before it can be closed for good; borrowed for the call. */
int hr_files_new(const struct hr_checkpoint *checkpoint, const size_t *use_counts, struct hr_files **ret_files,
                 struct hr_error *err);
/* Closes everything; nothing may be acquired. NULL is allowed. */
void hr_files_free(struct hr_files *files);

/*
 * *ret_fd stays open until hr_files_release(). Returns 1 when no descriptor is free now, because others hold as
 * many as the limit allows: release one's own or hr_files_wait(), then try again. Identity is checked when the
 * file is opened.
 *
 * `mode`, an enum hr_read_mode: HR_READ_DIRECT is for a descriptor with O_DIRECT, all others for the one without. A
 * file has up to two, both of which the limit counts. Where O_DIRECT is refused the descriptor is the one without, and
 * *mode becomes HR_READ_BUFFERED: the file is to be read as hr_storage.fallback_mode says. Untouched on failure.
 */
int hr_files_acquire(struct hr_files *files, size_t file_index, uint32_t *mode, int *ret_fd, struct hr_error *err);
/* An O_DIRECT read of the file was refused (EINVAL, EOPNOTSUPP): from now on it is not opened so. */
void hr_files_refuse_direct(struct hr_files *files, size_t file_index);
/* As release, for what was acquired and not used: the file is wanted as often as before. */
void hr_files_unacquire(struct hr_files *files, size_t file_index);
void hr_files_release(struct hr_files *files, size_t file_index);
/* Blocks until somebody has released a file; the caller holds none. */
void hr_files_wait(struct hr_files *files);
/* Whether an acquired file is still the one that was opened. */
int hr_files_check(struct hr_files *files, size_t file_index, struct hr_error *err);

#endif
