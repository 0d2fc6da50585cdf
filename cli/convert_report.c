/*
 * convert_report.c: what was written as a table and as JSON, and what --check found as `diff` says it, with what was read
 * as A and what was written as B.
 */
#include "convert_report.h"

#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "output.h"

void convert_report_json(const struct convert_report *report)
{
    struct json json = {0};
    char name[32];
    json_open(&json, NULL, '{');
    json_text(&json, "device", device_name(name, report->device));
    json_text(&json, "path", report->opens);
    json_open(&json, "files", '[');
    for (size_t i = 0; i < hr_writer_file_count(report->writer); i++)
        json_text(&json, NULL, hr_writer_path(report->writer, i));
    json_close(&json, ']');
    json_u64(&json, "tensors", report->tensor_count);
    json_u64(&json, "bytes", report->bytes);
    json_u64(&json, "bytes_converted", report->bytes_converted);
    json_real(&json, "seconds", (double)report->elapsed_ns / 1e9, 9);
    json_real(&json, "gb_per_second", gigabytes_per_second(report->bytes, report->elapsed_ns), 6);
    if (report->found) {
        json_open(&json, "check", '{');
        diff_json(&json, report->found);
        json_close(&json, '}');
    } else {
        json_text(&json, "check", NULL);
    }
    json_close(&json, '}');
    json_end(&json);
}

void convert_report_text(const struct convert_report *report)
{
    struct table table;
    char size[32], *path = escape(report->opens, strlen(report->opens));
    table_init(&table, "ll");
    table_addf(&table, "written");
    table_addf(&table, "%s", path);
    table_addf(&table, "tensors");
    table_addf(&table, "%zu", report->tensor_count);
    table_addf(&table, "files");
    table_addf(&table, "%zu", hr_writer_file_count(report->writer));
    table_add_bytes(&table, "bytes", report->bytes);
    if (report->bytes_converted) {
        table_addf(&table, "converted");
        table_addf(&table, "%s of what was read", human_bytes(size, report->bytes_converted));
    }
    table_addf(&table, "seconds");
    table_addf(&table, "%.6f", (double)report->elapsed_ns / 1e9);
    table_addf(&table, "GB/s");
    table_addf(&table, "%.3f", gigabytes_per_second(report->bytes, report->elapsed_ns));
    table_print(&table, stdout);
    free(path);
    if (report->found)
        diff_print_text(report->found, report->device);
}
