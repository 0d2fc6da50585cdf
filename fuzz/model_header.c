/*
 * model_header.c: see model_header.h. Reading stops at the first thing that is wrong, in the order of the text.
 */
#include "model_header.h"

#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "pieces.h"

#define BAD_JSON HR_EINVALID_HEADER_DESERIALIZATION

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},   {"I8", 8},
              {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},     {"F8_E4M3FNUZ", 8}, {"I16", 16}, {"U16", 16},
              {"F16", 16},    {"BF16", 16},   {"F8_E5M2FNUZ", 8}, {"I32", 32},        {"U32", 32}, {"F32", 32},
              {"C64", 64},    {"F64", 64},    {"I64", 64},        {"U64", 64}};

struct reading {
    struct pieces pieces;
    struct model_header header;
    int is_strict;
};

static int equal(const json_t *a, const json_t *b)
{
    return json_string_length(a) == json_string_length(b) &&
           memcmp(json_string_value(a), json_string_value(b), json_string_length(a)) == 0;
}

static int is_text(const json_t *string, const char *text)
{
    return json_string_length(string) == strlen(text) && strcmp(json_string_value(string), text) == 0;
}

/* A number of digits only that fits 64 bits. */
static int read_unsigned(struct pieces *pieces, uint64_t *ret_value)
{
    char next = pieces_peek(pieces);
    size_t start = pieces->at;
    *ret_value = 0;
    if (next < '0' || next > '9' || !pieces_skip(pieces))
        return BAD_JSON;
    for (size_t i = start; i < pieces->at; i++) {
        if (pieces->text[i] < '0' || pieces->text[i] > '9')
            return BAD_JSON;
        unsigned __int128 grown = (unsigned __int128)*ret_value * 10 + (unsigned)(pieces->text[i] - '0');
        if (grown > UINT64_MAX)
            return BAD_JSON;
        *ret_value = (uint64_t)grown;
    }
    return 0;
}

static int read_numbers(struct pieces *pieces, uint64_t **ret_values, size_t *ret_count)
{
    int is_first = 1, more;
    if (!pieces_enter(pieces, '['))
        return BAD_JSON;
    while ((more = pieces_more(pieces, ']', &is_first)) > 0) {
        *ret_values = realloc(*ret_values, (*ret_count + 1) * sizeof **ret_values);
        if (read_unsigned(pieces, &(*ret_values)[*ret_count]))
            return BAD_JSON;
        ++*ret_count;
    }
    return more;
}

static int find_dtype(const json_t *name, struct model_tensor *tensor)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (is_text(name, dtypes[i].name)) {
            tensor->dtype = dtypes[i].name;
            tensor->bits = dtypes[i].bits;
            return 0;
        }
    }
    return BAD_JSON;
}

/* A name, or to the reference an object of one name and null. */
static int read_dtype(struct reading *reading, struct model_tensor *tensor)
{
    struct pieces *pieces = &reading->pieces;
    int is_object = pieces_peek(pieces) == '{', is_first = 1;
    if (is_object && (reading->is_strict || !pieces_enter(pieces, '{') || pieces_more(pieces, '}', &is_first) <= 0))
        return BAD_JSON;
    json_t *name = is_object ? pieces_key(pieces) : pieces_string(pieces);
    int code = name ? find_dtype(name, tensor) : BAD_JSON;
    json_decref(name);
    if (code || !is_object)
        return code;
    return pieces_peek(pieces) == 'n' && pieces_skip(pieces) && pieces_more(pieces, '}', &is_first) == 0 ? 0 : BAD_JSON;
}

/* Field 0, 1 or 2: dtype, shape, data_offsets. */
static int read_field(struct reading *reading, unsigned field, struct model_tensor *tensor)
{
    if (field == 0)
        return read_dtype(reading, tensor);
    if (field == 1)
        return read_numbers(&reading->pieces, &tensor->shape, &tensor->rank) ? BAD_JSON : 0;
    uint64_t *offsets = NULL;
    size_t count = 0;
    int code = read_numbers(&reading->pieces, &offsets, &count) || count != 2 ? BAD_JSON : 0;
    if (!code) {
        tensor->begin = offsets[0];
        tensor->end = offsets[1];
    }
    free(offsets);
    return code;
}

