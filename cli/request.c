/*
 * request.c: opens, selects and slices through the public API. It prints nothing.
 */
#include "request.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "output.h"

int checkpoint_open(const char *const *paths, size_t path_count, const struct open_flags *flags,
                    struct hr_checkpoint **ret_checkpoint, struct hr_error *err)
{
    struct hr_open_options options = {.size = sizeof options};
    options.mode = flags->compat ? HR_OPEN_COMPAT : HR_OPEN_STRICT;
    options.allow_trailing = (uint32_t)flags->allow_trailing;
    return hr_checkpoint_open(paths, path_count, &options, ret_checkpoint, err);
}

/*
 * The first tensor at or after `index` that `pattern` means, or the tensor count: the one of exactly this name where
 * there is one, so that names with brackets can be written as they are; else those that match.
 */
static size_t match_next(const struct hr_checkpoint *checkpoint, const char *pattern, size_t index)
{
    const struct hr_tensor *exact = hr_checkpoint_find(checkpoint, pattern, strlen(pattern));
    if (!exact)
        return hr_checkpoint_match(checkpoint, pattern, index);
    size_t found = (size_t)(exact - hr_checkpoint_at(checkpoint, 0));
    return found >= index ? found : hr_checkpoint_count(checkpoint);
}

/* Marks with 1 what is selected. */
static int mark_matches(const struct hr_checkpoint *checkpoint, const struct text_list *matches, size_t *marks,
                        struct hr_error *err)
{
    size_t count = hr_checkpoint_count(checkpoint);
    for (size_t i = 0; i < count; i++)
        marks[i] = matches->count == 0;
    for (size_t m = 0; m < matches->count; m++) {
        size_t index = match_next(checkpoint, matches->texts[m], 0);
        if (index == count)
            return error_set(err, HR_ETENSOR_NOT_FOUND, "--match: no tensor of %zu matches '%s'", count,
                             matches->texts[m]);
        for (; index < count; index = match_next(checkpoint, matches->texts[m], index + 1))
            marks[index] = 1;
    }
    return 0;
}

/* Turns each mark into the number of the item + 1. */
static void make_items(size_t *marks, size_t tensor_count, struct request *request)
{
    size_t item_count = 0;
    for (size_t i = 0; i < tensor_count; i++)
        item_count += marks[i];
    request->items = allocate(item_count, sizeof *request->items);
    request->ranges = allocate(item_count, sizeof *request->ranges);
    for (size_t i = 0; i < tensor_count; i++) {
        if (!marks[i])
            continue;
        request->items[request->item_count].size = sizeof *request->items;
        request->items[request->item_count].tensor_index = i;
        marks[i] = ++request->item_count;
    }
}

static int slice_item(const struct hr_checkpoint *checkpoint, const char *text, struct request *request, size_t item,
                      struct hr_error *err)
{
    const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, request->items[item].tensor_index);
    if (!request->ranges[item])
        request->ranges[item] = allocate(tensor->rank, sizeof **request->ranges);
    request->items[item].ranges = request->ranges[item];
    return hr_slice_parse(text, tensor, request->ranges[item], err);
}

/* Applies one NAME=SLICE. Names may contain '='; slices cannot, so the last one divides. */
static int apply_slice(const struct hr_checkpoint *checkpoint, const char *argument, const size_t *marks,
                       struct request *request, struct hr_error *err)
{
    const char *equals = strrchr(argument, '=');
    if (!equals || equals == argument)
        return error_set(err, HR_EINVALID_ARGUMENT, "--slice '%s' is not of the form NAME=[a:b,...]", argument);
    char *name = strndup(argument, (size_t)(equals - argument));
    if (!name)
        return error_set(err, HR_EOUT_OF_MEMORY, "out of memory for the name in --slice");
    size_t count = hr_checkpoint_count(checkpoint), applied = 0;
    int code = 0;
    for (size_t i = match_next(checkpoint, name, 0); i < count && code == 0; i = match_next(checkpoint, name, i + 1))
        if (marks[i]) {
            code = slice_item(checkpoint, equals + 1, request, marks[i] - 1, err);
            applied++;
        }
    if (applied == 0)
        code = error_set(err, HR_ETENSOR_NOT_FOUND, "--slice: no selected tensor of %zu matches '%s'",
                         request->item_count, name);
    free(name);
    return code;
}

/* ------------------------------------------------------------------------------------------ --dtype */

/* What a dtype without a name or pattern converts. */
static int is_float(uint32_t dtype)
{
    switch (dtype) {
    case HR_DTYPE_F64:
    case HR_DTYPE_F32:
    case HR_DTYPE_F16:
    case HR_DTYPE_BF16:
    case HR_DTYPE_F8_E5M2:
    case HR_DTYPE_F8_E4M3:
    case HR_DTYPE_F8_E8M0:
    case HR_DTYPE_F8_E4M3FNUZ:
    case HR_DTYPE_F8_E5M2FNUZ:
        return 1;
    default:
        return 0;
    }
}

/* The dtype of a name in any case; HR_DTYPE_NONE for "auto". */
static int dtype_parse(const char *argument, const char *name, uint32_t *ret_dtype, struct hr_error *err)
{
    char upper[16] = "";
    size_t size = strlen(name);
    for (size_t i = 0; i < size && i + 1 < sizeof upper; i++)
        upper[i] = (char)toupper((unsigned char)name[i]);
    *ret_dtype = size < sizeof upper ? hr_dtype_find(upper, size) : HR_DTYPE_NONE;
    if (*ret_dtype == HR_DTYPE_NONE && strcmp(upper, "AUTO") != 0)
        return error_set(err, HR_EINVALID_ARGUMENT,
                         "--dtype '%s': '%s' is no dtype; say BF16, F16, F32, F8_E4M3, ... or auto, as stored",
                         argument, name);
    return 0;
}

