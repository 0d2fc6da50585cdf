/*
 * comparison.h: two checkpoints, tensor by tensor of the same name, as `diff` and `convert --check` compare them.
 */
#ifndef CLI_COMPARISON_H
#define CLI_COMPARISON_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "cli_device.h"
#include "diff_report.h"
#include "progress.h"

struct comparison {
    struct hr_checkpoint *checkpoints[SIDE_COUNT];
    struct hr_loader *loader; /* of one device */
    uint64_t window_bytes;    /* for both sides together; 0: no bound */
    /* What A's side is when its tensors are not compared whole and as they are stored: items, and what they give. */
    const struct hr_item *items;
    const struct hr_tensor *tensors; /* NULL: all of the checkpoint's */
    size_t tensor_count;
    /* The rest begins as zeroes. */
    struct differences found;
    struct read_back read_backs[SIDE_COUNT];
    struct progress progress;
    struct hr_progress state; /* over all batches */
};

/* Fills `found`, sorted. A signal cancels it. */
int compare_checkpoints(struct comparison *comparison, struct hr_error *err);
/* Frees what compare_checkpoints() made, after a failure too. */
void comparison_release(struct comparison *comparison);

#endif
