/*
 * header_tensor.c: one tensor of a header. Nearly every writer emits the three fields in the same order without
 * white space: that form is read straight through; whatever differs in one byte is read again in full by the
 * scanner, which also makes the errors. The straight reader changes no byte, so nothing has to be undone.
 */
#include "format/header_build.h"

#include <string.h>

#include "base/grow.h"
#include "base/limits.h"

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

/* The value of at most 19 digits without leading zero; NULL for any other text. */
static const char *digits_read(const char *at, uint64_t *ret_value)
{
    const char *start = at;
    uint64_t value = 0;
    for (; (unsigned char)(*at - '0') <= 9; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    *ret_value = value;
    return at == start || at - start > 19 || (*start == '0' && at - start > 1) ? NULL : at;
}

/* Moves past `expected`, or gives NULL. The text's final NUL ends the comparison. */
static const char *pass(const char *at, const char *end, const char *expected, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, expected, size) == 0 ? at + size : NULL;
}
#define PASS(at, end, literal) pass(at, end, literal, sizeof literal - 1)

static int shape_append(struct hr_header_build *build, uint64_t extent)
{
    if (build->shape_count == build->shape_capacity) {
        int result = hr_grow((void **)&build->header.shapes, &build->shape_capacity, build->shape_count,
                             sizeof *build->header.shapes, "a header", build->err);
        if (result)
            return result;
    }
    build->header.shapes[build->shape_count++] = extent;
    return 0;
}

/* Neighbouring tensors mostly have the same dtype. */
static uint32_t dtype_find(struct hr_header_build *build, const char *name, size_t size)
{
    if (size != build->last_dtype_size || memcmp(hr_dtype_name(build->last_dtype), name, size)) {
        build->last_dtype = hr_dtype_find(name, size);
        build->last_dtype_size = build->last_dtype ? size : SIZE_MAX;
    }
    return build->last_dtype;
}

/* The extents behind a '[' and its ']'; NULL for another form or, with *ret_result set, without memory. */
static const char *usual_shape_read(struct hr_header_build *build, const char *at, int *ret_result)
{
    if (*at == ']')
        return at + 1;
    for (;;) {
        uint64_t extent;
        if (!(at = digits_read(at, &extent)) || (*at != ',' && *at != ']'))
            return NULL;
        if ((*ret_result = shape_append(build, extent)))
            return NULL;
        if (*at++ == ']')
            return at;
    }
}

static const char *usual_dtype_read(struct hr_header_build *build, const char *at, uint32_t *ret_dtype)
{
    const char *name = at;
    while (*at != '"' && (unsigned char)*at > ' ')
        at++;
    *ret_dtype = dtype_find(build, name, (size_t)(at - name));
    return *ret_dtype ? at : NULL;
}

/* The usual form. 1: read; 0: another form, nothing consumed; negative: no memory. */
static int tensor_read_usual(struct hr_header_build *build, struct hr_tensor *tensor)
{
    const char *at = build->json.at, *end = build->json.end;
    size_t shape_start = build->shape_count;
    int result = 0;
    if ((at = PASS(at, end, "{\"dtype\":\"")) && (at = usual_dtype_read(build, at, &tensor->dtype)) &&
        (at = PASS(at, end, "\",\"shape\":[")) && (at = usual_shape_read(build, at, &result)) &&
        (at = PASS(at, end, ",\"data_offsets\":[")) && (at = digits_read(at, &tensor->offset)) && *at == ',' &&
        (at = digits_read(at + 1, &tensor->size)) && (at = PASS(at, end, "]}"))) {
        tensor->rank = (uint32_t)(build->shape_count - shape_start);
        build->json.at += at - build->json.at;
        return 1;
    }
    build->shape_count = shape_start;
    return result;
}

static int dtype_read(struct hr_header_build *build, struct hr_tensor *tensor)
{
    struct hr_json *json = &build->json;
    struct hr_json_string name;
    int is_object = hr_json_peek(json) == '{';
    const char *start = json->at;
    int result = 0;
    if (is_object && build->is_strict)
        return hr_json_fail(json, start, "a dtype must be a string, not an object");
    if (is_object && !(result = hr_json_enter(json, '{', "a dtype")))
        result = hr_json_more(json, '}') > 0 ? hr_json_key(json, &name) : hr_json_fail(json, start, "an empty dtype");
    else if (!result)
        result = hr_json_text(json, &name, "a dtype in double quotes");
    if (result)
        return result;
    tensor->dtype = dtype_find(build, name.bytes, name.size);
    if (!tensor->dtype) {
        char text[64];
        return hr_json_fail(json, name.bytes,
                            "unknown dtype '%s'; known are BOOL, F4 to F64, BF16, C64, I8 to I64, U8 to U64",
                            hr_escape(text, sizeof text, name.bytes, name.size));
    }
    if (is_object && !(result = hr_json_null_value(json)) && hr_json_more(json, '}'))
        result = hr_json_fail(json, start, "a dtype as an object must have one key");
    return result;
}

static int shape_read(struct hr_header_build *build, struct hr_tensor *tensor)
{
    struct hr_json *json = &build->json;
    size_t shape_start = build->shape_count;
    int result = hr_json_enter(json, '[', "a shape, an array of unsigned integers,");
    while (!result && (result = hr_json_more(json, ']')) > 0) {
        uint64_t extent;
        result = hr_json_unsigned(json, &extent);
        if (!result)
            result = shape_append(build, extent);
    }
    tensor->rank = (uint32_t)(build->shape_count - shape_start);
    return result;
}

