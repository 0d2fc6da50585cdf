/*
 * load_report.c: the figures of a load as a table and as JSON. Figures of GPUs stand in the table only where there is
 * one.
 */
#include "load_report.h"

#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "output.h"

static int compare_times(const void *a, const void *b)
{
    uint64_t x = (*(const struct repeat *const *)a)->stats.total_ns,
             y = (*(const struct repeat *const *)b)->stats.total_ns;
    return (x > y) - (x < y);
}

/* The middle repeat, the slower one of two in the middle. */
static const struct repeat *find_median(const struct load_report *report)
{
    const struct repeat **sorted = allocate(report->repeat_count, sizeof *sorted);
    for (size_t i = 0; i < report->repeat_count; i++)
        sorted[i] = &report->repeats[i];
    qsort(sorted, report->repeat_count, sizeof *sorted, compare_times);
    const struct repeat *median = sorted[report->repeat_count / 2];
    free(sorted);
    return median;
}

static void predict_median(const struct load_report *report, const struct repeat *median,
                           struct prediction *ret_prediction)
{
    const struct job *job = report->job;
    if (job->devices.count == 1) {
        predict(job->checkpoint, job->devices.devices, median->stats.bytes_needed, median->cached, report->route,
                ret_prediction);
        return;
    }
    *ret_prediction = (struct prediction){0};
    snprintf(ret_prediction->reason, sizeof ret_prediction->reason, "links are measured one by one, not together");
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* ------------------------------------------------------------------------------------------------ JSON */

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
    json_u64(json, "bytes_direct", stats->bytes_direct);
    json_string(json, "storage", stats->storage, strlen(stats->storage));
    json_u64(json, "bytes_allocated", stats->bytes_allocated);
    json_u64(json, "bytes_converted", stats->bytes_converted);
    json_string(json, "conversion", stats->conversion, strlen(stats->conversion));
    json_u64(json, "reads", stats->read_count);
    json_u64(json, "chunks", stats->chunk_count);
    json_u64(json, "peak_window_bytes", stats->peak_window_bytes);
    json_real(json, "plan_seconds", seconds(stats->plan_ns), 9);
    json_real(json, "allocate_seconds", seconds(stats->allocate_ns), 9);
    json_real(json, "wait_seconds", seconds(stats->wait_ns), 9);
    json_real(json, "read_thread_seconds", seconds(stats->read_ns), 9);
    json_real(json, "place_thread_seconds", seconds(stats->place_ns), 9);
    json_real(json, "idle_thread_seconds", seconds(stats->idle_ns), 9);
    json_u64(json, "bytes_sent", stats->bytes_sent);
    json_u64(json, "copies", stats->copy_count);
    json_u64(json, "kernels", stats->kernel_count);
    json_u64(json, "staging_bytes", stats->staging_bytes);
    json_text(json, "staging", stats->staging);
    json_text(json, "placement", stats->placement);
    json_real(json, "copy_wait_thread_seconds", seconds(stats->copy_wait_ns), 9);
    json_real(json, "cpu_seconds", seconds(stats->cpu_ns), 9);
}

static void json_trace(struct json *json, const struct trace *trace)
{
    if (!trace->path)
        return;
    json_open(json, "trace", '{');
    json_string(json, "path", trace->path, strlen(trace->path));
    json_u64(json, "spans", trace->event_count);
    json_u64(json, "dropped", trace->dropped_count);
    json_close(json, '}');
}

