/*
 * load.c: a load from start to end: threads, errors, statistics. prepare.c makes what it moves.
 */
#include "engine/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sys.h"
#include "engine/casts.h"
#include "engine/flow.h"
#include "engine/heat.h"
#include "engine/gds_files.h"
#include "engine/gds_loader.h"
#include "engine/reader.h"

/* ----------------------------------------------------------------------------------------- queues */

void hr_queue_push(struct index_queue *queue, size_t index)
{
    size_t at = queue->first + queue->count++;
    queue->indices[at < queue->capacity ? at : at - queue->capacity] = index;
}

size_t hr_queue_pop(struct index_queue *queue)
{
    size_t index = queue->indices[queue->first++];
    queue->count--;
    if (queue->first == queue->capacity)
        queue->first = 0;
    return index;
}

/* ----------------------------------------------------------------------------------------- errors */

/* Readers that wait for the budget of reads find that the load is stopping. */
static void wake_budget(struct hr_load *load)
{
    if (load->heat)
        hr_flow_wake(load->loader->flow);
}

void hr_load_fail(struct hr_load *load, const struct hr_error *err)
{
    pthread_mutex_lock(&load->lock);
    if (load->error.code == 0)
        load->error = *err;
    load->stopping = 1;
    pthread_cond_broadcast(&load->work);
    pthread_cond_broadcast(&load->done);
    pthread_mutex_unlock(&load->lock);
    wake_budget(load);
}

int hr_load_error(const struct hr_load *load, struct hr_error *err)
{
    if (err)
        *err = load->error;
    return load->error.code;
}

int hr_load_check(const struct hr_load *load, struct hr_error *err)
{
    if (!load)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "the load is NULL");
    return hr_fork_check(load->fork_generation, "load", err);
}

int hr_load_check_item(const struct hr_load *load, size_t item_index, struct hr_error *err)
{
    int code = hr_load_check(load, err);
    if (code == 0 && item_index >= load->plan.item_count)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu is out of range: the load has %zu", item_index,
                       load->plan.item_count);
    return code;
}

void hr_load_cancel(struct hr_load *load)
{
    struct hr_error error;
    if (hr_load_check(load, NULL) < 0)
        return; /* nothing runs, and a thread that is not here may hold the lock */
    hr_fail(&error, HR_ECANCELLED, "the load was cancelled: %" PRIu64 " of %" PRIu64 " bytes had arrived",
            (uint64_t)load->bytes_landed, load->plan.bytes);
    hr_load_fail(load, &error);
}

void hr_load_item_ready(struct hr_load *load, size_t item_index)
{
    load->items[item_index].status = ITEM_READY;
    load->bytes_ready += load->plan.items[item_index].bytes;
    hr_queue_push(&load->ready, item_index);
    load->event_count++;
    if (++load->items_ready == load->plan.item_count)
        load->ready_ns = hr_sys->clock_ns();
}

/* ------------------------------------------------------------------------------------------ start */

static int start_thread(struct hr_load *load, struct hr_error *err)
{
    struct hr_reader *reader;
    int code = hr_reader_new(load, load->thread_count, load->queue_depth, &reader, err);
    if (code < 0)
        return code;
    code = hr_sys->thread_start(&load->threads[load->thread_count], hr_reader_main, reader);
    if (code < 0) {
        hr_reader_free(reader);
        return hr_fail_sys(err, HR_EOUT_OF_MEMORY, -code,
                           "cannot start a reader thread; raise the limit of processes or of memory");
    }
    load->thread_count++;
    return 0;
}

/* Starts as many readers as there is work for. One is enough to go on with, so only the first failure counts. */
static int start_threads(struct hr_load *load, struct hr_error *err)
{
    while (load->thread_count < load->thread_wanted) {
        int code = start_thread(load, load->thread_count ? NULL : err);
        if (code < 0)
            return load->thread_count ? 0 : code;
    }
    return 0;
}

