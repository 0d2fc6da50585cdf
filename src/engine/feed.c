/*
 * feed.c: parts as items of a load. Their destinations are known beforehand, so nothing is allocated while it runs.
 */
#include "engine/feed.h"

#include <string.h>

#include "base/cond.h"
#include "base/error.h"
#include "base/sys.h"
#include "engine/gate.h"
#include "engine/heat.h"

/* Where readers fill the slots themselves, all should have something to read: so chunks are a fraction of the slots. */
#define CHUNKS_IN_SLOTS 10

struct hr_feed {
    struct hr_load *main;
    struct hr_checkpoint *checkpoint; /* of byte ranges */
    struct hr_load *load;
    size_t *firsts; /* by window, and one more: its first item */
};

/* What is needed only while a feed is made. */
struct parts {
    struct hr_extent *extents;
    uint64_t *sizes; /* shapes of the extents */
    struct hr_item *items;
    size_t *keys;
    size_t count;
};

/* Walks this rank's ranges of all windows; with `parts` NULL only counts them. */
static size_t parts_fill(struct hr_feed *feed, char *slots, struct parts *parts)
{
    const struct hr_spread *spread = feed->main->plan.spread;
    size_t count = 0, first = 0;
    for (size_t w = 0; w < spread->window_count; w++) {
        struct hr_spread_window window = hr_spread_window_at(spread, w);
        struct hr_range part = hr_spread_part(&window, spread->rank);
        struct hr_spread_range range;
        first = hr_spread_first(spread, first, window.begin);
        feed->firsts[w] = count;
        for (size_t next = first; hr_spread_range_next(spread, part.start, part.stop, &next, &range); count++) {
            if (!parts)
                continue;
            const struct hr_tensor *tensor = spread->items[range.item].tensor;
            parts->sizes[count] = range.file_end - range.file_begin;
            parts->extents[count] = (struct hr_extent){.size = sizeof parts->extents[0],
                                                       .name = tensor->name,
                                                       .name_size = tensor->name_size,
                                                       .dtype = HR_DTYPE_U8,
                                                       .rank = 1,
                                                       .shape = &parts->sizes[count],
                                                       .file_index = range.file_index,
                                                       .offset = range.file_begin};
            parts->items[count] = (struct hr_item){.size = sizeof parts->items[0],
                                                   .tensor_index = count,
                                                   .device_index = feed->main->plan.items[0].device_index,
                                                   .into = slots + w % spread->slot_count * spread->slot_bytes +
                                                           (range.begin - part.start)};
            parts->keys[count] = w;
        }
    }
    feed->firsts[spread->window_count] = count;
    return count;
}

static int parts_make(struct hr_feed *feed, char *slots, struct parts *parts, struct hr_error *err)
{
    parts->count = parts_fill(feed, slots, NULL);
    parts->extents = hr_alloc_array(parts->count, sizeof *parts->extents);
    parts->sizes = hr_alloc_array(parts->count, sizeof *parts->sizes);
    parts->items = hr_alloc_array(parts->count, sizeof *parts->items);
    parts->keys = hr_alloc_array(parts->count, sizeof *parts->keys);
    if (!parts->extents || !parts->sizes || !parts->items || !parts->keys)
        return hr_fail_memory(err, parts->count * sizeof *parts->extents, "what this rank reads for its group");
    parts_fill(feed, slots, parts);
    return 0;
}

static void parts_release(struct parts *parts)
{
    hr_free(parts->extents);
    hr_free(parts->sizes);
    hr_free(parts->items);
    hr_free(parts->keys);
}

static int is_remote(const struct hr_load *load)
{
    return load->loader->devices[load->plan.items[0].device_index].lane_count != 0;
}

/*
 * For GPUs each part has as few chunks as its load's grid allows, of one length: shorter ones would take as many pieces of
 * pinned memory for fewer bytes.
 */
static uint64_t chunk_bytes(const struct hr_load *load)
{
    const struct hr_spread *spread = load->plan.spread;
    uint64_t most = load->plan.options.chunk_bytes, bytes;
    if (is_remote(load)) {
        uint64_t count = (spread->part_bytes + most - 1) / most;
        bytes = (spread->part_bytes + count - 1) / count;
    } else {
        bytes = spread->slot_count * spread->slot_bytes / CHUNKS_IN_SLOTS;
    }
    bytes = bytes > HR_CHUNK_BYTES_MIN ? bytes : HR_CHUNK_BYTES_MIN;
    return bytes < most ? bytes : most;
}

/*
 * What goes through pinned memory is read before its slot is free, so that slots are held for the link and the collective
 * alone, and not while the page cache is copied.
 */
static size_t chunks_ahead(const struct hr_load *main, const struct hr_load *load)
{
    return is_remote(main) && load->route != HR_ROUTE_GDS ? hr_staging_early_max(main->loader->staging) : 0;
}

static int start(struct hr_feed *feed, const struct hr_feed_slots *slots, const struct parts *parts,
                 struct hr_error *err)
{
    struct hr_load *main = feed->main;
    struct hr_load_feed as_feed = {parts->keys, chunk_bytes(main), is_remote(main)};
    struct hr_load_options options = {
        .size = sizeof options, .trace = main->options.trace, .trace_context = main->options.trace_context};
    int code = hr_checkpoint_extents(main->checkpoint, parts->extents, parts->count, &feed->checkpoint, err);
    if (code == 0)
        code = hr_load_prepare(main->loader, feed->checkpoint, parts->items, parts->count, &options, &as_feed,
                               &feed->load, err);
    if (code == 0)
        code = hr_gate_make(feed->load, chunks_ahead(main, feed->load), err);
    if (code < 0)
        return code;
    hr_heat_share_ahead(feed->load, main);
    feed->load->start_ns = main->start_ns;
    feed->load->feed_slots = *slots;
    feed->load->feed_slot_bytes = main->plan.spread->slot_bytes;
    return hr_load_start_readers(feed->load, err);
}

