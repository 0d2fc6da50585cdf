/*
 * content.c: see content.h.
 */
#include "writer/content.h"

#include <string.h>

#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sys.h"

int hr_content_open_devices(struct hr_content_devices *devices, const struct hr_write_options *options,
                            struct hr_error *err)
{
    static const char *const host[] = {"cpu"};
    const char *const *names = options->device_count ? options->devices : host;
    size_t count = options->device_count ? options->device_count : 1;
    *devices = (struct hr_content_devices){0};
    if (count > HR_DEVICE_COUNT_MAX || !names)
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "device_count is %zu; at most %d can be named, and devices must be set", count,
                       HR_DEVICE_COUNT_MAX);
    devices->devices = hr_alloc_array(count, sizeof *devices->devices);
    if (!devices->devices)
        return hr_fail_memory(err, count * sizeof *devices->devices, "devices");
    for (size_t i = 0; i < count; i++) {
        int code = hr_device_open(names[i], &devices->devices[i], err);
        if (code)
            return code;
        devices->count++;
    }
    return 0;
}

void hr_content_close_devices(struct hr_content_devices *devices)
{
    for (size_t i = 0; i < devices->count; i++)
        hr_device_unref(devices->devices[i]);
    hr_free(devices->devices);
    *devices = (struct hr_content_devices){0};
}

static int is_on_host(const struct hr_content_devices *devices, const struct hr_source *source)
{
    return hr_device_is_host(devices->devices[source->device_index]);
}

/* Strides that say what a compact tensor has anyway are none. */
static int is_compact(const struct hr_tensor *tensor, const int64_t *strides)
{
    uint64_t expected = hr_dtype_bits(tensor->dtype) / 8;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        if (tensor->shape[i] != 1 && strides[i] != (int64_t)expected)
            return 0;
        expected *= tensor->shape[i];
    }
    return 1;
}

static int check(const struct hr_content_devices *devices, const struct hr_tensor *tensor, struct hr_source *source,
                 struct hr_error *err)
{
    if (source->device_index >= devices->count)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "its device_index is %u, but the options name %zu devices",
                       source->device_index, devices->count);
    int code = hr_options_check_reserved(source->reserved, "hr_source", err);
    if (code || tensor->size == 0)
        return code;
    if (!source->data)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "its data is NULL, but it has %llu bytes",
                       (unsigned long long)tensor->size);
    if (!source->strides)
        return 0;
    if (hr_dtype_bits(tensor->dtype) % 8)
        return hr_fail(err, HR_EUNSUPPORTED, "%s has strides, but its elements are no whole bytes; make it compact",
                       hr_dtype_name(tensor->dtype));
    if (is_compact(tensor, source->strides))
        source->strides = NULL;
    else if (!is_on_host(devices, source))
        return hr_fail(err, HR_EUNSUPPORTED, "it has strides and is on a GPU; make it compact there");
    return 0;
}

int hr_content_check(const struct hr_content_devices *devices, const struct hr_tensor *tensor,
                     const struct hr_source *given, struct hr_source *ret_source, struct hr_error *err)
{
    int code = given ? hr_options_copy(ret_source, sizeof *ret_source, given, "hr_source", err)
                     : hr_fail(err, HR_EINVALID_ARGUMENT, "its source is NULL");
    if (!code)
        code = check(devices, tensor, ret_source, err);
    if (code)
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    return code;
}

const char *hr_content_memory(const struct hr_content_devices *devices, const struct hr_source *source, uint64_t begin)
{
    return source->strides || !is_on_host(devices, source) ? NULL : (const char *)source->data + begin;
}

/* Where a walk over runs of adjacent bytes is: the innermost dimensions that lie compactly are one run. */
struct run_walk {
    uint64_t run_bytes;
    uint32_t rank; /* of the dimensions outside a run */
    uint64_t position[HR_RANK_MAX];
    const char *run;
};

static void walk_begin(struct run_walk *walk, const struct hr_tensor *tensor, const struct hr_source *source,
                       uint64_t run_index)
{
    walk->run = source->data;
    for (uint32_t i = walk->rank; i-- > 0;) {
        walk->position[i] = run_index % tensor->shape[i];
        walk->run += (int64_t)walk->position[i] * source->strides[i];
        run_index /= tensor->shape[i];
    }
}

static void walk_next(struct run_walk *walk, const struct hr_tensor *tensor, const struct hr_source *source)
{
    for (uint32_t i = walk->rank; i-- > 0;) {
        walk->run += source->strides[i];
        if (++walk->position[i] < tensor->shape[i])
            return;
        walk->run -= (int64_t)tensor->shape[i] * source->strides[i];
        walk->position[i] = 0;
    }
}

static void copy_strided(const struct hr_tensor *tensor, const struct hr_source *source, uint64_t begin, size_t size,
                         char *ret_bytes)
{
    struct run_walk walk = {.run_bytes = hr_dtype_bits(tensor->dtype) / 8, .rank = tensor->rank};
    while (walk.rank > 0 &&
           (tensor->shape[walk.rank - 1] == 1 || source->strides[walk.rank - 1] == (int64_t)walk.run_bytes))
        walk.run_bytes *= tensor->shape[--walk.rank];
    walk_begin(&walk, tensor, source, begin / walk.run_bytes);
    uint64_t skip = begin % walk.run_bytes;
    while (size > 0) {
        size_t part = walk.run_bytes - skip < size ? (size_t)(walk.run_bytes - skip) : size;
        memcpy(ret_bytes, walk.run + skip, part);
        ret_bytes += part;
        size -= part;
        skip = 0;
        walk_next(&walk, tensor, source);
    }
}

int hr_content_copy(const struct hr_content_devices *devices, const struct hr_tensor *tensor,
                    const struct hr_source *source, uint64_t begin, size_t size, char *ret_bytes, struct hr_error *err)
{
    if (source->strides) {
        copy_strided(tensor, source, begin, size, ret_bytes);
        return 0;
    }
    int code = hr_device_read(devices->devices[source->device_index], ret_bytes, (const char *)source->data + begin,
                              size, err);
    if (code)
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    return code;
}
