/*
 * index.c: reads weight_map and metadata.total_size, passes over the rest. File names are checked as they are
 * written: an index may only name files in its folder or below, whatever the file system would make of the name.
 */
#include "format/index.h"

#include <string.h>

#include "base/grow.h"
#include "base/limits.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "format/json.h"

struct build {
    struct hr_json json;
    struct hr_index index;
    size_t entry_capacity, file_capacity, file_hash_capacity;
    uint64_t *file_hashes;
    struct hr_names file_names;
    uint64_t seed;
    struct hr_error *err;
};

/* Why a file name leaves the index's folder, or NULL. */
static const char *escape_reason(const char *name, size_t size)
{
    if (memchr(name, '\0', size))
        return "it contains a NUL character";
    if (memchr(name, '\\', size))
        return "it contains a backslash";
    if (name[0] == '/')
        return "it is absolute";
    if (size >= 2 && ((name[0] | 0x20) >= 'a' && (name[0] | 0x20) <= 'z') && name[1] == ':')
        return "it starts with a drive";
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == '\0'))
            return "it has a '..' component";
    }
    return NULL;
}

static int file_name_check(struct build *build, const struct hr_json_string *name)
{
    const char *reason = escape_reason(name->bytes, name->size);
    if (name->size == 0)
        return hr_json_fail(&build->json, name->bytes, "an empty file name in weight_map");
    if (!reason)
        return 0;
    char text[256];
    return hr_fail_at(build->err, HR_EINDEX_PATH_ESCAPES, (uint64_t)(name->bytes - build->json.text),
                      "weight_map names the file '%s', which is refused because %s; only files in the index's folder "
                      "or below it may be named",
                      hr_escape(text, sizeof text, name->bytes, name->size), reason);
}

/* The file's place in the order of the text. Neighbouring tensors mostly lie in the same file. */
static int file_find_or_add(struct build *build, const struct hr_json_string *name, size_t *ret_place)
{
    struct hr_index *index = &build->index;
    const struct hr_index_entry *last = index->entry_count ? &index->entries[index->entry_count - 1] : NULL;
    const struct hr_index_file *last_file = last ? &index->files[last->file_index] : NULL;
    if (last_file && last_file->name_size == name->size && memcmp(last_file->name, name->bytes, name->size) == 0) {
        *ret_place = last->file_index;
        return 0;
    }
    int result = file_name_check(build, name);
    if (!result)
        result = hr_grow((void **)&index->files, &build->file_capacity, index->file_count, sizeof *index->files,
                         "an index", build->err);
    if (!result)
        result = hr_grow((void **)&build->file_hashes, &build->file_hash_capacity, index->file_count,
                         sizeof *build->file_hashes, "an index", build->err);
    if (result)
        return result;
    index->files[index->file_count] = (struct hr_index_file){name->bytes, name->size, index->file_count};
    build->file_hashes[index->file_count] = hr_names_hash(name->bytes, name->size, build->seed);
    const struct hr_named array = {index->files, sizeof *index->files, build->file_hashes};
    *ret_place = hr_names_add(&build->file_names, &array, index->file_count);
    if (*ret_place == index->file_count && ++index->file_count > HR_FILE_COUNT_MAX)
        return hr_fail(build->err, HR_ELIMIT_EXCEEDED, "the index names more than %u files", HR_FILE_COUNT_MAX);
    return 0;
}

static int entry_read(struct build *build)
{
    struct hr_index *index = &build->index;
    struct hr_json_string name, file;
    size_t place = 0;
    int result = hr_json_key(&build->json, &name);
    if (!result)
        result = hr_json_text(&build->json, &file, "a file name as the value of a weight_map key");
    if (!result)
        result = file_find_or_add(build, &file, &place);
    if (!result)
        result = hr_grow((void **)&index->entries, &build->entry_capacity, index->entry_count, sizeof *index->entries,
                         "an index", build->err);
    if (result)
        return result;
    index->entries[index->entry_count++] = (struct hr_index_entry){name.bytes, name.size, place};
    return 0;
}

/* The file table is sized once for as many files as the text can name and the limit allows. */
static int weight_map_read(struct build *build)
{
    size_t most_files = (size_t)(build->json.end - build->json.at) / 6 + 1;
    if (most_files > HR_FILE_COUNT_MAX)
        most_files = HR_FILE_COUNT_MAX + 1;
    if (hr_names_init(&build->file_names, most_files))
        return hr_fail_memory(build->err, most_files * 2 * sizeof *build->file_names.slots, "an index");
    int result = hr_json_enter(&build->json, '{', "an object from tensors to file names as weight_map");
    while (!result && (result = hr_json_more(&build->json, '}')) > 0)
        result = entry_read(build);
    return result;
}

static int duplicate_fail(struct build *build, const char *key, size_t size)
{
    char text[256];
    return hr_fail_at(build->err, HR_EDUPLICATE_KEY, (uint64_t)(key - build->json.text),
                      "the index has the key '%s' twice", hr_escape(text, sizeof text, key, size));
}

static int key_is(const struct hr_json_string *key, const char *name)
{
    return key->size == strlen(name) && memcmp(key->bytes, name, key->size) == 0;
}

