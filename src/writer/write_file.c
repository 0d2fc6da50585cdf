/*
 * write_file.c: see write_file.h.
 *
 * The temporary name is short and of its own making, so that a name that is as long as the filesystem allows can still be
 * written, and so that no reader of folders takes it for a checkpoint.
 */
#include "writer/write_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"

/* Names that are tried before it is an error that all of them exist. */
#define NAME_COUNT_MAX 100
#define TEMPORARY_NAME_BYTES 64

static int fail(struct hr_error *err, int error, const char *path, const char *what)
{
    const char *hint = error == -EROFS                        ? " (the filesystem is mounted read-only)"
                       : error == -ENOSPC || error == -EDQUOT ? " (the disk or the quota is full)"
                       : error == -EACCES                     ? " (the folder must be writable)"
                       : error == -EOPNOTSUPP || error == -ENOSYS
                           ? " (the filesystem cannot; write to another and copy)"
                           : "";
    int code = hr_fail_sys(err, HR_EIO_ERROR, -error, "%s: %s%s", path, what, hint);
    hr_error_in_file(err, path);
    return code;
}

int hr_output_check(const char *path, struct hr_error *err)
{
    struct stat facts;
    if (path[0] == '\0')
        return hr_fail(err, HR_EINVALID_ARGUMENT, "the path to write to is empty");
    int error = hr_sys->stat(path, &facts);
    if (error == -ENOENT) /* also a link to nothing, which is replaced */
        return 0;
    if (error)
        return fail(err, error, path, "what stands there cannot be examined");
    if (S_ISREG(facts.st_mode))
        return 0;
    int code = hr_fail(err, HR_ENOT_A_REGULAR_FILE, "what stands there is %s; give the name of a file",
                       S_ISDIR(facts.st_mode) ? "a folder" : "not a regular file, which alone can be replaced");
    hr_error_in_file(err, path);
    return code;
}

