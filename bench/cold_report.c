/*
 * cold_report.c: see cold_report.h. Medians unless the name says otherwise; a ratio above 1 is a faster headrace.
 */
#include "cold_report.h"

#include "measure.h"

static double median(const double *values, size_t count)
{
    return spread_of(values, count).median;
}

static double rate(const struct series *series)
{
    return gb_s(series->bytes, median(series->seconds, series->count));
}

static double cpu_per_gb(const struct series *series)
{
    return median(series->cpu, series->count) / ((double)series->bytes / 1e9);
}

/* Of the bytes, in percent; the most of all trials. */
static double gained_percent(const struct series *series)
{
    return spread_of(series->gained, series->count).most / (double)series->bytes * 100;
}

static double direct_share(const struct series *series)
{
    return spread_of(series->direct, series->count).least / (double)series->bytes;
}

/* ------------------------------------------------------------------------------------------------- lines */

static void print_subject(const char *part, const char *device, const struct series *series, const char *against)
{
    struct spread ratio = spread_of(series->ratio, series->count);
    printf("%s %-6s %6.3f GB/s, %.3f of %s (%.3f to %.3f, %zu pairs), cpu %.3f s/GB, page cache +%.3f %%, "
           "direct %.2f, route %s, %s\n",
           part, device, rate(series), ratio.median, against, ratio.least, ratio.most, series->count,
           cpu_per_gb(series), gained_percent(series), direct_share(series), hr_route_name(series->stats.route),
           series->stats.bottleneck);
}

static void print_hot(const struct cold_report *report, size_t device, size_t route)
{
    const struct series *series = &report->hot[device][route];
    const char *name = hr_route_name(report->hot_routes[route]);
    struct spread ratio = spread_of(series->ratio, series->count);
    if (series->count)
        printf("hot  %-6s route %-5s %6.2f GB/s, %.3f of pread (%.3f to %.3f, %zu rounds)\n", report->devices[device],
               name, rate(series), ratio.median, ratio.least, ratio.most, series->count);
    else
        printf("hot  %-6s route %-5s not usable: %s\n", report->devices[device], name,
               report->hot_missing[device][route]);
}

void cold_report_print(const struct cold_report *report)
{
    for (size_t i = 0; i < RAW_SETTINGS; i++)
        printf("raw, %u threads, blocks of %llu MiB: %.3f GB/s%s\n", raw_settings[i].threads,
               (unsigned long long)(raw_settings[i].block_bytes >> 20), report->setting_rates[i] / 1e9,
               i == report->setting ? ", the ruler" : "");
    if (report->cold_rounds)
        printf("cold raw    %6.3f GB/s, cpu %.3f s/GB\n", rate(&report->raw), cpu_per_gb(&report->raw));
    for (size_t i = 0; report->cold_rounds && i < report->device_count; i++)
        print_subject("cold", report->devices[i], &report->cold[i], "raw");
    for (size_t i = 0; report->half_rounds && i < report->device_count; i++)
        print_subject("half", report->devices[i], &report->half[i], "what was expected");
    for (size_t i = 0; report->hot_rounds && i < report->device_count; i++)
        for (size_t route = 0; route < COLD_ROUTES; route++)
            print_hot(report, i, route);
}

/* -------------------------------------------------------------------------------------------------- JSON */

static void write_series(FILE *json, const struct series *series)
{
    fprintf(json, "\"bytes\": %llu, \"gb_s\": %.4f, \"cpu_seconds_per_gb\": %.5f, ", (unsigned long long)series->bytes,
            rate(series), cpu_per_gb(series));
    json_values(json, "seconds", series->seconds, series->count);
    json_values(json, "cpu_seconds", series->cpu, series->count);
}

