/*
 * header.c: the outer object of a header, __metadata__, and the length in front. The buffer becomes the header's
 * text: names and metadata are pointers into it. Nothing here knows files; offsets in errors are those of the file
 * because the JSON starts at byte 8 of it.
 */
#include "format/header.h"

#include <string.h>

#include "base/grow.h"
#include "base/limits.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "format/header_build.h"

static const char metadata_key[] = "__metadata__";

static unsigned long long ull(uint64_t value)
{
    return value;
}

int hr_header_length(const unsigned char *prefix, size_t prefix_size, uint64_t file_size, size_t *ret_json_size,
                     struct hr_error *err)
{
    if (file_size == 0)
        return hr_fail_at(err, HR_EHEADER_TOO_SMALL, 0, "the file is empty; was its download or its writing cut off?");
    if (prefix_size < HR_HEADER_PREFIX_BYTES)
        return hr_fail_at(
            err, HR_EHEADER_TOO_SMALL, 0,
            "the file has %llu bytes; a safetensors file starts with 8 bytes that hold the header's length",
            ull(file_size));
    uint64_t json_size = 0;
    for (unsigned i = 0; i < HR_HEADER_PREFIX_BYTES; i++)
        json_size |= (uint64_t)prefix[i] << (8 * i);
    if (json_size > HR_HEADER_BYTES_MAX)
        return hr_fail_at(err, HR_EHEADER_TOO_LARGE, 0,
                          "the header's length is %llu, at most %u bytes are allowed; is this a safetensors file?",
                          ull(json_size), HR_HEADER_BYTES_MAX);
    uint64_t end = HR_HEADER_PREFIX_BYTES + json_size;
    if (end > file_size)
        return hr_fail_at(err, HR_EINVALID_HEADER_LENGTH, 0,
                          "the header ends at byte %llu but the file has %llu bytes: %llu are missing; was it cut off?",
                          ull(end), ull(file_size), ull(end - file_size));
    *ret_json_size = (size_t)json_size;
    return 0;
}

static int metadata_pairs_read(struct hr_header_build *build)
{
    struct hr_json *json = &build->json;
    struct hr_header *header = &build->header;
    int result = hr_json_enter(json, '{', "an object of strings, or null, as __metadata__");
    while (!result && (result = hr_json_more(json, '}')) > 0) {
        struct hr_json_string key, value;
        result = hr_json_key(json, &key);
        if (!result)
            result = hr_json_text(json, &value, "a string as the value of a __metadata__ key");
        if (!result)
            result = hr_grow((void **)&header->metadata, &build->metadata_capacity, header->metadata_count,
                             sizeof *header->metadata, "a header", build->err);
        if (!result)
            header->metadata[header->metadata_count++] =
                (struct hr_metadata_pair){key.bytes, key.size, value.bytes, value.size};
    }
    return result;
}

static int metadata_duplicate_fail(struct hr_header_build *build, size_t earlier, size_t later)
{
    const struct hr_metadata_pair *pairs = build->header.metadata;
    char key[128];
    hr_escape(key, sizeof key, pairs[later].key, pairs[later].key_size);
    uint64_t first = build->json.base + (uint64_t)(pairs[earlier].key - build->header.text);
    return hr_fail_at(build->err, HR_EDUPLICATE_KEY,
                      build->json.base + (uint64_t)(pairs[later].key - build->header.text),
                      "__metadata__ has the key '%s' twice, first at byte %llu", key, ull(first));
}

