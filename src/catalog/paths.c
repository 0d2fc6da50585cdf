/*
 * paths.c: an index decides which files belong; without one a folder's *.safetensors do, sorted by their bytes.
 * Links are followed by the system only: names are joined and checked as they are written.
 */
#include "catalog/paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/grow.h"
#include "base/limits.h"
#include "base/sys.h"
#include "catalog/file_open.h"

#define LISTED_BYTES 640 /* of names in one message */

static const char index_suffix[] = ".safetensors.index.json";
static const char file_suffix[] = ".safetensors";

static int ends_with(const char *text, size_t size, const char *suffix)
{
    size_t suffix_size = strlen(suffix);
    return size >= suffix_size && memcmp(text + size - suffix_size, suffix, suffix_size) == 0;
}

static int path_append(struct hr_paths *paths, size_t *capacity, char *path, struct hr_error *err)
{
    void *files = paths->files;
    int result = hr_grow(&files, capacity, paths->file_count, sizeof *paths->files, "a list of files", err);
    paths->files = files;
    if (result)
        return result;
    paths->files[paths->file_count++] = (struct hr_json_string){path, strlen(path)};
    return 0;
}

/* folder/name; `folder_size` 0 means the current folder. NULL without memory. */
static char *path_join(const char *folder, size_t folder_size, const char *name, size_t name_size)
{
    char *path = hr_sys->alloc(folder_size + 1 + name_size + 1);
    if (!path)
        return NULL;
    size_t used = folder_size;
    memcpy(path, folder, folder_size);
    if (folder_size > 0 && folder[folder_size - 1] != '/')
        path[used++] = '/';
    memcpy(path + used, name, name_size);
    path[used + name_size] = '\0';
    return path;
}

/* Takes over `path` or frees it. */
static int path_add(struct hr_paths *paths, size_t *capacity, char *path, struct hr_error *err)
{
    int result = path ? path_append(paths, capacity, path, err) : hr_fail_memory(err, 0, "a path");
    if (result)
        hr_free(path);
    return result;
}

/* Names for a message, as many as fit. */
struct name_list {
    char text[LISTED_BYTES];
    size_t used;
    int is_full;
};

static void name_list_add(struct name_list *list, const char *name, size_t name_size)
{
    char text[160];
    hr_escape(text, sizeof text, name, name_size);
    if (!list->is_full && list->used + strlen(text) + sizeof ", , ..." > sizeof list->text) {
        list->is_full = 1;
        strcpy(text, "...");
    } else if (list->is_full) {
        return;
    }
    list->used +=
        (size_t)snprintf(list->text + list->used, sizeof list->text - list->used, "%s%s", list->used ? ", " : "", text);
}

static int index_text_read(const char *path, char **ret_text, size_t *ret_size, struct hr_error *err)
{
    struct stat stat;
    int fd;
    int result = hr_file_open(path, &fd, &stat, err);
    if (result)
        return result;
    size_t size = (size_t)stat.st_size;
    char *text = NULL;
    if ((uint64_t)stat.st_size > HR_INDEX_BYTES_MAX)
        result = hr_fail(err, HR_ELIMIT_EXCEEDED, "the index has %llu bytes, at most %u are allowed",
                         (unsigned long long)stat.st_size, HR_INDEX_BYTES_MAX);
    else if (!(text = hr_sys->alloc(size + 1)))
        result = hr_fail_memory(err, size + 1, "an index");
    ssize_t got = text ? hr_read_full(fd, text, size, 0) : 0;
    if (got < 0)
        result = hr_fail_sys(err, HR_EIO_ERROR, (int)-got, "the index cannot be read");
    else if (!result && (size_t)got < size)
        result = hr_fail_at(err, HR_ESHORT_READ, (uint64_t)got, "the index ended after %zd of %zu bytes", got, size);
    hr_sys->close(fd);
    if (result) {
        hr_error_in_file(err, path);
        hr_free(text);
        return result;
    }
    *ret_text = text;
    *ret_size = size;
    return 0;
}

