/*
 * cold_report.h: what bench_cold measured, in lines and as JSON.
 */
#ifndef BENCH_COLD_REPORT_H
#define BENCH_COLD_REPORT_H

#include "cold_subject.h"

enum { COLD_DEVICES_MAX = 2, COLD_ROUTES = 3 };

/* A part that was not measured has no rounds. Of each device in the order of `devices`. */
struct cold_report {
    const char *devices[COLD_DEVICES_MAX];
    size_t device_count;
    const struct hr_checkpoint *checkpoint;
    uint64_t file_bytes;
    double setting_rates[RAW_SETTINGS]; /* medians of the sweep, bytes a second */
    size_t setting;                     /* the fastest */

    size_t cold_rounds;
    struct series raw, cold[COLD_DEVICES_MAX];

    size_t half_rounds; /* half: `ratio` is of the expected time to the measured */
    struct series half_raw, half_hot[COLD_DEVICES_MAX], half[COLD_DEVICES_MAX];

    size_t hot_rounds; /* `ratio` is against the route pread */
    enum hr_route hot_routes[COLD_ROUTES];
    struct series hot[COLD_DEVICES_MAX][COLD_ROUTES];
    char hot_missing[COLD_DEVICES_MAX][COLD_ROUTES][256]; /* why there is none */
};

void cold_report_print(const struct cold_report *report);
void cold_report_write(const struct cold_report *report, const char *path);

#endif