/* Duplicate keys: refused, or under compat the last one stays. */
static int metadata_check(struct hr_header_build *build)
{
    struct hr_header *header = &build->header;
    size_t count = header->metadata_count, earlier = 0;
    if (count < 2)
        return 0;
    struct hr_names names = {0};
    uint64_t *hashes = hr_alloc_array(count, sizeof *hashes);
    int result = hashes ? hr_names_init(&names, count) : HR_EOUT_OF_MEMORY;
    if (result) {
        hr_free(hashes);
        return hr_fail_memory(build->err, count * sizeof *hashes, "the keys of __metadata__");
    }
    for (size_t i = 0; i < count; i++)
        hashes[i] = hr_names_hash(header->metadata[i].key, header->metadata[i].key_size, build->seed);
    if (build->is_strict) {
        const struct hr_named array = {header->metadata, sizeof *header->metadata, hashes};
        size_t later = hr_names_add_all(&names, &array, count, &earlier);
        if (later != HR_NAMES_NONE)
            result = metadata_duplicate_fail(build, earlier, later);
    } else {
        header->metadata_count = hr_names_keep_last(&names, header->metadata, sizeof *header->metadata, hashes, count);
    }
    hr_names_release(&names);
    hr_free(hashes);
    return result;
}

static int outer_object_read(struct hr_header_build *build)
{
    struct hr_json *json = &build->json;
    int has_metadata = 0;
    int result = hr_json_enter(json, '{', "the header's object");
    while (!result && (result = hr_json_more(json, '}')) > 0) {
        struct hr_json_string key;
        result = hr_json_key(json, &key);
        if (result)
            return result;
        if (key.size != sizeof metadata_key - 1 || memcmp(key.bytes, metadata_key, key.size))
            result = hr_header_read_tensor(build, &key);
        else if (has_metadata++)
            result = hr_json_fail(json, key.bytes, "__metadata__ stands twice in the header");
        else
            result = hr_json_peek(json) == 'n' ? hr_json_null_value(json) : metadata_pairs_read(build);
    }
    return result ? result : hr_json_finish(json);
}

/* Room for as many tensors as such a header usually has, so that big headers seldom grow their arrays. */
static int arrays_reserve(struct hr_header_build *build, size_t json_size)
{
    struct hr_header *header = &build->header;
    size_t count = json_size / 88 + 1;
    header->tensors = hr_sys->alloc(count * sizeof *header->tensors);
    header->hashes = hr_sys->alloc(count * sizeof *header->hashes);
    header->shapes = hr_sys->alloc(2 * count * sizeof *header->shapes);
    if (!header->tensors || !header->hashes || !header->shapes)
        return hr_fail_memory(build->err, count * sizeof *header->tensors, "a header's tensors");
    build->tensor_capacity = count;
    build->shape_capacity = 2 * count;
    return 0;
}

int hr_header_parse(char *json, size_t json_size, uint64_t file_size, const struct hr_open_options *options,
                    struct hr_header *ret_header, struct hr_error *err)
{
    struct hr_header_build build = {
        .header.text = json,
        .header.data_offset = HR_HEADER_PREFIX_BYTES + json_size,
        .file_size = file_size,
        .seed = hr_names_seed(),
        .is_strict = !options || options->mode == HR_OPEN_STRICT,
        .allow_trailing = options && options->allow_trailing,
        .is_sorted = 1,
        .last_dtype_size = SIZE_MAX,
        .err = err,
    };
    hr_json_init(&build.json, json, json_size, HR_HEADER_PREFIX_BYTES, HR_EINVALID_HEADER_DESERIALIZATION, err);
    size_t valid_size = hr_utf8_valid_prefix((const unsigned char *)json, json_size);
    int result = 0;
    if (valid_size < json_size)
        result = hr_fail_at(err, HR_EINVALID_HEADER, HR_HEADER_PREFIX_BYTES + valid_size,
                            "the header is not UTF-8 from byte %llu on; the file is damaged or not a safetensors file",
                            ull(HR_HEADER_PREFIX_BYTES + valid_size));
    if (!result)
        result = arrays_reserve(&build, json_size);
    if (!result)
        result = outer_object_read(&build);
    if (!result)
        result = metadata_check(&build);
    if (!result)
        result = hr_header_check(&build);
    if (result) {
        hr_header_release(&build.header);
        return result;
    }
    *ret_header = build.header;
    return 0;
}

void hr_header_release(struct hr_header *header)
{
    hr_free(header->tensors);
    hr_free(header->hashes);
    hr_names_release(&header->names);
    hr_free(header->metadata);
    hr_free(header->text);
    hr_free(header->shapes);
    *header = (struct hr_header){0};
}
