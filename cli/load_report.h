/*
 * load_report.h: what `load` says of its loads.
 */
#ifndef CLI_LOAD_REPORT_H
#define CLI_LOAD_REPORT_H

#include <headrace/headrace.h>
#include <stddef.h>

#include "predict.h"
#include "request.h"
#include "timeline.h"

/* One load. */
struct repeat {
    struct hr_stats stats;
    double cached; /* share of the files that the page cache held before, or negative */
};

struct load_report {
    const struct job *job;
    const struct repeat *repeats;
    size_t repeat_count; /* at least 1 */
    const struct trace *trace;
    uint32_t route; /* that was asked for */
};

/* The figures are those of the median repeat. */
void load_report_json(const struct load_report *report);
void load_report_text(const struct load_report *report);

#endif
