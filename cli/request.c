/*
 * request.c: opens, selects, slices, shards and converts through the public API. It prints nothing.
 */
#include "request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "device_map.h"
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

/* What one --slice, --shard or --dtype does to an item. `is_exact`: the tensor was named, not matched. */
typedef int apply_item(const struct hr_checkpoint *checkpoint, const char *text, int is_exact, size_t item,
                       struct request *request, struct hr_error *err);

static int slice_item(const struct hr_checkpoint *checkpoint, const char *text, int is_exact, size_t item,
                      struct request *request, struct hr_error *err)
{
    (void)is_exact;
    const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, request->items[item].tensor_index);
    if (!request->ranges[item])
        request->ranges[item] = allocate(tensor->rank, sizeof **request->ranges);
    request->items[item].ranges = request->ranges[item];
    return hr_slice_parse(text, tensor, request->ranges[item], err);
}

struct shard {
    int64_t dim; /* negative: from the last */
    uint32_t rank, world;
};

static int parse_shard(const char *text, struct shard *ret_shard)
{
    char dim[8], rank[16], world[16], rest;
    int is_negative = *text == '-';
    uint32_t magnitude;
    if (sscanf(text + is_negative, "%7[0-9]:%15[0-9]/%15[0-9]%c", dim, rank, world, &rest) != 3)
        return 0;
    if (!parse_count(dim, &magnitude) || !parse_count(rank, &ret_shard->rank) || !parse_count(world, &ret_shard->world))
        return 0;
    ret_shard->dim = is_negative ? -(int64_t)magnitude : magnitude;
    return ret_shard->rank < ret_shard->world;
}

/* A tensor without the dimension stays whole, unless it was named. */
static int shard_item(const struct hr_checkpoint *checkpoint, const char *text, int is_exact, size_t item,
                      struct request *request, struct hr_error *err)
{
    const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, request->items[item].tensor_index);
    struct shard shard;
    if (!parse_shard(text, &shard))
        return error_set(err, HR_EINVALID_ARGUMENT,
                         "--shard: '%s' is not of the form DIM:RANK/WORLD with a RANK from 0 to below WORLD", text);
    int64_t dim = shard.dim < 0 ? shard.dim + tensor->rank : shard.dim;
    if (dim < 0 || dim >= tensor->rank)
        return is_exact ? error_set(err, HR_EINVALID_ARGUMENT, "--shard: tensor '%s' has %u dimensions, and no %lld",
                                    tensor->name, tensor->rank, (long long)shard.dim)
                        : 0;
    request->items[item].shard_dim = (uint32_t)dim;
    request->items[item].shard_rank = shard.rank;
    request->items[item].shard_world = shard.world;
    return 0;
}

/* The dtype of a name in any case; HR_DTYPE_NONE for "auto". */
static int dtype_parse(const char *name, uint32_t *ret_dtype, struct hr_error *err)
{
    char upper[16] = "";
    size_t size = strlen(name);
    for (size_t i = 0; i < size && i + 1 < sizeof upper; i++)
        upper[i] = (char)toupper((unsigned char)name[i]);
    *ret_dtype = size < sizeof upper ? hr_dtype_find(upper, size) : HR_DTYPE_NONE;
    if (*ret_dtype == HR_DTYPE_NONE && strcmp(upper, "AUTO") != 0)
        return error_set(err, HR_EINVALID_ARGUMENT,
                         "--dtype: '%s' is no dtype; say BF16, F16, F32, F8_E4M3, ... or auto, as stored", name);
    return 0;
}

static int dtype_item(const struct hr_checkpoint *checkpoint, const char *text, int is_exact, size_t item,
                      struct request *request, struct hr_error *err)
{
    (void)checkpoint;
    (void)is_exact;
    return dtype_parse(text, &request->items[item].dtype, err);
}

/* An option whose arguments are for tensors by name, and what it applies to. */
struct application {
    const char *option; /* "--slice" */
    apply_item *item;
    const struct hr_checkpoint *checkpoint;
    const size_t *marks;
    struct request *request;
};

/* Applies `text` to the selected tensors that `name` is or matches. */
static int apply_named(const struct application *to, const char *name, const char *text, struct hr_error *err)
{
    size_t count = hr_checkpoint_count(to->checkpoint), applied = 0;
    int is_exact = hr_checkpoint_find(to->checkpoint, name, strlen(name)) != NULL;
    for (size_t i = match_next(to->checkpoint, name, 0); i < count; i = match_next(to->checkpoint, name, i + 1)) {
        int code = to->marks[i] ? to->item(to->checkpoint, text, is_exact, to->marks[i] - 1, to->request, err) : 0;
        if (code < 0)
            return code;
        applied += to->marks[i] != 0;
    }
    if (applied == 0)
        return error_set(err, HR_ETENSOR_NOT_FOUND, "%s: no selected tensor of %zu matches '%s'", to->option,
                         to->request->item_count, name);
    return 0;
}

/* NAME=...: names may contain '='; slices, shards and dtypes cannot, so the last one divides. */
static int apply_argument(const struct application *to, const char *argument, struct hr_error *err)
{
    const char *equals = strrchr(argument, '=');
    char *name = strndup(argument, (size_t)(equals - argument));
    if (!name)
        return error_set(err, HR_EOUT_OF_MEMORY, "out of memory for the name in %s", to->option);
    int code = apply_named(to, name, equals + 1, err);
    free(name);
    return code;
}

