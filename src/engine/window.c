/*
 * window.c: destinations come into being here, on the thread of the consumer, group by group. The window counts
 * the bytes of groups that exist and have items which were not handed out yet; it is opened in plan order, and a
 * group that somebody waits for is admitted at once, so no order of waiting can deadlock.
 */
#include "engine/load.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "engine/gate.h"
#include "engine/spreader.h"
#include "engine/trace.h"

static size_t group_item(const struct hr_load *load, const struct hr_plan_group *group, size_t i)
{
    return load->plan.order[group->order_first + i];
}

/* One block for an arena, for a tensor of its own, or none. */
static int make_block(struct hr_load *load, size_t item_index, uint32_t device_index, uint64_t bytes,
                      struct hr_block **ret_block, struct hr_error *err)
{
    struct hr_allocation allocation = {.size = sizeof allocation,
                                       .item_index = item_index,
                                       .bytes = bytes,
                                       .alignment = HR_TENSOR_ALIGNMENT,
                                       .device_index = device_index};
    int code = hr_block_alloc(load->loader->devices[device_index].device, &load->loader->allocator, &allocation,
                              ret_block, err);
    if (code == 0)
        load->bytes_allocated += bytes;
    return code;
}

/* Whether the item can be a view of its mapped file: contiguous, as stored, and aligned to its elements. */
static int can_map(const struct hr_load *load, const struct hr_plan_item *item)
{
    uint64_t element_bytes = hr_dtype_bits(item->dtype) / 8;
    return load->route == HR_ROUTE_MMAP && item->bytes && !item->into && item->dim_count == 0 &&
           !hr_plan_is_cast(item) && (element_bytes <= 1 || item->source_offset % element_bytes == 0);
}

/* The mapping of a file, made on first use; the load keeps one reference. Mappings are made by one thread at a time. */
static int map_file(struct hr_load *load, size_t file_index, struct hr_block **ret_block, struct hr_error *err)
{
    struct hr_block *block = NULL;
    uint32_t mode = HR_READ_BUFFERED;
    int fd, code;
    pthread_mutex_lock(&load->lock);
    block = load->file_maps[file_index];
    pthread_mutex_unlock(&load->lock);
    if (!block) {
        while ((code = hr_files_acquire(load->files, file_index, &mode, &fd, err)) > 0)
            hr_files_wait(load->files);
        if (code < 0)
            return code;
        const struct hr_file *file = &load->checkpoint->files[file_index];
        code = hr_block_map(fd, file->size, file->path, &block, err);
        hr_files_release(load->files, file_index);
        if (code < 0)
            return code;
        pthread_mutex_lock(&load->lock);
        struct hr_block *other = load->file_maps[file_index];
        if (!other)
            load->file_maps[file_index] = block;
        pthread_mutex_unlock(&load->lock);
        if (other) {
            hr_block_unref(block);
            block = other;
        }
    }
    hr_block_ref(block);
    *ret_block = block;
    return 0;
}

/* Gives one item its memory; `arena` is its group's or NULL. */
static int make_item(struct hr_load *load, size_t item_index, struct hr_block *arena, struct hr_error *err)
{
    const struct hr_plan_item *planned = &load->plan.items[item_index];
    struct load_item *item = &load->items[item_index];
    int code = 0;
    if (planned->into || planned->bytes == 0) {
        item->data = planned->into;
    } else if (can_map(load, planned)) {
        code = map_file(load, planned->file_index, &item->block, err);
        item->mapped = code == 0;
        if (code == 0)
            item->data = (char *)hr_block_memory(item->block) + planned->source_offset;
    } else if (arena) {
        hr_block_ref(arena);
        item->block = arena;
        item->data = (char *)hr_block_memory(arena) + planned->target_offset;
    } else {
        code = make_block(load, item_index, planned->device_index, planned->target_bytes, &item->block, err);
        if (code == 0)
            item->data = hr_block_memory(item->block);
    }
    if (code < 0) {
        const struct hr_tensor *tensor = &load->checkpoint->tensors[planned->tensor_index];
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    }
    return code;
}

/* With HR_ROUTE_MMAP an arena is needed only when some item cannot be mapped. */
static int needs_arena(const struct hr_load *load, const struct hr_plan_group *group)
{
    if (group->arena_bytes == 0 || load->route != HR_ROUTE_MMAP)
        return group->arena_bytes != 0;
    for (size_t i = 0; i < group->item_count; i++) {
        const struct hr_plan_item *item = &load->plan.items[group_item(load, group, i)];
        if (item->bytes && !item->into && !can_map(load, item))
            return 1;
    }
    return 0;
}

static void unmake_items(struct hr_load *load, const struct hr_plan_group *group)
{
    for (size_t i = 0; i < group->item_count; i++) {
        struct load_item *item = &load->items[group_item(load, group, i)];
        hr_block_unref(item->block);
        item->block = NULL;
        item->mapped = 0;
    }
}

/* Whether the group has memory that the caller provided: what a stream holds now may still use that. */
static int has_foreign_memory(const struct hr_load *load, const struct hr_plan_group *group)
{
    if (load->loader->allocator.alloc)
        return 1;
    for (size_t i = 0; i < group->item_count; i++)
        if (load->plan.items[group_item(load, group, i)].into)
            return 1;
    return 0;
}