int hr_feed_new(struct hr_load *load, const struct hr_feed_slots *slots, struct hr_feed **ret_feed,
                struct hr_error *err)
{
    struct parts parts = {0};
    struct hr_feed *feed = hr_alloc(sizeof *feed);
    if (!feed)
        return hr_fail_memory(err, sizeof *feed, "what this rank reads for its group");
    feed->main = load;
    feed->firsts = hr_alloc_array(load->plan.spread->window_count + 1, sizeof *feed->firsts);
    int code = feed->firsts ? parts_make(feed, slots->memory, &parts, err)
                            : hr_fail_memory(err, load->plan.spread->window_count * sizeof *feed->firsts,
                                             "what this rank reads for its group");
    if (code == 0)
        code = start(feed, slots, &parts, err);
    parts_release(&parts);
    if (code < 0) {
        hr_feed_free(feed);
        return code;
    }
    *ret_feed = feed;
    return 0;
}

void hr_feed_free(struct hr_feed *feed)
{
    if (!feed)
        return;
    hr_load_free(feed->load);
    hr_checkpoint_close(feed->checkpoint);
    hr_free(feed->firsts);
    hr_free(feed);
}

void hr_feed_stop(struct hr_feed *feed)
{
    hr_load_cancel(feed->load);
}

void hr_feed_limit(struct hr_feed *feed, uint32_t reader_count)
{
    pthread_mutex_lock(&feed->load->lock);
    feed->load->reader_limit = reader_count;
    pthread_cond_broadcast(&feed->load->work); /* those who are too many end */
    pthread_mutex_unlock(&feed->load->lock);
}

/* A range of the file may hold bytes of several tensors: which one it is, the offset says. */
static void name_tensor(const struct hr_feed *feed, struct hr_error *err)
{
    const struct hr_spread *spread = feed->main->plan.spread;
    const struct hr_file *files = feed->main->checkpoint->files;
    if (err->offset == HR_NO_OFFSET)
        return;
    for (size_t i = 0; i < spread->item_count; i++) {
        const struct hr_spread_item *item = &spread->items[i];
        uint64_t end = item->source + (item->end - item->begin);
        if (err->offset < item->source || err->offset >= end ||
            strncmp(files[item->file_index].path, err->file, sizeof err->file - 1) != 0)
            continue;
        err->tensor[0] = '\0';
        hr_error_in_tensor(err, item->tensor->name, item->tensor->name_size);
        return;
    }
}

/* Of the windows from `end` on. */
static size_t first_group(const struct hr_feed *feed, size_t end)
{
    const struct hr_plan *plan = &feed->load->plan;
    size_t window_count = feed->main->plan.spread->window_count;
    size_t first = feed->firsts[end < window_count ? end : window_count];
    return first < plan->item_count ? plan->items[first].group_index : plan->group_count;
}

void hr_feed_open(struct hr_feed *feed, size_t end)
{
    hr_gate_open(feed->load, first_group(feed, end));
}

void hr_feed_clear(struct hr_feed *feed, size_t end)
{
    hr_gate_clear(feed->load, first_group(feed, end));
    hr_load_admit_window(feed->load); /* a failure is the feed's, and comes out of waiting for it */
}

int hr_feed_check(struct hr_feed *feed, struct hr_error *err)
{
    pthread_mutex_lock(&feed->load->lock);
    int code = hr_load_error(feed->load, err);
    pthread_mutex_unlock(&feed->load->lock);
    if (code < 0)
        name_tensor(feed, err);
    return code;
}

/* The lock is held. */
static int is_ready(const struct hr_feed *feed, size_t window_index)
{
    size_t i = feed->firsts[window_index], end = feed->firsts[window_index + 1];
    while (i < end && feed->load->items[i].status == ITEM_READY)
        i++;
    return i == end || feed->load->error.code != 0;
}

int hr_feed_is_ready(struct hr_feed *feed, size_t window_index)
{
    pthread_mutex_lock(&feed->load->lock);
    int ready = is_ready(feed, window_index);
    pthread_mutex_unlock(&feed->load->lock);
    return ready;
}

void hr_feed_watch(struct hr_feed *feed, size_t window_index, uint64_t until_ns)
{
    struct hr_load *load = feed->load;
    int is_late = 0;
    pthread_mutex_lock(&load->lock);
    int was_ready = is_ready(feed, window_index);
    while (!is_late && is_ready(feed, window_index) == was_ready)
        is_late = hr_cond_wait_until(&load->done, &load->lock, until_ns);
    pthread_mutex_unlock(&load->lock);
}

int hr_feed_wait(struct hr_feed *feed, size_t window_index, struct hr_error *err)
{
    int code = 0;
    for (size_t i = feed->firsts[window_index]; code == 0 && i < feed->firsts[window_index + 1]; i++)
        code = hr_load_wait(feed->load, i, err);
    if (code < 0)
        name_tensor(feed, err);
    return code;
}

const struct hr_load *hr_feed_load(const struct hr_feed *feed)
{
    return feed->load;
}
