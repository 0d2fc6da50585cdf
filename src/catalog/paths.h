/*
 * paths.h: from what the caller named to the files of a checkpoint: a file, a list, a folder, an index.
 */
#ifndef HR_CATALOG_PATHS_H
#define HR_CATALOG_PATHS_H

#include <headrace/headrace.h>

#include "format/index.h"

struct hr_paths {
    struct hr_json_string *files; /* each owned, in the order of the checkpoint */
    size_t file_count;
    char *index_path; /* NULL: there is no index */
    struct hr_index index;
};

/* Reads folders and the index, opens no tensor file. On success the caller releases *ret_paths. */
int hr_paths_resolve(const char *const *paths, size_t path_count, struct hr_paths *ret_paths, struct hr_error *err);
void hr_paths_release(struct hr_paths *paths);
/* HR_ESHARD_MISSING naming the files of the index that do not exist, or 0. */
int hr_paths_check_missing(const struct hr_paths *paths, struct hr_error *err);

#endif
