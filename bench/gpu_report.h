/*
 * gpu_report.h: what bench_gpu prints and writes as JSON.
 */
#ifndef BENCH_GPU_REPORT_H
#define BENCH_GPU_REPORT_H

#include "gpu_subject.h"
#include "ruler.h"

struct report {
    char device[128];
    int driver_version;
    unsigned cores;
    size_t pairs;
    uint64_t ruler_bytes;
    struct ruler_setting ruler_setting;
    double ruler_seconds[TRIALS_MAX], ruler_cpu[TRIALS_MAX];
    int has_limits;
    struct ruler_limits limits;
    struct subject *subjects;
    size_t subject_count;
};

void report_print(const struct report *report);
/* Writes the JSON to `path`. */
void report_write(const struct report *report, const char *path);

#endif
