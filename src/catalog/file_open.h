/*
 * file_open.h: opens a file for reading its head, and says in plain words why it cannot be.
 */
#ifndef HR_CATALOG_FILE_OPEN_H
#define HR_CATALOG_FILE_OPEN_H

#include <sys/stat.h>

#include "base/error.h"

/*
 * Opens a regular file. A FIFO or device does not block: it is HR_ENOT_A_REGULAR_FILE. On success the caller closes
 * *ret_fd. Sets err->file.
 */
int hr_file_open(const char *path, int *ret_fd, struct stat *ret_stat, struct hr_error *err);

/* HR_EIO_ERROR for a path that could not be opened or looked at. `sys_errno` > 0. Sets err->file. */
int hr_file_fail(const char *path, int sys_errno, struct hr_error *err);

#endif
