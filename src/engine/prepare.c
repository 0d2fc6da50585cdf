/*
 * prepare.c: everything about a load that comes before the first byte: options, plan, tables, files, route. A load that
 * was only prepared moves nothing, so its plan can also be described.
 */
#include <stdio.h>
#include <string.h>

#include "base/cond.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sys.h"
#include "engine/casts.h"
#include "engine/gds_files.h"
#include "engine/group.h"
#include "engine/load.h"
#include "engine/route.h"
#include "plan/describe.h"
#include "topo/topology.h"

#define PROGRESS_NS_DEFAULT 100000000u
#define PROGRESS_NS_MAX (UINT64_C(1) << 60) /* decades: never, without overflow */

static int queue_init(struct index_queue *queue, size_t capacity)
{
    queue->indices = hr_alloc_array(capacity, sizeof queue->indices[0]);
    queue->capacity = capacity;
    return queue->indices ? 0 : -1;
}

static uint64_t chunk_bytes(const struct hr_load *load)
{
    const struct hr_loader *loader = load->loader;
    int is_group = load->has_group && load->group.world > 1 && loader->remote_devices;
    return is_group && !loader->chunk_is_asked ? HR_CHUNK_BYTES_GROUP : loader->chunk_bytes;
}

static struct hr_plan_options plan_options(const struct hr_load *load, const struct hr_load_feed *feed)
{
    const struct hr_loader *loader = load->loader;
    const struct hr_load_options *options = &load->options;
    return (struct hr_plan_options){
        .chunk_bytes = feed ? feed->chunk_bytes : chunk_bytes(load),
        .reader_count = feed || loader->chunk_is_asked ? 0 : loader->thread_count,
        .arena_bytes = loader->arena_bytes,
        .window_bytes = options->window_bytes,
        .ownership = options->ownership,
        .device_count = loader->device_count,
        .remote_devices = loader->remote_devices,
        .has_no_grid = feed && feed->has_no_grid,
        .group_keys = feed ? feed->group_keys : NULL,
        .group_rank = load->group.rank,
        .group_world = load->has_group ? load->group.world : 0,
        .group_bytes = options->group_bytes ? options->group_bytes : HR_GROUP_BYTES_DEFAULT,
    };
}

static int copy_options(const struct hr_load_options *given, struct hr_load_options *ret_options, struct hr_error *err)
{
    int code = hr_options_copy(ret_options, sizeof *ret_options, given, "hr_load_options", err);
    if (code < 0)
        return code;
    if (ret_options->ownership > HR_OWN_EACH)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "ownership is %u; it must be HR_OWN_ARENA or HR_OWN_EACH",
                       ret_options->ownership);
    code = hr_options_check_reserved(ret_options->reserved | ret_options->reserved_tail, "hr_load_options", err);
    if (code < 0)
        return code;
    if (ret_options->progress_ns == 0)
        ret_options->progress_ns = PROGRESS_NS_DEFAULT;
    if (ret_options->progress_ns > PROGRESS_NS_MAX)
        ret_options->progress_ns = PROGRESS_NS_MAX;
    if (ret_options->sequential)
        ret_options->window_bytes = 1; /* one item at a time */
    return 0;
}

static int make_plan(struct hr_load *load, const struct hr_item *items, size_t item_count,
                     const struct hr_load_feed *feed, struct hr_error *err)
{
    const struct hr_checkpoint *checkpoint = load->checkpoint;
    struct hr_plan_options options = plan_options(load, feed);
    uint64_t from = hr_sys->clock_ns();
    int code = hr_plan_make(checkpoint->tensors, checkpoint->tensor_count, checkpoint->file_count, items, item_count,
                            &options, &load->plan, err);
    load->plan_ns = hr_sys->clock_ns() - from;
    return code;
}

/* What a load of a process group cannot be. */
static int check_group(const struct hr_loader *loader, const struct hr_load_options *options, struct hr_error *err)
{
    if (options->sequential)
        return hr_fail(err, HR_EUNSUPPORTED,
                       "a sequential load has no threads, which a process group needs: clear "
                       "sequential, or load without a group");
    if (loader->route == HR_ROUTE_MMAP)
        return hr_fail(err, HR_EUNSUPPORTED,
                       "the mmap route maps files and reads nothing that could be spread over a "
                       "process group: take another route, or load without a group");
    return 0;
}