static int offsets_read(struct hr_header_build *build, struct hr_tensor *tensor)
{
    struct hr_json *json = &build->json;
    uint64_t *const values[] = {&tensor->offset, &tensor->size};
    size_t count = 0;
    int result = hr_json_enter(json, '[', "data_offsets, an array of two unsigned integers,");
    const char *start = json->at;
    while (!result && (result = hr_json_more(json, ']')) > 0) {
        if (count == 2)
            return hr_json_fail(json, json->at, "data_offsets must be two integers, begin and end");
        result = hr_json_unsigned(json, values[count++]);
    }
    if (!result && count < 2)
        return hr_json_fail(json, start, "data_offsets must be two integers, begin and end");
    return result;
}

static int field_read(struct hr_header_build *build, const struct hr_json_string *key, struct hr_tensor *tensor,
                      unsigned *seen)
{
    static const struct {
        const char *name;
        unsigned bit;
        int (*read)(struct hr_header_build *build, struct hr_tensor *tensor);
    } fields[] = {{"dtype", HAS_DTYPE, dtype_read},
                  {"shape", HAS_SHAPE, shape_read},
                  {"data_offsets", HAS_OFFSETS, offsets_read}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].name) != key->size || memcmp(fields[i].name, key->bytes, key->size))
            continue;
        if (*seen & fields[i].bit)
            return hr_json_fail(&build->json, key->bytes, "the field '%s' stands twice", fields[i].name);
        *seen |= fields[i].bit;
        return fields[i].read(build, tensor);
    }
    return hr_json_skip(&build->json);
}

static int tensor_read_object(struct hr_header_build *build, struct hr_tensor *tensor)
{
    struct hr_json *json = &build->json;
    unsigned seen = 0;
    int result = hr_json_enter(json, '{', "a tensor's object");
    const char *start = json->at;
    while (!result && (result = hr_json_more(json, '}')) > 0) {
        struct hr_json_string key;
        result = hr_json_key(json, &key);
        if (!result)
            result = field_read(build, &key, tensor, &seen);
    }
    if (!result && seen != HAS_ALL)
        return hr_json_fail(json, start, "the field '%s' is missing",
                            !(seen & HAS_DTYPE)   ? "dtype"
                            : !(seen & HAS_SHAPE) ? "shape"
                                                  : "data_offsets");
    return result;
}

/* The reference takes a tensor as an array of its three fields; strict mode does not. */
static int tensor_read_array(struct hr_header_build *build, struct hr_tensor *tensor)
{
    static int (*const readers[])(struct hr_header_build *, struct hr_tensor *) = {dtype_read, shape_read,
                                                                                   offsets_read};
    struct hr_json *json = &build->json;
    const char *start = json->at;
    if (build->is_strict)
        return hr_json_fail(json, start, "a tensor must be an object, not an array");
    size_t count = 0;
    int result = hr_json_enter(json, '[', "a tensor");
    while (!result && (result = hr_json_more(json, ']')) > 0)
        result = count < 3 ? readers[count++](build, tensor) : hr_json_fail(json, json->at, "a fourth field");
    if (!result && count < 3)
        return hr_json_fail(json, start, "a tensor as an array must have three fields");
    return result;
}

/* What strict mode refuses of a tensor by itself. */
static int tensor_check_strict(struct hr_header_build *build, const struct hr_tensor *tensor)
{
    uint64_t at = build->json.base + (uint64_t)(tensor->name - build->json.text);
    if (memchr(tensor->name, '\0', tensor->name_size))
        return hr_fail_at(build->err, HR_ENAME_HAS_NUL, at, "a tensor's name contains a NUL character");
    if (tensor->rank > HR_RANK_MAX)
        return hr_fail_at(build->err, HR_ERANK_TOO_LARGE, at, "a tensor has %u dimensions, at most %d are allowed",
                          tensor->rank, HR_RANK_MAX);
    return 0;
}

int hr_header_read_tensor(struct hr_header_build *build, const struct hr_json_string *name)
{
    struct hr_header *header = &build->header;
    if (header->tensor_count == build->tensor_capacity) {
        size_t hash_capacity = build->tensor_capacity;
        int result = hr_grow((void **)&header->hashes, &hash_capacity, header->tensor_count, sizeof *header->hashes,
                             "a header", build->err);
        if (!result)
            result = hr_grow((void **)&header->tensors, &build->tensor_capacity, header->tensor_count,
                             sizeof *header->tensors, "a header", build->err);
        if (result)
            return result;
    }
    struct hr_tensor *tensor = &header->tensors[header->tensor_count];
    *tensor = (struct hr_tensor){.name = name->bytes, .name_size = name->size};
    int result = tensor_read_usual(build, tensor);
    if (result == 0)
        result =
            hr_json_peek(&build->json) == '[' ? tensor_read_array(build, tensor) : tensor_read_object(build, tensor);
    if (result >= 0 && build->is_strict)
        result = tensor_check_strict(build, tensor);
    if (result < 0) {
        hr_error_in_tensor(build->err, name->bytes, name->size);
        return result;
    }
    header->hashes[header->tensor_count] = hr_names_hash(name->bytes, name->size, build->seed);
    if (header->tensor_count++ > 0 &&
        (tensor->offset < tensor[-1].offset || (tensor->offset == tensor[-1].offset && tensor->size < tensor[-1].size)))
        build->is_sorted = 0;
    return 0;
}
