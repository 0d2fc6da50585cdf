/*
 * loader.c: checks options once, so that loads need not.
 */
#include "engine/loader.h"

#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sys.h"
#include "engine/gds_loader.h"
#include "engine/slot.h"
#include "io/io.h"

static const char *const route_names[HR_ROUTE_COUNT] = {"auto", "pread", "uring", "mmap", "gds"};

const char *hr_route_name(uint32_t route)
{
    return route < HR_ROUTE_COUNT ? route_names[route] : NULL;
}

int hr_route_find(const char *name)
{
    for (int i = 0; name && i < HR_ROUTE_COUNT; i++)
        if (strcmp(route_names[i], name) == 0)
            return i;
    return -1;
}

static int check_range(const char *what, uint64_t value, uint64_t low, uint64_t high, struct hr_error *err)
{
    if (value >= low && value <= high)
        return 0;
    return hr_fail(err, HR_EINVALID_ARGUMENT, "%s is %llu; it must be %llu to %llu", what, (unsigned long long)value,
                   (unsigned long long)low, (unsigned long long)high);
}

static void set_defaults(struct hr_loader_options *options)
{
    if (options->queue_depth == 0)
        options->queue_depth = HR_QUEUE_DEPTH_DEFAULT;
}

static int check_options(const struct hr_loader_options *options, struct hr_error *err)
{
    int code = 0;
    if (options->chunk_bytes)
        code = check_range("chunk_bytes", options->chunk_bytes, HR_CHUNK_BYTES_MIN, HR_CHUNK_BYTES_MAX, err);
    if (code == 0)
        code = check_range("queue_depth", options->queue_depth, 1, HR_QUEUE_DEPTH_MAX, err);
    if (code == 0)
        code = check_range("thread_count", options->thread_count, 0, HR_READER_MAX, err);
    if (code == 0)
        code = check_range("route", options->route, 0, HR_ROUTE_COUNT - 1, err);
    if (code == 0 && options->allocator.free && !options->allocator.alloc)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "allocator.free is set but allocator.alloc is not");
    if (code == 0)
        code = check_range("lane_count", options->lane_count, 0, HR_LANE_COUNT_MAX, err);
    if (code == 0)
        code = check_range("device_count", options->device_count, 0, HR_DEVICE_COUNT_MAX, err);
    if (code == 0 && options->device_count && !options->devices)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "device_count is %zu but devices is NULL", options->device_count);
    if (code == 0)
        code = hr_options_check_reserved(options->reserved, "hr_loader_options", err);
    return code;
}

/* ----------------------------------------------------------------------------------------- devices */

static int open_lanes(struct loader_device *target, uint32_t wanted, struct hr_error *err)
{
    while (target->lane_count < wanted) {
        int code = hr_lane_open(target->device, &target->lanes[target->lane_count], err);
        if (code < 0)
            return code;
        target->lane_count++;
    }
    return 0;
}

/* More streams than engines that could work for them gain nothing. */
static uint32_t default_lanes(const struct hr_device_info *info)
{
    if (info->copy_engine_count == 0)
        return 1;
    return info->copy_engine_count < HR_LANE_COUNT_DEFAULT ? info->copy_engine_count : HR_LANE_COUNT_DEFAULT;
}

static int open_device(struct hr_loader *loader, const char *name, uint32_t lane_count, struct hr_error *err)
{
    struct loader_device *target = &loader->devices[loader->device_count];
    char detail[1];
    int code = hr_device_open(name, &target->device, err);
    if (code < 0)
        return code;
    loader->device_count++;
    if (hr_device_is_host(target->device))
        return 0;
    loader->remote_devices |= UINT64_C(1) << (loader->device_count - 1);
    hr_device_kernel(target->device, detail, sizeof detail); /* now, since later it would wait for the device's work */
    return open_lanes(target, lane_count ? lane_count : default_lanes(hr_device_info(target->device)), err);
}

static int open_devices(struct hr_loader *loader, const struct hr_loader_options *options, struct hr_error *err)
{
    static const char *const host[] = {"cpu"};
    const char *const *names = options->device_count ? options->devices : host;
    size_t count = options->device_count ? options->device_count : 1;
    int code = 0;
    loader->devices = hr_alloc_array(count, sizeof loader->devices[0]);
    if (!loader->devices)
        return hr_fail_memory(err, count * sizeof loader->devices[0], "the devices of a loader");
    for (size_t i = 0; code == 0 && i < count; i++)
        code = open_device(loader, names[i], options->lane_count, err);
    return code;
}

