/*
 * layout_check.c: what may be written. Stricter than the reference writer, which makes files that it cannot read itself (a
 * tensor named __metadata__) and that others refuse: what this lets through is what hr_checkpoint_open() takes in strict
 * mode.
 */
#include <string.h>

#include "base/limits.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "format/names.h"
#include "writer/layout.h"

#define METADATA_NAME "__metadata__"

static int check_text(const char *text, size_t size, const char *what, struct hr_error *err)
{
    if (!text && size > 0)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "%s is NULL", what);
    size_t valid = hr_utf8_valid_prefix((const unsigned char *)text, size);
    if (valid < size)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "%s is not UTF-8 at byte %zu; a header can hold nothing else", what,
                       valid);
    return 0;
}

static int check_name(const struct hr_tensor *tensor, struct hr_error *err)
{
    int code = check_text(tensor->name, tensor->name_size, "a tensor's name", err);
    if (code)
        return code;
    if (tensor->name_size == strlen(METADATA_NAME) && memcmp(tensor->name, METADATA_NAME, tensor->name_size) == 0)
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "a tensor cannot be named __metadata__: the format keeps this name for the file's metadata");
    if (tensor->name_size && memchr(tensor->name, '\0', tensor->name_size))
        return hr_fail(err, HR_ENAME_HAS_NUL, "a tensor's name contains a NUL character");
    return 0;
}

static int measure(struct hr_tensor *tensor, struct hr_error *err)
{
    uint64_t elements = 1, bits;
    const char *dtype = hr_dtype_name(tensor->dtype);
    if (!dtype || tensor->dtype == HR_DTYPE_NONE)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "%u is not a dtype", tensor->dtype);
    if (tensor->rank > HR_RANK_MAX)
        return hr_fail(err, HR_ERANK_TOO_LARGE, "a tensor has %u dimensions, at most %d are allowed", tensor->rank,
                       HR_RANK_MAX);
    if (tensor->rank && !tensor->shape)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "the shape of %u dimensions is NULL", tensor->rank);
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(elements, tensor->shape[i], &elements))
            return hr_fail(err, HR_EVALIDATION_OVERFLOW, "the product of the shape overflows 64 bits at dimension %u",
                           i);
    if (__builtin_mul_overflow(elements, (uint64_t)hr_dtype_bits(tensor->dtype), &bits))
        return hr_fail(err, HR_EVALIDATION_OVERFLOW, "%llu elements of %s have more bits than 64 bits can count",
                       (unsigned long long)elements, dtype);
    if (bits % 8)
        return hr_fail(err, HR_EMISALIGNED_SLICE, "%llu elements of %s do not fill whole bytes",
                       (unsigned long long)elements, dtype);
    tensor->size = bits / 8;
    return 0;
}

int hr_layout_check(struct hr_tensor *tensors, size_t tensor_count, struct hr_error *err)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < tensor_count; i++) {
        struct hr_tensor *tensor = &tensors[i];
        int code = check_name(tensor, err);
        if (!code)
            code = measure(tensor, err);
        if (!code && (__builtin_add_overflow(sum, tensor->size, &sum) || sum > INT64_MAX / 2))
            code = hr_fail(err, HR_EVALIDATION_OVERFLOW, "the tensors up to this one are larger than a file can be");
        if (code) {
            hr_error_in_tensor(err, tensor->name ? tensor->name : "", tensor->name ? tensor->name_size : 0);
            return code;
        }
    }
    return 0;
}

static int check_keys(struct hr_json_string *keys, const struct hr_metadata *metadata, size_t count,
                      struct hr_error *err)
{
    char text[64];
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct hr_json_string){metadata[i].key, metadata[i].key_size};
    hr_names_sort(keys, sizeof *keys, count);
    for (size_t i = 1; i < count; i++)
        if (keys[i].size == keys[i - 1].size &&
            (!keys[i].size || !memcmp(keys[i].bytes, keys[i - 1].bytes, keys[i].size)))
            return hr_fail(err, HR_EDUPLICATE_KEY, "the metadata has the key '%s' twice",
                           hr_escape(text, sizeof text, keys[i].size ? keys[i].bytes : "", keys[i].size));
    return 0;
}

int hr_layout_check_metadata(const struct hr_metadata *metadata, size_t count, struct hr_error *err)
{
    if (count && !metadata)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "metadata_count is %zu but metadata is NULL", count);
    for (size_t i = 0; i < count; i++) {
        int code = check_text(metadata[i].key, metadata[i].key_size, "a key of the metadata", err);
        if (!code)
            code = check_text(metadata[i].value, metadata[i].value_size, "a value of the metadata", err);
        if (code)
            return code;
    }
    struct hr_json_string *keys = hr_alloc_array(count + 1, sizeof *keys);
    if (!keys)
        return hr_fail_memory(err, (count + 1) * sizeof *keys, "the keys of the metadata");
    int code = check_keys(keys, metadata, count, err);
    hr_free(keys);
    return code;
}
