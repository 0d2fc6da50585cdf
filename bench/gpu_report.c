/*
 * gpu_report.c: see gpu_report.h. Rates are decimal gigabytes a second; medians unless the name says otherwise.
 */
#include "gpu_report.h"

#include <stdio.h>

#include "measure.h"
#include "report.h"

static double best_copy(const struct ruler_limits *limits)
{
    double best = 0;
    for (int i = 0; i < RULER_COPY_SIZES; i++)
        for (int j = 0; j < RULER_COPY_STREAMS; j++)
            for (int k = 0; k < RULER_BEHIND_COUNT; k++)
                best = limits->copy[i][j][k] > best ? limits->copy[i][j][k] : best;
    return best;
}

/* Of a subject that converts: the one that differs in nothing else; NULL where there is none. */
static const struct subject *plain_of(const struct report *report, const struct subject *subject)
{
    for (size_t i = 0; subject->dtype != HR_DTYPE_NONE && i < report->subject_count; i++) {
        const struct subject *other = &report->subjects[i];
        if (other->dtype == HR_DTYPE_NONE && other->target == subject->target && other->memory == subject->memory &&
            other->new_loader == subject->new_loader && other->threads == subject->threads)
            return other;
    }
    return NULL;
}

/* Its speed by that one's, round by round. */
static struct spread plain_ratio(const struct report *report, const struct subject *subject,
                                 const struct subject *plain)
{
    double ratios[TRIALS_MAX];
    for (size_t i = 0; i < report->pairs; i++)
        ratios[i] = plain->seconds[i] / subject->seconds[i];
    return spread_of(ratios, report->pairs);
}

static void print_subject(const struct report *report, const struct subject *subject)
{
    struct spread ratio = spread_of(subject->ratio, report->pairs),
                  seconds = spread_of(subject->seconds, report->pairs);
    printf("%-5s %-4s threads %-3u %6.2f GB/s, %.3f of the ruler (%.3f to %.3f), cpu %.2f s, device +%.1f MiB, "
           "pinned %.0f MiB, %s, %s; %s\n",
           subject_memory_name(subject->memory), subject->new_loader ? "new" : "kept", subject->threads,
           gb_s(subject->target->bytes, seconds.median), ratio.median, ratio.least, ratio.most,
           spread_of(subject->cpu, report->pairs).median, (double)subject_device_above(subject) / (1 << 20),
           (double)subject->stats.staging_bytes / (1 << 20), hr_route_name(subject->stats.route),
           subject->stats.bottleneck, subject->target->path);
    const struct subject *plain = plain_of(report, subject);
    if (subject->dtype != HR_DTYPE_NONE)
        printf("      to %s by %s", hr_dtype_name(subject->dtype), subject->stats.conversion);
    if (plain) {
        struct spread to_plain = plain_ratio(report, subject, plain);
        printf(", %.3f of the plain load (%.3f to %.3f)", to_plain.median, to_plain.least, to_plain.most);
    }
    if (subject->dtype != HR_DTYPE_NONE)
        printf("\n");
}

void report_print(const struct report *report)
{
    const struct ruler_setting *setting = &report->ruler_setting;
    struct spread seconds = spread_of(report->ruler_seconds, report->pairs);
    printf("%s, %u cores, %zu pairs\n", report->device, report->cores, report->pairs);
    if (report->has_limits)
        printf("limits: page cache to pinned memory %.2f GB/s (%u threads), pinned memory to the device %.2f GB/s\n",
               report->limits.page_cache / 1e9, report->limits.page_cache_setting.threads,
               best_copy(&report->limits) / 1e9);
    printf("ruler: %6.2f GB/s (%u threads, blocks of %u MiB, depth %u), cpu %.2f s\n",
           gb_s(report->ruler_bytes, seconds.median), setting->threads, (unsigned)(setting->block_bytes >> 20),
           setting->depth, spread_of(report->ruler_cpu, report->pairs).median);
    for (size_t i = 0; i < report->subject_count; i++)
        print_subject(report, &report->subjects[i]);
}

/* -------------------------------------------------------------------------------------------------- JSON */

static void write_setting(FILE *json, const struct ruler_setting *setting)
{
    fprintf(json, "\"threads\": %u, \"block_bytes\": %llu, \"depth\": %u", setting->threads,
            (unsigned long long)setting->block_bytes, setting->depth);
}

static void write_limits(FILE *json, const struct ruler_limits *limits)
{
    static const char *const behind[RULER_BEHIND_COUNT] = {"nothing", "event", "sleeping event"};
    fprintf(json, "  \"limits\": {\"page_cache\": {\"gb_s\": %.3f, ", limits->page_cache / 1e9);
    write_setting(json, &limits->page_cache_setting);
    fprintf(json, "}, \"pinned_copy_gb_s\": %.3f, \"pinned_copies\": [", best_copy(limits) / 1e9);
    for (int i = 0; i < RULER_COPY_SIZES; i++)
        for (int j = 0; j < RULER_COPY_STREAMS; j++)
            for (int k = 0; k < RULER_BEHIND_COUNT; k++)
                fprintf(json, "%s{\"bytes\": %llu, \"streams\": %u, \"behind\": \"%s\", \"gb_s\": %.3f}",
                        i || j || k ? ", " : "", (unsigned long long)limits->copy_sizes[i], limits->copy_streams[j],
                        behind[k], limits->copy[i][j][k] / 1e9);
    fputs("]},\n", json);
}

