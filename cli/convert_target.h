/*
 * convert_target.h: where `convert` writes to, and what already stands there. Nothing is replaced that would be missed,
 * and nothing is written that would not be found: what lies in the way is named before a byte is moved.
 */
#ifndef CLI_CONVERT_TARGET_H
#define CLI_CONVERT_TARGET_H

#include <headrace/headrace.h>
#include <stddef.h>

#include "options.h"

struct convert_target {
    char *path;         /* as the writer gets it: OUT, or model.safetensors in the folder OUT. For free() */
    char *index_path;   /* of the index, if there will be one. For free() */
    const char *folder; /* OUT, where that is a folder; else NULL. Borrowed */
};

int convert_target_init(struct convert_target *target, const char *operand, struct hr_error *err);
void convert_target_release(struct convert_target *target);
/* What opens as the checkpoint that was written. */
const char *convert_target_opens(const struct convert_target *target, const struct hr_writer *writer);

/* What is converted, for what must not be lost. */
struct convert_origin {
    const struct hr_checkpoint *checkpoint;
    const struct text_list *paths;
    int is_kept; /* every tensor is written as it is */
};

/*
 * HR_EINVALID_ARGUMENT, with the file, where writing would replace files of the origin by less, or would leave files
 * beside the new ones that make another checkpoint of them. *ret_in_place: the origin's one file is replaced by the same
 * tensors.
 */
int convert_target_check(const struct convert_target *target, const struct hr_writer *writer,
                         const struct convert_origin *origin, int *ret_in_place, struct hr_error *err);

#endif
