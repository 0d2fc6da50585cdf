/*
 * fuzz_header.c: headers against the model, under both modes, with and without trailing bytes.
 *
 * Input: a byte of flags, two of a size, then a file; or with flag 1 only the JSON, whose length is put in front and
 * whose data section has the given size, or with flag 2 as well the one that its tensors ask for.
 */
#include "fuzz.h"

#include <string.h>

#include "base/sys.h"
#include "format/header.h"
#include "format/sniff.h"
#include "model_header.h"
#include "pieces.h"

enum { FLAG_JSON_ONLY = 1, FLAG_EXACT = 2 };

struct input {
    unsigned char prefix[8];
    size_t prefix_size;
    const uint8_t *json;
    size_t json_size; /* bytes that there are */
    uint64_t file_size;
};

static void check_tensors(const struct hr_header *header, const struct model_header *model, uint64_t file_size)
{
    const struct hr_named array = {header->tensors, sizeof *header->tensors, header->hashes};
    uint64_t end = header->data_offset;
    FUZZ_CHECK(header->tensor_count == model->tensor_count);
    for (size_t i = 0; i < header->tensor_count; i++) {
        const struct hr_tensor *tensor = &header->tensors[i];
        const struct model_tensor *twin = &model->tensors[i];
        FUZZ_CHECK(tensor->name_size == json_string_length(twin->name));
        FUZZ_CHECK(memcmp(tensor->name, json_string_value(twin->name), tensor->name_size + 1) == 0);
        FUZZ_CHECK(strcmp(hr_dtype_name(tensor->dtype), twin->dtype) == 0);
        FUZZ_CHECK(tensor->rank == twin->rank && tensor->file_index == 0);
        for (uint32_t d = 0; d < tensor->rank; d++)
            FUZZ_CHECK(tensor->shape[d] == twin->shape[d]);
        FUZZ_CHECK(tensor->offset == end && tensor->offset == header->data_offset + twin->begin);
        FUZZ_CHECK(tensor->size == twin->end - twin->begin);
        FUZZ_CHECK(hr_names_find(&header->names, &array, tensor->name, tensor->name_size) == i);
        end = tensor->offset + tensor->size;
    }
    FUZZ_CHECK(end <= file_size);
}

static void check_metadata(const struct hr_header *header, const struct model_header *model)
{
    FUZZ_CHECK(header->metadata_count == model->metadata_count);
    for (size_t i = 0; i < header->metadata_count; i++) {
        const struct hr_metadata_pair *pair = &header->metadata[i];
        const struct model_pair *twin = &model->metadata[i];
        FUZZ_CHECK(pair->key_size == json_string_length(twin->key));
        FUZZ_CHECK(pair->value_size == json_string_length(twin->value));
        FUZZ_CHECK(memcmp(pair->key, json_string_value(twin->key), pair->key_size + 1) == 0);
        FUZZ_CHECK(memcmp(pair->value, json_string_value(twin->value), pair->value_size + 1) == 0);
    }
}

/* An error as the catalog makes it: what else the file may be is added. */
static void check_refusal(const struct input *input, int code, int is_strict, struct hr_error *err)
{
    unsigned char start[HR_SNIFF_BYTES];
    size_t size = input->prefix_size;
    fuzz_check_error(err, code, input->file_size);
    memcpy(start, input->prefix, size);
    for (size_t i = 0; i < input->json_size && size < sizeof start; i++)
        start[size++] = input->json[i];
    int refined = hr_sniff_refine(code, start, size, is_strict, err);
    FUZZ_CHECK(refined == code || (is_strict && refined == HR_ENOT_SAFETENSORS));
    fuzz_check_error(err, refined, input->file_size);
}