void load_report_json(const struct load_report *report)
{
    struct json json = {0};
    char *names = devices_names(&report->job->devices), *models = devices_models(&report->job->devices);
    struct prediction prediction;
    const struct repeat *median = find_median(report);
    predict_median(report, median, &prediction);
    json_open(&json, NULL, '{');
    json_text(&json, "device", names);
    json_text(&json, "device_name", models);
    json_u64(&json, "tensors", report->job->request.item_count);
    json_u64(&json, "files", hr_checkpoint_file_count(report->job->checkpoint));
    json_figures(&json, &median->stats);
    json_prediction(&json, &prediction, median->stats.total_ns);
    json_trace(&json, report->trace);
    json_open(&json, "repeats", '[');
    for (size_t i = 0; i < report->repeat_count; i++) {
        json_open(&json, NULL, '{');
        json_figures(&json, &report->repeats[i].stats);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
    json_end(&json);
    free(names);
    free(models);
}

/* ------------------------------------------------------------------------------------------------ text */

static void print_repeats(const struct load_report *report)
{
    struct table table;
    table_init(&table, "lrrll");
    for (size_t i = 0; i < report->repeat_count; i++) {
        const struct hr_stats *stats = &report->repeats[i].stats;
        table_addf(&table, "load %zu", i + 1);
        table_addf(&table, "%.6f s", seconds(stats->total_ns));
        table_addf(&table, "%.3f GB/s", gigabytes_per_second(stats->bytes_ready, stats->total_ns));
        table_addf(&table, "%s", hr_route_name(stats->route));
        table_addf(&table, "%s", stats->bottleneck);
    }
    table_print(&table, stdout);
}

static void seconds_row(struct table *table, const char *name, uint64_t ns, const char *which)
{
    table_addf(table, "%s", name);
    table_addf(table, "%.6f%s", seconds(ns), which);
}

static void speed_rows(struct table *table, const struct load_report *report, const struct repeat *median)
{
    const struct hr_stats *stats = &median->stats;
    const char *which = report->repeat_count > 1 ? " (median)" : "";
    struct prediction prediction;
    predict_median(report, median, &prediction);
    prediction_rows(table, &prediction);
    seconds_row(table, "seconds", stats->total_ns, which);
    table_addf(table, "GB/s");
    table_addf(table, "%.3f%s", gigabytes_per_second(stats->bytes_ready, stats->total_ns), which);
    prediction_share_row(table, &prediction, stats->total_ns);
}

/* Of loads that the page cache did not hold. */
static void storage_rows(struct table *table, const struct hr_stats *stats)
{
    table_addf(table, "storage");
    table_addf(table, "%s", stats->storage);
    table_add_bytes(table, "past cache", stats->bytes_direct);
}

/* Of loads that give another dtype to some tensors. */
static void conversion_rows(struct table *table, const struct hr_stats *stats)
{
    char size[32];
    table_addf(table, "converted");
    table_addf(table, "%s, by %s", human_bytes(size, stats->bytes_converted), stats->conversion);
}

static void gpu_rows(struct table *table, const struct hr_stats *stats)
{
    char size[32], kernels[64];
    table_addf(table, "sent");
    table_addf(table, "%s, %llu %s, %s", human_bytes(size, stats->bytes_sent), (unsigned long long)stats->copy_count,
               stats->copy_count == 1 ? "copy" : "copies", human_count(kernels, stats->kernel_count, "kernel"));
    table_addf(table, "staging");
    table_addf(table, "%s%s%s", human_bytes(size, stats->staging_bytes), *stats->staging ? ", " : "", stats->staging);
    table_addf(table, "numa");
    table_addf(table, "%s", stats->placement);
    seconds_row(table, "copy wait", stats->copy_wait_ns, " (all readers)");
    seconds_row(table, "reader cpu", stats->cpu_ns, " (all readers)");
    table_add_bytes(table, "window", stats->peak_window_bytes);
    table_add_bytes(table, "allocated", stats->bytes_allocated);
}

static void trace_row(struct table *table, const struct trace *trace)
{
    char spans[64];
    char *path = escape(trace->path, strlen(trace->path));
    table_addf(table, "trace");
    table_addf(table, "%s: %s", path, human_count(spans, trace->event_count, "span"));
    free(path);
    if (!trace->dropped_count)
        return;
    table_addf(table, "%s", "");
    table_addf(table, "%s dropped: only the first were kept", human_count(spans, trace->dropped_count, "span"));
}

void load_report_text(const struct load_report *report)
{
    struct table table;
    char *title = devices_title(&report->job->devices);
    const struct repeat *median = find_median(report);
    const struct hr_stats *stats = &median->stats;
    if (report->repeat_count > 1)
        print_repeats(report);
    table_init(&table, "ll");
    table_addf(&table, "device");
    table_addf(&table, "%s", title);
    table_addf(&table, "tensors");
    table_addf(&table, "%zu", report->job->request.item_count);
    table_add_bytes(&table, "bytes", stats->bytes_ready);
    table_add_bytes(&table, "read", stats->bytes_read);
    speed_rows(&table, report, median);
    table_addf(&table, "route");
    table_addf(&table, "%s%s%s%s", hr_route_name(stats->route), *stats->route_reason ? " (" : "", stats->route_reason,
               *stats->route_reason ? ")" : "");
    if (*stats->storage)
        storage_rows(&table, stats);
    if (stats->bytes_converted)
        conversion_rows(&table, stats);
    table_addf(&table, "threads");
    table_addf(&table, "%u", stats->thread_count);
    table_addf(&table, "bottleneck");
    table_addf(&table, "%s", stats->bottleneck);
    if (devices_have_gpu(&report->job->devices))
        gpu_rows(&table, stats);
    if (report->trace->path)
        trace_row(&table, report->trace);
    table_print(&table, stdout);
    free(title);
}
