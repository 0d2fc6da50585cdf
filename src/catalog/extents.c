/*
 * extents.c: checkpoints of extents that the caller describes, instead of a header. Everything is copied: names and
 * shapes into one block each, so that the number of allocations does not depend on that of extents. Extents may overlap
 * and leave holes, since formats other than safetensors do; each must lie within its file.
 *
 * A checkpoint is filled step by step and closed whole when a step fails.
 */
#include <stdalign.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sort.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "catalog/catalog.h"
#include "catalog/file_open.h"
#include "format/tensor_size.h"

/* The caller's array, whose structs may be longer than the one that we know. */
struct table {
    const struct hr_extent *extents;
    size_t count;
    int is_named; /* names are required, unique and can be found */
};

static const struct hr_extent *extent_at(const struct table *table, size_t index)
{
    return (const struct hr_extent *)(const void *)((const char *)table->extents + index * table->extents->size);
}

static int size_check(const struct table *table, size_t index, struct hr_error *err)
{
    size_t known = sizeof(struct hr_extent), size = table->extents->size;
    if (index == 0 && (size < known || size % alignof(struct hr_extent)))
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "extent 0: its size is %zu; set it to sizeof(struct hr_extent), %zu here", size, known);
    const struct hr_extent *extent = extent_at(table, index);
    if (extent->size != size)
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "extent %zu: its size is %zu, that of extent 0 is %zu; all must be equal", index, extent->size,
                       size);
    for (size_t i = known; i < size; i++)
        if (((const char *)extent)[i])
            return hr_fail(err, HR_EINVALID_ARGUMENT,
                           "extent %zu: byte %zu is set, but this library knows only %zu bytes of an extent; clear the "
                           "rest",
                           index, i, known);
    return 0;
}

/* What a name needs to be found and shown. */
static int name_check(const struct hr_extent *extent, size_t index, struct hr_error *err)
{
    if (!extent->name || extent->name_size == 0)
        return hr_fail_at(err, HR_EINVALID_ARGUMENT, extent->offset, "extent %zu: it has no name", index);
    size_t valid = hr_utf8_valid_prefix((const unsigned char *)extent->name, extent->name_size);
    if (valid < extent->name_size)
        return hr_fail_at(err, HR_EINVALID_ARGUMENT, extent->offset,
                          "extent %zu: its name is not UTF-8 at its byte %zu", index, valid);
    if (memchr(extent->name, '\0', extent->name_size))
        return hr_fail_at(err, HR_ENAME_HAS_NUL, extent->offset, "extent %zu: its name contains a NUL character",
                          index);
    return 0;
}

/* All that can be said of an extent before it is copied. */
static int extent_check(const struct table *table, size_t index, size_t file_count, struct hr_error *err)
{
    const struct hr_extent *extent = extent_at(table, index);
    int result = table->is_named ? name_check(extent, index, err) : 0;
    if (result)
        return result;
    if (extent->file_index >= file_count)
        return hr_fail_at(err, HR_EINVALID_ARGUMENT, extent->offset,
                          "extent %zu: its file index is %zu, but there are %zu files", index, extent->file_index,
                          file_count);
    if (hr_dtype_bits(extent->dtype) == 0)
        return hr_fail_at(err, HR_EINVALID_ARGUMENT, extent->offset,
                          "extent %zu: its dtype is %u; it must be one of enum hr_dtype, U8 for blocks of bytes", index,
                          extent->dtype);
    if (extent->rank > HR_RANK_MAX)
        return hr_fail_at(err, HR_ERANK_TOO_LARGE, extent->offset,
                          "extent %zu has %u dimensions, at most %d are allowed", index, extent->rank, HR_RANK_MAX);
    if (extent->rank && !extent->shape)
        return hr_fail_at(err, HR_EINVALID_ARGUMENT, extent->offset, "extent %zu: it has %u dimensions, but no shape",
                          index, extent->rank);
    return 0;
}

/* The bytes must lie within the file as it is now. */
static int bounds_check(const struct hr_tensor *tensor, uint64_t file_size, struct hr_error *err)
{
    if (tensor->offset <= file_size && tensor->size <= file_size - tensor->offset)
        return 0;
    return hr_fail_at(
        err, HR_EMETADATA_INCOMPLETE_BUFFER, tensor->offset,
        "the tensor's %llu bytes at byte %llu reach past the end of the file, which has %llu bytes; is it "
        "cut short?",
        (unsigned long long)tensor->size, (unsigned long long)tensor->offset, (unsigned long long)file_size);
}

static void place_name(const struct hr_checkpoint *checkpoint, const struct hr_extent *extent, struct hr_error *err)
{
    if (extent->name)
        hr_error_in_tensor(err, extent->name, extent->name_size);
    if (extent->file_index < checkpoint->file_count)
        hr_error_in_file(err, checkpoint->files[extent->file_index].path);
}