static int read_tensor_object(struct reading *reading, struct model_tensor *tensor)
{
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    struct pieces *pieces = &reading->pieces;
    int is_first = 1, more, code = 0;
    unsigned seen[3] = {0};
    if (!pieces_enter(pieces, '{'))
        return BAD_JSON;
    while (!code && (more = pieces_more(pieces, '}', &is_first))) {
        json_t *key = more > 0 ? pieces_key(pieces) : NULL;
        unsigned field = 0;
        while (key && field < 3 && !is_text(key, names[field]))
            field++;
        json_decref(key);
        if (!key)
            code = BAD_JSON;
        else if (field == 3)
            code = pieces_skip(pieces) ? 0 : BAD_JSON;
        else
            code = seen[field]++ ? BAD_JSON : read_field(reading, field, tensor);
    }
    return !code && seen[0] && seen[1] && seen[2] ? 0 : BAD_JSON;
}

static int read_tensor_array(struct reading *reading, struct model_tensor *tensor)
{
    int is_first = 1;
    if (reading->is_strict || !pieces_enter(&reading->pieces, '['))
        return BAD_JSON;
    for (unsigned field = 0; field < 3; field++)
        if (pieces_more(&reading->pieces, ']', &is_first) <= 0 || read_field(reading, field, tensor))
            return BAD_JSON;
    return pieces_more(&reading->pieces, ']', &is_first) ? BAD_JSON : 0;
}

/* Owns `name` from here on. */
static int read_tensor(struct reading *reading, json_t *name)
{
    struct model_header *header = &reading->header;
    header->tensors = realloc(header->tensors, (header->tensor_count + 1) * sizeof *header->tensors);
    struct model_tensor *tensor = &header->tensors[header->tensor_count++];
    *tensor = (struct model_tensor){.name = name};
    int code =
        pieces_peek(&reading->pieces) == '[' ? read_tensor_array(reading, tensor) : read_tensor_object(reading, tensor);
    if (code || !reading->is_strict)
        return code;
    if (memchr(json_string_value(name), '\0', json_string_length(name)))
        return HR_ENAME_HAS_NUL;
    return tensor->rank > 64 ? HR_ERANK_TOO_LARGE : 0;
}

static int read_metadata(struct reading *reading)
{
    struct pieces *pieces = &reading->pieces;
    struct model_header *header = &reading->header;
    int is_first = 1, more;
    if (pieces_peek(pieces) == 'n')
        return pieces_skip(pieces) ? 0 : BAD_JSON;
    if (!pieces_enter(pieces, '{'))
        return BAD_JSON;
    while ((more = pieces_more(pieces, '}', &is_first)) > 0) {
        json_t *key = pieces_key(pieces), *value = key ? pieces_string(pieces) : NULL;
        if (!value) {
            json_decref(key);
            return BAD_JSON;
        }
        header->metadata = realloc(header->metadata, (header->metadata_count + 1) * sizeof *header->metadata);
        header->metadata[header->metadata_count++] = (struct model_pair){key, value};
    }
    return more ? BAD_JSON : 0;
}

static int read_json(struct reading *reading)
{
    struct pieces *pieces = &reading->pieces;
    int is_first = 1, more, code = 0, metadata_count = 0;
    if (!pieces_enter(pieces, '{'))
        return BAD_JSON;
    while (!code && (more = pieces_more(pieces, '}', &is_first))) {
        json_t *key = more > 0 ? pieces_key(pieces) : NULL;
        if (!key)
            return BAD_JSON;
        if (!is_text(key, "__metadata__")) {
            code = read_tensor(reading, key);
            continue;
        }
        json_decref(key);
        code = metadata_count++ ? BAD_JSON : read_metadata(reading);
    }
    return code ? code : pieces_finish(pieces) ? 0 : BAD_JSON;
}

static void release_tensor(struct model_tensor *tensor)
{
    json_decref(tensor->name);
    free(tensor->shape);
}

