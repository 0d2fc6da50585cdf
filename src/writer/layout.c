/*
 * layout.c: see layout.h.
 */
#include "writer/layout.h"

#include <string.h>

#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sort.h"
#include "base/sys.h"
#include "format/names.h"

/* A tensor's name and its position, for sorting. */
struct named_tensor {
    struct hr_json_string name;
    size_t index;
};

void hr_layout_release(struct hr_layout *layout)
{
    for (size_t i = 0; layout->files && i < layout->file_count; i++)
        hr_free(layout->files[i].header);
    hr_free(layout->files);
    hr_free(layout->order);
    hr_free(layout->tensors);
    hr_free(layout->names);
    hr_free(layout->shapes);
    *layout = (struct hr_layout){0};
}

static int check_options(const struct hr_write_options *options, struct hr_error *err)
{
    uint64_t align = options->align;
    if (align && (align < 8 || align > HR_WRITE_ALIGN_MAX || (align & (align - 1))))
        return hr_fail(err, HR_EINVALID_ARGUMENT, "align is %llu; it must be a power of two from 8 to %u",
                       (unsigned long long)align, HR_WRITE_ALIGN_MAX);
    return hr_layout_check_metadata(options->metadata, options->metadata_count, err);
}

static void copy_texts(struct hr_layout *layout)
{
    char *name = layout->names;
    uint64_t *shape = layout->shapes;
    for (size_t i = 0; i < layout->tensor_count; i++) {
        struct hr_tensor *tensor = &layout->tensors[i];
        if (tensor->name_size)
            memcpy(name, tensor->name, tensor->name_size);
        if (tensor->rank)
            memcpy(shape, tensor->shape, tensor->rank * sizeof *shape);
        tensor->name = name;
        tensor->shape = shape;
        name += tensor->name_size + 1; /* zeroed memory: the final NUL is there */
        shape += tensor->rank;
        layout->data_bytes += tensor->size;
    }
}

/* Copies of all tensors, still with the caller's names and shapes, are checked before those are copied too. */
static int copy_tensors(struct hr_layout *layout, const struct hr_tensor *tensors, size_t count, struct hr_error *err)
{
    size_t name_bytes = 1, extent_count = 1;
    if (count && !tensors)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "tensor_count is %zu but tensors is NULL", count);
    layout->tensors = hr_alloc_array(count + 1, sizeof *tensors);
    if (!layout->tensors)
        return hr_fail_memory(err, (count + 1) * sizeof *tensors, "a table of tensors");
    if (count)
        memcpy(layout->tensors, tensors, count * sizeof *tensors);
    layout->tensor_count = count;
    int code = hr_layout_check(layout->tensors, count, err);
    if (code)
        return code;
    for (size_t i = 0; i < count; i++) {
        name_bytes += tensors[i].name_size + 1;
        extent_count += tensors[i].rank;
    }
    layout->names = hr_alloc(name_bytes);
    layout->shapes = hr_alloc_array(extent_count, sizeof *layout->shapes);
    if (!layout->names || !layout->shapes)
        return hr_fail_memory(err, name_bytes + extent_count * sizeof *layout->shapes, "names and shapes");
    copy_texts(layout);
    return 0;
}

static int check_duplicates(const struct named_tensor *sorted, size_t count, struct hr_error *err)
{
    for (size_t i = 1; i < count; i++) {
        const struct hr_json_string *a = &sorted[i - 1].name, *b = &sorted[i].name;
        if (a->size != b->size || memcmp(a->bytes, b->bytes, a->size))
            continue;
        int code = hr_fail(err, HR_EDUPLICATE_TENSOR, "two tensors have the same name");
        hr_error_in_tensor(err, b->bytes, b->size);
        return code;
    }
    return 0;
}

/* By file, then those that fill whole units of `align`, then by dtype, then, as the sort is stable, by name. */
static void order_tensors(struct hr_layout *layout, const struct named_tensor *by_name, uint64_t align,
                          struct hr_sort_key *keys)
{
    for (size_t i = 0; i < layout->tensor_count; i++) {
        const struct hr_tensor *tensor = &layout->tensors[by_name[i].index];
        uint64_t is_ragged = align ? tensor->size % align != 0 : 0;
        keys[i] =
            (struct hr_sort_key){tensor->file_index * 2 + is_ragged, HR_DTYPE_COUNT - tensor->dtype, by_name[i].index};
    }
    const struct hr_sort_key *sorted = hr_sort_keys(keys, layout->tensor_count);
    for (size_t i = 0; i < layout->tensor_count; i++)
        layout->order[i] = sorted[i].index;
}

static int sort_tensors(struct hr_layout *layout, uint64_t align, struct hr_error *err)
{
    size_t count = layout->tensor_count;
    struct named_tensor *by_name = hr_alloc_array(count + 1, sizeof *by_name);
    struct hr_sort_key *keys = hr_alloc_array(2 * count + 1, sizeof *keys);
    int code = 0;
    layout->order = hr_alloc_array(count + 1, sizeof *layout->order);
    if (!by_name || !keys || !layout->order) {
        code = hr_fail_memory(err, count * (sizeof *by_name + 2 * sizeof *keys), "sorting the tensors");
        goto done;
    }
    for (size_t i = 0; i < count; i++)
        by_name[i] = (struct named_tensor){{layout->tensors[i].name, layout->tensors[i].name_size}, i};
    hr_names_sort(by_name, sizeof *by_name, count);
    code = check_duplicates(by_name, count, err);
    if (!code)
        order_tensors(layout, by_name, align, keys);
done:
    hr_free(by_name);
    hr_free(keys);
    return code;
}

/* Offsets are first those from the data section on, as the header has them, and then those in the file. */
static int place_file(struct hr_layout *layout, size_t file_index, size_t first, const struct hr_write_options *options,
                      struct hr_error *err)
{
    struct hr_layout_file *file = &layout->files[file_index];
    uint64_t end = 0;
    file->first = first;
    for (size_t i = first; i < layout->tensor_count; i++) {
        struct hr_tensor *tensor = &layout->tensors[layout->order[i]];
        if (tensor->file_index != file_index)
            break;
        tensor->offset = end;
        end += tensor->size;
        file->count++;
    }
    int code = hr_layout_header(layout, file, options, err);
    for (size_t i = 0; i < file->count; i++)
        layout->tensors[layout->order[first + i]].offset += file->data_offset;
    file->size = file->data_offset + end;
    return code;
}

static int place_files(struct hr_layout *layout, const struct hr_write_options *options, struct hr_error *err)
{
    int code = 0;
    layout->files = hr_alloc_array(layout->file_count, sizeof *layout->files);
    if (!layout->files)
        return hr_fail_memory(err, layout->file_count * sizeof *layout->files, "the files of a checkpoint");
    for (size_t i = 0, first = 0; !code && i < layout->file_count; i++) {
        code = place_file(layout, i, first, options, err);
        first += layout->files[i].count;
    }
    return code;
}

int hr_layout_make(const struct hr_tensor *tensors, size_t tensor_count, const struct hr_write_options *options,
                   struct hr_layout *ret_layout, struct hr_error *err)
{
    struct hr_layout layout = {0};
    int code = check_options(options, err);
    if (!code)
        code = copy_tensors(&layout, tensors, tensor_count, err);
    if (!code)
        code = hr_layout_split(layout.tensors, tensor_count, options->shard_bytes, &layout.file_count, err);
    if (!code)
        code = sort_tensors(&layout, options->align, err);
    if (!code)
        code = place_files(&layout, options, err);
    if (code)
        hr_layout_release(&layout);
    else
        *ret_layout = layout;
    return code;
}