/* What speaks about the machine only; a process whose affinity is not told is left where it is. */
static void decide_placement(struct hr_loader *loader, const struct hr_topology *topology)
{
    int nodes[HR_DEVICE_COUNT_MAX];
    size_t count = 0;
    struct hr_cpu_set affinity;
    if (hr_sys->affinity_get(affinity.words, HR_CPU_COUNT_MAX / 64) < 0) {
        hr_placement_none(&loader->placement, "the affinity cannot be read");
        return;
    }
    for (uint32_t i = 0; i < loader->device_count; i++)
        if (loader->devices[i].lane_count)
            nodes[count++] = hr_topology_pci_node(topology, hr_device_info(loader->devices[i].device)->pci);
    hr_placement_decide(topology, &affinity, nodes, count, &loader->placement);
}

static int settle_placement(struct hr_loader *loader, const struct hr_loader_options *options, struct hr_error *err)
{
    hr_placement_none(&loader->placement, options->no_binding ? "switched off" : "no GPU");
    if (loader->remote_devices && !options->no_binding) {
        struct hr_topology *topology = hr_topology_read();
        if (!topology)
            return hr_fail_memory(err, sizeof *topology, "the machine's topology");
        decide_placement(loader, topology);
        hr_free(topology);
    }
    if (loader->thread_count == 0)
        loader->thread_count =
            hr_placement_readers(hr_loader_core_count(loader), (size_t)__builtin_popcountll(loader->remote_devices));
    return 0;
}

uint32_t hr_loader_core_count(const struct hr_loader *loader)
{
    return loader->placement.core_count ? loader->placement.core_count : hr_sys->core_count();
}

/* The ring for all devices that need one; staging memory is pinned for each of them at once. */
static int make_staging(struct hr_loader *loader, uint64_t bytes, struct hr_error *err)
{
    uint64_t slot_bytes = loader->chunk_bytes + HR_SLOT_SLACK_BYTES;
    uint64_t with_moves = slot_bytes + HR_STAGING_MOVES_MAX * sizeof(struct hr_move);
    uint32_t first = (uint32_t)__builtin_ctzll(loader->remote_devices);
    if (bytes && bytes < loader->chunk_bytes)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "staging_bytes is %llu; it must hold one chunk of %llu at least",
                       (unsigned long long)bytes, (unsigned long long)loader->chunk_bytes);
    if (bytes == 0)
        bytes = HR_STAGING_SLOTS_DEFAULT * with_moves < HR_STAGING_BYTES_MAX ? HR_STAGING_SLOTS_DEFAULT * with_moves
                                                                             : HR_STAGING_BYTES_MAX;
    return hr_staging_new(loader->devices[first].device, slot_bytes, bytes, loader->placement.node, &loader->staging,
                          err);
}

/* Buffers for host memory, made as they are needed, as many as may be read at once; at least one. */
static int make_bounces(struct hr_loader *loader, struct hr_error *err)
{
    struct hr_device *host = NULL;
    int code = hr_device_open("cpu", &host, err);
    if (code < 0)
        return code;
    return hr_staging_new(host, loader->chunk_bytes + HR_SLOT_SLACK_BYTES, HR_BOUNCE_RING_BYTES, -1, &loader->bounces,
                          err);
}

/* What devices allow: no mappings for them, no chunk that is too large for a slot; and sizes that fit them. */
static int settle_devices(struct hr_loader *loader, const struct hr_loader_options *options, struct hr_error *err)
{
    int is_remote = loader->remote_devices != 0;
    loader->chunk_bytes = options->chunk_bytes;
    loader->chunk_is_asked = options->chunk_bytes != 0;
    if (loader->chunk_bytes == 0)
        loader->chunk_bytes = is_remote ? HR_CHUNK_BYTES_REMOTE : HR_CHUNK_BYTES_DEFAULT;
    if (loader->arena_bytes == 0)
        loader->arena_bytes = is_remote ? HR_ARENA_BYTES_REMOTE : HR_ARENA_BYTES_DEFAULT;
    int code = make_bounces(loader, err);
    if (code < 0 || !is_remote)
        return code;
    if (options->route == HR_ROUTE_MMAP)
        return hr_fail(err, HR_EUNSUPPORTED, "route 'mmap' is for host memory; a device is filled by other routes");
    code = check_range("chunk_bytes", loader->chunk_bytes, HR_CHUNK_BYTES_MIN, HR_CHUNK_BYTES_REMOTE_MAX, err);
    return code < 0 ? code : make_staging(loader, options->staging_bytes, err);
}

