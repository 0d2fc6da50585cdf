/*
 * verb_load.c: loads for real, as often as asked, and says how fast it was. Each repeat frees its memory before the
 * next one begins. Times are the library's: from the start to the last tensor ready.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "cached.h"
#include "interrupt.h"
#include "load_report.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "request.h"
#include "timeline.h"

struct load_options {
    struct request_options request;
    uint64_t deadline_ns;
    const char *trace_path;
    uint32_t repeat_count;
    int as_json;
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
                     struct trace *trace, struct repeat *ret_repeat, struct hr_error *err)
{
    struct hr_load_options load_options = {.size = sizeof load_options};
    struct hr_load *load;
    load_options.window_bytes = options->request.tuning.window_bytes;
    load_options.deadline_ns = options->deadline_ns;
    if (progress->is_enabled) {
        load_options.progress = progress_draw;
        load_options.progress_context = progress;
    }
    if (trace->path) {
        load_options.trace = trace_add;
        load_options.trace_context = trace;
    }
    trace_reset(trace);
    ret_repeat->cached = cached_share(job->checkpoint);
    int code = hr_load_start(job->loader, job->checkpoint, job->request.items, job->request.item_count, &load_options,
                             &load, err);
    if (code < 0)
        return code;
    interrupt_watch(load, NULL);
    code = consume(load, load_options.window_bytes != 0, err);
    interrupt_watch(NULL, NULL);
    ret_repeat->stats.size = sizeof ret_repeat->stats;
    hr_load_stats(load, &ret_repeat->stats);
    hr_load_free(load);
    progress_erase(progress);
    return code;
}

/* Also of a load that failed there is a trace, but its error is the one to know. */
static int finish_trace(struct trace *trace, const struct job *job, int code, struct hr_error *err)
{
    struct hr_error trace_err;
    if (!trace->path || trace_write(trace, job->checkpoint, &trace_err) == 0 || code < 0)
        return code;
    *err = trace_err;
    return err->code;
}

static int load_all(const struct load_options *options, const struct job *job, struct trace *trace,
                    struct hr_error *err)
{
    struct progress progress;
    struct repeat *repeats = allocate(options->repeat_count, sizeof *repeats);
    struct load_report report = {.job = job, .repeats = repeats, .trace = trace};
    int code = 0;
    report.route = options->request.tuning.route;
    progress_init(&progress);
    while (code == 0 && report.repeat_count < options->repeat_count)
        if ((code = load_once(job, options, &progress, trace, &repeats[report.repeat_count++], err)) == 0)
            code = interrupt_check(err);
    code = finish_trace(trace, job, code, err);
    if (code == 0 && options->as_json)
        load_report_json(&report);
    else if (code == 0)
        load_report_text(&report);
    free(repeats);
    return code;
}

static int load_paths(const struct load_options *options, const struct text_list *paths, struct hr_error *err)
{
    struct job job;
    struct trace trace;
    int code = job_open(&options->request, paths, &job, err);
    if (code < 0)
        return code;
    code = trace_open(&trace, options->trace_path, job.checkpoint, paths, err);
    interrupt_unfinished(trace.is_new ? trace.path : NULL);
    if (code == 0)
        code = load_all(options, &job, &trace, err);
    interrupt_unfinished(NULL);
    trace_close(&trace);
    job_close(&job);
    return code;
}

/* What has the form of an option's value and still means nothing. */
static int check_options(const struct load_options *options, struct hr_error *err)
{
    if (options->repeat_count == 0)
        return error_set(err, HR_EINVALID_ARGUMENT, "--repeat 0 would load nothing; give 1 or more");
    if (options->trace_path && (!*options->trace_path || strcmp(options->trace_path, "-") == 0))
        return error_set(err, HR_EINVALID_ARGUMENT, "--trace '%s' names no file; give a path", options->trace_path);
    return 0;
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
        DTYPE_OPTION(load.request.dtypes),
        OPTION("repeat", "N", OPTION_COUNT, &load.repeat_count, NULL, "load N times and report each and the median"),
        OPTION("deadline", "SECONDS", OPTION_SECONDS, &load.deadline_ns, NULL, "give up when a load takes longer"),
        OPTION("trace", "FILE", OPTION_TEXT, &load.trace_path, NULL,
               "write the timeline of the last load, for Perfetto or chrome://tracing"),
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
    if (check_options(&load, &err) < 0 || load_paths(&load, &paths, &err) < 0)
        code = load_error_report(verb->name, load.as_json, &err);
    request_options_release(&load.request);
    text_list_release(&paths);
    return code;
}