/* What readers send from now on comes after what the consumer's stream holds now. */
static int follow_stream(struct hr_load *load, const struct hr_plan_group *group, struct hr_error *err)
{
    struct loader_device *target = &load->loader->devices[group->device_index];
    void *stream = load->streams ? load->streams[group->device_index] : NULL;
    int code = 0;
    if (target->lane_count == 0 || load->is_feed || !has_foreign_memory(load, group))
        return 0;
    for (uint32_t i = 0; code == 0 && i < target->lane_count; i++)
        code = hr_lane_follow(target->lanes[i], stream, err);
    return code < 0 || !load->spreader ? code : hr_spreader_follow(load->spreader, stream, err);
}

/* What is short is one group; what the caller wants to know is what all of them would take. */
static void say_whole_need(const struct hr_load *load, struct hr_error *err)
{
    uint64_t bytes = 0;
    size_t size = strlen(err->message);
    for (size_t i = 0; i < load->plan.group_count; i++)
        bytes += load->plan.groups[i].window_bytes;
    snprintf(err->message + size, sizeof err->message - size, "; the whole load takes %llu bytes%s",
             (unsigned long long)bytes, load->options.window_bytes ? ", not all of them at once" : "");
}

static int make_group(struct hr_load *load, const struct hr_plan_group *group, struct hr_error *err)
{
    struct hr_block *arena = NULL;
    size_t only = group->item_count == 1 ? group_item(load, group, 0) : SIZE_MAX;
    uint64_t from = hr_sys->clock_ns();
    int code = load->spreader ? hr_spreader_pause(load->spreader, err) : 0;
    if (code < 0)
        return code;
    if (needs_arena(load, group))
        code = make_block(load, only, group->device_index, group->arena_bytes, &arena, err);
    for (size_t i = 0; code == 0 && i < group->item_count; i++)
        code = make_item(load, group_item(load, group, i), arena, err);
    hr_block_unref(arena);
    if (load->spreader)
        hr_spreader_resume(load->spreader);
    if (code == HR_EOUT_OF_MEMORY)
        say_whole_need(load, err);
    if (code == 0)
        code = follow_stream(load, group, err);
    if (code < 0)
        unmake_items(load, group);
    load->allocate_ns +=
        hr_trace_span(load, HR_TRACE_ALLOCATE, HR_TRACE_WAITER, from, SIZE_MAX, 0, group->window_bytes);
    return code;
}

/* The group's memory exists: its chunks may be read. The lock is held. */
static void publish_group(struct hr_load *load, size_t group_index)
{
    const struct hr_plan_group *group = &load->plan.groups[group_index];
    int to_read = 0;
    for (size_t i = 0; i < group->item_count; i++) {
        size_t item_index = group_item(load, group, i);
        struct load_item *item = &load->items[item_index];
        item->status = ITEM_ADMITTED;
        if (load->plan.items[item_index].bytes == 0 || item->mapped) {
            load->bytes_landed += load->plan.items[item_index].bytes;
            hr_load_item_ready(load, item_index);
        } else if (!load->plan.items[item_index].is_spread) {
            to_read = 1;
        }
    }
    if (to_read)
        hr_queue_push(&load->queued[group->device_index].groups, group_index);
    load->groups[group_index].status = GROUP_ADMITTED;
    load->event_count++;
    if (load->is_feed)
        hr_load_wake_readers(load, group->chunk_count);
    else
        pthread_cond_broadcast(&load->work);
    pthread_cond_broadcast(&load->done);
}

/* The group's memory counts from now on, and this thread makes it. The lock is held. */
static void reserve_group(struct hr_load *load, size_t group_index)
{
    load->groups[group_index].status = GROUP_BEING_MADE;
    load->window_bytes += load->plan.groups[group_index].window_bytes;
    if (load->window_bytes > load->window_peak_bytes)
        load->window_peak_bytes = load->window_bytes;
}

/* Makes and publishes a reserved group. */
static int admit_reserved(struct hr_load *load, size_t group_index)
{
    struct hr_error error;
    int code = make_group(load, &load->plan.groups[group_index], &error);
    if (code < 0) {
        hr_load_fail(load, &error);
        return code;
    }
    pthread_mutex_lock(&load->lock);
    publish_group(load, group_index);
    pthread_mutex_unlock(&load->lock);
    return 0;
}

int hr_load_admit_group(struct hr_load *load, size_t group_index)
{
    pthread_mutex_lock(&load->lock);
    int ours = load->groups[group_index].status == GROUP_PLANNED && !load->stopping;
    if (ours)
        reserve_group(load, group_index);
    pthread_mutex_unlock(&load->lock);
    return ours ? admit_reserved(load, group_index) : 0;
}

/* Reserves the next group if the window has room for it; SIZE_MAX otherwise. */
static size_t reserve_next(struct hr_load *load)
{
    size_t found = SIZE_MAX;
    uint64_t window = load->options.window_bytes;
    pthread_mutex_lock(&load->lock);
    while (load->group_next < load->plan.group_count && load->groups[load->group_next].status != GROUP_PLANNED)
        load->group_next++;
    if (load->group_next < load->plan.group_count && hr_gate_has_room(load, load->group_next) && !load->stopping) {
        uint64_t bytes = load->plan.groups[load->group_next].window_bytes;
        if (window == 0 || load->window_bytes == 0 ||
            (load->window_bytes <= window && bytes <= window - load->window_bytes)) {
            found = load->group_next;
            reserve_group(load, found);
        }
    }
    pthread_mutex_unlock(&load->lock);
    return found;
}

int hr_load_admit_window(struct hr_load *load)
{
    size_t group_index;
    while ((group_index = reserve_next(load)) != SIZE_MAX) {
        int code = admit_reserved(load, group_index);
        if (code < 0)
            return code;
        if (load->options.sequential)
            break;
    }
    return 0;
}
