/*
 * verb_load.c: loads for real, as often as asked, and says how fast it was. Each repeat frees its memory before the
 * next one begins. Times are the library's: from the start to the last tensor ready.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "request.h"

struct load_options {
    struct request_options request;
    uint64_t deadline_ns;
    uint32_t repeat_count;
    int as_json;
};

struct result {
    struct hr_stats *stats; /* one per repeat */
    const struct hr_stats *median;
    size_t count;
};

/* Under a window, tensors are handed out and dropped as they come; else all of them exist at the end. */
static int consume(struct hr_load *load, int is_windowed, struct hr_error *err)
{
    size_t item;
    int code;
    if (!is_windowed)
        return hr_load_wait_all(load, err);
    while ((code = hr_load_next(load, &item, err)) == 0) {
        if ((code = hr_load_drop(load, item, err)) < 0)
            return code;
    }
    return code == HR_EEND ? 0 : code;
}

static int load_once(const struct job *job, const struct load_options *options, struct progress *progress,
                     struct hr_stats *ret_stats, struct hr_error *err)
{
    struct hr_load_options load_options = {.size = sizeof load_options};
    struct hr_load *load;
    load_options.window_bytes = options->request.tuning.window_bytes;
    load_options.deadline_ns = options->deadline_ns;
    if (progress->is_enabled) {
        load_options.progress = progress_draw;
        load_options.progress_context = progress;
    }
    int code = hr_load_start(job->loader, job->checkpoint, job->request.items, job->request.item_count, &load_options,
                             &load, err);
    if (code < 0)
        return code;
    interrupt_watch(load, NULL);
    code = consume(load, load_options.window_bytes != 0, err);
    interrupt_watch(NULL, NULL);
    ret_stats->size = sizeof *ret_stats;
    hr_load_stats(load, ret_stats);
    hr_load_free(load);
    progress_erase(progress);
    return code;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t x = ((const struct hr_stats *)a)->total_ns, y = ((const struct hr_stats *)b)->total_ns;
    return (x > y) - (x < y);
}

/* The middle repeat, the slower one of two in the middle. */
static const struct hr_stats *find_median(const struct hr_stats *stats, size_t count)
{
    struct hr_stats *sorted = allocate(count, sizeof *sorted);
    const struct hr_stats *median = stats;
    memcpy(sorted, stats, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_times);
    for (size_t i = 0; i < count; i++)
        if (stats[i].total_ns == sorted[count / 2].total_ns)
            median = &stats[i];
    free(sorted);
    return median;
}

/* ---------------------------------------------------------------------------------------------- output */

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static void json_figures(struct json *json, const struct hr_stats *stats)
{
    json_u64(json, "bytes", stats->bytes_ready);
    json_real(json, "seconds", seconds(stats->total_ns), 9);
    json_real(json, "gb_per_second", gigabytes_per_second(stats->bytes_ready, stats->total_ns), 6);
    json_text(json, "route", hr_route_name(stats->route));
    json_string(json, "route_reason", stats->route_reason, strlen(stats->route_reason));
    json_u64(json, "threads", stats->thread_count);
    json_string(json, "bottleneck", stats->bottleneck, strlen(stats->bottleneck));
    json_u64(json, "bytes_read", stats->bytes_read);
    json_u64(json, "bytes_allocated", stats->bytes_allocated);
    json_u64(json, "reads", stats->read_count);
    json_u64(json, "chunks", stats->chunk_count);
    json_u64(json, "peak_window_bytes", stats->peak_window_bytes);
    json_real(json, "plan_seconds", seconds(stats->plan_ns), 9);
    json_real(json, "allocate_seconds", seconds(stats->allocate_ns), 9);
    json_real(json, "wait_seconds", seconds(stats->wait_ns), 9);
    json_real(json, "read_thread_seconds", seconds(stats->read_ns), 9);
    json_real(json, "place_thread_seconds", seconds(stats->place_ns), 9);
    json_real(json, "idle_thread_seconds", seconds(stats->idle_ns), 9);
}

