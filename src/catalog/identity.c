/*
 * identity.c: whether a file is still the one that was opened. Size, inode and mtime together: a rewrite in place
 * keeps the inode, a rename over the path keeps neither.
 */
#include "catalog/checkpoint.h"

#include "base/error.h"

void hr_identity_of(const struct stat *stat, struct hr_identity *ret_identity)
{
    *ret_identity = (struct hr_identity){
        .device = stat->st_dev,
        .inode = stat->st_ino,
        .size = (uint64_t)stat->st_size,
        .mtime_ns = (uint64_t)stat->st_mtim.tv_sec * 1000000000u + (uint64_t)stat->st_mtim.tv_nsec,
    };
}

static int changed_fail(const struct hr_identity *opened, const struct hr_identity *now, struct hr_error *err)
{
    static const char advice[] = "open the checkpoint again once nobody writes it";
    if (now->size < opened->size)
        return hr_fail(err, HR_EFILE_CHANGED, "the file is %llu bytes shorter than when it was opened; %s",
                       (unsigned long long)(opened->size - now->size), advice);
    if (now->size > opened->size)
        return hr_fail(err, HR_EFILE_CHANGED, "the file is %llu bytes longer than when it was opened; %s",
                       (unsigned long long)(now->size - opened->size), advice);
    if (now->device != opened->device || now->inode != opened->inode)
        return hr_fail(err, HR_EFILE_CHANGED, "another file stands in the place of the one that was opened; %s",
                       advice);
    return hr_fail(err, HR_EFILE_CHANGED, "the file was written since it was opened (its mtime differs); %s", advice);
}

int hr_identity_check(const struct hr_identity *opened, const struct stat *now, const char *path, struct hr_error *err)
{
    struct hr_identity current;
    int result = 0;
    hr_identity_of(now, &current);
    if (!S_ISREG(now->st_mode))
        result = hr_fail(err, HR_ENOT_A_REGULAR_FILE, "the path is no longer a regular file");
    else if (current.size != opened->size || current.device != opened->device || current.inode != opened->inode ||
             current.mtime_ns != opened->mtime_ns)
        result = changed_fail(opened, &current, err);
    if (result)
        hr_error_in_file(err, path);
    return result;
}
