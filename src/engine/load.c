/*
 * load.c: a load from start to end: threads, errors, statistics. prepare.c makes what it moves.
 */
#include "engine/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sys.h"
#include "engine/casts.h"
#include "engine/flow.h"
#include "engine/gate.h"
#include "engine/heat.h"
#include "engine/gds_files.h"
#include "engine/gds_loader.h"
#include "engine/group.h"
#include "engine/reader.h"
#include "engine/spreader.h"
#include "plan/spread.h"
#include "topo/topology.h"

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

/* Readers begin nothing more. The lock is held; wake_others() comes after it. */
static void stop_readers(struct hr_load *load)
{
    load->stopping = 1;
    pthread_cond_broadcast(&load->work);
}

/* Who waits elsewhere finds that the load is stopping: for the budget of reads, or with the process group. */
static void wake_others(struct hr_load *load)
{
    if (load->heat)
        hr_flow_wake(load->loader->flow);
    if (load->spreader)
        hr_spreader_stop(load->spreader);
}

void hr_load_wake_readers(struct hr_load *load, size_t count)
{
    if (count >= load->thread_count)
        pthread_cond_broadcast(&load->work);
    else
        for (size_t i = 0; i < count; i++)
            pthread_cond_signal(&load->work);
}

void hr_load_fail(struct hr_load *load, const struct hr_error *err)
{
    pthread_mutex_lock(&load->lock);
    if (load->error.code == 0)
        load->error = *err;
    pthread_cond_broadcast(&load->done);
    stop_readers(load);
    pthread_mutex_unlock(&load->lock);
    wake_others(load);
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

/* One reader is enough to go on with, so only the first failure counts. */
int hr_load_start_readers(struct hr_load *load, struct hr_error *err)
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
static int start_alone(struct hr_load *load, struct hr_error *err)
{
    int memory_first =
        !load->loader->allocator.alloc && load->options.ownership == HR_OWN_ARENA && !load->loader->remote_devices;
    int code = memory_first ? 0 : hr_load_start_readers(load, err);
    if (code == 0 && !load->options.sequential && hr_load_admit_window(load) < 0)
        code = hr_load_error(load, err);
    if (code == 0 && memory_first)
        code = hr_load_start_readers(load, err);
    return code;
}

/* Digests of the table that items point into; what the plan knows, it has digested itself. */
static struct hr_group_digests digests_of(const struct hr_load *load)
{
    const struct hr_checkpoint *checkpoint = load->checkpoint;
    uint64_t table = checkpoint->tensor_count;
    for (size_t i = 0; i < checkpoint->file_count; i++)
        table = XXH3_64bits_withSeed(&checkpoint->files[i].size, sizeof checkpoint->files[i].size, table);
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct hr_tensor *tensor = &checkpoint->tensors[i];
        uint64_t fields[] = {tensor->dtype, tensor->rank, tensor->file_index, tensor->offset, tensor->size};
        table = XXH3_64bits_withSeed(tensor->name, tensor->name_size, table);
        table = XXH3_64bits_withSeed(fields, sizeof fields, table);
        table = XXH3_64bits_withSeed(tensor->shape, tensor->rank * sizeof tensor->shape[0], table);
    }
    return (struct hr_group_digests){table, load->plan.spread->digest_items, load->plan.spread->digest_windows};
}

/*
 * Ranks that run on the same processors share them, and leave a quarter to what is not reading: two ranks of 16 readers
 * on 32 cores came to 0.72 of what the links carry, with 12 each to 0.82.
 */
static uint32_t reader_limit(const struct hr_loader *loader, uint32_t neighbour_count)
{
    if (loader->threads_are_asked || neighbour_count < 2)
        return UINT32_MAX;
    uint32_t share = hr_loader_core_count(loader) * 3 / 4 / neighbour_count;
    return share ? share : 1;
}

/* From here on bytes may be read. */
static void release_hold(struct hr_load *load, const struct hr_group_meeting *meeting)
{
    uint32_t limit = reader_limit(load->loader, meeting->neighbour_count);
    if (load->spreader)
        hr_spreader_go(load->spreader, meeting->magic, limit);
    pthread_mutex_lock(&load->lock);
    load->reader_limit = limit;
    load->held = 0;
    pthread_cond_broadcast(&load->work);
    pthread_mutex_unlock(&load->lock);
}

/* All that can fail comes before the ranks meet, so that none waits for another that does not come. */
static int start_with_group(struct hr_load *load, struct hr_error *err)
{
    struct hr_group_digests digests = digests_of(load);
    struct hr_error cause;
    struct hr_group_meeting meeting = {0};
    int code = load->plan.spread->window_count ? hr_spreader_new(load, &load->spreader, &cause) : 0;
    if (code == 0)
        code = start_alone(load, &cause);
    if (code < 0 && err)
        *err = cause;
    uint64_t processors = hr_topology_processors(load->loader->placement.node);
    code = hr_group_meet(&load->group, &digests, processors, code < 0 ? &cause : NULL, &meeting, err);
    if (code == 0)
        release_hold(load, &meeting);
    return code;
}

