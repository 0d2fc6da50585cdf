/*
 * file_open.c: the type of a file is checked after it is open, so that nothing can change in between; it is opened
 * without waiting, so that a FIFO without a writer does not hang.
 */
#include "catalog/file_open.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/sys.h"

static int missing_fail(const char *path, struct hr_error *err)
{
    char target[1024], text[512];
    ssize_t size = hr_sys->link_read(path, target, sizeof target);
    if (size < 0)
        return hr_fail_sys(err, HR_EIO_ERROR, ENOENT, "there is no such file; check the path");
    return hr_fail_sys(err, HR_EIO_ERROR, ENOENT,
                       "the path is a link to '%s', which does not exist; download the file again",
                       hr_escape(text, sizeof text, target, (size_t)size));
}

/* Cuts the last name off `path`, with the slashes before it; the empty text is the current folder. */
static void cut_last(char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    while (size > 0 && path[size - 1] != '/')
        size--;
    while (size > 1 && path[size - 1] == '/')
        size--;
    path[path[1] ? size : 0] = '\0'; /* nothing is above the root */
}

/* The path can be walked to `folder` and not on, to `next`. */
static int closed_fail(const char *folder, const char *next, struct hr_error *err)
{
    char target[1024], text[512];
    ssize_t size = hr_sys->link_read(next, target, sizeof target);
    if (size >= 0)
        return hr_fail_sys(err, HR_EIO_ERROR, EACCES,
                           "'%s' is a link, and a folder on the way of its target may not be entered; check their "
                           "permissions",
                           hr_escape(text, sizeof text, next, strlen(next)));
    if (!*folder)
        folder = ".";
    return hr_fail_sys(err, HR_EIO_ERROR, EACCES, "the folder '%s' may not be entered; check its permissions",
                       hr_escape(text, sizeof text, folder, strlen(folder)));
}

static int denied_fail(const char *path, struct hr_error *err)
{
    struct stat stat;
    char *folder = hr_strndup(path, strlen(path)), *next = hr_strndup(path, strlen(path));
    int is_closed = folder && next && hr_sys->stat(path, &stat) == -EACCES;
    int result;
    if (is_closed) {
        for (cut_last(folder); *folder && hr_sys->stat(folder, &stat) == -EACCES; cut_last(folder))
            memcpy(next, folder, strlen(folder) + 1);
        result = closed_fail(folder, next, err);
    } else {
        result = hr_fail_sys(err, HR_EIO_ERROR, EACCES, "it may not be read; check its permissions");
    }
    hr_free(folder);
    hr_free(next);
    return result;
}

int hr_file_fail(const char *path, int sys_errno, struct hr_error *err)
{
    int result;
    if (sys_errno == ENOENT)
        result = missing_fail(path, err);
    else if (sys_errno == EACCES)
        result = denied_fail(path, err);
    else if (sys_errno == EMFILE || sys_errno == ENFILE)
        result = hr_fail_sys(err, HR_EIO_ERROR, sys_errno, "no descriptor is left; raise the limit (ulimit -n)");
    else if (sys_errno == ENXIO)
        result = hr_fail(err, HR_ENOT_A_REGULAR_FILE, "the path is a socket or a device, not a regular file");
    else
        result = hr_fail_sys(err, HR_EIO_ERROR, sys_errno, "the file cannot be opened");
    hr_error_in_file(err, path);
    return result;
}

static const char *type_name(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "a special file";
}

int hr_file_open(const char *path, int *ret_fd, struct stat *ret_stat, struct hr_error *err)
{
    int fd = hr_sys->open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return hr_file_fail(path, -fd, err);
    int result = hr_sys->fstat(fd, ret_stat);
    if (result)
        result = hr_file_fail(path, -result, err);
    else if (!S_ISREG(ret_stat->st_mode))
        result = hr_fail(err, HR_ENOT_A_REGULAR_FILE, "the path is %s; a regular file is needed here",
                         type_name(ret_stat->st_mode));
    if (result) {
        hr_error_in_file(err, path);
        hr_sys->close(fd);
        return result;
    }
    *ret_fd = fd;
    return 0;
}
