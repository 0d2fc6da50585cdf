/*
 * load.c: a load from start to end: threads and errors. prepare.c makes what it moves.
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
#include "engine/flow.h"
#include "engine/gate.h"
#include "engine/heat.h"
#include "engine/gds_files.h"
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
    if (load->gate_waiter_count || count >= load->thread_count)
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
    load->unmet = 0;
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
    hr_heat_take_ahead(load);
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
    hr_free(load->held_chunks);
    hr_heat_free(load->heat);
    hr_free(load->streams);
    hr_free(load->items);
    hr_free(load->groups);
    hr_free(load->chunk_taken);
    hr_free(load->left_chunks);
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
        hr_load_serve(load);
        stop_threads(load);
        hr_gate_release(load);
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