/* The table of open files, told how many chunks each file has. */
static int make_files(struct hr_load *load, struct hr_error *err)
{
    size_t *uses = hr_alloc_array(load->checkpoint->file_count, sizeof *uses);
    if (!uses)
        return hr_fail_memory(err, load->checkpoint->file_count * sizeof *uses, "counts of chunks per file");
    for (size_t i = 0; i < load->plan.chunk_count; i++)
        load->file_count += uses[load->plan.chunks[i].file_index]++ == 0;
    int code = hr_files_new(load->checkpoint, uses, &load->files, err);
    hr_free(uses);
    return code;
}

/* A queue for each device, with room for all of its groups. */
static int make_device_queues(struct hr_load *load)
{
    const struct hr_plan *plan = &load->plan;
    int failed = 0;
    load->queued = hr_alloc_array(load->loader->device_count, sizeof load->queued[0]);
    if (!load->queued)
        return -1;
    for (size_t i = 0; i < plan->group_count; i++)
        load->queued[plan->groups[i].device_index].groups.capacity++;
    for (uint32_t i = 0; i < load->loader->device_count; i++)
        failed |= queue_init(&load->queued[i].groups, load->queued[i].groups.capacity);
    return failed;
}

/* What the load keeps per item, group and chunk. */
static int make_tables(struct hr_load *load, struct hr_error *err)
{
    const struct hr_plan *plan = &load->plan;
    load->items = hr_alloc_array(plan->item_count, sizeof load->items[0]);
    load->groups = hr_alloc_array(plan->group_count, sizeof load->groups[0]);
    load->chunk_taken = hr_alloc_array(plan->chunk_count, 1);
    load->left_chunks = hr_alloc_array(plan->chunk_count, sizeof load->left_chunks[0]);
    load->file_maps = hr_alloc_array(load->checkpoint->file_count, sizeof load->file_maps[0]);
    load->threads = hr_alloc_array(load->loader->thread_count, sizeof load->threads[0]);
    load->activity_count = load->loader->thread_count;
    load->activities = hr_alloc_array(load->activity_count, sizeof load->activities[0]);
    int failed = queue_init(&load->ready, plan->item_count) | queue_init(&load->urgent, plan->item_count) |
                 make_device_queues(load);
    if (!load->items || !load->groups || !load->chunk_taken || !load->left_chunks || !load->file_maps ||
        !load->threads || !load->activities || failed)
        return hr_fail_memory(err, plan->item_count * sizeof load->items[0], "the tables of a load");
    for (size_t i = 0; i < plan->item_count; i++)
        load->items[i].bytes_left = plan->items[i].bytes;
    for (size_t i = 0; i < plan->group_count; i++)
        load->groups[i].items_left = plan->groups[i].item_count;
    return 0;
}

static int copy_streams(struct hr_load *load, struct hr_error *err)
{
    size_t count = load->loader->device_count;
    if (!load->options.streams)
        return 0;
    load->streams = hr_alloc_array(count, sizeof load->streams[0]);
    if (!load->streams)
        return hr_fail_memory(err, count * sizeof load->streams[0], "the streams of a load");
    memcpy(load->streams, load->options.streams, count * sizeof load->streams[0]);
    return 0;
}

/* Told in the statistics only: where a drive is far from the GPU, that is what the link between sockets carries. */
static int storage_node(const struct hr_load *load)
{
    if (load->loader->placement.node < 0 || load->plan.chunk_count == 0)
        return -1;
    return hr_topology_storage_node(load->checkpoint->identities[load->plan.chunks[0].file_index].device);
}

static uint32_t threads_wanted(const struct hr_load *load)
{
    if (load->options.sequential)
        return 0;
    return load->plan.chunk_count < load->loader->thread_count ? (uint32_t)load->plan.chunk_count
                                                               : load->loader->thread_count;
}

static struct hr_load *load_alloc(void)
{
    struct hr_load *load = hr_alloc(sizeof *load);
    if (!load)
        return NULL;
    pthread_mutex_init(&load->lock, NULL);
    pthread_cond_init(&load->work, NULL);
    hr_cond_init(&load->done);
    return load;
}

