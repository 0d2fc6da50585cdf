/*
 * verb_probe.c: the ceilings of this machine, measured, printed and kept for `load`, which says how near it came.
 */
#include <errno.h>
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli_device.h"
#include "limits_file.h"
#include "options.h"
#include "output.h"
#include "request.h"

struct probe {
    const char *device; /* NULL: "auto" */
    uint32_t thread_count;
    uint64_t budget_ns; /* 0: the library's default */
    int no_save, as_json;
};

/* ------------------------------------------------------------------------------------------- measuring */

/* Whether a checkpoint has to be opened to know its files. */
static int is_collection(const char *path, const struct stat *status)
{
    size_t size = strlen(path);
    return S_ISDIR(status->st_mode) || (size >= 5 && strcmp(path + size - 5, ".json") == 0);
}

static int fail_missing(const char *path, struct hr_error *err)
{
    int number = errno;
    int code = error_set(err, HR_EIO_ERROR, "cannot look at the file to read: %s", strerror(number));
    err->sys_errno = number;
    snprintf(err->file, sizeof err->file, "%s", path);
    return code;
}

/* The file to read, for free(): of a checkpoint the largest. */
static int find_file(const char *path, char **ret_path, struct hr_error *err)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return fail_missing(path, err);
    if (!is_collection(path, &status)) {
        *ret_path = strdup(path);
        return 0;
    }
    const struct open_flags flags = {0};
    struct hr_checkpoint *checkpoint;
    const struct hr_file *largest = NULL;
    int code = checkpoint_open(&path, 1, &flags, &checkpoint, err);
    if (code < 0)
        return code;
    for (size_t i = 0; i < hr_checkpoint_file_count(checkpoint); i++) {
        const struct hr_file *file = hr_checkpoint_file(checkpoint, i);
        if (!largest || file->size > largest->size)
            largest = file;
    }
    *ret_path = largest ? strdup(largest->path) : NULL;
    hr_checkpoint_close(checkpoint);
    return 0;
}

static int measure(const struct probe *probe, const char *path, struct limits_entry *ret_entry, struct hr_error *err)
{
    struct hr_probe_options options = {.size = sizeof options, .device = probe->device, .path = path};
    options.thread_count = probe->thread_count;
    options.budget_ns = probe->budget_ns;
    ret_entry->limits.size = sizeof ret_entry->limits;
    int code = hr_probe(&options, &ret_entry->limits, err);
    char *absolute = code == 0 && path ? realpath(path, NULL) : NULL;
    if (absolute && strlen(absolute) < sizeof ret_entry->path)
        memcpy(ret_entry->path, absolute, strlen(absolute) + 1);
    free(absolute);
    limits_host(ret_entry->host);
    return code;
}

/* ---------------------------------------------------------------------------------------------- output */

static void add_row(struct table *table, const char *name, uint64_t speed, const char *meaning, const char *how)
{
    table_addf(table, "%s", name);
    if (speed)
        table_addf(table, "%.3f", (double)speed / 1e9);
    else
        table_addf(table, "unknown");
    table_addf(table, "%s", meaning);
    table_add(table, escape(how, strlen(how)));
}

static void add_device_rows(struct table *table, const struct hr_limits *limits)
{
    char name[64], size[32];
    if (limits->device.type == HR_DEVICE_CPU)
        return;
    for (size_t i = 0; i < HR_PROBE_SIZE_COUNT; i++) {
        snprintf(name, sizeof name, "to_device %s", human_bytes(size, limits->to_device_sizes[i]));
        add_row(table, name, limits->to_device[i], "pinned memory to the device, copies of this size",
                limits->device_detail);
    }
    add_row(table, "from_device", limits->from_device, "the device to pinned memory", limits->device_detail);
    add_row(table, "page_cache_to_device", limits->page_cache_to_device, "page cache, staging and device together",
            limits->device_detail);
    add_row(table, "pin", limits->pin, "touched memory registered with the device", limits->device_detail);
}