/*
 * Arenas of the library's own come before the readers: mapping 67 of them took 0.7 ms, but 0.4 s of a 0.7 s load (17
 * GB, 16 readers) while readers were filling pages. Where the caller makes the memory, or each tensor's is made by
 * itself, reading begins with the first of it; so it does for GPUs, whose memory no reader touches.
 */
static int start(struct hr_load *load, struct hr_error *err)
{
    int memory_first =
        !load->loader->allocator.alloc && load->options.ownership == HR_OWN_ARENA && !load->loader->remote_devices;
    int code = memory_first ? 0 : start_threads(load, err);
    if (code == 0 && !load->options.sequential && hr_load_admit_window(load) < 0)
        code = hr_load_error(load, err);
    if (code == 0 && memory_first)
        code = start_threads(load, err);
    return code;
}

int hr_load_start(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                  size_t item_count, const struct hr_load_options *options, struct hr_load **ret_load,
                  struct hr_error *err)
{
    struct hr_load *load;
    if (!ret_load)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the load must be given; ret_load is NULL");
    int code = hr_load_prepare(loader, checkpoint, items, item_count, options, &load, err);
    if (code < 0)
        return code;
    code = start(load, err);
    if (code < 0) {
        hr_load_free(load);
        return code;
    }
    *ret_load = load;
    return 0;
}

/* -------------------------------------------------------------------------------------------- end */

static void stop_threads(struct hr_load *load)
{
    pthread_mutex_lock(&load->lock);
    load->stopping = 1;
    pthread_cond_broadcast(&load->work);
    pthread_mutex_unlock(&load->lock);
    wake_budget(load);
    for (uint32_t i = 0; i < load->thread_count; i++)
        pthread_join(load->threads[i], NULL);
}

static void free_tables(struct hr_load *load)
{
    for (size_t i = 0; load->items && i < load->plan.item_count; i++)
        hr_block_unref(load->items[i].block);
    for (size_t i = 0; load->file_maps && i < load->checkpoint->file_count; i++)
        hr_block_unref(load->file_maps[i]);
    hr_heat_free(load->heat);
    hr_free(load->streams);
    hr_free(load->items);
    hr_free(load->groups);
    hr_free(load->chunk_taken);
    hr_free(load->file_maps);
    hr_free(load->threads);
    hr_free(load->activities);
    hr_free(load->ready.indices);
    hr_free(load->urgent.indices);
    hr_free(load->queued.indices);
}

/* Memory that only this load held is free again when its end returns. */
static void reap_devices(struct hr_load *load)
{
    for (uint32_t i = 0; i < load->loader->device_count; i++)
        if (load->loader->devices[i].lane_count)
            hr_device_reap(load->loader->devices[i].device);
}

void hr_load_free(struct hr_load *load)
{
    if (!load)
        return;
    /* in a forked child the threads do not exist and the lock may be held by one of them: memory is all there is */
    if (load->fork_generation == hr_fork_generation()) {
        stop_threads(load);
        pthread_cond_destroy(&load->done);
        pthread_cond_destroy(&load->work);
        pthread_mutex_destroy(&load->lock);
    }
    hr_reader_free(load->spare_reader);
    if (load->fork_generation == hr_fork_generation())
        hr_gds_files_free(load->gds_files);
    else
        hr_gds_files_forget(load->gds_files);
    hr_files_free(load->files);
    free_tables(load);
    if (load->fork_generation == hr_fork_generation())
        reap_devices(load);
    hr_plan_release(&load->plan);
    hr_free(load);
}

/* ------------------------------------------------------------------------------------- statistics */