/* The figures at the top are those of the median repeat. */
static void print_json(const struct job *job, const struct load_options *options, const struct result *result)
{
    struct json json = {0};
    json_open(&json, NULL, '{');
    json_text(&json, "device", options->request.device ? options->request.device : "cpu");
    json_u64(&json, "tensors", job->request.item_count);
    json_u64(&json, "files", hr_checkpoint_file_count(job->checkpoint));
    json_figures(&json, result->median);
    json_open(&json, "repeats", '[');
    for (size_t i = 0; i < result->count; i++) {
        json_open(&json, NULL, '{');
        json_figures(&json, &result->stats[i]);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
    json_end(&json);
}

static void print_repeats(const struct result *result)
{
    struct table table;
    table_init(&table, "lrrll");
    for (size_t i = 0; i < result->count; i++) {
        const struct hr_stats *stats = &result->stats[i];
        table_addf(&table, "load %zu", i + 1);
        table_addf(&table, "%.6f s", seconds(stats->total_ns));
        table_addf(&table, "%.3f GB/s", gigabytes_per_second(stats->bytes_ready, stats->total_ns));
        table_addf(&table, "%s", hr_route_name(stats->route));
        table_addf(&table, "%s", stats->bottleneck);
    }
    table_print(&table, stdout);
}

static void print_text(const struct job *job, const struct result *result)
{
    struct table table;
    const struct hr_stats *stats = result->median;
    const char *which = result->count > 1 ? " (median)" : "";
    char text[64];
    if (result->count > 1)
        print_repeats(result);
    table_init(&table, "ll");
    table_addf(&table, "tensors");
    table_addf(&table, "%zu", job->request.item_count);
    table_addf(&table, "bytes");
    table_addf(&table, "%llu%s%s%s", (unsigned long long)stats->bytes_ready, stats->bytes_ready < 1024 ? "" : " (",
               stats->bytes_ready < 1024 ? "" : human_bytes(text, stats->bytes_ready),
               stats->bytes_ready < 1024 ? "" : ")");
    table_addf(&table, "seconds");
    table_addf(&table, "%.6f%s", seconds(stats->total_ns), which);
    table_addf(&table, "GB/s");
    table_addf(&table, "%.3f%s", gigabytes_per_second(stats->bytes_ready, stats->total_ns), which);
    table_addf(&table, "route");
    table_addf(&table, "%s%s%s%s", hr_route_name(stats->route), *stats->route_reason ? " (" : "", stats->route_reason,
               *stats->route_reason ? ")" : "");
    table_addf(&table, "threads");
    table_addf(&table, "%u", stats->thread_count);
    table_addf(&table, "bottleneck");
    table_addf(&table, "%s", stats->bottleneck);
    table_print(&table, stdout);
}

static int load_all(const struct load_options *options, const struct text_list *paths, struct hr_error *err)
{
    struct job job;
    struct progress progress;
    int code = job_open(&options->request, paths, &job, err);
    if (code < 0)
        return code;
    struct result result = {.stats = allocate(options->repeat_count, sizeof *result.stats)};
    progress_init(&progress);
    while (code == 0 && result.count < options->repeat_count)
        if ((code = load_once(&job, options, &progress, &result.stats[result.count++], err)) == 0)
            code = interrupt_check(err);
    if (code == 0) {
        result.median = find_median(result.stats, result.count);
        if (options->as_json)
            print_json(&job, options, &result);
        else
            print_text(&job, &result);
    }
    free(result.stats);
    job_close(&job);
    return code;
}

int load_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct load_options load = {.repeat_count = 1};
    struct text_list paths;
    struct hr_error err;
    int code;
    const struct option options[] = {
        DEVICE_OPTION(load.request.device),
        MATCH_OPTION(load.request.matches),
        SLICE_OPTION(load.request.slices),
        OPTION("repeat", "N", OPTION_COUNT, &load.repeat_count, NULL, "load N times and report each and the median"),
        OPTION("deadline", "SECONDS", OPTION_SECONDS, &load.deadline_ns, NULL, "give up when a load takes longer"),
        TUNING_OPTIONS(load.request.tuning),
        OPEN_OPTIONS(load.request.open),
        JSON_OPTION(load.as_json),
        {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){1, SIZE_MAX}, &paths, &code)) {
        request_options_release(&load.request);
        return code;
    }
    interrupt_start();
    code = EXIT_YES;
    if (load.repeat_count == 0)
        error_set(&err, HR_EINVALID_ARGUMENT, "--repeat 0 would load nothing; give 1 or more");
    if (load.repeat_count == 0 || load_all(&load, &paths, &err) < 0)
        code = load_error_report(verb->name, load.as_json, &err);
    request_options_release(&load.request);
    text_list_release(&paths);
    return code;
}
