/*
 * path.h: paths that keep leading to the same file when the program changes its current folder.
 */
#ifndef HR_BASE_PATH_H
#define HR_BASE_PATH_H

#include <stddef.h>

/*
 * The current folder's name, with a slash at its end, for hr_free(). "" where no name leads there (it was removed, or a
 * folder above it may not be entered): relative paths then stay as they are. NULL without memory.
 */
char *hr_current_folder(void);
/* Bytes of `folder` that have to stand before `path`: none before one that is absolute or would become too long. */
size_t hr_folder_bytes(const char *folder, const char *path);

#endif