/* Of all selected tensors of floats. */
static int apply_general_dtype(const struct hr_checkpoint *checkpoint, const char *argument, struct request *request,
                               struct hr_error *err)
{
    uint32_t dtype;
    int code = dtype_parse(argument, argument, &dtype, err);
    for (size_t i = 0; code == 0 && i < request->item_count; i++)
        if (is_float(hr_checkpoint_at(checkpoint, request->items[i].tensor_index)->dtype))
            request->items[i].dtype = dtype;
    return code;
}

/* Of the selected tensors that `name` names or matches. */
static int apply_named_dtype(const struct hr_checkpoint *checkpoint, const char *argument, const char *name,
                             uint32_t dtype, const size_t *marks, struct request *request, struct hr_error *err)
{
    size_t count = hr_checkpoint_count(checkpoint), applied = 0;
    for (size_t i = match_next(checkpoint, name, 0); i < count; i = match_next(checkpoint, name, i + 1))
        if (marks[i]) {
            request->items[marks[i] - 1].dtype = dtype;
            applied++;
        }
    if (applied == 0)
        return error_set(err, HR_ETENSOR_NOT_FOUND, "--dtype '%s': no selected tensor of %zu matches '%s'", argument,
                         request->item_count, name);
    return 0;
}

/* One [GLOB=]DTYPE, if it is of the kind that is asked for. Names may contain '='; dtypes cannot. */
static int apply_dtype(const struct hr_checkpoint *checkpoint, const char *argument, int is_general,
                       const size_t *marks, struct request *request, struct hr_error *err)
{
    const char *equals = strrchr(argument, '=');
    uint32_t dtype;
    if ((equals == NULL) != is_general)
        return 0;
    if (!equals)
        return apply_general_dtype(checkpoint, argument, request, err);
    int code = dtype_parse(argument, equals + 1, &dtype, err);
    if (code < 0)
        return code;
    char *name = strndup(argument, (size_t)(equals - argument));
    if (!name)
        return error_set(err, HR_EOUT_OF_MEMORY, "out of memory for the name in --dtype");
    code = apply_named_dtype(checkpoint, argument, name, dtype, marks, request, err);
    free(name);
    return code;
}

static int apply_dtypes(const struct hr_checkpoint *checkpoint, const struct text_list *dtypes, const size_t *marks,
                        struct request *request, struct hr_error *err)
{
    int code = 0;
    for (int is_general = 1; is_general >= 0; is_general--)
        for (size_t i = 0; i < dtypes->count && code == 0; i++)
            code = apply_dtype(checkpoint, dtypes->texts[i], is_general, marks, request, err);
    return code;
}

/* ------------------------------------------------------------------------------------------ the request */

int request_make(const struct hr_checkpoint *checkpoint, const struct text_list *matches,
                 const struct text_list *slices, const struct text_list *dtypes, struct request *ret_request,
                 struct hr_error *err)
{
    size_t count = hr_checkpoint_count(checkpoint);
    size_t *marks = allocate(count, sizeof *marks);
    struct request request = {0};
    int code = mark_matches(checkpoint, matches, marks, err);
    if (code == 0)
        make_items(marks, count, &request);
    for (size_t i = 0; i < slices->count && code == 0; i++)
        code = apply_slice(checkpoint, slices->texts[i], marks, &request, err);
    if (code == 0)
        code = apply_dtypes(checkpoint, dtypes, marks, &request, err);
    free(marks);
    if (code == 0)
        *ret_request = request;
    else
        request_release(&request);
    return code;
}

void request_release(struct request *request)
{
    for (size_t i = 0; i < request->item_count; i++)
        free(request->ranges[i]);
    free(request->ranges);
    free(request->items);
    *request = (struct request){0};
}

int request_loader(const struct tuning *tuning, const char *device, struct hr_loader **ret_loader,
                   struct hr_device_info *ret_device, struct hr_error *err)
{
    struct hr_loader_options options = {.size = sizeof options};
    char name[32];
    const char *const names[] = {name};
    if (!device && tuning->route == HR_ROUTE_MMAP) /* which only host memory has */
        device = "cpu";
    int code = device_find(device, ret_device, err);
    if (code < 0)
        return code;
    device_name(name, ret_device);
    options.devices = names;
    options.device_count = 1;
    options.route = tuning->route;
    options.thread_count = tuning->thread_count;
    options.chunk_bytes = tuning->chunk_bytes;
    options.queue_depth = tuning->queue_depth;
    options.staging_bytes = tuning->staging_bytes;
    options.keep_cache = (uint32_t)tuning->keep_cache;
    options.lane_count = tuning->lane_count;
    options.no_binding = (uint32_t)tuning->no_numa;
    return hr_loader_new(&options, ret_loader, err);
}

int job_open(const struct request_options *options, const struct text_list *paths, struct job *ret_job,
             struct hr_error *err)
{
    struct job job = {0};
    int code = request_loader(&options->tuning, options->device, &job.loader, &job.device, err);
    if (code == 0)
        code = checkpoint_open(paths->texts, paths->count, &options->open, &job.checkpoint, err);
    if (code == 0)
        code = request_make(job.checkpoint, &options->matches, &options->slices, &options->dtypes, &job.request, err);
    if (code == 0)
        *ret_job = job;
    else
        job_close(&job);
    return code;
}

void job_close(struct job *job)
{
    request_release(&job->request);
    hr_checkpoint_close(job->checkpoint);
    hr_loader_free(job->loader);
    *job = (struct job){0};
}

void request_options_release(struct request_options *options)
{
    text_list_release(&options->matches);
    text_list_release(&options->slices);
    text_list_release(&options->dtypes);
}