static int total_size_read(struct build *build)
{
    struct hr_json_number number;
    char next = hr_json_peek(&build->json);
    if (next != '-' && (next < '0' || next > '9'))
        return hr_json_skip(&build->json);
    int result = hr_json_number(&build->json, &number);
    if (!result)
        build->index.total_size = number.value;
    return result;
}

static int metadata_read(struct build *build)
{
    struct hr_json *json = &build->json;
    int has_total_size = 0;
    if (hr_json_peek(json) != '{')
        return hr_json_skip(json);
    int result = hr_json_enter(json, '{', "metadata");
    while (!result && (result = hr_json_more(json, '}')) > 0) {
        struct hr_json_string key;
        result = hr_json_key(json, &key);
        if (result)
            return result;
        if (!key_is(&key, "total_size"))
            result = hr_json_skip(json);
        else
            result = has_total_size++ ? duplicate_fail(build, key.bytes, key.size) : total_size_read(build);
    }
    return result;
}

static int outer_object_read(struct build *build)
{
    struct hr_json *json = &build->json;
    int has_weight_map = 0, has_metadata = 0;
    int result = hr_json_enter(json, '{', "the index's object");
    while (!result && (result = hr_json_more(json, '}')) > 0) {
        struct hr_json_string key;
        result = hr_json_key(json, &key);
        if (result)
            return result;
        int is_weight_map = key_is(&key, "weight_map"), is_metadata = key_is(&key, "metadata");
        if ((is_weight_map && has_weight_map++) || (is_metadata && has_metadata++))
            return duplicate_fail(build, key.bytes, key.size);
        if (is_weight_map)
            result = weight_map_read(build);
        else
            result = is_metadata ? metadata_read(build) : hr_json_skip(json);
    }
    if (!result)
        result = hr_json_finish(json);
    if (!result && !has_weight_map)
        result = hr_fail(build->err, HR_EINDEX_INVALID, "the index has no weight_map; is this file an index?");
    return result;
}

static int names_build(struct build *build)
{
    struct hr_index *index = &build->index;
    size_t count = index->entry_count, earlier;
    index->hashes = hr_alloc_array(count, sizeof *index->hashes);
    if (!index->hashes || hr_names_init(&index->names, count))
        return hr_fail_memory(build->err, count * 2 * sizeof *index->hashes, "an index's names");
    for (size_t i = 0; i < count; i++)
        index->hashes[i] = hr_names_hash(index->entries[i].name, index->entries[i].name_size, build->seed);
    const struct hr_named array = {index->entries, sizeof *index->entries, index->hashes};
    size_t later = hr_names_add_all(&index->names, &array, count, &earlier);
    if (later == HR_NAMES_NONE)
        return 0;
    const struct hr_index_entry *entry = &index->entries[later];
    int result = duplicate_fail(build, entry->name, entry->name_size);
    hr_error_in_tensor(build->err, entry->name, entry->name_size);
    return result;
}

static int files_sort(struct build *build)
{
    struct hr_index *index = &build->index;
    size_t *moved = hr_alloc_array(index->file_count, sizeof *moved);
    if (!moved)
        return hr_fail_memory(build->err, index->file_count * sizeof *moved, "an index's files");
    hr_names_sort(index->files, sizeof *index->files, index->file_count);
    for (size_t i = 0; i < index->file_count; i++)
        moved[index->files[i].first_place] = i;
    for (size_t i = 0; i < index->entry_count; i++)
        index->entries[i].file_index = moved[index->entries[i].file_index];
    hr_free(moved);
    return 0;
}

int hr_index_parse(char *text, size_t size, struct hr_index *ret_index, struct hr_error *err)
{
    struct build build = {.index = {.text = text, .total_size = -1}, .seed = hr_names_seed(), .err = err};
    int result = 0;
    size_t valid_size = hr_utf8_valid_prefix((const unsigned char *)text, size);
    hr_json_init(&build.json, text, size, 0, HR_EINDEX_INVALID, err);
    if (valid_size < size)
        result = hr_fail_at(err, HR_EINDEX_INVALID, valid_size, "the index is not UTF-8");
    if (!result)
        result = outer_object_read(&build);
    if (!result)
        result = names_build(&build);
    if (!result)
        result = files_sort(&build);
    hr_names_release(&build.file_names);
    hr_free(build.file_hashes);
    if (result) {
        hr_index_release(&build.index);
        return result;
    }
    *ret_index = build.index;
    return 0;
}

void hr_index_release(struct hr_index *index)
{
    hr_free(index->entries);
    hr_free(index->hashes);
    hr_names_release(&index->names);
    hr_free(index->files);
    hr_free(index->text);
    *index = (struct hr_index){0};
}

const struct hr_index_entry *hr_index_find(const struct hr_index *index, const char *name, size_t name_size)
{
    const struct hr_named array = {index->entries, sizeof *index->entries, index->hashes};
    size_t found = hr_names_find(&index->names, &array, name, name_size);
    return found == HR_NAMES_NONE ? NULL : &index->entries[found];
}
