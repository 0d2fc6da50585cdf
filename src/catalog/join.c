/*
 * join.c: from the headers of files to one table. With one file its arrays are taken over as they are.
 */
#include <string.h>

#include "base/error.h"
#include "base/sys.h"
#include "base/text.h"
#include "catalog/catalog.h"

static void files_fill(struct hr_checkpoint *checkpoint, const struct hr_shard *shards)
{
    size_t first = 0;
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        checkpoint->identities[i] = shards[i].identity;
        checkpoint->files[i] = (struct hr_file){
            .path = checkpoint->catalog->paths.files[i].bytes,
            .size = shards[i].identity.size,
            .data_offset = shards[i].header.data_offset,
            .tensor_first = first,
            .tensor_count = shards[i].header.tensor_count,
        };
        first += shards[i].header.tensor_count;
    }
    checkpoint->tensor_count = first;
}

static void single_take(struct hr_checkpoint *checkpoint, struct hr_header *header)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    checkpoint->tensors = header->tensors;
    catalog->hashes = header->hashes;
    catalog->names = header->names;
    header->tensors = NULL;
    header->hashes = NULL;
    header->names = (struct hr_names){0};
}

static void many_move(struct hr_checkpoint *checkpoint)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        struct hr_header *header = &catalog->headers[i];
        size_t first = checkpoint->files[i].tensor_first;
        memcpy(checkpoint->tensors + first, header->tensors, header->tensor_count * sizeof *header->tensors);
        memcpy(catalog->hashes + first, header->hashes, header->tensor_count * sizeof *header->hashes);
        for (size_t k = 0; k < header->tensor_count; k++)
            checkpoint->tensors[first + k].file_index = i;
        hr_free(header->tensors);
        hr_free(header->hashes);
        hr_names_release(&header->names);
        header->tensors = NULL;
        header->hashes = NULL;
    }
}

int hr_catalog_names(struct hr_checkpoint *checkpoint, size_t *ret_first, size_t *ret_second, struct hr_error *err)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    const struct hr_named array = {checkpoint->tensors, sizeof *checkpoint->tensors, catalog->hashes};
    if (hr_names_init(&catalog->names, checkpoint->tensor_count))
        return hr_fail_memory(err, checkpoint->tensor_count * 2 * sizeof *catalog->names.slots, "a table of names");
    *ret_second = hr_names_add_all(&catalog->names, &array, checkpoint->tensor_count, ret_first);
    return 0;
}

static int many_names_build(struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    size_t earlier = 0, later = HR_NAMES_NONE;
    int result = hr_catalog_names(checkpoint, &earlier, &later, err);
    if (result || later == HR_NAMES_NONE)
        return result;
    const struct hr_tensor *tensor = &checkpoint->tensors[later];
    char other[512];
    const char *path = checkpoint->files[checkpoint->tensors[earlier].file_index].path;
    hr_fail_at(err, HR_ETENSOR_IN_TWO_SHARDS, tensor->offset, "'%s' has a tensor of this name too; open one of the two",
               hr_escape(other, sizeof other, path, strlen(path)));
    hr_error_in_tensor(err, tensor->name, tensor->name_size);
    hr_error_in_file(err, checkpoint->files[tensor->file_index].path);
    return HR_ETENSOR_IN_TWO_SHARDS;
}

int hr_catalog_join(struct hr_checkpoint *checkpoint, struct hr_shard *shards, struct hr_error *err)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    size_t count = checkpoint->file_count;
    catalog->headers = hr_alloc_array(count, sizeof *catalog->headers);
    if (!hr_catalog_files_new(checkpoint, count) || !catalog->headers)
        return hr_fail_memory(err, count * sizeof *checkpoint->files, "the files of a checkpoint");
    files_fill(checkpoint, shards);
    for (size_t i = 0; i < count; i++) {
        catalog->headers[i] = shards[i].header;
        shards[i].header = (struct hr_header){0};
    }
    catalog->header_count = count;
    if (count == 1) {
        single_take(checkpoint, &catalog->headers[0]);
        return 0;
    }
    checkpoint->tensors = hr_alloc_array(checkpoint->tensor_count, sizeof *checkpoint->tensors);
    catalog->hashes = hr_alloc_array(checkpoint->tensor_count, sizeof *catalog->hashes);
    if (!checkpoint->tensors || !catalog->hashes)
        return hr_fail_memory(err, checkpoint->tensor_count * sizeof *checkpoint->tensors,
                              "the tensors of a checkpoint");
    many_move(checkpoint);
    return many_names_build(checkpoint, err);
}

static int entry_check(const struct hr_checkpoint *checkpoint, const struct hr_index_entry *entry, struct hr_error *err)
{
    const struct hr_tensor *tensor = hr_checkpoint_find(checkpoint, entry->name, entry->name_size);
    if (tensor && tensor->file_index == entry->file_index)
        return 0;
    const char *path = checkpoint->files[entry->file_index].path;
    char other[512] = "";
    if (tensor) {
        const char *holder = checkpoint->files[tensor->file_index].path;
        hr_fail(err, HR_ETENSOR_NOT_IN_SHARD, "the index says that this file holds the tensor, but '%s' does",
                hr_escape(other, sizeof other, holder, strlen(holder)));
    } else {
        hr_fail(
            err, HR_ETENSOR_NOT_IN_SHARD,
            "the index says that this file holds the tensor, but no file does; are index and files of one version?");
    }
    hr_error_in_tensor(err, entry->name, entry->name_size);
    hr_error_in_file(err, path);
    return HR_ETENSOR_NOT_IN_SHARD;
}

static int tensor_check(const struct hr_checkpoint *checkpoint, const struct hr_tensor *tensor, struct hr_error *err)
{
    const struct hr_index *index = &checkpoint->catalog->paths.index;
    if (hr_index_find(index, tensor->name, tensor->name_size))
        return 0;
    hr_fail_at(err, HR_ETENSOR_NOT_IN_INDEX, tensor->offset,
               "the file has a tensor that the index does not list; are index and files of one version?");
    hr_error_in_tensor(err, tensor->name, tensor->name_size);
    hr_error_in_file(err, checkpoint->files[tensor->file_index].path);
    return HR_ETENSOR_NOT_IN_INDEX;
}

static int total_size_check(struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    struct hr_catalog *catalog = checkpoint->catalog;
    double said = catalog->paths.index.total_size;
    uint64_t total = 0;
    for (size_t i = 0; i < checkpoint->tensor_count; i++)
        total += checkpoint->tensors[i].size;
    if (said < 0 || said == (double)total)
        return 0;
    struct hr_text text = {0};
    hr_text_printf(&text, "the index '%s' says that the tensors have %.0f bytes in all, they have %llu",
                   catalog->paths.index_path, said, (unsigned long long)total);
    catalog->warning = hr_text_take(&text);
    return catalog->warning ? 0 : hr_fail_memory(err, 0, "a warning");
}

int hr_catalog_check_index(struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    const struct hr_index *index = &checkpoint->catalog->paths.index;
    int result = 0;
    for (size_t i = 0; !result && i < index->entry_count; i++)
        result = entry_check(checkpoint, &index->entries[i], err);
    /* Each entry has found another tensor: when there are as many tensors as entries, all are listed. */
    for (size_t i = 0; !result && index->entry_count != checkpoint->tensor_count && i < checkpoint->tensor_count; i++)
        result = tensor_check(checkpoint, &checkpoint->tensors[i], err);
    return result ? result : total_size_check(checkpoint, err);
}
