/*
 * fuzz_index.c: an index as text, against its rules written down once more on top of jansson.
 */
#include "fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "format/index.h"
#include "pieces.h"

#define MODEL_UNKNOWN 1

struct model_entry {
    json_t *name, *file;
};

struct model_index {
    struct pieces pieces;
    struct model_entry *entries;
    size_t count;
    int has_total;
    double total;
};

static int is_text(const json_t *string, const char *text)
{
    return json_string_length(string) == strlen(text) && strcmp(json_string_value(string), text) == 0;
}

/* The name alone and with slashes around it, so that every component has one on both sides. */
static int file_name_code(const json_t *file)
{
    const char *name = json_string_value(file);
    size_t size = json_string_length(file);
    char *framed = calloc(1, size + 3);
    FUZZ_CHECK(framed);
    framed[0] = framed[size + 1] = '/';
    memcpy(framed + 1, name, size);
    int has_drive = size > 1 && name[1] == ':' && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    int escapes = strlen(name) < size || strchr(name, '\\') || name[0] == '/' || has_drive || strstr(framed, "/../");
    free(framed);
    return escapes ? HR_EINDEX_PATH_ESCAPES : size ? 0 : HR_EINDEX_INVALID;
}

static int read_weight_map(struct model_index *model)
{
    struct pieces *pieces = &model->pieces;
    int is_first = 1, more, code = 0;
    if (!pieces_enter(pieces, '{'))
        return HR_EINDEX_INVALID;
    while (!code && (more = pieces_more(pieces, '}', &is_first))) {
        json_t *name = more > 0 ? pieces_key(pieces) : NULL, *file = name ? pieces_string(pieces) : NULL;
        if (!file) {
            json_decref(name);
            return HR_EINDEX_INVALID;
        }
        code = file_name_code(file);
        model->entries = realloc(model->entries, (model->count + 1) * sizeof *model->entries);
        model->entries[model->count++] = (struct model_entry){name, file};
    }
    return code;
}

static int read_total(struct model_index *model)
{
    json_t *value = pieces_value(&model->pieces);
    if (!value)
        return HR_EINDEX_INVALID;
    if (json_is_number(value)) {
        model->has_total = 1;
        model->total = json_number_value(value);
    }
    json_decref(value);
    return 0;
}

static int read_metadata(struct model_index *model)
{
    struct pieces *pieces = &model->pieces;
    int is_first = 1, more, code = 0, total_count = 0;
    if (pieces_peek(pieces) != '{')
        return pieces_skip(pieces) ? 0 : HR_EINDEX_INVALID;
    if (!pieces_enter(pieces, '{'))
        return HR_EINDEX_INVALID;
    while (!code && (more = pieces_more(pieces, '}', &is_first))) {
        json_t *key = more > 0 ? pieces_key(pieces) : NULL;
        if (!key)
            return HR_EINDEX_INVALID;
        int is_total = is_text(key, "total_size");
        json_decref(key);
        if (is_total)
            code = total_count++ ? HR_EDUPLICATE_KEY : read_total(model);
        else
            code = pieces_skip(pieces) ? 0 : HR_EINDEX_INVALID;
    }
    return code;
}

static int read_outer(struct model_index *model)
{
    struct pieces *pieces = &model->pieces;
    int is_first = 1, more, code = 0, map_count = 0, metadata_count = 0;
    if (!pieces_enter(pieces, '{'))
        return HR_EINDEX_INVALID;
    while (!code && (more = pieces_more(pieces, '}', &is_first))) {
        json_t *key = more > 0 ? pieces_key(pieces) : NULL;
        if (!key)
            return HR_EINDEX_INVALID;
        int is_map = is_text(key, "weight_map"), is_metadata = is_text(key, "metadata");
        json_decref(key);
        if (is_map)
            code = map_count++ ? HR_EDUPLICATE_KEY : read_weight_map(model);
        else if (is_metadata)
            code = metadata_count++ ? HR_EDUPLICATE_KEY : read_metadata(model);
        else
            code = pieces_skip(pieces) ? 0 : HR_EINDEX_INVALID;
    }
    return code ? code : map_count && pieces_finish(pieces) ? 0 : HR_EINDEX_INVALID;
}

static int model_read(struct model_index *model)
{
    if (!pieces_are_utf8(model->pieces.text, model->pieces.size))
        return HR_EINDEX_INVALID;
    int code = read_outer(model);
    if (code == HR_EINDEX_INVALID && model->pieces.is_unknown)
        return MODEL_UNKNOWN;
    for (size_t i = 0; !code && i < model->count; i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(model->entries[i].name, model->entries[k].name))
                code = HR_EDUPLICATE_KEY;
    return code;
}

static void check_index(const struct hr_index *index, const struct model_index *model)
{
    FUZZ_CHECK(index->entry_count == model->count);
    FUZZ_CHECK(model->has_total || index->total_size < 0);
    if (model->has_total)
        FUZZ_CHECK(fabs(index->total_size - model->total) <= fabs(model->total) * 1e-15 || fabs(model->total) < 1e-307);
    for (size_t i = 0; i < index->entry_count; i++) {
        const struct hr_index_entry *entry = &index->entries[i];
        const json_t *name = model->entries[i].name, *file = model->entries[i].file;
        FUZZ_CHECK(entry->name_size == json_string_length(name) && entry->file_index < index->file_count);
        FUZZ_CHECK(memcmp(entry->name, json_string_value(name), entry->name_size + 1) == 0);
        FUZZ_CHECK(hr_index_find(index, json_string_value(name), entry->name_size) == entry);
        FUZZ_CHECK(is_text(file, index->files[entry->file_index].name));
    }
    for (size_t i = 0; i < index->file_count; i++) {
        size_t users = 0;
        FUZZ_CHECK(index->files[i].name_size == strlen(index->files[i].name));
        FUZZ_CHECK(i == 0 || strcmp(index->files[i - 1].name, index->files[i].name) < 0);
        for (size_t k = 0; k < index->entry_count; k++)
            users += index->entries[k].file_index == i;
        FUZZ_CHECK(users > 0);
    }
}

static void model_release(struct model_index *model)
{
    for (size_t i = 0; i < model->count; i++) {
        json_decref(model->entries[i].name);
        json_decref(model->entries[i].file);
    }
    free(model->entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct fuzz_feed feed = {data, size};
    char *text = fuzz_rest(&feed);
    struct model_index model = {.pieces = {.text = text, .size = size}};
    struct hr_index index;
    struct hr_error err;
    int expected = model_read(&model);
    fuzz_mark(&index, sizeof index);
    int code = hr_index_parse(fuzz_rest(&feed), size, &index, &err);
    int may_differ = expected == MODEL_UNKNOWN || (code != expected && pieces_at_the_edge(text));
    FUZZ_CHECK(code == expected || may_differ);
    if (code) {
        fuzz_check_marked(&index, sizeof index);
        fuzz_check_error(&err, code, size);
        FUZZ_CHECK(hr_index_parse(fuzz_rest(&feed), size, &index, NULL) == code);
    } else {
        if (!may_differ)
            check_index(&index, &model);
        hr_index_release(&index);
    }
    model_release(&model);
    hr_free(text);
    return 0;
}