/* Bytes of `path` up to its last slash, with it. */
static size_t folder_size(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Tells apart the names of one process at one time; others are told apart by the clock and by O_EXCL. */
static uint64_t next_number(void)
{
    static atomic_uint_fast64_t count;
    return (hr_sys->clock_ns() << 8 ^ (uint64_t)getpid() << 40) + atomic_fetch_add(&count, 1);
}

/* The descriptor of a new file whose name, in the folder of `path`, is put into `ret_name`; or -errno. */
static int create_file(const char *path, unsigned mode, char *ret_name, size_t capacity)
{
    int fd = -EEXIST;
    for (int i = 0; fd == -EEXIST && i < NAME_COUNT_MAX; i++) {
        snprintf(ret_name, capacity, "%.*s.headrace-%016llx.tmp", (int)folder_size(path), path,
                 (unsigned long long)next_number());
        fd = hr_sys->create(ret_name, mode);
    }
    return fd;
}

/* A full disk is found now and not after a long time. What cannot allocate writes all the same. */
static int make_room(int fd, uint64_t size)
{
    int error;
    do
        error = hr_sys->allocate(fd, size);
    while (error == -EINTR);
    return error == -ENOSPC || error == -EDQUOT || error == -EFBIG || error == -EIO ? error : 0;
}

int hr_output_create(struct hr_output *output, const char *path, const char *said, uint64_t size, struct hr_error *err)
{
    struct stat replaced;
    size_t capacity = folder_size(path) + TEMPORARY_NAME_BYTES;
    char *name = hr_alloc(capacity);
    if (!name)
        return hr_fail_memory(err, capacity, "a file's name");
    int is_replacing = hr_sys->stat(path, &replaced) == 0 && S_ISREG(replaced.st_mode);
    unsigned mode = is_replacing ? replaced.st_mode & 0777 : 0666;
    int fd = create_file(path, mode, name, capacity);
    if (fd < 0) {
        hr_free(name);
        return fail(err, fd, said, "a file beside it, to be renamed when it is whole, cannot be made");
    }
    if (is_replacing)
        hr_sys->set_mode(fd, mode); /* refused, the file is less open than the one before, never more */
    *output = (struct hr_output){path, said, name, fd};
    int error = make_room(fd, size);
    if (!error)
        return 0;
    char what[64];
    snprintf(what, sizeof what, "there is no room for its %llu bytes", (unsigned long long)size);
    hr_output_release(output, 0);
    return fail(err, error, said, what);
}

/* Takes the first `size` bytes out of the vectors. */
static void vectors_advance(struct iovec **vectors, int *vector_count, size_t size)
{
    while (*vector_count && size >= (*vectors)->iov_len) {
        size -= (*vectors)->iov_len;
        ++*vectors;
        --*vector_count;
    }
    if (*vector_count) {
        (*vectors)->iov_base = (char *)(*vectors)->iov_base + size;
        (*vectors)->iov_len -= size;
    }
}

int hr_output_write(const struct hr_output *output, struct iovec *vectors, int vector_count, uint64_t offset,
                    struct hr_error *err)
{
    int stalls = 0;
    vectors_advance(&vectors, &vector_count, 0); /* past empty ones: then 0 bytes written means no progress */
    while (vector_count) {
        ssize_t written = hr_sys->pwritev(output->fd, vectors, vector_count, offset);
        if (written == -EINTR || (written == -EAGAIN && stalls++ < HR_IO_RETRY_MAX))
            continue;
        if (written <= 0) {
            int code = fail(err, written ? (int)written : -EIO, output->said,
                            written == -EINVAL ? "writing; a filesystem that takes bytes in order only wants one thread"
                                               : "writing");
            if (err)
                err->offset = offset;
            return code;
        }
        offset += (uint64_t)written;
        vectors_advance(&vectors, &vector_count, (size_t)written);
    }
    return 0;
}

int hr_output_seal(struct hr_output *output, int no_sync, struct hr_error *err)
{
    int error = no_sync ? 0 : hr_sys->sync(output->fd);
    int close_error = hr_sys->close(output->fd);
    output->fd = -1;
    if (error)
        return fail(err, error, output->said, "waiting for the storage");
    return close_error ? fail(err, close_error, output->said, "closing") : 0;
}

int hr_output_publish(struct hr_output *output, struct hr_error *err)
{
    assert(output->temporary && output->fd == -1);
    int error = hr_sys->rename(output->temporary, output->path);
    if (error)
        return fail(err, error, output->said,
                    "renaming the finished file into place; where the filesystem cannot, write elsewhere and copy");
    hr_free(output->temporary);
    output->temporary = NULL;
    return 0;
}

void hr_output_withdraw(const char *path)
{
    hr_sys->unlink(path);
}

void hr_output_release(struct hr_output *output, int keep)
{
    if (output->temporary) {
        if (output->fd >= 0)
            hr_sys->close(output->fd);
        if (!keep)
            hr_sys->unlink(output->temporary);
        hr_free(output->temporary);
    }
    *output = (struct hr_output){.fd = -1};
}

/* Folders that may be written but not read cannot be synced, and some filesystems do not know what that is. */
int hr_output_sync_folder(const char *path, const char *said, struct hr_error *err)
{
    size_t size = folder_size(path);
    char *folder = size ? hr_strndup(path, size) : hr_strndup(".", 1);
    if (!folder)
        return hr_fail_memory(err, size, "a folder's name");
    int fd = hr_sys->open(folder, O_RDONLY | O_DIRECTORY);
    hr_free(folder);
    if (fd < 0)
        return 0;
    int error = hr_sys->sync(fd);
    hr_sys->close(fd);
    if (error && error != -EINVAL && error != -EOPNOTSUPP && error != -EBADF)
        return fail(err, error, said, "it is in place; waiting for its folder to be on the storage");
    return 0;
}
