/*
 * convert_report.h: what `convert` says of what it has written.
 */
#ifndef CLI_CONVERT_REPORT_H
#define CLI_CONVERT_REPORT_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "diff_report.h"

struct convert_report {
    const struct hr_writer *writer; /* finished */
    const char *opens;              /* the file, or the index of several */
    size_t tensor_count;
    uint64_t bytes;           /* of tensors, as they were written */
    uint64_t bytes_converted; /* of tensors that got another dtype, as they were read */
    uint64_t elapsed_ns;
    const struct hr_device_info *device;
    const struct differences *found; /* by --check; else NULL */
};

void convert_report_json(const struct convert_report *report);
void convert_report_text(const struct convert_report *report);

#endif
