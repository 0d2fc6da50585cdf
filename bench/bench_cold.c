/*
 * bench_cold.c: checkpoints that are on the drive and not in the page cache, headrace against a raw reader
 * (raw_reader.h), interleaved in one run.
 *
 * usage: bench_cold [OPTION]... CHECKPOINT
 *
 *   --pairs N       rounds of the raw reader and headrace (10), cold and half resident; 3 at least
 *   --gpu N         to "cuda:N" as well as to host memory
 *   --half          half of each file resident, against the greater of: that half at the speed of the page cache, the
 *                   rest at that of the drive, both measured in the same round
 *   --hot-checks    all resident: the routes auto, which asks what is resident, and uring against pread
 *   --hot-rounds N  of these (21)
 *   --no-cold       without the cold part
 *   --sweep-mib N   the raw reader's settings are tried on the first N MiB of the files (0: all)
 *   --seconds N     begin no round that would probably end later than this; 3 rounds of each part at least
 *   --json FILE     write all of it there
 *
 * Before each cold trial the files are dropped from the page cache, and it is verified that nothing of them is left;
 * where they cannot be dropped or read with O_DIRECT, and where there is no such device, the exit status is 77.
 */
#include <errno.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cold_report.h"
#include "cold_subject.h"
#include "measure.h"
#include "cache_state.h"
#include "raw_reader.h"

enum { NOT_HERE = 77, SWEEP_TRIALS = 3, ROUNDS_MIN = 3 };

struct arguments {
    const char *path, *json_path;
    size_t pairs, hot_rounds;
    uint64_t sweep_bytes;
    double seconds; /* 0: no bound */
    int gpu, half, hot, no_cold;
};

struct bench {
    struct arguments arguments;
    struct hr_checkpoint *checkpoint;
    struct raw_files files;
    char *memory;
    char gpu_name[16];
    struct cold_subject subjects[COLD_DEVICES_MAX]; /* route auto */
    double began;
};

static struct bench bench;
static struct cold_report report;

static _Noreturn void not_here(const char *what, const char *detail)
{
    fprintf(stderr, "bench_cold: not measured here: %s: %s\n", what, detail);
    exit(NOT_HERE);
}

/* --------------------------------------------------------------------------------------------- arguments */

static void read_option(struct arguments *arguments, const char *name, const char *value)
{
    if (strcmp(name, "--pairs") == 0)
        arguments->pairs = strtoul(value, NULL, 10);
    else if (strcmp(name, "--gpu") == 0)
        arguments->gpu = atoi(value);
    else if (strcmp(name, "--hot-rounds") == 0)
        arguments->hot_rounds = strtoul(value, NULL, 10);
    else if (strcmp(name, "--sweep-mib") == 0)
        arguments->sweep_bytes = strtoull(value, NULL, 10) << 20;
    else if (strcmp(name, "--seconds") == 0)
        arguments->seconds = strtod(value, NULL);
    else if (strcmp(name, "--json") == 0)
        arguments->json_path = value;
    else
        die("no such option", name);
}

static struct arguments read_arguments(int argc, char **argv)
{
    struct arguments arguments = {.pairs = 10, .hot_rounds = 21, .gpu = -1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--half") == 0)
            arguments.half = 1;
        else if (strcmp(argv[i], "--hot-checks") == 0)
            arguments.hot = 1;
        else if (strcmp(argv[i], "--no-cold") == 0)
            arguments.no_cold = 1;
        else if (strncmp(argv[i], "--", 2) == 0 && i + 1 < argc) {
            read_option(&arguments, argv[i], argv[i + 1]);
            i++;
        } else
            arguments.path = argv[i];
    }
    if (!arguments.path || arguments.pairs < ROUNDS_MIN || arguments.pairs > TRIALS_MAX ||
        arguments.hot_rounds < ROUNDS_MIN || arguments.hot_rounds > TRIALS_MAX)
        die("usage", "bench_cold [OPTION]... CHECKPOINT (3 pairs at least; options: see bench/bench_cold.c)");
    return arguments;
}

/* ----------------------------------------------------------------------------------------------- trials */

static void drop_files(void)
{
    for (size_t i = 0; i < bench.files.count; i++)
        if (page_cache_drop(bench.files.cached[i], bench.files.sizes[i]) < 0)
            not_here("the page cache keeps pages of the file", bench.files.paths[i]);
}

