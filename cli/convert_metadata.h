/*
 * convert_metadata.h: the __metadata__ of what `convert` writes: that of all files that are read, and what is given.
 */
#ifndef CLI_CONVERT_METADATA_H
#define CLI_CONVERT_METADATA_H

#include <headrace/headrace.h>
#include <stddef.h>

#include "options.h"

struct metadata_list {
    struct hr_metadata *pairs; /* for free(); the texts are borrowed from the checkpoint and the arguments */
    size_t count;
};

/*
 * Each key once: `given`, which are KEY=VALUE and win, then pairs in the order of the files. HR_EINVALID_ARGUMENT where one is not
 * of that form, and where two files give a key different values and none is given.
 */
int metadata_merge(const struct hr_checkpoint *checkpoint, const struct text_list *given,
                   struct metadata_list *ret_list, struct hr_error *err);

#endif
