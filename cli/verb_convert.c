/*
 * verb_convert.c: writes a checkpoint anew. Tensors are loaded through a window, with what is to be converted converted
 * on the way, and a few threads put them into a writer as they become ready: the memory is that of the window and of the
 * tensors in hand, whatever the size of the model.
 *
 * The load is watched from before the first file is made until all are in place or gone, so that a signal never finds a
 * file that nobody removes.
 */
#include <headrace/headrace.h>
#include <pthread.h>
#include <stdlib.h>

#include "cli_device.h"
#include "comparison.h"
#include "consume.h"
#include "convert_metadata.h"
#include "convert_report.h"
#include "convert_target.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "request.h"

static const uint64_t window_bytes_default = 256ull << 20;

struct convert_options {
    struct request_options request;
    struct text_list metadata;
    uint64_t align, shard_bytes;
    int no_sync, is_checked, as_json;
};

/* All that one conversion holds; released as a whole. */
struct conversion {
    const struct convert_options *options;
    struct convert_origin origin;
    struct job job;
    struct convert_target target;
    struct metadata_list metadata;
    struct hr_tensor *tensors; /* one per item: what is written */
    struct hr_load *load;
    struct hr_writer *writer;
    struct progress progress;
    pthread_mutex_t lock;     /* guards the next */
    struct hr_progress state; /* what was written */
    uint64_t bytes_converted, elapsed_ns;
};

/* --------------------------------------------------------------------------------------------- what to write */

/*
 * The items' tensors, with the dtypes and sizes that they will have. The load has started, so these pairs convert, and
 * are of whole bytes; sizes cannot overflow, since a file holds the stored ones.
 */
static void make_tensors(struct conversion *conversion)
{
    const struct request *request = &conversion->job.request;
    conversion->tensors = allocate(request->item_count, sizeof *conversion->tensors);
    for (size_t i = 0; i < request->item_count; i++) {
        const struct hr_item *item = &request->items[i];
        struct hr_tensor *tensor = &conversion->tensors[i];
        *tensor = *hr_checkpoint_at(conversion->job.checkpoint, item->tensor_index);
        if (item->dtype != HR_DTYPE_NONE && item->dtype != tensor->dtype) {
            conversion->bytes_converted += tensor->size;
            conversion->origin.is_kept = 0;
            tensor->size = tensor->size / (hr_dtype_bits(tensor->dtype) / 8) * (hr_dtype_bits(item->dtype) / 8);
            tensor->dtype = item->dtype;
        }
        conversion->state.bytes_total += tensor->size;
    }
    conversion->state.item_count = request->item_count;
}

static int start_load(struct conversion *conversion, struct hr_error *err)
{
    struct hr_load_options options = {.size = sizeof options};
    const struct job *job = &conversion->job;
    options.window_bytes = conversion->options->request.tuning.window_bytes;
    return hr_load_start(job->loader, job->checkpoint, job->request.items, job->request.item_count, &options,
                         &conversion->load, err);
}

static int make_writer(struct conversion *conversion, struct hr_error *err)
{
    const struct convert_options *options = conversion->options;
    char text[32];
    const char *device = device_name(text, &conversion->job.devices.devices[0]);
    struct hr_write_options write = {.size = sizeof write, .devices = &device, .device_count = 1};
    write.metadata = conversion->metadata.count ? conversion->metadata.pairs : NULL; /* not an empty object */
    write.metadata_count = conversion->metadata.count;
    write.align = options->align;
    write.shard_bytes = options->shard_bytes;
    write.no_sync = (uint32_t)options->no_sync;
    return hr_writer_new(conversion->target.path, conversion->tensors, conversion->state.item_count, &write,
                         &conversion->writer, err);
}

/* ---------------------------------------------------------------------------------------------------- writing */

static int put_item(void *context, size_t consumer, size_t item, struct hr_error *err)
{
    (void)consumer;
    struct conversion *conversion = context;
    struct hr_view view = {.size = sizeof view};
    struct hr_progress state;
    int code = hr_load_view(conversion->load, item, &view, err);
    if (code == 0) {
        const struct hr_source source = {.size = sizeof source, .data = view.data};
        code = hr_writer_put(conversion->writer, item, &source, err);
    }
    if (code < 0)
        return code;
    pthread_mutex_lock(&conversion->lock);
    conversion->state.bytes_done += view.bytes;
    conversion->state.item_done++;
    state = conversion->state;
    pthread_mutex_unlock(&conversion->lock);
    if (progress_is_due(&conversion->progress, &state.elapsed_ns))
        progress_draw(&conversion->progress, &state);
    return 0;
}

static int check_target(struct conversion *conversion, struct hr_error *err)
{
    int is_in_place;
    int code = convert_target_check(&conversion->target, conversion->writer, &conversion->origin, &is_in_place, err);
    if (code == 0 && is_in_place && conversion->options->is_checked)
        code = error_set(err, HR_EINVALID_ARGUMENT,
                         "--check has nothing to compare with when a file is replaced; write elsewhere");
    return code;
}

/* A signal that comes while files are renamed comes too late: they are all in place then. */
static int write_watched(struct conversion *conversion, struct hr_error *err)
{
    make_tensors(conversion);
    int code = make_writer(conversion, err);
    if (code == 0)
        code = check_target(conversion, err);
    if (code == 0)
        code = consume_ready(conversion->load, put_item, conversion, err);
    if (code == 0)
        code = interrupt_check(err);
    if (code == 0)
        code = hr_writer_finish(conversion->writer, err);
    if (code < 0) {
        hr_writer_free(conversion->writer);
        conversion->writer = NULL;
    }
    return code;
}

