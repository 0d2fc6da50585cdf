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
#include "io/io.h"

static const char *const route_names[HR_ROUTE_COUNT] = {"auto", "pread", "uring", "mmap"};

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

/* Only the host exists here; anything else is named as what it is. */
static int check_devices(const struct hr_loader_options *options, struct hr_error *err)
{
    if (options->device_count && !options->devices)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "device_count is %zu but devices is NULL", options->device_count);
    for (size_t i = 0; i < options->device_count; i++)
        if (!options->devices[i] || strcmp(options->devices[i], "cpu") != 0)
            return hr_fail(err, HR_EDEVICE_UNAVAILABLE,
                           "device '%s' is not available: this version loads to \"cpu\" only",
                           options->devices[i] ? options->devices[i] : "(null)");
    return 0;
}

static void set_defaults(struct hr_loader_options *options)
{
    uint32_t cores = hr_sys->core_count();
    if (options->thread_count == 0)
        options->thread_count = cores < HR_READER_DEFAULT_MAX ? cores : HR_READER_DEFAULT_MAX;
    if (options->chunk_bytes == 0)
        options->chunk_bytes = HR_CHUNK_BYTES_DEFAULT;
    if (options->queue_depth == 0)
        options->queue_depth = HR_QUEUE_DEPTH_DEFAULT;
    if (options->arena_bytes == 0)
        options->arena_bytes = HR_ARENA_BYTES_DEFAULT;
    if (options->device_count == 0)
        options->device_count = 1;
}

static int check_options(const struct hr_loader_options *options, struct hr_error *err)
{
    int code = check_range("chunk_bytes", options->chunk_bytes, HR_CHUNK_BYTES_MIN, HR_CHUNK_BYTES_MAX, err);
    if (code == 0)
        code = check_range("queue_depth", options->queue_depth, 1, HR_QUEUE_DEPTH_MAX, err);
    if (code == 0)
        code = check_range("thread_count", options->thread_count, 1, HR_READER_MAX, err);
    if (code == 0)
        code = check_range("route", options->route, 0, HR_ROUTE_COUNT - 1, err);
    if (code == 0 && options->allocator.free && !options->allocator.alloc)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "allocator.free is set but allocator.alloc is not");
    if (code == 0)
        code = hr_options_check_reserved(options->reserved, "hr_loader_options", err);
    return code;
}

int hr_loader_new(const struct hr_loader_options *options, struct hr_loader **ret_loader, struct hr_error *err)
{
    struct hr_loader_options known;
    if (!ret_loader)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the loader must be given; ret_loader is NULL");
    int code = hr_options_copy(&known, sizeof known, options, "hr_loader_options", err);
    if (code == 0)
        code = check_devices(&known, err);
    if (code < 0)
        return code;
    set_defaults(&known);
    code = check_options(&known, err);
    if (code < 0)
        return code;
    struct hr_loader *loader = hr_alloc(sizeof *loader);
    if (!loader)
        return hr_fail_memory(err, sizeof *loader, "a loader");
    loader->route = known.route;
    loader->thread_count = known.thread_count;
    loader->chunk_bytes = known.chunk_bytes;
    loader->arena_bytes = known.arena_bytes;
    loader->queue_depth = known.queue_depth;
    loader->device_count = (uint32_t)known.device_count;
    loader->allocator = known.allocator;
    loader->fork_generation = hr_fork_generation();
    if (known.route == HR_ROUTE_AUTO || known.route == HR_ROUTE_URING)
        loader->uring_usable = hr_io_uring.probe(loader->uring_detail, sizeof loader->uring_detail);
    if (known.route == HR_ROUTE_URING && !loader->uring_usable) {
        code = hr_fail(err, HR_EUNSUPPORTED, "route 'uring' is not usable here: %s", loader->uring_detail);
        hr_free(loader);
        return code;
    }
    *ret_loader = loader;
    return 0;
}

void hr_loader_free(struct hr_loader *loader)
{
    hr_free(loader);
}
