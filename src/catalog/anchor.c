/*
 * anchor.c: where the files of a checkpoint are opened again. A program may change its current folder between opening a
 * checkpoint and loading it; names that are relative to the folder of the open go on meaning the same files.
 */
#include <string.h>

#include "base/error.h"
#include "base/path.h"
#include "base/sys.h"
#include "catalog/catalog.h"

static int has_relative(const struct hr_checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->file_count; i++)
        if (checkpoint->files[i].path[0] != '/')
            return 1;
    return 0;
}

/* The text of all paths that `folder` has to stand before. */
static size_t text_bytes(const struct hr_checkpoint *checkpoint, const char *folder)
{
    size_t bytes = 0;
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        size_t before = hr_folder_bytes(folder, checkpoint->files[i].path);
        bytes += before ? before + strlen(checkpoint->files[i].path) + 1 : 0;
    }
    return bytes;
}

static void paths_fill(struct hr_checkpoint *checkpoint, const char *folder, char *text)
{
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        const char *path = checkpoint->files[i].path;
        size_t before = hr_folder_bytes(folder, path), size = strlen(path) + 1;
        checkpoint->open_paths[i] = before ? text : path;
        if (!before)
            continue;
        memcpy(text, folder, before);
        memcpy(text + before, path, size);
        text += before + size;
    }
}

int hr_catalog_anchor(struct hr_checkpoint *checkpoint, const char *folder, struct hr_error *err)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    size_t count = checkpoint->file_count, bytes = 0;
    if (folder || !has_relative(checkpoint))
        catalog->folder = hr_strndup(folder ? folder : "", folder ? strlen(folder) : 0);
    else
        catalog->folder = hr_current_folder();
    if (catalog->folder)
        bytes = text_bytes(checkpoint, catalog->folder);
    catalog->open_text = hr_alloc(bytes + 1);
    checkpoint->open_paths = hr_alloc_array(count, sizeof *checkpoint->open_paths);
    if (!catalog->folder || !catalog->open_text || !checkpoint->open_paths)
        return hr_fail_memory(err, bytes + count * sizeof *checkpoint->open_paths, "the paths of a checkpoint");
    paths_fill(checkpoint, catalog->folder, catalog->open_text);
    return 0;
}