/* Makes the first one or both `halves` of each file resident; the rest stays as it is. */
static void fill_files(unsigned halves)
{
    for (size_t i = 0; i < bench.files.count; i++)
        page_cache_fill(bench.files.cached[i], bench.files.sizes[i] * halves / 2, bench.files.sizes[i]);
}

static void raw_trial(struct series *series)
{
    size_t at = series->count++;
    drop_files();
    double cpu = cpu_seconds();
    series->seconds[at] =
        raw_read(&bench.files, &raw_settings[report.setting], UINT64_MAX, bench.memory, &series->bytes);
    series->cpu[at] = cpu_seconds() - cpu;
}

static void sweep(void)
{
    uint64_t limit = bench.arguments.sweep_bytes ? bench.arguments.sweep_bytes : UINT64_MAX, bytes = 0;
    double rates[RAW_SETTINGS][SWEEP_TRIALS];
    for (size_t trial = 0; trial < SWEEP_TRIALS; trial++)
        for (size_t i = 0; i < RAW_SETTINGS; i++) {
            drop_files();
            double seconds = raw_read(&bench.files, &raw_settings[i], limit, bench.memory, &bytes);
            rates[i][trial] = (double)bytes / seconds;
        }
    for (size_t i = 0; i < RAW_SETTINGS; i++) {
        report.setting_rates[i] = median_of(rates[i], SWEEP_TRIALS);
        if (report.setting_rates[i] > report.setting_rates[report.setting])
            report.setting = i;
    }
}

/* Whether the `round`-th of `wanted` rounds fits into the time that is left, `part_began` being that of the first. */
static int another_round(size_t round, size_t wanted, double part_began)
{
    if (round >= wanted || !bench.arguments.seconds || round < ROUNDS_MIN)
        return round < wanted;
    double now = now_seconds(), mean = (now - part_began) / (double)round;
    return now + mean - bench.began <= bench.arguments.seconds;
}

/* ------------------------------------------------------------------------------------------------- parts */

/* In every other round the raw reader comes last and the devices run backwards: none always inherits the same state. */
static void cold_round(size_t round)
{
    size_t count = report.device_count;
    if (round % 2 == 0)
        raw_trial(&report.raw);
    for (size_t i = 0; i < count; i++) {
        size_t device = round % 2 ? count - 1 - i : i;
        drop_files();
        cold_subject_trial(&bench.subjects[device], &report.cold[device], round == 0);
    }
    if (round % 2)
        raw_trial(&report.raw);
    for (size_t i = 0; i < count; i++) {
        struct series *series = &report.cold[i];
        series->ratio[round] =
            gb_s(series->bytes, series->seconds[round]) / gb_s(report.raw.bytes, report.raw.seconds[round]);
    }
}

static void half_round(size_t round)
{
    raw_trial(&report.half_raw);
    for (size_t i = 0; i < report.device_count; i++) {
        struct series *half = &report.half[i], *hot = &report.half_hot[i];
        drop_files();
        fill_files(1);
        half->share[round] = (double)cold_resident(&bench.files) / (double)bench.files.bytes;
        cold_subject_trial(&bench.subjects[i], half, round == 0);
        fill_files(2);
        cold_subject_trial(&bench.subjects[i], hot, 0);
        double resident = half->share[round] * hot->seconds[round];
        double rest = (1 - half->share[round]) * report.half_raw.seconds[round];
        half->ratio[round] = (resident > rest ? resident : rest) / half->seconds[round];
    }
}

/* With a load each, uncounted, which warms what later ones find warm. */
static void hot_begin(size_t device, struct cold_subject *subjects)
{
    struct hr_error err;
    for (size_t i = 0; i < COLD_ROUTES; i++) {
        subjects[i] = bench.subjects[device];
        subjects[i].route = report.hot_routes[i];
        subjects[i].bytes = 0;
        if (cold_subject_open(&subjects[i], bench.memory, &err) < 0) {
            snprintf(report.hot_missing[device][i], sizeof report.hot_missing[device][i], "%.255s", err.message);
            subjects[i].loader = NULL;
        } else
            cold_subject_trial(&subjects[i], &report.hot[device][i], 1);
        report.hot[device][i].count = 0;
    }
}

static void hot_round(size_t round, const struct cold_subject *subjects, struct series *series)
{
    for (size_t i = 0; i < COLD_ROUTES; i++) {
        size_t route = (round + i) % COLD_ROUTES;
        if (subjects[route].loader)
            cold_subject_trial(&subjects[route], &series[route], 0);
    }
    for (size_t i = 0; i < COLD_ROUTES; i++)
        if (subjects[i].loader)
            series[i].ratio[round] = series[0].seconds[round] / series[i].seconds[round];
}