static int apply_slice(const struct application *to, const char *argument, struct hr_error *err)
{
    const char *equals = strrchr(argument, '=');
    if (!equals || equals == argument)
        return error_set(err, HR_EINVALID_ARGUMENT, "--slice '%s' is not of the form NAME=[a:b,...]", argument);
    return apply_argument(to, argument, err);
}

static int apply_shard(const struct application *to, const char *argument, struct hr_error *err)
{
    if (strchr(argument, '='))
        return apply_argument(to, argument, err);
    int code = 0;
    for (size_t i = 0; i < to->request->item_count && code == 0; i++)
        code = shard_item(to->checkpoint, argument, 0, i, to->request, err);
    return code;
}

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

/* Of all selected tensors of floats, or of those that a name or pattern before the dtype means. */
static int apply_dtype(const struct application *to, const char *argument, struct hr_error *err)
{
    const char *equals = strrchr(argument, '=');
    uint32_t dtype;
    int code = dtype_parse(equals ? equals + 1 : argument, &dtype, err);
    if (code < 0 || equals)
        return code < 0 ? code : apply_argument(to, argument, err);
    for (size_t i = 0; i < to->request->item_count; i++)
        if (is_float(hr_checkpoint_at(to->checkpoint, to->request->items[i].tensor_index)->dtype))
            to->request->items[i].dtype = dtype;
    return 0;
}

/* Those without a name or pattern first. */
static int apply_dtypes(const struct application *to, const struct text_list *dtypes, struct hr_error *err)
{
    int code = 0;
    for (int is_named = 0; is_named <= 1; is_named++)
        for (size_t i = 0; i < dtypes->count && code == 0; i++)
            if ((strchr(dtypes->texts[i], '=') != NULL) == is_named)
                code = apply_dtype(to, dtypes->texts[i], err);
    return code;
}

int request_make(const struct hr_checkpoint *checkpoint, const struct request_options *options,
                 struct request *ret_request, struct hr_error *err)
{
    size_t count = hr_checkpoint_count(checkpoint);
    size_t *marks = allocate(count, sizeof *marks);
    struct request request = {0};
    int code = mark_matches(checkpoint, &options->matches, marks, err);
    if (code == 0)
        make_items(marks, count, &request);
    const struct application slices = {"--slice", slice_item, checkpoint, marks, &request},
                             shards = {"--shard", shard_item, checkpoint, marks, &request},
                             dtypes = {"--dtype", dtype_item, checkpoint, marks, &request};
    for (size_t i = 0; i < options->slices.count && code == 0; i++)
        code = apply_slice(&slices, options->slices.texts[i], err);
    for (size_t i = 0; i < options->shards.count && code == 0; i++)
        code = apply_shard(&shards, options->shards.texts[i], err);
    if (code == 0)
        code = apply_dtypes(&dtypes, &options->dtypes, err);
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

int request_device(const struct tuning *tuning, const char *name, struct hr_device_info *ret_device,
                   struct hr_error *err)
{
    if (!name && tuning->route == HR_ROUTE_MMAP) /* which only host memory has */
        name = "cpu";
    return device_find(name, ret_device, err);
}

int request_loader(const struct tuning *tuning, const struct device_list *devices, struct hr_loader **ret_loader,
                   struct hr_error *err)
{
    struct hr_loader_options options = {.size = sizeof options};
    char(*texts)[32] = allocate(devices->count, sizeof *texts);
    const char **names = allocate(devices->count, sizeof *names);
    for (size_t i = 0; i < devices->count; i++)
        names[i] = device_name(texts[i], &devices->devices[i]);
    options.devices = names;
    options.device_count = devices->count;
    options.route = tuning->route;
    options.thread_count = tuning->thread_count;
    options.chunk_bytes = tuning->chunk_bytes;
    options.queue_depth = tuning->queue_depth;
    options.staging_bytes = tuning->staging_bytes;
    options.keep_cache = (uint32_t)tuning->keep_cache;
    options.lane_count = tuning->lane_count;
    options.no_binding = (uint32_t)tuning->no_numa;
    int code = hr_loader_new(&options, ret_loader, err);
    free(names);
    free(texts);
    return code;
}

/* The devices of the items: those of the map, else the one. */
static int job_devices(const struct request_options *options, struct job *job, struct hr_error *err)
{
    if (options->device_map.count)
        return device_map_apply(job->checkpoint, &options->device_map, options->device, &job->request, &job->devices,
                                err);
    job->devices.devices = allocate(1, sizeof *job->devices.devices);
    job->devices.count = 1;
    return request_device(&options->tuning, options->device, job->devices.devices, err);
}

int job_open(const struct request_options *options, const struct text_list *paths, struct job *ret_job,
             struct hr_error *err)
{
    struct job job = {0};
    int code = checkpoint_open(paths->texts, paths->count, &options->open, &job.checkpoint, err);
    if (code == 0)
        code = request_make(job.checkpoint, options, &job.request, err);
    if (code == 0)
        code = job_devices(options, &job, err);
    if (code == 0)
        code = request_loader(&options->tuning, &job.devices, &job.loader, err);
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
    free(job->devices.devices);
    *job = (struct job){0};
}

void request_options_release(struct request_options *options)
{
    text_list_release(&options->matches);
    text_list_release(&options->slices);
    text_list_release(&options->device_map);
    text_list_release(&options->shards);
    text_list_release(&options->dtypes);
}
