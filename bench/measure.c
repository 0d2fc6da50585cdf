/*
 * measure.c: see measure.h.
 */
#include "measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double seconds_of(const struct timeval *time)
{
    return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return seconds_of(&usage.ru_utime) + seconds_of(&usage.ru_stime);
}

_Noreturn void die(const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, detail);
    exit(1);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

size_t parse_list(const char *text, unsigned *values, size_t capacity)
{
    size_t count = 0;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at)
            die("not a list of numbers", text);
        if (*end == '-') {
            at = end + 1;
            last = strtoul(at, &end, 10);
            if (end == at)
                die("not a list of numbers", text);
        }
        for (unsigned long value = first; value <= last; value++) {
            if (count == capacity)
                die("too many numbers", text);
            values[count++] = (unsigned)value;
        }
        if (*end == '\0' && count)
            return count;
        if (*end != ',')
            die("not a list of numbers", text);
        at = end;
    }
}

unsigned core_count(void)
{
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    return (unsigned)CPU_COUNT(&set);
}

void use_cores(const char *list)
{
    unsigned cores[CPU_SETSIZE];
    size_t count = parse_list(list, cores, CPU_SETSIZE);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < count; i++)
        CPU_SET(cores[i], &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0)
        die("no such cores", list);
}