/* Parses by one set of rules and compares with the model. Returns the code. */
static int parse(const struct input *input, const struct model_rules *rules)
{
    const struct fuzz_feed feed = {input->json, input->json_size};
    const struct hr_open_options options = {.size = sizeof options,
                                            .mode = rules->is_strict ? HR_OPEN_STRICT : HR_OPEN_COMPAT,
                                            .allow_trailing = (uint32_t)rules->allow_trailing};
    struct hr_header header;
    struct model_header model;
    struct hr_error err;
    char *json = fuzz_rest(&feed);
    int expected = model_header_read(json, input->json_size, input->file_size, rules, &model);
    int may_differ = expected == MODEL_UNKNOWN;
    fuzz_mark(&header, sizeof header);
    int code = hr_header_parse(fuzz_rest(&feed), input->json_size, input->file_size, &options, &header, &err);
    if (code != expected)
        may_differ |= pieces_at_the_edge(json);
    hr_free(json);
    FUZZ_CHECK(code == expected || may_differ);
    if (code) {
        fuzz_check_marked(&header, sizeof header);
        check_refusal(input, code, rules->is_strict, &err);
        FUZZ_CHECK(hr_header_parse(fuzz_rest(&feed), input->json_size, input->file_size, &options, &header, NULL) ==
                   code);
    } else {
        if (!may_differ) {
            check_tensors(&header, &model, input->file_size);
            check_metadata(&header, &model);
        }
        hr_header_release(&header);
    }
    model_header_release(&model);
    return code;
}

static void parse_all(const struct input *input)
{
    int strict = parse(input, &(struct model_rules){.is_strict = 1});
    int compat = parse(input, &(struct model_rules){0});
    int strict_trailing = parse(input, &(struct model_rules){.is_strict = 1, .allow_trailing = 1});
    int compat_trailing = parse(input, &(struct model_rules){.allow_trailing = 1});
    FUZZ_CHECK(strict || !compat);
    FUZZ_CHECK(strict || !strict_trailing);
    FUZZ_CHECK(compat || !compat_trailing);
    FUZZ_CHECK(strict_trailing || !compat_trailing);
}

/* Rule 1, then what the length says. */
static void parse_file(struct input *input, const struct fuzz_feed *file)
{
    struct hr_error err;
    size_t json_size;
    uint64_t length = 0;
    input->file_size = file->size;
    input->prefix_size = file->size < 8 ? file->size : 8;
    if (input->prefix_size)
        memcpy(input->prefix, file->data, input->prefix_size);
    for (size_t i = 0; i < input->prefix_size; i++)
        length |= (uint64_t)input->prefix[i] << (8 * i);
    fuzz_mark(&json_size, sizeof json_size);
    int code = hr_header_length(input->prefix, input->prefix_size, input->file_size, &json_size, &err);
    int expected = file->size < 8              ? HR_EHEADER_TOO_SMALL
                   : length > 100000000        ? HR_EHEADER_TOO_LARGE
                   : length > (file->size - 8) ? HR_EINVALID_HEADER_LENGTH
                                               : 0;
    FUZZ_CHECK(code == expected);
    input->json = file->data + input->prefix_size;
    input->json_size = file->size - input->prefix_size;
    if (code) {
        fuzz_check_marked(&json_size, sizeof json_size);
        check_refusal(input, code, 0, &err);
        return;
    }
    FUZZ_CHECK(json_size == length);
    input->json_size = json_size;
    parse_all(input);
}

static void parse_json(struct input *input, const struct fuzz_feed *feed, uint64_t data_size, int is_exact)
{
    if (is_exact) {
        char *json = fuzz_rest(feed);
        uint64_t end = model_header_end(json, feed->size);
        data_size = end < INT64_MAX ? end : data_size;
        hr_free(json);
    }
    for (size_t i = 0; i < 8; i++)
        input->prefix[i] = (unsigned char)((uint64_t)feed->size >> (8 * i));
    input->prefix_size = 8;
    input->json = feed->data;
    input->json_size = feed->size;
    input->file_size = 8 + feed->size + data_size;
    parse_all(input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_feed feed = {data, size};
    struct input input = {0};
    uint8_t flags = fuzz_byte(&feed);
    uint64_t data_size = fuzz_byte(&feed);
    data_size |= (uint64_t)fuzz_byte(&feed) << 8;
    if (flags & FLAG_JSON_ONLY)
        parse_json(&input, &feed, data_size, flags & FLAG_EXACT);
    else
        parse_file(&input, &feed);
    return 0;
}