/* Bytes of names, each with its NUL, and words of shapes. The caller's memory holds them, so sums do not overflow. */
static int table_check(const struct hr_checkpoint *checkpoint, const struct table *table, size_t *ret_name_bytes,
                       size_t *ret_shape_words, struct hr_error *err)
{
    size_t name_bytes = 0, shape_words = 0;
    for (size_t i = 0; i < table->count; i++) {
        int result = size_check(table, i, err);
        if (result)
            return result;
        const struct hr_extent *extent = extent_at(table, i);
        result = extent_check(table, i, checkpoint->file_count, err);
        if (result) {
            place_name(checkpoint, extent, err);
            return result;
        }
        name_bytes += (extent->name ? extent->name_size : 0) + 1;
        shape_words += extent->rank;
    }
    *ret_name_bytes = name_bytes;
    *ret_shape_words = shape_words;
    return 0;
}

/* From extents to tensors, in the order `keys` or, where that is NULL, as given. */
static int tensors_fill(struct hr_checkpoint *checkpoint, const struct table *table, const struct hr_sort_key *keys,
                        struct hr_error *err)
{
    char *text = checkpoint->catalog->names_text;
    uint64_t *shape = checkpoint->catalog->shapes, seed = hr_names_seed();
    for (size_t i = 0; i < table->count; i++) {
        const struct hr_extent *extent = extent_at(table, keys ? keys[i].index : i);
        struct hr_tensor *tensor = &checkpoint->tensors[i];
        size_t name_size = extent->name ? extent->name_size : 0;
        if (name_size)
            memcpy(text, extent->name, name_size);
        if (extent->rank)
            memcpy(shape, extent->shape, extent->rank * sizeof *shape);
        *tensor = (struct hr_tensor){text,  name_size,          extent->dtype,  extent->rank,
                                     shape, extent->file_index, extent->offset, 0};
        text += name_size + 1;
        shape += extent->rank;
        int result = hr_tensor_size(tensor, tensor->offset, &tensor->size, err);
        if (!result)
            result = bounds_check(tensor, checkpoint->files[tensor->file_index].size, err);
        if (result) {
            place_name(checkpoint, extent, err);
            return result;
        }
        if (table->is_named)
            checkpoint->catalog->hashes[i] = hr_names_hash(tensor->name, name_size, seed);
    }
    return 0;
}

static int tensors_sort_and_fill(struct hr_checkpoint *checkpoint, const struct table *table, struct hr_error *err)
{
    size_t count = table->count;
    struct hr_sort_key *keys = hr_alloc_array(2 * count, sizeof *keys);
    if (!keys)
        return hr_fail_memory(err, 2 * count * sizeof *keys, "sorting a table's tensors");
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct hr_sort_key){extent_at(table, i)->file_index, extent_at(table, i)->offset, i};
    int result = tensors_fill(checkpoint, table, hr_sort_keys(keys, count), err);
    hr_free(keys);
    for (size_t i = count; !result && i-- > 0;) {
        struct hr_file *file = &checkpoint->files[checkpoint->tensors[i].file_index];
        file->tensor_first = i;
        file->tensor_count++;
    }
    return result;
}

/* The table of names; two tensors of one name are refused. */
static int names_build(struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    size_t earlier = 0, later = HR_NAMES_NONE;
    int result = hr_catalog_names(checkpoint, &earlier, &later, err);
    if (result || later == HR_NAMES_NONE)
        return result;
    const struct hr_tensor *first = &checkpoint->tensors[earlier], *second = &checkpoint->tensors[later];
    char other[512];
    const char *path = checkpoint->files[first->file_index].path;
    hr_fail_at(err, HR_EDUPLICATE_TENSOR, second->offset,
               "the table has this name twice, also at byte %llu of '%s'; names must differ",
               (unsigned long long)first->offset, hr_escape(other, sizeof other, path, strlen(path)));
    hr_error_in_tensor(err, second->name, second->name_size);
    hr_error_in_file(err, checkpoint->files[second->file_index].path);
    return HR_EDUPLICATE_TENSOR;
}

/* Everything but the files, which are there. */
static int table_copy(struct hr_checkpoint *checkpoint, const struct table *table, struct hr_error *err)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    size_t count = table->count, name_bytes = 0, shape_words = 0;
    int result = table_check(checkpoint, table, &name_bytes, &shape_words, err);
    if (result)
        return result;
    catalog->names_text = hr_alloc_array(name_bytes, 1);
    catalog->shapes = hr_alloc_array(shape_words, sizeof *catalog->shapes);
    catalog->hashes = table->is_named ? hr_alloc_array(count, sizeof *catalog->hashes) : NULL;
    checkpoint->tensors = hr_alloc_array(count, sizeof *checkpoint->tensors);
    if (!catalog->names_text || !catalog->shapes || (table->is_named && !catalog->hashes) || !checkpoint->tensors)
        return hr_fail_memory(err, count * sizeof *checkpoint->tensors + name_bytes, "the tensors of a table");
    checkpoint->tensor_count = count;
    if (!table->is_named)
        return tensors_fill(checkpoint, table, NULL, err);
    result = tensors_sort_and_fill(checkpoint, table, err);
    return result ? result : names_build(checkpoint, err);
}