static int write_all(struct conversion *conversion, struct hr_error *err)
{
    progress_init(&conversion->progress);
    int code = start_load(conversion, err);
    if (code < 0)
        return code;
    interrupt_watch(conversion->load, NULL);
    code = write_watched(conversion, err);
    interrupt_watch(NULL, NULL);
    conversion->elapsed_ns = progress_elapsed(&conversion->progress);
    hr_load_free(conversion->load);
    progress_erase(&conversion->progress);
    return code;
}

/* --------------------------------------------------------------------------------------------------- checking */

/* What was written against what a load with the same options gives. */
static int check_written(struct conversion *conversion, struct comparison *comparison, struct hr_error *err)
{
    const char *path = convert_target_opens(&conversion->target, conversion->writer);
    const struct open_flags strict = {0};
    comparison->checkpoints[SIDE_A] = conversion->job.checkpoint;
    comparison->loader = conversion->job.loader;
    comparison->window_bytes = conversion->options->request.tuning.window_bytes;
    comparison->items = conversion->job.request.items;
    comparison->tensors = conversion->tensors;
    comparison->tensor_count = conversion->state.item_count;
    int code = interrupt_check(err);
    if (code == 0)
        code = checkpoint_open(&path, 1, &strict, &comparison->checkpoints[SIDE_B], err);
    if (code == 0)
        code = compare_checkpoints(comparison, err);
    return code;
}

static int check_and_report(struct conversion *conversion, int *ret_exit_code, struct hr_error *err)
{
    struct comparison comparison = {0};
    const int is_checked = conversion->options->is_checked;
    int code = is_checked ? check_written(conversion, &comparison, err) : 0;
    const struct convert_report report = {
        .writer = conversion->writer,
        .opens = convert_target_opens(&conversion->target, conversion->writer),
        .tensor_count = conversion->state.item_count,
        .bytes = conversion->state.bytes_total,
        .bytes_converted = conversion->bytes_converted,
        .elapsed_ns = conversion->elapsed_ns,
        .device = conversion->job.devices.devices,
        .found = is_checked ? &comparison.found : NULL,
    };
    if (code == 0) {
        (conversion->options->as_json ? convert_report_json : convert_report_text)(&report);
        *ret_exit_code = comparison.found.different_count ? EXIT_NO : EXIT_YES;
    }
    comparison_release(&comparison);
    hr_checkpoint_close(comparison.checkpoints[SIDE_B]);
    return code;
}

/* ------------------------------------------------------------------------------------------------------- verb */

static void conversion_release(struct conversion *conversion)
{
    hr_writer_free(conversion->writer);
    convert_target_release(&conversion->target);
    free(conversion->tensors);
    free(conversion->metadata.pairs);
    job_close(&conversion->job);
}

/* On success *ret_exit_code is the answer. */
static int convert(const struct convert_options *options, const struct text_list *paths, const char *out,
                   int *ret_exit_code, struct hr_error *err)
{
    struct conversion conversion = {.options = options, .lock = PTHREAD_MUTEX_INITIALIZER};
    int code = convert_target_init(&conversion.target, out, err);
    if (code == 0)
        code = job_open(&options->request, paths, &conversion.job, err);
    if (code == 0)
        code = metadata_merge(conversion.job.checkpoint, &options->metadata, &conversion.metadata, err);
    if (code == 0) {
        conversion.origin =
            (struct convert_origin){conversion.job.checkpoint, paths, options->request.matches.count == 0};
        code = write_all(&conversion, err);
    }
    if (code == 0)
        code = check_and_report(&conversion, ret_exit_code, err);
    conversion_release(&conversion);
    return code;
}

int convert_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct convert_options convert_options = {.request.device = "cpu",
                                              .request.tuning.window_bytes = window_bytes_default};
    struct request_options *request = &convert_options.request;
    struct text_list paths;
    struct hr_error err;
    int code;
    const struct option options[] = {
        DTYPE_OPTION(request->dtypes),
        OPTION("align", "SIZE", OPTION_SIZE, &convert_options.align, NULL,
               "data and tensors of whole multiples on multiples of SIZE, as 4096"),
        OPTION("shard-size", "SIZE", OPTION_SIZE, &convert_options.shard_bytes, NULL,
               "most bytes of a file, as 5GB; more is written in shards, with an index"),
        MATCH_OPTION(request->matches),
        OPTION("metadata", "KEY=VALUE", OPTION_LIST, &convert_options.metadata, NULL,
               "a pair of __metadata__, beside those of PATH; may be given again"),
        OPTION("check", NULL, OPTION_FLAG, &convert_options.is_checked, NULL,
               "compare what was written with what was read"),
        OPTION("no-sync", NULL, OPTION_FLAG, &convert_options.no_sync, NULL, "do not wait for the storage"),
        DEVICE_OPTION(request->device),
        TUNING_OPTIONS(request->tuning),
        OPEN_OPTIONS(request->open),
        JSON_OPTION(convert_options.as_json),
        {0}};
    if (options_parse(verb, options, argument_count, arguments, (struct operand_count){2, SIZE_MAX}, &paths, &code)) {
        struct text_list in = {paths.texts, paths.count - 1};
        interrupt_start();
        if (convert(&convert_options, &in, paths.texts[in.count], &code, &err) < 0)
            code = load_error_report(verb->name, convert_options.as_json, &err);
        text_list_release(&paths);
    }
    text_list_release(&convert_options.metadata);
    request_options_release(request);
    return code;
}