/* The stage that kept the load from going faster, as far as the clocks can tell. */
static const char *bottleneck(const struct hr_load *load, const struct hr_stats *stats)
{
    uint64_t threads_ns = stats->total_ns * (load->thread_count ? load->thread_count : 1);
    if (stats->chunk_count == 0 || stats->bytes_needed == 0)
        return "nothing to read";
    if (load->route == HR_ROUTE_MMAP && stats->bytes_read == 0)
        return "nothing was read yet: mapped";
    if (load->options.sequential)
        return "one thread (sequential)";
    if (stats->allocate_ns > stats->total_ns / 2)
        return "making destinations";
    if (stats->copy_wait_ns > threads_ns / 4)
        return "link to the device";
    if (stats->idle_ns > threads_ns / 2)
        return "consumer (the window is full)";
    if (stats->place_ns > stats->read_ns)
        return "memory (copies from buffers into place)";
    return load->route == HR_ROUTE_URING || load->route == HR_ROUTE_GDS ? "storage" : "storage or page cache";
}

void hr_load_describe_placement(const struct hr_load *load, char *text, size_t capacity)
{
    int error = load->binding_error;
    char storage[40] = "";
    if (load->storage_node >= 0)
        snprintf(storage, sizeof storage, "; storage at node %d", load->storage_node);
    snprintf(text, capacity, "%s%s%s%s", load->loader->placement.reason, storage,
             error ? "; readers could not be bound: " : "", error ? strerror(error) : "");
}

static void fill_counters(const struct hr_load *load, struct hr_stats *stats)
{
    stats->bytes_needed = load->plan.bytes;
    stats->bytes_ready = load->bytes_ready;
    stats->bytes_read = load->bytes_read;
    stats->bytes_allocated = load->bytes_allocated;
    stats->item_count = load->plan.item_count;
    stats->file_count = load->file_count;
    stats->chunk_count = load->plan.chunk_count;
    stats->read_count = load->read_count;
    stats->plan_ns = load->plan_ns;
    stats->allocate_ns = load->allocate_ns;
    stats->wait_ns = load->wait_ns;
    stats->read_ns = load->read_ns;
    stats->place_ns = load->place_ns;
    stats->idle_ns = load->idle_ns;
    stats->copy_wait_ns = load->copy_wait_ns;
    stats->cpu_ns = load->cpu_ns;
    stats->bytes_direct = load->bytes_direct;
    stats->bytes_sent = load->bytes_sent;
    stats->copy_count = load->copy_count;
    stats->kernel_count = load->kernel_count;
    stats->bytes_converted = load->plan.cast_bytes;
    stats->thread_count = load->thread_count;
    stats->route = load->route;
}

int hr_load_stats(const struct hr_load *load, struct hr_stats *ret_stats)
{
    struct hr_load *unlocked = (struct hr_load *)load; /* for its lock only */
    struct hr_stats stats = {.size = sizeof stats};
    if (!ret_stats || ret_stats->size < sizeof ret_stats->size)
        return HR_EINVALID_ARGUMENT;
    int code = hr_load_check(load, NULL);
    if (code < 0)
        return code;
    fill_counters(load, &stats);
    if (load->loader->staging)
        stats.staging_bytes = hr_staging_describe(load->loader->staging, stats.staging, sizeof stats.staging);
    if (load->route == HR_ROUTE_GDS)
        hr_loader_describe_gds(load->loader, stats.staging, sizeof stats.staging);
    if (load->loader->staging)
        hr_load_describe_placement(load, stats.placement, sizeof stats.placement);
    hr_heat_describe(unlocked, stats.storage, sizeof stats.storage);
    hr_casts_describe(load, stats.conversion, sizeof stats.conversion);
    pthread_mutex_lock(&unlocked->lock);
    stats.peak_window_bytes = load->window_peak_bytes;
    stats.total_ns = (load->ready_ns ? load->ready_ns : hr_sys->clock_ns()) - load->start_ns;
    pthread_mutex_unlock(&unlocked->lock);
    snprintf(stats.route_reason, sizeof stats.route_reason, "%s", load->route_reason);
    snprintf(stats.bottleneck, sizeof stats.bottleneck, "%s", bottleneck(load, &stats));
    size_t size = ret_stats->size < sizeof stats ? ret_stats->size : sizeof stats;
    stats.size = ret_stats->size;
    memcpy(ret_stats, &stats, size);
    return 0;
}
