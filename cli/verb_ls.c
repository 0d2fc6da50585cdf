/*
 * verb_ls.c: the table of tensors, as text or JSON, from headers only.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "output.h"
#include "request.h"

struct totals {
    uint64_t tensor_count, bytes;
};

struct listing {
    const struct hr_checkpoint *checkpoint;
    struct request request;
    struct totals by_dtype[HR_DTYPE_COUNT];
};

static const struct hr_tensor *listed_tensor(const struct listing *listing, size_t index)
{
    return hr_checkpoint_at(listing->checkpoint, listing->request.items[index].tensor_index);
}

/* Whether the tensor could be used in place: its offset is a multiple of its element size. */
static int is_aligned(const struct hr_tensor *tensor)
{
    uint32_t bits = hr_dtype_bits(tensor->dtype);
    return bits <= 8 || tensor->offset % (bits / 8) == 0;
}

static void count_totals(struct listing *listing)
{
    for (size_t i = 0; i < listing->request.item_count; i++) {
        const struct hr_tensor *tensor = listed_tensor(listing, i);
        listing->by_dtype[tensor->dtype].tensor_count++;
        listing->by_dtype[tensor->dtype].bytes += tensor->size;
    }
}

/* ------------------------------------------------------------------------------------------------ JSON */

static void json_metadata(struct json *json, const struct hr_checkpoint *checkpoint, size_t file_index)
{
    const char *key, *value;
    size_t key_size, value_size;
    json_open(json, "metadata", '{');
    for (size_t i = 0; hr_checkpoint_metadata(checkpoint, file_index, i, &key, &key_size, &value, &value_size) == 0;
         i++)
        json_pair(json, key, key_size, value, value_size);
    json_close(json, '}');
}

