/*
 * bench_convert.c: conversions on one core against a bare memcpy of the same source, interleaved in one run.
 *
 * usage: bench_convert [--pairs N] [--json FILE]
 *
 * Each pair of dtypes is tried with blocks that stay in the second-level cache and with 64 MiB of source. A trial
 * converts the blocks again and again until some milliseconds are over, and memcpy does the same right before it; memory
 * was touched before. Prints the median of the ratios of read bytes a second, conversion to memcpy, with its spread.
 * Elements are random bits: numbers of all sizes, subnormals and NaNs as well.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "report.h"
#include <headrace/headrace.h>

#include "convert/convert.h"

#define LARGE_BYTES (64u << 20)
#define CACHED_BYTES (128u << 10)
#define GROWTH_MAX 8 /* from 8 bits to 64 */
#define TRIAL_SECONDS 0.01

static const uint32_t pairs[][2] = {
    {HR_DTYPE_F32, HR_DTYPE_BF16},     {HR_DTYPE_BF16, HR_DTYPE_F32},     {HR_DTYPE_F32, HR_DTYPE_F16},
    {HR_DTYPE_F16, HR_DTYPE_F32},      {HR_DTYPE_F16, HR_DTYPE_BF16},     {HR_DTYPE_BF16, HR_DTYPE_F16},
    {HR_DTYPE_F8_E4M3, HR_DTYPE_BF16}, {HR_DTYPE_F8_E5M2, HR_DTYPE_BF16}, {HR_DTYPE_BF16, HR_DTYPE_F8_E4M3},
    {HR_DTYPE_F64, HR_DTYPE_F32},      {HR_DTYPE_F32, HR_DTYPE_F64},      {HR_DTYPE_I64, HR_DTYPE_I32},
    {HR_DTYPE_U8, HR_DTYPE_BF16},      {HR_DTYPE_F32, HR_DTYPE_I8},
};
#define PAIR_COUNT (sizeof pairs / sizeof *pairs)

struct bench {
    unsigned char *source, *target; /* LARGE_BYTES, and GROWTH_MAX times that */
    int trials;
};

struct figures {
    double copy[TRIALS_MAX], convert[TRIALS_MAX], ratios[TRIALS_MAX]; /* read bytes a second, twice */
};

/* Random bits; memory is touched before anything is timed. */
static void bench_prepare(struct bench *bench)
{
    bench->source = malloc(LARGE_BYTES);
    bench->target = malloc((size_t)LARGE_BYTES * GROWTH_MAX);
    if (!bench->source || !bench->target)
        die("malloc", "out of memory");
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < LARGE_BYTES; i += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(bench->source + i, &state, sizeof state);
    }
    memset(bench->target, 1, (size_t)LARGE_BYTES * GROWTH_MAX);
}

/* Bytes a second of `source_bytes` converted, or copied where `pair` is NULL, for as long as a trial is. */
static double rate(const struct bench *bench, const uint32_t *pair, size_t source_bytes)
{
    uint64_t done = 0;
    double from = now_seconds(), seconds;
    do {
        if (pair)
            hr_convert(pair[0], pair[1], bench->target, bench->source, source_bytes * 8 / hr_dtype_bits(pair[0]));
        else
            memcpy(bench->target, bench->source, source_bytes);
        __asm__ volatile("" : : "r"(bench->target) : "memory"); /* what is copied twice is copied twice */
        done += source_bytes;
        seconds = now_seconds() - from;
    } while (seconds < TRIAL_SECONDS);
    return (double)done / seconds;
}

static struct figures measure(const struct bench *bench, const uint32_t *pair, size_t source_bytes)
{
    struct figures figures;
    rate(bench, NULL, source_bytes);
    rate(bench, pair, source_bytes);
    for (int i = 0; i < bench->trials; i++) {
        figures.copy[i] = rate(bench, NULL, source_bytes);
        figures.convert[i] = rate(bench, pair, source_bytes);
        figures.ratios[i] = figures.convert[i] / figures.copy[i];
    }
    return figures;
}

static void print_figures(FILE *json, const uint32_t *pair, const char *where, size_t source_bytes,
                          const struct figures *figures, int trials)
{
    struct spread ratio = spread_of(figures->ratios, (size_t)trials);
    double copy = spread_of(figures->copy, (size_t)trials).median / 1e9;
    double convert = spread_of(figures->convert, (size_t)trials).median / 1e9;
    const char *from = hr_dtype_name(pair[0]), *to = hr_dtype_name(pair[1]);
    printf("%-8s -> %-8s %-6s  memcpy %6.2f GB/s  convert %6.2f GB/s  ratio %.2f (%.2f to %.2f)\n", from, to, where,
           copy, convert, ratio.median, ratio.least, ratio.most);
    if (!json)
        return;
    fprintf(json, "{\"from\": \"%s\", \"to\": \"%s\", \"source_bytes\": %zu, ", from, to, source_bytes);
    json_ratios(json, figures->ratios, (size_t)trials);
    fprintf(json, "\"memcpy_gb_s\": %.3f, \"convert_gb_s\": %.3f}", copy, convert);
}

static void run(const struct bench *bench, FILE *json)
{
    if (json)
        fprintf(json, "{\"trials\": %d, \"pairs\": [\n", bench->trials);
    for (size_t i = 0; i < PAIR_COUNT; i++)
        for (int large = 0; large < 2; large++) {
            size_t source_bytes = large ? LARGE_BYTES : CACHED_BYTES;
            struct figures figures = measure(bench, pairs[i], source_bytes);
            print_figures(json, pairs[i], large ? "large" : "cached", source_bytes, &figures, bench->trials);
            if (json)
                fputs(i + 1 == PAIR_COUNT && large ? "\n" : ",\n", json);
        }
    if (json)
        fputs("]}\n", json);
}

int main(int argc, char **argv)
{
    struct bench bench = {.trials = 11};
    const char *json_path = NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--pairs") == 0 && i + 1 < argc)
            bench.trials = atoi(argv[++i]);
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json_path = argv[++i];
        else
            die("usage", "bench_convert [--pairs N] [--json FILE]");
    if (bench.trials < 1 || bench.trials > TRIALS_MAX)
        die("--pairs", "not from 1 to 101");
    bench_prepare(&bench);
    FILE *json = json_path ? fopen(json_path, "w") : NULL;
    if (json_path && !json)
        die("cannot write", json_path);
    run(&bench, json);
    if (json)
        fclose(json);
    free(bench.source);
    free(bench.target);
    return 0;
}
