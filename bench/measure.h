/*
 * measure.h: what the benchmarks share: clocks, the end of a run that cannot go on, medians, lists of numbers.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <sched.h>
#include <stddef.h>

double now_seconds(void);
/* Processor time of the whole process, user and system, until now. */
double cpu_seconds(void);

/* Prints "program: what: detail" and exits with status 1. */
_Noreturn void die(const char *what, const char *detail);

/* Sorts `values` and returns the one in the middle. */
double median_of(double *values, size_t count);

/* Parses "0-3,8" into `values`, at most `capacity`; dies where it is no such list. Returns how many there are. */
size_t parse_list(const char *text, unsigned *values, size_t capacity);

/* The cores that this process may use. */
unsigned core_count(void);
/* From now on this process uses only these cores. */
void use_cores(const char *list);

#endif
