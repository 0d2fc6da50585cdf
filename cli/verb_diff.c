/*
 * verb_diff.c: compares two checkpoints, tensor by tensor of the same name, and prints differences in their order.
 */
#include <headrace/headrace.h>

#include "cli_device.h"
#include "comparison.h"
#include "diff_report.h"
#include "interrupt.h"
#include "options.h"
#include "request.h"

static const uint64_t window_bytes_default = 1ull << 30;

/* On success *ret_exit_code is the answer. */
static int diff(const struct request_options *options, const char *const *paths, int as_json, int *ret_exit_code,
                struct hr_error *err)
{
    struct comparison comparison = {.window_bytes = options->tuning.window_bytes};
    struct hr_device_info device;
    struct device_list devices = {&device, 1};
    int code = request_device(&options->tuning, options->device, &device, err);
    if (code == 0)
        code = request_loader(&options->tuning, &devices, &comparison.loader, err);
    for (int side = SIDE_A; side < SIDE_COUNT && code == 0; side++)
        code = checkpoint_open(&paths[side], 1, &options->open, &comparison.checkpoints[side], err);
    if (code == 0)
        code = compare_checkpoints(&comparison, err);
    if (code == 0) {
        (as_json ? diff_print_json : diff_print_text)(&comparison.found, &device);
        *ret_exit_code = comparison.found.different_count ? EXIT_NO : EXIT_YES;
    }
    comparison_release(&comparison);
    hr_checkpoint_close(comparison.checkpoints[SIDE_A]);
    hr_checkpoint_close(comparison.checkpoints[SIDE_B]);
    hr_loader_free(comparison.loader);
    return code;
}

int diff_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct request_options request = {.tuning.window_bytes = window_bytes_default};
    struct text_list paths;
    struct hr_error err;
    int as_json = 0, code;
    const struct option options[] = {DEVICE_OPTION(request.device),
                                     TUNING_OPTIONS(request.tuning),
                                     OPEN_OPTIONS(request.open),
                                     JSON_OPTION(as_json),
                                     {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){2, 2}, &paths, &code))
        return code;
    interrupt_start();
    if (diff(&request, paths.texts, as_json, &code, &err) < 0)
        code = load_error_report(verb->name, as_json, &err);
    text_list_release(&paths);
    return code;
}
