/*
 * storage_describe.c: hr_storage_describe(): what loads would find out about the storage of a checkpoint, for people.
 */
#include <fcntl.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sys.h"
#include "catalog/file_open.h"
#include "catalog/paths.h"
#include "io/fixed.h"
#include "io/storage.h"

static void write_facts(const struct hr_storage *storage, char *ret_text, size_t capacity)
{
    char alignment[80] = "", fallback[32] = "";
    uint32_t mode = storage->mode;
    if (mode == HR_READ_DIRECT)
        snprintf(alignment, sizeof alignment, "; O_DIRECT wants offsets on %u bytes, memory on %u",
                 storage->offset_alignment, storage->memory_alignment);
    if (hr_storage_wants_more_than_pages(storage))
        mode = storage->fallback_mode;
    if (mode != storage->fallback_mode)
        snprintf(fallback, sizeof fallback, ", else %s", hr_read_mode_name(storage->fallback_mode));
    snprintf(ret_text, capacity, "%s%s: %s%s%s", hr_read_mode_name(mode), fallback, storage->detail,
             storage->is_remote ? ", remote" : "", alignment);
}

/* Registered memory matters where io_uring reads. */
static void add_fixed(char *text, size_t capacity)
{
    char why[64];
    if (!hr_io_uring.probe(why, sizeof why))
        return;
    size_t used = strlen(text);
    hr_fixed_describe(hr_fixed_probe(), why, sizeof why);
    snprintf(text + used, capacity - used, "; fixed buffers: %s", why);
}

static int describe_file(const char *path, char *ret_text, size_t capacity, struct hr_error *err)
{
    struct hr_storage storage;
    struct stat stat;
    int fd;
    int code = hr_file_open(path, &fd, &stat, err);
    if (code < 0)
        return code;
    hr_storage_probe(path, fd, &storage);
    hr_sys->close(fd);
    write_facts(&storage, ret_text, capacity);
    if (!storage.is_memory)
        add_fixed(ret_text, capacity);
    return 0;
}

int hr_storage_describe(const char *path, char *ret_text, size_t capacity, struct hr_error *err)
{
    struct hr_paths paths = {0};
    if (!path || !ret_text || capacity == 0)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "path and ret_text must not be NULL, nor capacity 0");
    int code = hr_paths_resolve(&path, 1, &paths, err);
    if (code < 0)
        return code;
    code = describe_file(paths.files[0].bytes, ret_text, capacity, err);
    hr_paths_release(&paths);
    return code;
}
