/*
 * convert_target.c: see convert_target.h. Files are compared by device and inode, whatever name or link leads to them.
 */
#include "convert_target.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "output.h"

#define SUFFIX ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"

static int fail_at(const char *path, struct hr_error *err)
{
    snprintf(err->file, sizeof err->file, "%s", path);
    return err->code;
}

static int ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), end_size = strlen(end);
    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

static char *join(const char *first, const char *second, const char *third)
{
    size_t size = strlen(first) + strlen(second) + strlen(third) + 1;
    char *text = allocate(size, 1);
    snprintf(text, size, "%s%s%s", first, second, third);
    return text;
}

static int is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static int is_at(const struct stat *status, const char *path)
{
    struct stat other;
    return stat(path, &other) == 0 && other.st_dev == status->st_dev && other.st_ino == status->st_ino;
}

/* The folder of a path, for free(). */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = join(slash ? path : ".", "", "");
    if (slash)
        folder[slash == path ? 1 : slash - path] = '\0';
    return folder;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int convert_target_init(struct convert_target *target, const char *operand, struct hr_error *err)
{
    *target = (struct convert_target){0};
    if (ends_with(operand, ".json")) {
        error_set(err, HR_EINVALID_ARGUMENT, "a .json file is an index; name the checkpoint, as in NAME.safetensors");
        return fail_at(operand, err);
    }
    if (is_folder(operand)) {
        target->folder = operand;
        target->path = join(operand, ends_with(operand, "/") ? "" : "/", "model" SUFFIX);
    } else {
        target->path = join(operand, "", "");
    }
    char *stem = join(target->path, "", "");
    if (ends_with(stem, SUFFIX))
        stem[strlen(stem) - strlen(SUFFIX)] = '\0';
    target->index_path = join(stem, INDEX_SUFFIX, "");
    free(stem);
    return 0;
}

void convert_target_release(struct convert_target *target)
{
    free(target->path);
    free(target->index_path);
    *target = (struct convert_target){0};
}

const char *convert_target_opens(const struct convert_target *target, const struct hr_writer *writer)
{
    return hr_writer_file_count(writer) == 1 ? hr_writer_path(writer, 0) : target->index_path;
}

/* ------------------------------------------------------------------------------------------- the origin */

/* Whether this path is one of the origin's files, or an operand: an index. */
static int is_of_origin(const char *path, const struct convert_origin *origin)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return 0;
    for (size_t i = 0; i < hr_checkpoint_file_count(origin->checkpoint); i++)
        if (is_at(&status, hr_checkpoint_file(origin->checkpoint, i)->path))
            return 1;
    for (size_t i = 0; i < origin->paths->count; i++)
        if (is_at(&status, origin->paths->texts[i]))
            return 1;
    return 0;
}

/* Renaming is atomic for one file only, and what it replaces is gone. */
static int check_replaced(const struct convert_target *target, const struct hr_writer *writer,
                          const struct convert_origin *origin, int *ret_in_place, struct hr_error *err)
{
    size_t count = hr_writer_file_count(writer);
    for (size_t i = 0; i <= count; i++) {
        const char *path = i < count ? hr_writer_path(writer, i) : target->index_path;
        if ((i == count && count == 1) || !is_of_origin(path, origin))
            continue;
        *ret_in_place = count == 1 && hr_checkpoint_file_count(origin->checkpoint) == 1 && origin->is_kept;
        if (*ret_in_place)
            continue;
        error_set(err, HR_EINVALID_ARGUMENT,
                  "this file is converted, and is replaced only by one that holds all its tensors as they are; write "
                  "elsewhere");
        return fail_at(path, err);
    }
    return 0;
}

/* A folder that is converted must open as before. */
static int check_inside(const struct convert_target *target, const struct convert_origin *origin, struct hr_error *err)
{
    char *folder = folder_of(target->path);
    struct stat status;
    int code = 0, is_there = stat(folder, &status) == 0;
    for (size_t i = 0; is_there && i < origin->paths->count && code == 0; i++)
        if (is_at(&status, origin->paths->texts[i])) {
            code =
                error_set(err, HR_EINVALID_ARGUMENT,
                          "it lies in the folder that is converted, which would be another checkpoint with it; write "
                          "elsewhere");
            fail_at(target->path, err);
        }
    free(folder);
    return code;
}

/* --------------------------------------------------------------------------------------- what is there */

static int is_written(const char *name, const struct convert_target *target, const struct hr_writer *writer)
{
    size_t count = hr_writer_file_count(writer);
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, base_name(hr_writer_path(writer, i))) == 0)
            return 1;
    return count > 1 && strcmp(name, base_name(target->index_path)) == 0;
}

/*
 * Whether a file of this name would be opened instead of, or together with, the new ones: in a folder that was named all
 * that are of a checkpoint, else the index or the single file of the same name.
 */
static int is_in_the_way(const char *name, const struct convert_target *target, const struct hr_writer *writer)
{
    if (is_written(name, target, writer))
        return 0;
    if (target->folder)
        return ends_with(name, SUFFIX) || ends_with(name, INDEX_SUFFIX);
    return strcmp(name, base_name(target->path)) == 0 || strcmp(name, base_name(target->index_path)) == 0;
}

static int check_beside(const struct convert_target *target, const struct hr_writer *writer, struct hr_error *err)
{
    char *folder = folder_of(target->path);
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    int code = 0;
    while (stream && code == 0 && (entry = readdir(stream)))
        if (is_in_the_way(entry->d_name, target, writer)) {
            char *path = join(folder, "/", entry->d_name);
            code = error_set(err, HR_EINVALID_ARGUMENT,
                             "it stands beside what is written and would be taken for a part of it, or instead of it; "
                             "remove it or write elsewhere");
            fail_at(path, err);
            free(path);
        }
    if (stream)
        closedir(stream);
    free(folder); /* a folder that cannot be listed can still be written to */
    return code;
}

int convert_target_check(const struct convert_target *target, const struct hr_writer *writer,
                         const struct convert_origin *origin, int *ret_in_place, struct hr_error *err)
{
    *ret_in_place = 0;
    int code = check_replaced(target, writer, origin, ret_in_place, err);
    if (code == 0 && !*ret_in_place)
        code = check_inside(target, origin, err);
    return code ? code : check_beside(target, writer, err);
}