static void write_ruler(FILE *json, const struct report *report)
{
    double seconds = spread_of(report->ruler_seconds, report->pairs).median;
    fprintf(json, "  \"ruler\": {\"bytes\": %llu, \"gb_s\": %.3f, \"cpu_seconds\": %.4f, ",
            (unsigned long long)report->ruler_bytes, gb_s(report->ruler_bytes, seconds),
            spread_of(report->ruler_cpu, report->pairs).median);
    json_values(json, "seconds", report->ruler_seconds, report->pairs);
    write_setting(json, &report->ruler_setting);
    fputs("},\n", json);
}

static void write_stats(FILE *json, const struct hr_stats *stats)
{
    json_string(json, "route", hr_route_name(stats->route));
    json_string(json, "route_reason", stats->route_reason);
    json_string(json, "bottleneck", stats->bottleneck);
    json_string(json, "staging", stats->staging);
    fprintf(
        json,
        "\"threads\": %u, \"pinned_bytes\": %llu, \"allocated_bytes\": %llu, \"sent_bytes\": %llu, \"chunks\": %zu, "
        "\"reads\": %llu, \"copies\": %llu, \"kernels\": %llu, \"plan_seconds\": %.5f, \"allocate_seconds\": %.5f, "
        "\"read_seconds\": %.4f, \"copy_wait_seconds\": %.4f, \"idle_seconds\": %.4f, \"total_seconds\": %.5f, ",
        stats->thread_count, (unsigned long long)stats->staging_bytes, (unsigned long long)stats->bytes_allocated,
        (unsigned long long)stats->bytes_sent, stats->chunk_count, (unsigned long long)stats->read_count,
        (unsigned long long)stats->copy_count, (unsigned long long)stats->kernel_count, (double)stats->plan_ns / 1e9,
        (double)stats->allocate_ns / 1e9, (double)stats->read_ns / 1e9, (double)stats->copy_wait_ns / 1e9,
        (double)stats->idle_ns / 1e9, (double)stats->total_ns / 1e9);
}

static void write_conversion(FILE *json, const struct report *report, const struct subject *subject)
{
    const struct subject *plain = plain_of(report, subject);
    if (subject->dtype == HR_DTYPE_NONE)
        return;
    json_string(json, "dtype", hr_dtype_name(subject->dtype));
    json_string(json, "conversion", subject->stats.conversion);
    fprintf(json, "\"converted_bytes\": %llu, ", (unsigned long long)subject->stats.bytes_converted);
    if (plain) {
        struct spread to_plain = plain_ratio(report, subject, plain);
        fprintf(json, "\"plain_ratio_median\": %.4f, \"plain_ratio_min\": %.4f, \"plain_ratio_max\": %.4f, ",
                to_plain.median, to_plain.least, to_plain.most);
    }
}

static void write_subject(FILE *json, const struct report *report, const struct subject *subject)
{
    const struct hr_checkpoint *checkpoint = subject->target->checkpoint;
    struct spread ratio = spread_of(subject->ratio, report->pairs);
    fputs("    {", json);
    json_string(json, "memory", subject_memory_name(subject->memory));
    json_string(json, "loader", subject->new_loader ? "new" : "kept");
    fprintf(json, "\"threads_asked\": %u, \"bytes\": %llu, \"tensors\": %zu, \"files\": %zu, ", subject->threads,
            (unsigned long long)subject->target->bytes, hr_checkpoint_count(checkpoint),
            hr_checkpoint_file_count(checkpoint));
    fprintf(json, "\"gb_s\": %.3f, \"ratio_median\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f, ",
            gb_s(subject->target->bytes, spread_of(subject->seconds, report->pairs).median), ratio.median, ratio.least,
            ratio.most);
    json_values(json, "seconds", subject->seconds, report->pairs);
    json_values(json, "ratios", subject->ratio, report->pairs);
    fprintf(json,
            "\"first_seconds\": %.4f, \"free_seconds\": %.4f, \"cpu_seconds\": %.4f, \"device_above_bytes\": %lld, ",
            subject->first_seconds, subject->free_seconds, spread_of(subject->cpu, report->pairs).median,
            (long long)subject_device_above(subject));
    write_conversion(json, report, subject);
    write_stats(json, &subject->stats);
    fprintf(json, "\"verified_items\": %llu, \"verified_bytes\": %llu}", (unsigned long long)subject->verified_items,
            (unsigned long long)subject->verified_bytes);
}

void report_write(const struct report *report, const char *path)
{
    FILE *json = fopen(path, "w");
    if (!json)
        die("cannot write", path);
    fputs("{\n  \"benchmark\": \"gpu\", ", json);
    json_string(json, "device", report->device);
    fprintf(json, "\"driver\": %d, \"cores\": %u, \"pairs\": %zu,\n", report->driver_version, report->cores,
            report->pairs);
    if (report->has_limits)
        write_limits(json, &report->limits);
    write_ruler(json, report);
    fputs("  \"subjects\": [\n", json);
    for (size_t i = 0; i < report->subject_count; i++) {
        write_subject(json, report, &report->subjects[i]);
        fputs(i + 1 < report->subject_count ? ",\n" : "\n", json);
    }
    fputs("  ]\n}\n", json);
    if (fclose(json))
        die("cannot write", path);
}