static void write_subject(FILE *json, const char *device, const struct series *series)
{
    fputs("\n      {", json);
    json_string(json, "device", device);
    write_series(json, series);
    json_ratios(json, series->ratio, series->count);
    json_values(json, "page_cache_gained_bytes", series->gained, series->count);
    json_values(json, "direct_bytes", series->direct, series->count);
    json_string(json, "route", hr_route_name(series->stats.route));
    json_string(json, "route_reason", series->stats.route_reason);
    json_string(json, "bottleneck", series->stats.bottleneck);
    fprintf(json, "\"threads\": %u, \"page_cache_gained_percent_max\": %.4f, \"direct_share_min\": %.4f, ",
            series->stats.thread_count, gained_percent(series), direct_share(series));
    fprintf(json, "\"compared_bytes\": %llu", (unsigned long long)series->compared_bytes);
}

static void write_cold(FILE *json, const struct cold_report *report)
{
    fprintf(json, ",\n  \"cold\": {\"pairs\": %zu, \"raw\": {", report->cold_rounds);
    write_series(json, &report->raw);
    fputs("\"cache\": \"past it\"},\n    \"subjects\": [", json);
    for (size_t i = 0; i < report->device_count; i++) {
        write_subject(json, report->devices[i], &report->cold[i]);
        fputs(i + 1 < report->device_count ? "}," : "}]}", json);
    }
}

static void write_half(FILE *json, const struct cold_report *report)
{
    fprintf(json, ",\n  \"half\": {\"pairs\": %zu, ", report->half_rounds);
    json_values(json, "raw_seconds", report->half_raw.seconds, report->half_rounds);
    fputs("\n    \"subjects\": [", json);
    for (size_t i = 0; i < report->device_count; i++) {
        write_subject(json, report->devices[i], &report->half[i]);
        fputs(", ", json);
        json_values(json, "hot_seconds", report->half_hot[i].seconds, report->half_rounds);
        json_values(json, "resident_shares", report->half[i].share, report->half_rounds);
        fprintf(json, "\"hot_gb_s\": %.4f%s", rate(&report->half_hot[i]), i + 1 < report->device_count ? "}," : "}]}");
    }
}

static void write_hot(FILE *json, const struct cold_report *report)
{
    const char *comma = "";
    fprintf(json, ",\n  \"hot\": {\"pairs\": %zu,\n    \"subjects\": [", report->hot_rounds);
    for (size_t i = 0; i < report->device_count; i++)
        for (size_t route = 0; route < COLD_ROUTES; route++) {
            const struct series *series = &report->hot[i][route];
            fputs(comma, json);
            comma = ",";
            if (series->count) {
                write_subject(json, report->devices[i], series);
            } else {
                fputs("\n      {", json);
                json_string(json, "device", report->devices[i]);
                json_string(json, "missing", report->hot_missing[i][route]);
                fputs("\"compared_bytes\": 0", json);
            }
            fprintf(json, ", \"route_asked\": \"%s\"}", hr_route_name(report->hot_routes[route]));
        }
    fputs("]}", json);
}

void cold_report_write(const struct cold_report *report, const char *path)
{
    FILE *json = fopen(path, "w");
    if (!json)
        die("cannot write", path);
    fprintf(json, "{\n  \"benchmark\": \"cold\", \"cores\": %u, \"bytes\": %llu, \"tensors\": %zu, \"files\": %zu, ",
            core_count(), (unsigned long long)report->file_bytes, hr_checkpoint_count(report->checkpoint),
            hr_checkpoint_file_count(report->checkpoint));
    fputs("\"host_memory\": \"the caller's, touched before\", \"gpu_memory\": \"arenas, new in each load\",\n"
          "  \"raw_settings\": [",
          json);
    for (size_t i = 0; i < RAW_SETTINGS; i++)
        fprintf(json, "%s{\"threads\": %u, \"block_bytes\": %llu, \"gb_s\": %.4f}", i ? ", " : "",
                raw_settings[i].threads, (unsigned long long)raw_settings[i].block_bytes,
                report->setting_rates[i] / 1e9);
    fprintf(json, "], \"raw_setting\": %zu", report->setting);
    if (report->cold_rounds)
        write_cold(json, report);
    if (report->half_rounds)
        write_half(json, report);
    if (report->hot_rounds)
        write_hot(json, report);
    fputs("\n}\n", json);
    if (fclose(json))
        die("cannot write", path);
}
