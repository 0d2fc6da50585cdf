/*
 * load_stats.c: what a load has done so far, and what kept it from being faster.
 */
#include "engine/load.h"

#include <stdio.h>
#include <string.h>

#include "base/sys.h"
#include "engine/casts.h"
#include "engine/gds_loader.h"
#include "engine/heat.h"
#include "engine/spreader.h"

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
        return load->spreader ? "process group (its collectives, or other ranks)" : "consumer (the window is full)";
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