int hr_load_prepare(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                    size_t item_count, const struct hr_load_options *options, const struct hr_load_feed *feed,
                    struct hr_load **ret_load, struct hr_error *err)
{
    struct hr_load_options known;
    struct hr_group group = {0};
    int has_group = 0;
    if (!loader || !checkpoint || (item_count && !items))
        return hr_fail(err, HR_EINVALID_ARGUMENT, "a load needs a loader, a checkpoint and items; one of them is NULL");
    int code = hr_fork_check(loader->fork_generation, "loader", err);
    if (code == 0)
        code = copy_options(options, &known, err);
    if (code == 0)
        code = has_group = hr_group_of(options, &group, err);
    if (code > 0)
        code = check_group(loader, &known, err);
    if (code < 0)
        return code;
    struct hr_load *load = load_alloc();
    if (!load)
        return hr_fail_memory(err, sizeof *load, "a load");
    load->loader = loader;
    load->checkpoint = checkpoint;
    load->options = known;
    load->group = group;
    load->has_group = load->unmet = has_group;
    load->is_feed = feed != NULL;
    load->gate = load->gate_clear = SIZE_MAX;
    load->needed_group = SIZE_MAX;
    load->reader_limit = UINT32_MAX;
    load->fork_generation = hr_fork_generation();
    load->start_ns = hr_sys->clock_ns();
    load->ready_ns = item_count ? 0 : load->start_ns;
    load->progress_next_ns = load->start_ns + known.progress_ns;
    code = copy_streams(load, err);
    if (code == 0)
        code = make_plan(load, items, item_count, feed, err);
    if (code == 0)
        code = make_tables(load, err);
    if (code == 0)
        code = make_files(load, err);
    if (code < 0) {
        hr_load_free(load);
        return code;
    }
    load->storage_node = storage_node(load);
    load->thread_wanted = threads_wanted(load);
    code = hr_casts_prepare(load, err);
    if (code == 0)
        code = hr_route_choose(load, err);
    if (code == 0 && load->route == HR_ROUTE_GDS)
        code = hr_gds_files_new(loader->devices[__builtin_ctzll(loader->remote_devices)].gds, &load->plan,
                                &load->gds_files, err);
    if (code < 0) {
        hr_load_free(load);
        return code;
    }
    *ret_load = load;
    return 0;
}

/* "cuda:1", into an array of `device_count` names. */
static void name_devices(const struct hr_loader *loader, char (*names)[32], const char **ret_names)
{
    for (uint32_t i = 0; i < loader->device_count; i++) {
        const struct hr_device_info *info = hr_device_info(loader->devices[i].device);
        if (info->type == HR_DEVICE_CUDA)
            snprintf(names[i], sizeof names[i], "cuda:%d", info->ordinal);
        else
            snprintf(names[i], sizeof names[i], "cpu");
        ret_names[i] = names[i];
    }
}

int hr_plan_describe(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                     size_t item_count, const struct hr_load_options *options, uint32_t format, char **ret_text,
                     struct hr_error *err)
{
    struct hr_load *load;
    if (!ret_text)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the text must be given; ret_text is NULL");
    if (format > HR_PLAN_TEXT)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "format is %u; it must be HR_PLAN_JSON or HR_PLAN_TEXT", format);
    int code = hr_load_prepare(loader, checkpoint, items, item_count, options, NULL, &load, err);
    if (code)
        return code;
    char placement[160], names[HR_DEVICE_COUNT_MAX][32];
    const char *devices[HR_DEVICE_COUNT_MAX];
    name_devices(loader, names, devices);
    hr_load_describe_placement(load, placement, sizeof placement);
    struct hr_plan_facts facts = {
        .route = hr_route_name(load->route),
        .route_reason = load->route_reason,
        .thread_count = load->thread_wanted,
        .queue_depth = load->queue_depth,
        .staging_bytes = (load->plan.staged_bytes_max ? hr_staging_bytes_max(load->loader->bounces) : 0) +
                         (loader->staging ? hr_staging_bytes_max(loader->staging) : 0),
        .placement = loader->staging ? placement : NULL,
        .devices = devices,
    };
    code = hr_plan_to_text(&load->plan, checkpoint->tensors, checkpoint->files, &facts, format, ret_text, err);
    hr_load_free(load);
    return code;
}