/* Takes over `index_path`. */
static int index_use(struct hr_paths *paths, size_t *capacity, char *index_path, struct hr_error *err)
{
    char *text;
    size_t size;
    if (!index_path)
        return hr_fail_memory(err, 0, "a path");
    paths->index_path = index_path;
    int result = index_text_read(index_path, &text, &size, err);
    if (!result && (result = hr_index_parse(text, size, &paths->index, err)))
        hr_error_in_file(err, index_path);
    if (!result && paths->index.file_count == 0) {
        result = hr_fail(err, HR_EINDEX_INVALID, "the index names no file: its weight_map is empty");
        hr_error_in_file(err, index_path);
    }
    const char *slash = strrchr(index_path, '/');
    size_t folder_size = slash ? (size_t)(slash - index_path) + 1 : 0;
    for (size_t i = 0; !result && i < paths->index.file_count; i++) {
        const struct hr_index_file *file = &paths->index.files[i];
        result = path_add(paths, capacity, path_join(index_path, folder_size, file->name, file->name_size), err);
    }
    return result;
}

static int folder_read(const char *folder, struct hr_paths *ret_names, struct hr_error *err)
{
    struct hr_dir *dir;
    size_t capacity = 0;
    int result = hr_sys->dir_open(folder, &dir), dir_error = 0;
    if (result)
        return hr_file_fail(folder, -result, err);
    const char *name;
    while (!result && (name = hr_sys->dir_next(dir, &dir_error)))
        if (name[0] != '.')
            result = path_add(ret_names, &capacity, hr_strndup(name, strlen(name)), err);
    if (!result && dir_error)
        result = hr_file_fail(folder, -dir_error, err);
    hr_sys->dir_close(dir);
    if (!result)
        hr_names_sort(ret_names->files, sizeof *ret_names->files, ret_names->file_count);
    return result;
}

static int nothing_usable_fail(const char *folder, const struct hr_paths *names, struct hr_error *err)
{
    static const char *const known[] = {".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"};
    struct name_list list = {0};
    for (int only_known = 1; only_known >= 0 && list.used == 0; only_known--)
        for (size_t i = 0; i < names->file_count; i++) {
            int is_known = 0;
            for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
                is_known |= ends_with(names->files[i].bytes, names->files[i].size, known[k]);
            if (is_known || !only_known)
                name_list_add(&list, names->files[i].bytes, names->files[i].size);
        }
    if (list.used == 0)
        hr_fail(err, HR_ENOT_SAFETENSORS, "the folder is empty; a folder with *.safetensors files is needed");
    else
        hr_fail(err, HR_ENOT_SAFETENSORS, "the folder has no *.safetensors file and no index of them; it holds %s",
                list.text);
    hr_error_in_file(err, folder);
    return HR_ENOT_SAFETENSORS;
}

/* The folder's index: the only one, or among several the one with a usual name. *ret_index is NULL without one. */
static int index_choose(const char *folder, const struct hr_paths *names, const struct hr_json_string **ret_index,
                        struct hr_error *err)
{
    static const char *const usual[] = {"model.safetensors.index.json",
                                        "diffusion_pytorch_model.safetensors.index.json"};
    const size_t usual_count = sizeof usual / sizeof usual[0];
    const struct hr_json_string *chosen = NULL;
    size_t best = usual_count, count = 0;
    struct name_list list = {0};
    for (size_t i = 0; i < names->file_count; i++) {
        const struct hr_json_string *name = &names->files[i];
        if (!ends_with(name->bytes, name->size, index_suffix))
            continue;
        name_list_add(&list, name->bytes, name->size);
        size_t rank = 0;
        while (rank < usual_count && strcmp(name->bytes, usual[rank]))
            rank++;
        if (count++ == 0 || rank < best) {
            chosen = name;
            best = rank;
        }
    }
    if (count > 1 && best == usual_count) {
        hr_fail(err, HR_EINDEX_INVALID, "the folder has %zu indexes, give the path of one: %s", count, list.text);
        hr_error_in_file(err, folder);
        return HR_EINDEX_INVALID;
    }
    *ret_index = chosen;
    return 0;
}

