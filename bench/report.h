/*
 * report.h: what the reports of benchmarks share: spreads, rates, values of JSON. Each of the json_ functions writes a
 * key, its value and ", ".
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TRIALS_MAX = 101 };

struct spread {
    double least, median, most;
};

/* Leaves `values` as they are; at most TRIALS_MAX. */
struct spread spread_of(const double *values, size_t count);
/* Decimal gigabytes a second. */
double gb_s(uint64_t bytes, double seconds);

void json_string(FILE *json, const char *key, const char *text);
void json_values(FILE *json, const char *key, const double *values, size_t count);
/* "ratio_median", "ratio_min", "ratio_max" and "ratios". */
void json_ratios(FILE *json, const double *ratios, size_t count);

#endif
