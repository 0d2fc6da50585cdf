/*
 * verb_plan.c: prints the plan that the same options would give `load`.
 */
#include <headrace/headrace.h>
#include <string.h>

#include "options.h"
#include "output.h"
#include "request.h"

static int print_plan(const struct request_options *options, const struct text_list *paths, int as_json,
                      struct hr_error *err)
{
    struct hr_load_options load_options = {.size = sizeof load_options};
    struct job job;
    char *text;
    int code = job_open(options, paths, &job, err);
    if (code < 0)
        return code;
    load_options.window_bytes = options->tuning.window_bytes;
    code = hr_plan_describe(job.loader, job.checkpoint, job.request.items, job.request.item_count, &load_options,
                            as_json ? HR_PLAN_JSON : HR_PLAN_TEXT, &text, err);
    if (code == 0) {
        size_t size = strlen(text);
        printf("%s%s", text, size && text[size - 1] == '\n' ? "" : "\n");
        hr_string_free(text);
    }
    job_close(&job);
    return code;
}

int plan_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct request_options request = {0};
    struct text_list paths;
    struct hr_error err;
    int as_json = 0, code;
    const struct option options[] = {DEVICE_OPTION(request.device),  MATCH_OPTION(request.matches),
                                     SLICE_OPTION(request.slices),   DTYPE_OPTION(request.dtypes),
                                     TUNING_OPTIONS(request.tuning), OPEN_OPTIONS(request.open),
                                     JSON_OPTION(as_json),           {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){1, SIZE_MAX}, &paths, &code)) {
        request_options_release(&request);
        return code;
    }
    code = print_plan(&request, &paths, as_json, &err) < 0 ? error_report(verb->name, as_json, &err) : EXIT_YES;
    request_options_release(&request);
    text_list_release(&paths);
    return code;
}
