/*
 * diff_report.h: what `diff` found, and how it is said.
 */
#ifndef CLI_DIFF_REPORT_H
#define CLI_DIFF_REPORT_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "output.h"

enum side { SIDE_A, SIDE_B, SIDE_COUNT };
enum verdict { VERDICT_SAME, VERDICT_ONLY_IN_A, VERDICT_ONLY_IN_B, VERDICT_DTYPE, VERDICT_SHAPE, VERDICT_BYTES };

/* One name. */
struct pair {
    const struct hr_tensor *tensors[SIDE_COUNT]; /* NULL where the side lacks it */
    enum verdict verdict;
    uint64_t element_index; /* VERDICT_BYTES: the first that differs, row-major */
    uint64_t different_bytes;
};

struct differences {
    struct pair *pairs; /* for free() */
    size_t pair_count, different_count;
};

/* Sorts the pairs by the bytes of their names and counts those that differ. */
void diff_sort(struct differences *differences);
/* Members of an object: whether all is the same, and each difference. */
void diff_json(struct json *json, const struct differences *differences);
void diff_print_json(const struct differences *differences, const struct hr_device_info *device);
void diff_print_text(const struct differences *differences, const struct hr_device_info *device);

#endif