static void json_files(struct json *json, const struct hr_checkpoint *checkpoint)
{
    json_open(json, "files", '[');
    for (size_t i = 0; i < hr_checkpoint_file_count(checkpoint); i++) {
        const struct hr_file *file = hr_checkpoint_file(checkpoint, i);
        json_open(json, NULL, '{');
        json_string(json, "path", file->path, strlen(file->path));
        json_u64(json, "size", file->size);
        json_u64(json, "data_offset", file->data_offset);
        json_metadata(json, checkpoint, i);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void json_tensors(struct json *json, const struct listing *listing)
{
    json_open(json, "tensors", '[');
    for (size_t i = 0; i < listing->request.item_count; i++) {
        const struct hr_tensor *tensor = listed_tensor(listing, i);
        const char *path = hr_checkpoint_file(listing->checkpoint, tensor->file_index)->path;
        json_open(json, NULL, '{');
        json_string(json, "name", tensor->name, tensor->name_size);
        json_text(json, "dtype", hr_dtype_name(tensor->dtype));
        json_shape(json, "shape", tensor->shape, tensor->rank);
        json_u64(json, "bytes", tensor->size);
        json_string(json, "file", path, strlen(path));
        json_u64(json, "offset", tensor->offset);
        json_bool(json, "aligned", is_aligned(tensor));
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void json_totals(struct json *json, const struct listing *listing)
{
    json_open(json, "totals", '{');
    for (uint32_t dtype = 0; dtype < HR_DTYPE_COUNT; dtype++) {
        if (!listing->by_dtype[dtype].tensor_count)
            continue;
        json_open(json, hr_dtype_name(dtype), '{');
        json_u64(json, "tensors", listing->by_dtype[dtype].tensor_count);
        json_u64(json, "bytes", listing->by_dtype[dtype].bytes);
        json_close(json, '}');
    }
    json_close(json, '}');
}

static void print_json(const struct listing *listing)
{
    struct json json = {0};
    const char *warning;
    json_open(&json, NULL, '{');
    json_files(&json, listing->checkpoint);
    json_tensors(&json, listing);
    json_totals(&json, listing);
    json_open(&json, "warnings", '[');
    for (size_t i = 0; (warning = hr_checkpoint_warning(listing->checkpoint, i)); i++)
        json_string(&json, NULL, warning, strlen(warning));
    json_close(&json, ']');
    json_close(&json, '}');
    json_end(&json);
}

/* ------------------------------------------------------------------------------------------------ text */

/* Length of the folder that all files share, which a table need not repeat. */
static size_t common_folder_size(const struct hr_checkpoint *checkpoint)
{
    if (hr_checkpoint_file_count(checkpoint) == 0)
        return 0;
    const char *first = hr_checkpoint_file(checkpoint, 0)->path;
    const char *slash = strrchr(first, '/');
    size_t size = slash ? (size_t)(slash - first) + 1 : 0;
    for (size_t i = 1; i < hr_checkpoint_file_count(checkpoint); i++) {
        const char *path = hr_checkpoint_file(checkpoint, i)->path;
        while (size && (strncmp(first, path, size) != 0 || first[size - 1] != '/'))
            size--;
    }
    return size;
}

static void print_tensors(const struct listing *listing)
{
    static const char *const titles[] = {"NAME", "DTYPE", "SHAPE", "BYTES", "FILE", "OFFSET", "ALIGNED"};
    struct table table;
    size_t folder_size = common_folder_size(listing->checkpoint);
    table_init(&table, "lllrlrl");
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        table_addf(&table, "%s", titles[i]);
    for (size_t i = 0; i < listing->request.item_count; i++) {
        const struct hr_tensor *tensor = listed_tensor(listing, i);
        const char *path = hr_checkpoint_file(listing->checkpoint, tensor->file_index)->path + folder_size;
        table_add(&table, escape(tensor->name, tensor->name_size));
        table_addf(&table, "%s", hr_dtype_name(tensor->dtype));
        table_add(&table, shape_text(tensor->shape, tensor->rank));
        table_addf(&table, "%llu", (unsigned long long)tensor->size);
        table_add(&table, escape(path, strlen(path)));
        table_addf(&table, "%llu", (unsigned long long)tensor->offset);
        table_addf(&table, "%s", is_aligned(tensor) ? "yes" : "no");
    }
    table_print(&table, stdout);
}

static void add_totals(struct table *table, const char *title, const struct totals *totals)
{
    char text[64];
    table_addf(table, "%s", title);
    table_addf(table, "%s", human_count(text, totals->tensor_count, "tensor"));
    table_addf(table, "%llu byte%s", (unsigned long long)totals->bytes, totals->bytes == 1 ? "" : "s");
    table_addf(table, "%s", totals->bytes < 1024 ? "" : human_bytes(text, totals->bytes));
}

static void print_totals(const struct listing *listing)
{
    struct table table;
    struct totals all = {0};
    table_init(&table, "lrrr");
    for (uint32_t dtype = 0; dtype < HR_DTYPE_COUNT; dtype++) {
        if (!listing->by_dtype[dtype].tensor_count)
            continue;
        add_totals(&table, hr_dtype_name(dtype), &listing->by_dtype[dtype]);
        all.tensor_count += listing->by_dtype[dtype].tensor_count;
        all.bytes += listing->by_dtype[dtype].bytes;
    }
    add_totals(&table, "total", &all);
    table_print(&table, stdout);
}

static void print_text(const struct listing *listing)
{
    const char *warning;
    print_tensors(listing);
    putchar('\n');
    print_totals(listing);
    for (size_t i = 0; (warning = hr_checkpoint_warning(listing->checkpoint, i)); i++)
        complain("ls", "warning: %s", warning);
}

static int list(const struct open_flags *flags, const struct text_list *paths, const struct text_list *matches,
                int as_json, struct hr_error *err)
{
    struct hr_checkpoint *checkpoint;
    int code = checkpoint_open(paths->texts, paths->count, flags, &checkpoint, err);
    if (code < 0)
        return code;
    struct listing listing = {.checkpoint = checkpoint};
    code = request_make(checkpoint, matches, &(struct text_list){0}, &(struct text_list){0}, &listing.request, err);
    if (code == 0) {
        count_totals(&listing);
        if (as_json)
            print_json(&listing);
        else
            print_text(&listing);
        request_release(&listing.request);
    }
    hr_checkpoint_close(checkpoint);
    return code;
}

int ls_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct open_flags flags = {0};
    struct text_list matches = {0}, paths;
    struct hr_error err;
    int as_json = 0, code = EXIT_YES;
    const struct option options[] = {MATCH_OPTION(matches), OPEN_OPTIONS(flags), JSON_OPTION(as_json), {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){1, SIZE_MAX}, &paths, &code)) {
        text_list_release(&matches);
        return code;
    }
    if (list(&flags, &paths, &matches, as_json, &err) < 0)
        code = error_report(verb->name, as_json, &err);
    else
        code = EXIT_YES;
    text_list_release(&matches);
    text_list_release(&paths);
    return code;
}
