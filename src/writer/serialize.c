/*
 * serialize.c: a file in memory, by the layout that it would have on a disk.
 */
#include <string.h>

#include "base/option_struct.h"
#include "writer/content.h"
#include "writer/layout.h"

static int copy_tensor(const struct hr_content_devices *devices, const struct hr_tensor *tensor,
                       const struct hr_source *given, char *ret_bytes, struct hr_error *err)
{
    struct hr_source source;
    int code = hr_content_check(devices, tensor, given, &source, err);
    if (code || tensor->size == 0)
        return code;
    return hr_content_copy(devices, tensor, &source, 0, tensor->size, ret_bytes + tensor->offset, err);
}

static int copy_all(const struct hr_layout *layout, const struct hr_source *sources,
                    const struct hr_write_options *options, char *ret_bytes, struct hr_error *err)
{
    struct hr_content_devices devices;
    int code = hr_content_open_devices(&devices, options, err);
    memcpy(ret_bytes, layout->files[0].header, layout->files[0].data_offset);
    for (size_t i = 0; !code && i < layout->tensor_count; i++)
        code = copy_tensor(&devices, &layout->tensors[i],
                           (const struct hr_source *)((const char *)sources + i * sources->size), ret_bytes, err);
    hr_content_close_devices(&devices);
    return code;
}

static int check(const struct hr_source *sources, size_t tensor_count, const struct hr_write_options *options,
                 const uint64_t *ret_size, const void *ret_bytes, struct hr_error *err)
{
    if (!ret_size)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the size must be given; ret_size is NULL");
    if (ret_bytes && tensor_count && !sources)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "sources is NULL, but there are %zu tensors", tensor_count);
    if (options->shard_bytes)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "shard_bytes is set, but into memory goes one file");
    return 0;
}

int hr_serialize(const struct hr_tensor *tensors, const struct hr_source *sources, size_t tensor_count,
                 const struct hr_write_options *options, void *ret_bytes, uint64_t capacity, uint64_t *ret_size,
                 struct hr_error *err)
{
    struct hr_write_options ours;
    struct hr_layout layout;
    int code = hr_options_copy(&ours, sizeof ours, options, "hr_write_options", err);
    if (!code)
        code = check(sources, tensor_count, &ours, ret_size, ret_bytes, err);
    if (!code)
        code = hr_layout_make(tensors, tensor_count, &ours, &layout, err);
    if (code)
        return code;
    uint64_t size = layout.files[0].size;
    if (ret_bytes && capacity < size)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "the file has %llu bytes, but capacity is %llu",
                       (unsigned long long)size, (unsigned long long)capacity);
    else if (ret_bytes)
        code = copy_all(&layout, sources, &ours, ret_bytes, err);
    if (!code)
        *ret_size = size;
    hr_layout_release(&layout);
    return code;
}