static void close_devices(struct hr_loader *loader)
{
    hr_loader_close_gds(loader, 0);
    hr_staging_free(loader->staging);
    hr_staging_free(loader->bounces);
    for (uint32_t i = 0; i < loader->device_count; i++) {
        struct loader_device *target = &loader->devices[i];
        while (target->lane_count)
            hr_lane_close(target->lanes[--target->lane_count]);
        hr_device_unref(target->device);
    }
}

/* -------------------------------------------------------------------------------------- the loader */

static int probe_uring(struct hr_loader *loader, struct hr_error *err)
{
    if (loader->route == HR_ROUTE_AUTO || loader->route == HR_ROUTE_URING)
        loader->uring_usable = hr_io_uring.probe(loader->uring_detail, sizeof loader->uring_detail);
    if (loader->route == HR_ROUTE_URING && !loader->uring_usable)
        return hr_fail(err, HR_EUNSUPPORTED, "route 'uring' is not usable here: %s", loader->uring_detail);
    return 0;
}

static int loader_init(struct hr_loader *loader, const struct hr_loader_options *options, struct hr_error *err)
{
    loader->route = options->route;
    loader->thread_count = options->thread_count;
    loader->threads_are_asked = options->thread_count != 0;
    loader->arena_bytes = options->arena_bytes;
    loader->queue_depth = options->queue_depth;
    loader->keep_cache = options->keep_cache != 0;
    loader->allocator = options->allocator;
    loader->fork_generation = hr_fork_generation();
    int code = probe_uring(loader, err);
    if (code == 0)
        code = open_devices(loader, options, err);
    if (code == 0)
        code = settle_placement(loader, options, err);
    if (code == 0)
        code = settle_devices(loader, options, err);
    if (code == 0)
        code = hr_loader_open_gds(loader, err);
    if (code == 0) /* more than the ring holds is never in flight */
        code =
            hr_flow_new(hr_staging_bytes_max(loader->staging ? loader->staging : loader->bounces), &loader->flow, err);
    return code;
}

int hr_loader_new(const struct hr_loader_options *options, struct hr_loader **ret_loader, struct hr_error *err)
{
    struct hr_loader_options known;
    if (!ret_loader)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the loader must be given; ret_loader is NULL");
    int code = hr_options_copy(&known, sizeof known, options, "hr_loader_options", err);
    if (code < 0)
        return code;
    set_defaults(&known);
    code = check_options(&known, err);
    if (code < 0)
        return code;
    struct hr_loader *loader = hr_alloc(sizeof *loader);
    if (!loader)
        return hr_fail_memory(err, sizeof *loader, "a loader");
    code = loader_init(loader, &known, err);
    if (code < 0) {
        hr_loader_free(loader);
        return code;
    }
    *ret_loader = loader;
    return 0;
}

static void forget_staging(struct hr_loader *loader)
{
    hr_staging_forget(loader->staging);
    hr_staging_forget(loader->bounces);
}

void hr_loader_free(struct hr_loader *loader)
{
    if (!loader)
        return;
    if (loader->fork_generation == hr_fork_generation()) {
        close_devices(loader);
    } else { /* the driver is of no use in the child, nor are its handles */
        hr_loader_close_gds(loader, 1);
        forget_staging(loader);
    }
    hr_flow_free(loader->flow);
    hr_free(loader->devices);
    hr_free(loader);
}

uint64_t hr_loader_trim(struct hr_loader *loader)
{
    if (!loader || loader->fork_generation != hr_fork_generation())
        return 0;
    hr_staging_trim(loader->bounces);
    return loader->staging ? hr_staging_trim(loader->staging) : 0;
}

int hr_loader_device(const struct hr_loader *loader, size_t device_index, struct hr_device_info *ret_info)
{
    if (!loader || !ret_info || device_index >= loader->device_count || ret_info->size < sizeof ret_info->size)
        return HR_EINVALID_ARGUMENT;
    if (loader->fork_generation != hr_fork_generation())
        return HR_EFORKED;
    size_t size = ret_info->size;
    const struct hr_device_info *info = hr_device_info(loader->devices[device_index].device);
    memcpy(ret_info, info, size < sizeof *info ? size : sizeof *info);
    ret_info->size = size;
    return 0;
}
