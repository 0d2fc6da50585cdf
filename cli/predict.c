/*
 * predict.c: the slowest ceiling that a load crosses. All stages overlap, so a load cannot be faster than its slowest
 * one, and what is not known is said to be unknown.
 */
#include "predict.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "limits_file.h"

/* So little that is not in the page cache does not make storage a stage. */
static const double cached_enough = 0.99;

/* ------------------------------------------------------------------------------------------ predicting */

static void unknown(struct prediction *prediction, const char *reason)
{
    prediction->seconds = 0;
    snprintf(prediction->reason, sizeof prediction->reason, "%s", reason);
}

/* A stage through which `bytes` go; ceilings that were not measured do not count. */
static void cross(struct prediction *prediction, const char *name, uint64_t ceiling_bytes, double bytes)
{
    if (ceiling_bytes == 0 || bytes / (double)ceiling_bytes <= prediction->seconds)
        return;
    prediction->seconds = bytes / (double)ceiling_bytes;
    prediction->ceiling = name;
    prediction->ceiling_bytes = ceiling_bytes;
}

static uint64_t fastest(const uint64_t *speeds, size_t count)
{
    uint64_t best = 0;
    for (size_t i = 0; i < count; i++)
        best = speeds[i] > best ? speeds[i] : best;
    return best;
}

/* The memory that the command loads to is fresh on the CPU, and on a GPU it is behind the link. */
static void cross_all(struct prediction *prediction, const struct hr_limits *limits,
                      const struct hr_device_info *device, double bytes)
{
    cross(prediction, "page_cache", limits->page_cache, bytes);
    if (device->type == HR_DEVICE_CPU) {
        cross(prediction, "page_cache_fresh", limits->page_cache_fresh, bytes);
        return;
    }
    cross(prediction, "to_device", fastest(limits->to_device, HR_PROBE_SIZE_COUNT), bytes);
    cross(prediction, "page_cache_to_device", limits->page_cache_to_device, bytes);
}

/* A storage's speed is that of the file system that was measured, of no other. */
static int is_same_storage(const struct hr_checkpoint *checkpoint, const char *path)
{
    struct stat measured, loaded;
    return *path && stat(path, &measured) == 0 && stat(hr_checkpoint_file(checkpoint, 0)->path, &loaded) == 0 &&
           measured.st_dev == loaded.st_dev;
}

static void predict_by(const struct limits_entry *entry, const struct hr_checkpoint *checkpoint,
                       const struct hr_device_info *device, double bytes, double cached, struct prediction *prediction)
{
    const struct hr_limits *limits = &entry->limits;
    prediction->time = limits->time;
    cross_all(prediction, limits, device, bytes);
    if (prediction->seconds == 0)
        unknown(prediction, "the page cache was not measured: headrace probe PATH");
    else if (cached < 0)
        unknown(prediction, "cannot tell what the page cache holds");
    else if (cached < cached_enough && (!limits->storage || !is_same_storage(checkpoint, entry->path)))
        unknown(prediction, "the page cache does not hold all, and this storage was not measured: "
                            "headrace probe PATH");
    else if (cached < cached_enough)
        cross(prediction, "storage", limits->storage, bytes * (1 - cached));
}

void predict(const struct hr_checkpoint *checkpoint, const struct hr_device_info *device, uint64_t bytes, double cached,
             uint32_t route, struct prediction *ret_prediction)
{
    struct limits_file file;
    struct hr_error err;
    *ret_prediction = (struct prediction){0};
    int code = limits_read(&file, &err);
    const struct limits_entry *entry = code == 0 ? limits_find(&file, device) : NULL;
    if (bytes == 0)
        unknown(ret_prediction, "there is nothing to read");
    else if (route == HR_ROUTE_MMAP)
        unknown(ret_prediction, "mapped pages are read when they are touched");
    else if (code < 0 && *err.file) /* what cannot be read, probe does not replace */
        snprintf(ret_prediction->reason, sizeof ret_prediction->reason, "%s: %s%s", err.file, err.message,
                 code == HR_EIO_ERROR ? "" : "; headrace probe PATH writes it anew");
    else if (code < 0)
        unknown(ret_prediction, err.message);
    else if (!entry)
        unknown(ret_prediction, "never probed: headrace probe PATH");
    else
        predict_by(entry, checkpoint, device, (double)bytes, cached, ret_prediction);
    limits_release(&file);
}

/* ---------------------------------------------------------------------------------------------- output */

/* Negative days, of a clock that was set back, are none. */
static int64_t age_days(int64_t time_then)
{
    int64_t seconds = (int64_t)time(NULL) - time_then;
    return seconds > 0 ? seconds / 86400 : 0;
}

static char *date_text(char out[32], int64_t time_then)
{
    time_t seconds = (time_t)time_then;
    struct tm date;
    if (!gmtime_r(&seconds, &date) || !strftime(out, 32, "%Y-%m-%d", &date))
        snprintf(out, 32, "unknown date");
    return out;
}

void prediction_rows(struct table *table, const struct prediction *prediction)
{
    char date[32], days[64];
    table_addf(table, "predicted");
    if (prediction->seconds <= 0) {
        char *reason = escape(prediction->reason, strlen(prediction->reason));
        table_addf(table, "unknown (%s)", reason);
        free(reason);
        return;
    }
    table_addf(table, "%.6f s by %s, %.3f GB/s, measured %s, %s ago", prediction->seconds, prediction->ceiling,
               (double)prediction->ceiling_bytes / 1e9, date_text(date, prediction->time),
               human_count(days, (uint64_t)age_days(prediction->time), "day"));
}

static double reached_share(const struct prediction *prediction, uint64_t total_ns)
{
    return total_ns ? prediction->seconds * 1e9 / (double)total_ns : 0.0;
}

void prediction_share_row(struct table *table, const struct prediction *prediction, uint64_t total_ns)
{
    table_addf(table, "of ceiling");
    if (prediction->seconds > 0)
        table_addf(table, "%.1f %%", 100 * reached_share(prediction, total_ns));
    else
        table_addf(table, "unknown");
}

void json_prediction(struct json *json, const struct prediction *prediction, uint64_t total_ns)
{
    char date[32];
    json_open(json, "prediction", '{');
    if (prediction->seconds > 0) {
        json_real(json, "seconds", prediction->seconds, 9);
        json_text(json, "ceiling", prediction->ceiling);
        json_u64(json, "ceiling_bytes_per_second", prediction->ceiling_bytes);
        json_real(json, "share", reached_share(prediction, total_ns), 6);
        json_text(json, "date", date_text(date, prediction->time));
        json_i64(json, "age_days", age_days(prediction->time));
    } else {
        json_text(json, "seconds", NULL);
        json_text(json, "share", NULL);
        json_string(json, "reason", prediction->reason, strlen(prediction->reason));
    }
    json_close(json, '}');
}
