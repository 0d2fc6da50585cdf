/*
 * shards.h: reads and parses the headers of many files at once.
 */
#ifndef HR_CATALOG_SHARDS_H
#define HR_CATALOG_SHARDS_H

#include <headrace/headrace.h>

#include "catalog/checkpoint.h"
#include "format/header.h"

struct hr_shard {
    struct hr_header header;
    struct hr_identity identity;
};

/*
 * Fills `count` shards, which the caller zeroed and releases, success or not. Of several errors the first in the
 * order of files is reported, whichever thread met it.
 */
int hr_shards_read(const struct hr_json_string *files, size_t count, const struct hr_open_options *options,
                   struct hr_shard *shards, struct hr_error *err);

#endif