/* The page cache holds all before; the reads of all routes leave that so. */
static void hot_part(void)
{
    struct cold_subject subjects[COLD_DEVICES_MAX][COLD_ROUTES];
    fill_files(2);
    for (size_t device = 0; device < report.device_count; device++)
        hot_begin(device, subjects[device]);
    double began = now_seconds();
    for (; another_round(report.hot_rounds, bench.arguments.hot_rounds, began); report.hot_rounds++)
        for (size_t device = 0; device < report.device_count; device++)
            hot_round(report.hot_rounds, subjects[device], report.hot[device]);
    for (size_t device = 0; device < report.device_count; device++)
        for (size_t i = 0; i < COLD_ROUTES; i++)
            cold_subject_close(&subjects[device][i]);
    if (cold_resident(&bench.files) < bench.files.bytes)
        die("hot", "the page cache has not kept the files; there is too little memory");
}

static void run_parts(const struct arguments *arguments)
{
    double began = now_seconds();
    for (; !arguments->no_cold && another_round(report.cold_rounds, arguments->pairs, began); report.cold_rounds++)
        cold_round(report.cold_rounds);
    began = now_seconds();
    for (; arguments->half && another_round(report.half_rounds, arguments->pairs, began); report.half_rounds++)
        half_round(report.half_rounds);
    if (arguments->hot)
        hot_part();
}

/* ------------------------------------------------------------------------------------------------- start */

static void open_files(const char *path)
{
    struct hr_error err;
    if (hr_checkpoint_open(&path, 1, NULL, &bench.checkpoint, &err) < 0)
        die(path, err.message);
    for (size_t i = 0; i < hr_checkpoint_file_count(bench.checkpoint); i++)
        if (raw_open(&bench.files, hr_checkpoint_file(bench.checkpoint, i)->path) < 0)
            not_here(strerror(errno), hr_checkpoint_file(bench.checkpoint, i)->path);
}

/* One memory serves the raw reader and headrace, which take turns. */
static void make_memory(void)
{
    uint64_t bytes = raw_memory_bytes(&bench.files), wanted = cold_memory_bytes(bench.checkpoint);
    bytes = wanted > bytes ? wanted : bytes;
    bench.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench.memory == MAP_FAILED)
        die("mmap", strerror(errno));
    madvise(bench.memory, bytes, MADV_HUGEPAGE);
    memset(bench.memory, 1, bytes);
}

/* With a first load each, uncounted, of what the page cache has: it warms pinned memory and the driver. */
static void make_subjects(void)
{
    static struct series uncounted;
    struct hr_error err;
    for (size_t i = 0; i < report.device_count; i++) {
        struct cold_subject *subject = &bench.subjects[i];
        *subject = (struct cold_subject){report.devices[i], HR_ROUTE_AUTO, bench.checkpoint, &bench.files, .bytes = 0};
        int code = cold_subject_open(subject, bench.memory, &err);
        if (code == HR_EDEVICE_UNAVAILABLE)
            not_here(subject->device, err.message);
        if (code < 0)
            die(subject->device, err.message);
        uncounted.count = 0;
        cold_subject_trial(subject, &uncounted, 0);
    }
}

int main(int argc, char **argv)
{
    bench.began = now_seconds();
    bench.arguments = read_arguments(argc, argv);
    report.hot_routes[0] = HR_ROUTE_PREAD; /* what the others are compared with */
    report.hot_routes[1] = HR_ROUTE_AUTO;
    report.hot_routes[2] = HR_ROUTE_URING;
    report.devices[report.device_count++] = "cpu";
    if (bench.arguments.gpu >= 0) {
        snprintf(bench.gpu_name, sizeof bench.gpu_name, "cuda:%d", bench.arguments.gpu);
        report.devices[report.device_count++] = bench.gpu_name;
    }
    open_files(bench.arguments.path);
    report.checkpoint = bench.checkpoint;
    report.file_bytes = bench.files.bytes;
    make_memory();
    make_subjects();
    sweep();
    run_parts(&bench.arguments);
    cold_report_print(&report);
    if (bench.arguments.json_path)
        cold_report_write(&report, bench.arguments.json_path);
    for (size_t i = 0; i < report.device_count; i++)
        cold_subject_close(&bench.subjects[i]);
    hr_checkpoint_close(bench.checkpoint);
    return 0;
}
