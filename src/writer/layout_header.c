/*
 * layout_header.c: headers and indexes as text. A header is spelled as the reference writer spells it: no white space,
 * __metadata__ first, its escapes (the short ones where JSON has them), blanks up to a multiple of 8.
 */
#include <string.h>

#include "base/limits.h"
#include "format/header.h"
#include "writer/layout.h"

/* Short escapes by character; what else is below a blank is \u00xx, and nothing else is escaped. */
static void quote_character(struct hr_text *text, unsigned char c)
{
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = memchr(special, c, sizeof special - 1);
    if (found)
        hr_text_printf(text, "\\%c", letters[found - special]);
    else
        hr_text_printf(text, "\\u%04x", c);
}

static void quote(struct hr_text *text, const char *value, size_t size)
{
    size_t plain = 0; /* where the characters begin that stand for themselves */
    hr_text_add(text, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)value[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        hr_text_add(text, value + plain, i - plain);
        quote_character(text, c);
        plain = i + 1;
    }
    if (size > plain)
        hr_text_add(text, value + plain, size - plain);
    hr_text_add(text, "\"", 1);
}

static void add_metadata(struct hr_text *text, const struct hr_metadata *metadata, size_t count)
{
    hr_text_printf(text, "\"__metadata__\":{");
    for (size_t i = 0; i < count; i++) {
        if (i)
            hr_text_add(text, ",", 1);
        quote(text, metadata[i].key, metadata[i].key_size);
        hr_text_add(text, ":", 1);
        quote(text, metadata[i].value, metadata[i].value_size);
    }
    hr_text_add(text, "}", 1);
}

static void add_tensor(struct hr_text *text, const struct hr_tensor *tensor)
{
    quote(text, tensor->name, tensor->name_size);
    hr_text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", hr_dtype_name(tensor->dtype));
    for (uint32_t i = 0; i < tensor->rank; i++)
        hr_text_printf(text, i ? ",%llu" : "%llu", (unsigned long long)tensor->shape[i]);
    hr_text_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)tensor->offset,
                   (unsigned long long)(tensor->offset + tensor->size));
}

/* Blanks until length and JSON together are a multiple of `unit`. */
static void pad(struct hr_text *text, uint64_t unit)
{
    static const char blanks[] = "                                                                ";
    size_t missing = (size_t)((unit - text->size % unit) % unit);
    for (size_t part; missing > 0 && !text->failed; missing -= part) {
        part = missing < sizeof blanks - 1 ? missing : sizeof blanks - 1;
        hr_text_add(text, blanks, part);
    }
}

int hr_layout_header(const struct hr_layout *layout, struct hr_layout_file *file,
                     const struct hr_write_options *options, struct hr_error *err)
{
    struct hr_text text = {0};
    unsigned char prefix[HR_HEADER_PREFIX_BYTES] = {0};
    hr_text_add(&text, (const char *)prefix, sizeof prefix);
    hr_text_add(&text, "{", 1);
    if (options->metadata)
        add_metadata(&text, options->metadata, options->metadata_count);
    for (size_t i = 0; i < file->count; i++) {
        if (i || options->metadata)
            hr_text_add(&text, ",", 1);
        add_tensor(&text, &layout->tensors[layout->order[file->first + i]]);
    }
    hr_text_add(&text, "}", 1);
    pad(&text, options->align ? options->align : HR_HEADER_PREFIX_BYTES);
    uint64_t size = text.size, json_size = size - sizeof prefix;
    if (text.failed) {
        hr_text_release(&text);
        return hr_fail_memory(err, size, "a header");
    }
    if (json_size > HR_HEADER_BYTES_MAX) {
        hr_text_release(&text);
        return hr_fail(
            err, HR_EHEADER_TOO_LARGE,
            "the header of %zu tensors would have %llu bytes, at most %u are allowed; spread them over files",
            file->count, (unsigned long long)json_size, HR_HEADER_BYTES_MAX);
    }
    memcpy(text.bytes, &json_size, sizeof prefix); /* little-endian, as all machines that this runs on */
    file->header = hr_text_take(&text);
    file->data_offset = size;
    return file->header ? 0 : hr_fail_memory(err, size, "a header");
}

int hr_layout_index(const struct hr_layout *layout, const char *const *file_names, struct hr_text *ret_text,
                    struct hr_error *err)
{
    struct hr_text text = {0};
    hr_text_printf(&text, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
                   (unsigned long long)layout->data_bytes);
    for (size_t i = 0; i < layout->tensor_count; i++) {
        const struct hr_tensor *tensor = &layout->tensors[i];
        hr_text_printf(&text, i ? ",\n    " : "\n    ");
        quote(&text, tensor->name, tensor->name_size);
        hr_text_add(&text, ": ", 2);
        quote(&text, file_names[tensor->file_index], strlen(file_names[tensor->file_index]));
    }
    hr_text_printf(&text, "\n  }\n}\n");
    if (text.failed) {
        hr_text_release(&text);
        return hr_fail_memory(err, text.size, "an index");
    }
    *ret_text = text;
    return 0;
}
