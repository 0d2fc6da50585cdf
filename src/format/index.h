/*
 * index.h: a *.safetensors.index.json as a table from tensors to files. Pure: bytes in, table out; whether the
 * files exist and hold what the index says is the catalog's to find out.
 */
#ifndef HR_FORMAT_INDEX_H
#define HR_FORMAT_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "format/names.h"

struct hr_index_entry {
    const char *name; /* of a tensor; borrowed from the index's text */
    size_t name_size;
    size_t file_index;
};

struct hr_index_file {
    const char *name; /* relative, inside the index's folder as written */
    size_t name_size;
    size_t first_place; /* among the files in the order of the text */
};

struct hr_index {
    struct hr_index_entry *entries; /* in the order of the text */
    uint64_t *hashes;
    size_t entry_count;
    struct hr_names names;       /* from tensors to entries */
    struct hr_index_file *files; /* each once, sorted by their bytes */
    size_t file_count;
    double total_size; /* metadata.total_size, or negative: there is none. Advisory */
    char *text;
};

/* `text` (size bytes; one more is written) is owned by the index from the call on, success or not. */
int hr_index_parse(char *text, size_t size, struct hr_index *ret_index, struct hr_error *err);
void hr_index_release(struct hr_index *index);
/* The tensor's entry, or NULL. */
const struct hr_index_entry *hr_index_find(const struct hr_index *index, const char *name, size_t name_size);

#endif
