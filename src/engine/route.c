/*
 * route.c: bytes in the page cache are copied fastest by as many threads as there are cores; bytes that storage
 * must deliver want many reads in flight, which io_uring keeps without a thread for each.
 */
#include "engine/route.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "engine/gds_loader.h"
#include "engine/heat.h"
#include "io/io.h"

/* Files whose residency is asked for: enough to tell a cold checkpoint from a hot one. */
#define SAMPLE_FILES 8

/*
 * Asks for one file: adds what was asked and what of it is resident. 0 or -errno. What cannot be opened is left out: the
 * load itself will meet and name the error.
 */
static int sample_file(struct hr_load *load, size_t file_index, uint64_t *asked, uint64_t *resident)
{
    int fd = hr_sys->open(load->checkpoint->open_paths[file_index], O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return 0;
    struct heat_of_file found = hr_heat_of_file(load, file_index, fd);
    hr_sys->close(fd);
    *asked += found.asked;
    *resident += found.resident;
    return found.error;
}

/* Percent of the sampled files that the page cache holds, or -errno. */
static int sample_residency(struct hr_load *load)
{
    uint64_t asked = 0, resident = 0;
    size_t step = load->plan.chunk_count / SAMPLE_FILES + 1;
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < load->plan.chunk_count; i += step) {
        size_t file_index = load->plan.chunks[i].file_index;
        if (file_index == last)
            continue;
        last = file_index;
        int code = sample_file(load, file_index, &asked, &resident);
        if (code < 0)
            return code;
    }
    return asked ? (int)((double)resident / (double)asked * 100) : 100;
}

/*
 * Copying out of the page cache keeps a core busy: more readers than cores take turns and push each other's pages out of
 * the caches (128 on 16 cores reached 0.77 of what 12 did), so they are not started, however many were asked for.
 */
static void limit_readers(struct hr_load *load)
{
    unsigned cores = hr_loader_core_count(load->loader);
    size_t size = strlen(load->route_reason);
    if (load->thread_wanted <= cores)
        return;
    load->thread_wanted = cores;
    snprintf(load->route_reason + size, sizeof load->route_reason - size, "; one reader a core, %u", cores);
}

/* Storage has to deliver the bytes: straight to the device where that is really done, else by many reads in flight. */
static uint32_t choose_cold(struct hr_load *load)
{
    char reason[120];
    size_t size = strlen(load->route_reason);
    if (!hr_load_is_direct(load, reason, sizeof reason) || !load->casts.gpu_can)
        return HR_ROUTE_URING;
    snprintf(load->route_reason + size, sizeof load->route_reason - size, "; %s", reason);
    return HR_ROUTE_GDS;
}

/* Asked for: whether it is what it is meant to be. Nobody but the GPU can convert what never comes to the host. */
static int take_gds(struct hr_load *load, const char *why, struct hr_error *err)
{
    char reason[140];
    if (!load->casts.gpu_can)
        return hr_fail(err, HR_EUNSUPPORTED, "route 'gds' cannot convert dtypes here: %s; take another route",
                       load->casts.why_not);
    hr_load_is_direct(load, reason, sizeof reason);
    snprintf(load->route_reason, sizeof load->route_reason, "%s; %s", why, reason);
    return 0;
}

/* Without io_uring what is not cached is read by as many threads as there are. Why not, hr_capabilities() says. */
static void add_uring_reason(struct hr_load *load)
{
    size_t size = strlen(load->route_reason);
    if (!load->loader->uring_usable)
        snprintf(load->route_reason + size, sizeof load->route_reason - size, "; io_uring is not usable");
}

static int choose_auto(struct hr_load *load, struct hr_error *err)
{
    size_t capacity = sizeof load->route_reason;
    int code = hr_heat_new(load->checkpoint->file_count, load->plan.chunk_count, &load->heat, err);
    if (code < 0)
        return code;
    load->route = HR_ROUTE_PREAD;
    int percent = sample_residency(load);
    if (percent < 0)
        snprintf(load->route_reason, capacity, "cannot tell what the page cache holds: %s", strerror(-percent));
    else
        snprintf(load->route_reason, capacity, "the page cache holds %d %% of the files", percent);
    if (percent >= 90)
        limit_readers(load);
    else if (percent >= 0 && percent < 50 && load->loader->uring_usable)
        load->route = choose_cold(load);
    else
        add_uring_reason(load);
    if (load->route == HR_ROUTE_GDS) { /* all of it goes that way */
        hr_heat_free(load->heat);
        load->heat = NULL;
    }
    return 0;
}

int hr_route_choose(struct hr_load *load, struct hr_error *err)
{
    int code = 0;
    load->route = load->loader->route;
    if (load->route == HR_ROUTE_GDS) {
        code = take_gds(load, load->options.sequential ? "sequential" : "asked for", err);
    } else if (load->options.sequential) {
        load->route = load->route == HR_ROUTE_MMAP ? HR_ROUTE_MMAP : HR_ROUTE_PREAD;
        snprintf(load->route_reason, sizeof load->route_reason, "sequential: the waiting thread reads");
    } else if (load->route == HR_ROUTE_AUTO) {
        code = choose_auto(load, err);
    } else {
        snprintf(load->route_reason, sizeof load->route_reason, "asked for");
    }
    load->backend = load->route == HR_ROUTE_URING && !load->heat ? &hr_io_uring : &hr_io_pread;
    load->queue_depth = load->backend == &hr_io_uring ? load->loader->queue_depth : 1;
    load->cold_backend = load->loader->uring_usable ? &hr_io_uring : &hr_io_pread;
    load->cold_depth = load->loader->uring_usable ? load->loader->queue_depth : 1;
    return code;
}
