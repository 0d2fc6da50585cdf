/*
 * checkpoint.c: the public face of a checkpoint: open, close, and what can be asked of it. After open nothing is
 * ever written but what ahead.h keeps, so any number of threads may ask.
 */
#include "catalog/checkpoint.h"

#include <string.h>

#include "base/error.h"
#include "base/glob.h"
#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sys.h"
#include "catalog/catalog.h"

static int options_read(const struct hr_open_options *options, struct hr_open_options *ret_options,
                        struct hr_error *err)
{
    int result = hr_options_copy(ret_options, sizeof *ret_options, options, "hr_open_options", err);
    if (result)
        return result;
    if (ret_options->mode > HR_OPEN_COMPAT)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "options.mode is %u; it must be strict (%d) or compat (%d)",
                       ret_options->mode, HR_OPEN_STRICT, HR_OPEN_COMPAT);
    if (ret_options->thread_count > HR_READER_MAX)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "options.thread_count is %u; at most %u threads read headers",
                       ret_options->thread_count, HR_READER_MAX);
    return hr_options_check_reserved(ret_options->reserved, "hr_open_options", err);
}

static int headers_read(struct hr_checkpoint *checkpoint, const struct hr_open_options *options, struct hr_error *err)
{
    const struct hr_paths *paths = &checkpoint->catalog->paths;
    size_t count = checkpoint->file_count;
    struct hr_shard *shards = hr_alloc_array(count, sizeof *shards);
    if (!shards)
        return hr_fail_memory(err, count * sizeof *shards, "the headers of a checkpoint");
    int result = hr_shards_read(paths->files, count, options, shards, err);
    if (result == HR_EIO_ERROR) {
        int missing = hr_paths_check_missing(paths, err);
        result = missing ? missing : result;
    }
    if (!result)
        result = hr_catalog_join(checkpoint, shards, err);
    for (size_t i = 0; i < count; i++)
        hr_header_release(&shards[i].header);
    hr_free(shards);
    return result;
}

static int checkpoint_fill(struct hr_checkpoint *checkpoint, const char *const *paths, size_t path_count,
                           const struct hr_open_options *options, struct hr_error *err)
{
    checkpoint->catalog = hr_alloc(sizeof *checkpoint->catalog);
    if (!checkpoint->catalog)
        return hr_fail_memory(err, sizeof *checkpoint->catalog, "a checkpoint");
    int result = hr_paths_resolve(paths, path_count, &checkpoint->catalog->paths, err);
    if (result)
        return result;
    checkpoint->file_count = checkpoint->catalog->paths.file_count;
    result = headers_read(checkpoint, options, err);
    if (!result)
        result = hr_catalog_anchor(checkpoint, NULL, err);
    if (!result && checkpoint->catalog->paths.index_path)
        result = hr_catalog_check_index(checkpoint, err);
    return result;
}

int hr_checkpoint_open(const char *const *paths, size_t path_count, const struct hr_open_options *options,
                       struct hr_checkpoint **ret_checkpoint, struct hr_error *err)
{
    struct hr_open_options read;
    if (!paths || path_count == 0 || !ret_checkpoint)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "at least one path, and where to put the checkpoint, must be given");
    int result = options_read(options, &read, err);
    if (result)
        return result;
    struct hr_checkpoint *checkpoint = hr_alloc(sizeof *checkpoint);
    if (!checkpoint)
        return hr_fail_memory(err, sizeof *checkpoint, "a checkpoint");
    result = checkpoint_fill(checkpoint, paths, path_count, &read, err);
    if (result) {
        hr_checkpoint_close(checkpoint);
        return result;
    }
    *ret_checkpoint = checkpoint;
    return 0;
}

static void catalog_free(struct hr_catalog *catalog)
{
    if (!catalog)
        return;
    for (size_t i = 0; i < catalog->header_count; i++)
        hr_header_release(&catalog->headers[i]);
    hr_free(catalog->headers);
    hr_names_release(&catalog->names);
    hr_free(catalog->hashes);
    hr_free(catalog->warning);
    hr_free(catalog->folder);
    hr_free(catalog->open_text);
    hr_free(catalog->names_text);
    hr_free(catalog->shapes);
    hr_paths_release(&catalog->paths);
    hr_free(catalog);
}

int hr_catalog_files_new(struct hr_checkpoint *checkpoint, size_t file_count)
{
    checkpoint->files = hr_alloc_array(file_count, sizeof *checkpoint->files);
    checkpoint->identities = hr_alloc_array(file_count, sizeof *checkpoint->identities);
    checkpoint->ahead = hr_ahead_new(file_count);
    return checkpoint->files && checkpoint->identities && checkpoint->ahead;
}

void hr_checkpoint_close(struct hr_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    catalog_free(checkpoint->catalog);
    hr_free(checkpoint->tensors);
    hr_free(checkpoint->files);
    hr_free(checkpoint->identities);
    hr_free(checkpoint->ahead);
    hr_free(checkpoint->open_paths);
    hr_free(checkpoint);
}

size_t hr_checkpoint_count(const struct hr_checkpoint *checkpoint)
{
    return checkpoint->tensor_count;
}

const struct hr_tensor *hr_checkpoint_at(const struct hr_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->tensor_count ? &checkpoint->tensors[index] : NULL;
}

const struct hr_tensor *hr_checkpoint_find(const struct hr_checkpoint *checkpoint, const char *name, size_t name_size)
{
    const struct hr_catalog *catalog = checkpoint->catalog;
    const struct hr_named array = {checkpoint->tensors, sizeof *checkpoint->tensors, catalog->hashes};
    int is_named = name && catalog->names.slots;
    size_t found = is_named ? hr_names_find(&catalog->names, &array, name, name_size) : HR_NAMES_NONE;
    return found == HR_NAMES_NONE ? NULL : &checkpoint->tensors[found];
}

size_t hr_checkpoint_match(const struct hr_checkpoint *checkpoint, const char *pattern, size_t index)
{
    if (!pattern)
        return checkpoint->tensor_count;
    while (index < checkpoint->tensor_count &&
           !hr_glob_match(pattern, checkpoint->tensors[index].name, checkpoint->tensors[index].name_size))
        index++;
    return index < checkpoint->tensor_count ? index : checkpoint->tensor_count;
}

size_t hr_checkpoint_file_count(const struct hr_checkpoint *checkpoint)
{
    return checkpoint->file_count;
}

const struct hr_file *hr_checkpoint_file(const struct hr_checkpoint *checkpoint, size_t file_index)
{
    return file_index < checkpoint->file_count ? &checkpoint->files[file_index] : NULL;
}

int hr_checkpoint_metadata(const struct hr_checkpoint *checkpoint, size_t file_index, size_t index,
                           const char **ret_key, size_t *ret_key_size, const char **ret_value, size_t *ret_value_size)
{
    if (file_index >= checkpoint->file_count || !ret_key || !ret_key_size || !ret_value || !ret_value_size)
        return HR_EINVALID_ARGUMENT;
    const struct hr_catalog *catalog = checkpoint->catalog;
    const struct hr_header *header = catalog->headers ? &catalog->headers[file_index] : NULL;
    if (!header || index >= header->metadata_count)
        return HR_EEND;
    const struct hr_metadata_pair *pair = &header->metadata[index];
    *ret_key = pair->key;
    *ret_key_size = pair->key_size;
    *ret_value = pair->value;
    *ret_value_size = pair->value_size;
    return 0;
}

const char *hr_checkpoint_warning(const struct hr_checkpoint *checkpoint, size_t index)
{
    return index == 0 ? checkpoint->catalog->warning : NULL;
}