static void print_text(const struct limits_entry *entry)
{
    const struct hr_limits *limits = &entry->limits;
    struct table table;
    char title[192], meaning[96], cores[64];
    char *path = escape(entry->path, strlen(entry->path));
    printf("device %s, %s%s%s\n", device_title(title, &limits->device), human_count(cores, limits->core_count, "core"),
           *path ? ", file " : "", path);
    free(path);
    table_init(&table, "lrll");
    table_addf(&table, "ceiling");
    table_addf(&table, "GB/s");
    table_addf(&table, "what it is");
    table_addf(&table, "how it was measured");
    add_row(&table, "memory_copy", limits->memory_copy, "host memory to host memory, one thread", "");
    snprintf(meaning, sizeof meaning, "resident pages to touched memory, %s",
             human_count(cores, limits->page_cache_threads, "thread"));
    add_row(&table, "page_cache", limits->page_cache, meaning, limits->page_cache_detail);
    add_row(&table, "page_cache_fresh", limits->page_cache_fresh, "resident pages to fresh memory",
            limits->page_cache_detail);
    add_row(&table, "storage", limits->storage, "reads past the page cache", limits->storage_detail);
    add_device_rows(&table, limits);
    table_print(&table, stdout);
}

static void print_json(const struct limits_entry *entry, const char *saved_path)
{
    struct json json = {0};
    json_open(&json, NULL, '{');
    limits_print(&json, "limits", entry);
    json_text(&json, "saved", saved_path);
    json_close(&json, '}');
    json_end(&json);
}

static int has_page_cache(const struct limits_entry *entry)
{
    return entry && (entry->limits.page_cache || entry->limits.page_cache_fresh);
}

/*
 * A broken file is said and replaced, an unreadable one may hold entries and stays. Figures of the page cache are not
 * lost to a result without them: load could predict nothing any more. When *ret_is_saved, file->path has the entry now.
 */
static int save(const struct verb *verb, const struct limits_entry *entry, struct limits_file *file, int *ret_is_saved,
                struct hr_error *err)
{
    int code = limits_read(file, err);
    if (code == HR_EIO_ERROR || !*file->path)
        return code;
    if (code < 0)
        complain(verb->name, "%s: %s; it is replaced", file->path, err->message);
    if (!has_page_cache(entry) && has_page_cache(limits_find_same(file, entry))) {
        complain(verb->name,
                 "not kept: the kept result has figures of the page cache and this one has none; give PATH");
        return 0;
    }
    code = limits_save(file, entry, err);
    *ret_is_saved = code == 0;
    return code;
}

/* What was measured is printed even when it cannot be kept. */
static int report(const struct verb *verb, const struct probe *probe, const struct limits_entry *entry)
{
    struct limits_file file = {0};
    struct hr_error err;
    int is_saved = 0;
    int code = probe->no_save ? 0 : save(verb, entry, &file, &is_saved, &err);
    if (probe->as_json)
        print_json(entry, is_saved ? file.path : NULL);
    else
        print_text(entry);
    if (is_saved && !probe->as_json) {
        char *path = escape(file.path, strlen(file.path));
        printf("kept in %s\n", path);
        free(path);
    }
    if (code < 0)
        complain(verb->name, "the result is not kept: %s%s%s", err.file, *err.file ? ": " : "", err.message);
    limits_release(&file);
    return code < 0 ? EXIT_FAULT : EXIT_YES;
}

/* On success *ret_exit_code is the answer. */
static int probe_path(const struct verb *verb, const struct probe *probe, const char *path, int *ret_exit_code,
                      struct hr_error *err)
{
    struct limits_entry *entry = allocate(1, sizeof *entry);
    char *file = NULL;
    int code = path ? find_file(path, &file, err) : 0;
    if (code == 0)
        code = measure(probe, file, entry, err);
    if (code == 0)
        *ret_exit_code = report(verb, probe, entry);
    free(file);
    free(entry);
    return code;
}

int probe_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct probe probe = {0};
    struct text_list paths;
    struct hr_error err;
    int code;
    const struct option options[] = {
        DEVICE_OPTION(probe.device),
        OPTION("threads", "N", OPTION_COUNT, &probe.thread_count, "HEADRACE_THREADS",
               "most threads; 0: by the number of cores"),
        OPTION("budget", "SECONDS", OPTION_SECONDS, &probe.budget_ns, NULL, "about how long it may take"),
        OPTION("no-save", NULL, OPTION_FLAG, &probe.no_save, NULL, "do not keep the result"),
        JSON_OPTION(probe.as_json),
        {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){0, 1}, &paths, &code))
        return code;
    if (probe_path(verb, &probe, paths.count ? paths.texts[0] : NULL, &code, &err) < 0)
        code = error_report(verb->name, probe.as_json, &err);
    text_list_release(&paths);
    return code;
}