/* Of equal names the last stays, or none is allowed. */
static int settle_duplicates(struct model_header *header, int is_strict)
{
    for (size_t i = 0; i < header->metadata_count; i++) {
        for (size_t k = i + 1; k < header->metadata_count; k++) {
            if (!equal(header->metadata[i].key, header->metadata[k].key))
                continue;
            if (is_strict)
                return HR_EDUPLICATE_KEY;
            json_decref(header->metadata[i].key);
            json_decref(header->metadata[i].value);
            memmove(&header->metadata[i], &header->metadata[i + 1],
                    (--header->metadata_count - i) * sizeof *header->metadata);
            k = i;
        }
    }
    for (size_t i = 0; i < header->tensor_count; i++) {
        for (size_t k = i + 1; k < header->tensor_count; k++) {
            if (!equal(header->tensors[i].name, header->tensors[k].name))
                continue;
            if (is_strict)
                return HR_EDUPLICATE_TENSOR;
            release_tensor(&header->tensors[i]);
            memmove(&header->tensors[i], &header->tensors[i + 1],
                    (--header->tensor_count - i) * sizeof *header->tensors);
            k = i;
        }
    }
    return 0;
}

static void sort_tensors(struct model_header *header)
{
    for (size_t i = 1; i < header->tensor_count; i++) {
        for (size_t k = i; k > 0; k--) {
            struct model_tensor *a = &header->tensors[k - 1], *b = &header->tensors[k];
            if (a->begin < b->begin || (a->begin == b->begin && a->end <= b->end))
                break;
            struct model_tensor swapped = *a;
            *a = *b;
            *b = swapped;
        }
    }
}

static int check_tensor(const struct model_tensor *tensor, uint64_t previous_end)
{
    unsigned __int128 bits = 1;
    if (tensor->begin != previous_end || tensor->end < tensor->begin)
        return HR_EINVALID_OFFSET;
    for (size_t d = 0; d < tensor->rank; d++) {
        bits *= tensor->shape[d];
        if (bits > UINT64_MAX)
            return HR_EVALIDATION_OVERFLOW;
    }
    bits *= tensor->bits;
    if (bits > UINT64_MAX)
        return HR_EVALIDATION_OVERFLOW;
    if (bits % 8)
        return HR_EMISALIGNED_SLICE;
    return tensor->end - tensor->begin == bits / 8 ? 0 : HR_ETENSOR_INVALID_INFO;
}

int model_header_read(const char *json, size_t json_size, uint64_t file_size, const struct model_rules *rules,
                      struct model_header *ret_header)
{
    struct reading reading = {.pieces = {.text = json, .size = json_size}, .is_strict = rules->is_strict};
    uint64_t end = 0, data_size = file_size - 8 - json_size;
    int code = pieces_are_utf8(json, json_size) ? read_json(&reading) : HR_EINVALID_HEADER;
    if (code == BAD_JSON && reading.pieces.is_unknown)
        code = MODEL_UNKNOWN;
    if (!code)
        code = settle_duplicates(&reading.header, rules->is_strict);
    if (!code)
        sort_tensors(&reading.header);
    for (size_t i = 0; !code && i < reading.header.tensor_count; i++) {
        code = check_tensor(&reading.header.tensors[i], end);
        end = reading.header.tensors[i].end;
    }
    if (!code && (end > data_size || (end < data_size && !rules->allow_trailing)))
        code = HR_EMETADATA_INCOMPLETE_BUFFER;
    *ret_header = reading.header;
    return code;
}

void model_header_release(struct model_header *header)
{
    for (size_t i = 0; i < header->tensor_count; i++)
        release_tensor(&header->tensors[i]);
    for (size_t i = 0; i < header->metadata_count; i++) {
        json_decref(header->metadata[i].key);
        json_decref(header->metadata[i].value);
    }
    free(header->tensors);
    free(header->metadata);
    *header = (struct model_header){0};
}

uint64_t model_header_end(const char *json, size_t json_size)
{
    struct reading reading = {.pieces = {.text = json, .size = json_size}};
    uint64_t end = 0;
    if (pieces_are_utf8(json, json_size) && read_json(&reading) == 0)
        for (size_t i = 0; i < reading.header.tensor_count; i++)
            end = reading.header.tensors[i].end > end ? reading.header.tensors[i].end : end;
    model_header_release(&reading.header);
    return end;
}
