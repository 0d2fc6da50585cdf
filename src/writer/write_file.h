/*
 * write_file.h: one file that comes into being under another name in its folder and is renamed into place when it is whole.
 * It knows no tensor. An output belongs to one thread at a time, but for hr_output_write, which any threads may call.
 */
#ifndef HR_WRITER_WRITE_FILE_H
#define HR_WRITER_WRITE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/error.h"

/* Zeroed with fd -1: nothing was made. Errors name `said`. */
struct hr_output {
    const char *path; /* the name in the end; the caller's */
    const char *said; /* what its user calls it; the caller's */
    char *temporary;  /* the name until then; NULL: there is no such file */
    int fd;           /* -1: closed */
};

/* Refuses what stands at `path` and is no regular file; a path that nothing stands at is good. */
int hr_output_check(const char *path, struct hr_error *err);
/*
 * Makes the file with room for `size` bytes; a filesystem that cannot say gives room while writing. Permissions are
 * those of the file that it will replace, or what the umask leaves. Errors name it as `said`.
 */
int hr_output_create(struct hr_output *output, const char *path, const char *said, uint64_t size, struct hr_error *err);
/* Writes all of the vectors, at most HR_IOV_MAX, which it uses up. */
int hr_output_write(const struct hr_output *output, struct iovec *vectors, int vector_count, uint64_t offset,
                    struct hr_error *err);
/* Waits for the storage unless told not to, and closes. */
int hr_output_seal(struct hr_output *output, int no_sync, struct hr_error *err);
/* Renames what was sealed into place. */
int hr_output_publish(struct hr_output *output, struct hr_error *err);
/* Takes the name away again that was published. */
void hr_output_withdraw(const char *path);
/* Removes what was not published. In a forked child (`keep`) the file is the parent's, and only memory is freed. */
void hr_output_release(struct hr_output *output, int keep);

/* Waits until the names in the folder of `path` are on the storage, where the filesystem can be asked for that. */
int hr_output_sync_folder(const char *path, const char *said, struct hr_error *err);

#endif