static int folder_use(struct hr_paths *paths, size_t *capacity, const char *folder, struct hr_error *err)
{
    struct hr_paths names = {0};
    const struct hr_json_string *index = NULL;
    int result = folder_read(folder, &names, err);
    if (!result)
        result = index_choose(folder, &names, &index, err);
    if (!result && index) {
        result = index_use(paths, capacity, path_join(folder, strlen(folder), index->bytes, index->size), err);
    } else if (!result) {
        for (size_t i = 0; !result && i < names.file_count; i++)
            if (ends_with(names.files[i].bytes, names.files[i].size, file_suffix))
                result = path_add(paths, capacity,
                                  path_join(folder, strlen(folder), names.files[i].bytes, names.files[i].size), err);
        if (!result && paths->file_count == 0)
            result = nothing_usable_fail(folder, &names, err);
    }
    hr_paths_release(&names);
    return result;
}

static int path_use(struct hr_paths *paths, size_t *capacity, const char *path, struct hr_error *err)
{
    struct stat stat;
    int result = hr_sys->stat(path, &stat);
    if (result)
        return hr_file_fail(path, -result, err);
    if (S_ISDIR(stat.st_mode))
        return folder_use(paths, capacity, path, err);
    if (ends_with(path, strlen(path), ".json"))
        return index_use(paths, capacity, hr_strndup(path, strlen(path)), err);
    return path_add(paths, capacity, hr_strndup(path, strlen(path)), err);
}

int hr_paths_resolve(const char *const *paths, size_t path_count, struct hr_paths *ret_paths, struct hr_error *err)
{
    struct hr_paths built = {0};
    size_t capacity = 0;
    int result = 0;
    for (size_t i = 0; i < path_count && !result; i++)
        if (!paths[i])
            result = hr_fail(err, HR_EINVALID_ARGUMENT, "path %zu is NULL", i);
        else if (path_count == 1)
            result = path_use(&built, &capacity, paths[0], err);
        else
            result = path_add(&built, &capacity, hr_strndup(paths[i], strlen(paths[i])), err);
    if (!result && built.file_count > HR_FILE_COUNT_MAX)
        result = hr_fail(err, HR_ELIMIT_EXCEEDED, "the checkpoint has %zu files, at most %u are allowed",
                         built.file_count, HR_FILE_COUNT_MAX);
    if (result) {
        hr_paths_release(&built);
        return result;
    }
    *ret_paths = built;
    return 0;
}

void hr_paths_release(struct hr_paths *paths)
{
    for (size_t i = 0; i < paths->file_count; i++)
        hr_free((void *)(uintptr_t)paths->files[i].bytes);
    hr_free(paths->files);
    hr_free(paths->index_path);
    hr_index_release(&paths->index);
    *paths = (struct hr_paths){0};
}

int hr_paths_check_missing(const struct hr_paths *paths, struct hr_error *err)
{
    struct name_list list = {0};
    size_t missing = 0;
    struct stat stat;
    for (size_t i = 0; paths->index_path && i < paths->file_count; i++) {
        if (hr_sys->stat(paths->files[i].bytes, &stat) != -ENOENT)
            continue;
        name_list_add(&list, paths->index.files[i].name, paths->index.files[i].name_size);
        missing++;
    }
    if (missing == 0)
        return 0;
    hr_fail_sys(err, HR_ESHARD_MISSING, ENOENT,
                "%zu of the %zu files that the index names are missing, download them: %s", missing, paths->file_count,
                list.text);
    hr_error_in_file(err, paths->index_path);
    return HR_ESHARD_MISSING;
}