/* An object with room for `file_count` files. */
static int checkpoint_new(size_t file_count, struct hr_checkpoint **ret_checkpoint, struct hr_error *err)
{
    struct hr_checkpoint *checkpoint = hr_alloc(sizeof *checkpoint);
    struct hr_catalog *catalog = checkpoint ? hr_alloc(sizeof *catalog) : NULL;
    if (!catalog) {
        hr_free(checkpoint);
        return hr_fail_memory(err, sizeof *checkpoint, "a checkpoint");
    }
    checkpoint->catalog = catalog;
    catalog->paths.files = hr_alloc_array(file_count, sizeof *catalog->paths.files);
    if (!hr_catalog_files_new(checkpoint, file_count) || !catalog->paths.files) {
        hr_checkpoint_close(checkpoint);
        return hr_fail_memory(err, file_count * sizeof *checkpoint->files, "the files of a checkpoint");
    }
    *ret_checkpoint = checkpoint;
    return 0;
}

static int file_add(struct hr_checkpoint *checkpoint, const char *path, const struct hr_identity *identity,
                    struct hr_error *err)
{
    struct hr_paths *paths = &checkpoint->catalog->paths;
    size_t size = strlen(path), index = checkpoint->file_count;
    char *copy = hr_sys->alloc(size + 1);
    if (!copy)
        return hr_fail_memory(err, size + 1, "a path");
    memcpy(copy, path, size + 1);
    paths->files[paths->file_count++] = (struct hr_json_string){copy, size};
    checkpoint->identities[index] = *identity;
    checkpoint->files[index] = (struct hr_file){.path = copy, .size = identity->size};
    checkpoint->file_count++;
    return 0;
}

static int file_find_and_add(struct hr_checkpoint *checkpoint, const char *path, struct hr_error *err)
{
    struct hr_identity identity;
    struct stat stat;
    int fd;
    int result = path ? hr_file_open(path, &fd, &stat, err)
                      : hr_fail(err, HR_EINVALID_ARGUMENT, "path %zu is NULL", checkpoint->file_count);
    if (result)
        return result;
    hr_sys->close(fd);
    hr_identity_of(&stat, &identity);
    return file_add(checkpoint, path, &identity, err);
}

/* The object, or all of it freed. */
static int finish(struct hr_checkpoint *checkpoint, int result, struct hr_checkpoint **ret_checkpoint)
{
    if (result)
        hr_checkpoint_close(checkpoint);
    else
        *ret_checkpoint = checkpoint;
    return result;
}

static int arguments_check(const struct hr_extent *extents, size_t count, struct hr_error *err)
{
    if (count && !extents)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "there are %zu extents, but their array is NULL", count);
    if (count >= HR_NAMES_COUNT_MAX)
        return hr_fail(err, HR_ELIMIT_EXCEEDED, "there are %zu extents; at most %u are allowed", count,
                       HR_NAMES_COUNT_MAX - 1);
    return 0;
}

int hr_checkpoint_from_table(const char *const *paths, size_t path_count, const struct hr_extent *extents,
                             size_t extent_count, struct hr_checkpoint **ret_checkpoint, struct hr_error *err)
{
    const struct table table = {extents, extent_count, 1};
    struct hr_checkpoint *checkpoint;
    if (!paths || path_count == 0 || !ret_checkpoint)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "at least one path, and where to put the checkpoint, must be given");
    if (path_count > HR_FILE_COUNT_MAX)
        return hr_fail(err, HR_ELIMIT_EXCEEDED, "there are %zu files; at most %u are allowed", path_count,
                       HR_FILE_COUNT_MAX);
    int result = arguments_check(extents, extent_count, err);
    if (!result)
        result = checkpoint_new(path_count, &checkpoint, err);
    if (result)
        return result;
    for (size_t i = 0; !result && i < path_count; i++)
        result = file_find_and_add(checkpoint, paths[i], err);
    if (!result)
        result = hr_catalog_anchor(checkpoint, NULL, err);
    if (!result)
        result = table_copy(checkpoint, &table, err);
    return finish(checkpoint, result, ret_checkpoint);
}

int hr_checkpoint_extents(const struct hr_checkpoint *of, const struct hr_extent *extents, size_t extent_count,
                          struct hr_checkpoint **ret_checkpoint, struct hr_error *err)
{
    const struct table table = {extents, extent_count, 0};
    struct hr_checkpoint *checkpoint;
    int result = arguments_check(extents, extent_count, err);
    if (!result)
        result = checkpoint_new(of->file_count, &checkpoint, err);
    if (result)
        return result;
    for (size_t i = 0; !result && i < of->file_count; i++)
        result = file_add(checkpoint, of->files[i].path, &of->identities[i], err);
    if (!result)
        result = hr_catalog_anchor(checkpoint, of->catalog->folder, err);
    if (!result)
        result = table_copy(checkpoint, &table, err);
    return finish(checkpoint, result, ret_checkpoint);
}