/* A load that cannot even be planned: the other ranks learn why. */
static void decline(const struct hr_load_options *options, const struct hr_error *cause)
{
    struct hr_group group;
    if (hr_group_of(options, &group, NULL) > 0)
        hr_group_decline(&group, cause, NULL);
}

int hr_load_start(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                  size_t item_count, const struct hr_load_options *options, struct hr_load **ret_load,
                  struct hr_error *err)
{
    struct hr_load *load;
    struct hr_error cause;
    int code = ret_load
                   ? hr_load_prepare(loader, checkpoint, items, item_count, options, NULL, &load, &cause)
                   : hr_fail(&cause, HR_EINVALID_ARGUMENT, "where to put the load must be given; ret_load is NULL");
    if (code < 0) {
        if (err)
            *err = cause;
        decline(options, &cause);
        return code;
    }
    code = load->has_group ? start_with_group(load, err) : start_alone(load, err);
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
    stop_readers(load);
    pthread_mutex_unlock(&load->lock);
    wake_others(load);
    for (uint32_t i = 0; i < load->thread_count; i++)
        pthread_join(load->threads[i], NULL);
}

static void free_tables(struct hr_load *load)
{
    for (size_t i = 0; load->items && i < load->plan.item_count; i++)
        hr_block_unref(load->items[i].block);
    for (size_t i = 0; load->file_maps && i < load->checkpoint->file_count; i++)
        hr_block_unref(load->file_maps[i]);
    hr_gate_release(load);
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
    for (uint32_t i = 0; load->queued && i < load->loader->device_count; i++)
        hr_free(load->queued[i].groups.indices);
    hr_free(load->queued);
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
        hr_spreader_free(load->spreader);
        pthread_cond_destroy(&load->done);
        pthread_cond_destroy(&load->work);
        pthread_mutex_destroy(&load->lock);
    } else {
        hr_spreader_forget(load->spreader);
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
    uint64_t threads_ns = stats->total_ns * (stats->thread_count ? stats->thread_count : 1);
    if (stats->chunk_count == 0 || stats->bytes_needed == 0)
        return "nothing to read";
    if (load->route == HR_ROUTE_MMAP && stats->bytes_read == 0)
        return "nothing was read yet: mapped";
    if (load->options.sequential)
        return "one thread (sequential)";
    if (stats->allocate_ns > stats->total_ns / 2)
        return "making destinations";
    if (stats->group_wait_ns > stats->total_ns / 2)
        return "process group (its collectives, or other ranks)";
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

/* That read. */
static uint32_t readers_of(const struct hr_load *load)
{
    return load->thread_count < load->reader_limit ? load->thread_count : load->reader_limit;
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
    stats->thread_count = readers_of(load);
    stats->route = load->route;
    stats->bytes_received = load->bytes_received;
    stats->bytes_spread = load->bytes_spread;
    stats->collective_count = load->collective_count;
    stats->group_wait_ns = load->group_wait_ns;
}

/* What is read for the process group is read by this load. */
static void add_feed(const struct hr_load *feed, struct hr_stats *stats)
{
    stats->bytes_read += feed->bytes_read;
    stats->chunk_count += feed->plan.chunk_count;
    stats->read_count += feed->read_count;
    stats->read_ns += feed->read_ns;
    stats->place_ns += feed->place_ns;
    stats->idle_ns += feed->idle_ns;
    stats->copy_wait_ns += feed->copy_wait_ns;
    stats->cpu_ns += feed->cpu_ns;
    stats->bytes_direct += feed->bytes_direct;
    stats->bytes_sent += feed->bytes_sent;
    stats->copy_count += feed->copy_count;
    stats->kernel_count += feed->kernel_count;
    stats->thread_count += readers_of(feed);
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
    const struct hr_load *feed = load->spreader ? hr_spreader_feed(load->spreader) : NULL;
    if (feed) {
        add_feed(feed, &stats);
        stats.group_bytes = hr_spreader_bytes(load->spreader);
    }
    if (load->loader->staging)
        stats.staging_bytes = hr_staging_describe(load->loader->staging, stats.staging, sizeof stats.staging);
    if (load->route == HR_ROUTE_GDS)
        hr_loader_describe_gds(load->loader, stats.staging, sizeof stats.staging);
    if (load->loader->staging)
        hr_load_describe_placement(load, stats.placement, sizeof stats.placement);
    hr_heat_describe(unlocked, stats.storage, sizeof stats.storage);
    if (feed && !stats.storage[0])
        hr_heat_describe((struct hr_load *)feed, stats.storage, sizeof stats.storage);
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
