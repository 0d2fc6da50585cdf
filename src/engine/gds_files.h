/*
 * gds_files.h: the files of one load as cuFile knows them: registered when a chunk of theirs is first read, let go after
 * their last one, and few at once beyond those that are being read. Thread-safe.
 */
#ifndef HR_ENGINE_GDS_FILES_H
#define HR_ENGINE_GDS_FILES_H

#include "device/gds.h"
#include "plan/plan.h"

struct hr_gds_files;

/* `gds`: any ring of the process; borrowed. `plan`: made, borrowed for the call. */
int hr_gds_files_new(struct hr_gds *gds, const struct hr_plan *plan, struct hr_gds_files **ret_files,
                     struct hr_error *err);
/* Nothing may be acquired. NULL is allowed. */
void hr_gds_files_free(struct hr_gds_files *files);
/* In a forked child: frees what is the process's own. */
void hr_gds_files_forget(struct hr_gds_files *files);

/* `fd`: an open descriptor of the file. *ret_file stays registered until hr_gds_files_release(). */
int hr_gds_files_acquire(struct hr_gds_files *files, size_t file_index, int fd, struct hr_gds_file **ret_file,
                         struct hr_error *err);
/* Once for each chunk. */
void hr_gds_files_release(struct hr_gds_files *files, size_t file_index);

#endif
