/*
 * gds_loader.c: see gds_loader.h.
 */
#include "engine/gds_loader.h"

#include <stdio.h>

#include "base/error.h"
#include "device/gds.h"
#include "engine/staging.h"

/* A chunk reaches into a page of the alignment at either end; larger ones go through a slot in parts. */
static uint64_t slot_bytes(const struct hr_loader *loader)
{
    uint64_t bytes = loader->chunk_bytes < HR_GDS_SLOT_BYTES_MAX ? loader->chunk_bytes : HR_GDS_SLOT_BYTES_MAX;
    return bytes + 2 * HR_GDS_ALIGNMENT;
}

/* As many as the readers can use, in as much memory as the bound allows; the ring rounds slots up. */
static uint32_t slot_count(const struct hr_loader *loader)
{
    uint64_t room = HR_GDS_BYTES_MAX / (slot_bytes(loader) + HR_GDS_PAGE_BYTES);
    uint64_t wanted = (uint64_t)loader->thread_count * HR_STAGING_DEPTH;
    return (uint32_t)(wanted < room ? wanted : room);
}

static int open_ring(const struct hr_loader *loader, struct loader_device *target, struct hr_error *err)
{
    int code = hr_gds_open(target->device, slot_bytes(loader), slot_count(loader), &target->gds, err);
    if (code == 0)
        code = hr_staging_new_on_device(target->device, target->gds, &target->device_ring, err);
    if (code < 0) {
        hr_gds_close(target->gds);
        target->gds = NULL;
    }
    return code;
}

int hr_loader_open_gds(struct hr_loader *loader, struct hr_error *err)
{
    char detail[1];
    int is_asked = loader->route == HR_ROUTE_GDS, code = 0;
    if (is_asked && !loader->remote_devices)
        return hr_fail(err, HR_EUNSUPPORTED, "route 'gds' is for GPUs; host memory is filled by other routes");
    if (!is_asked &&
        (loader->route != HR_ROUTE_AUTO || !loader->remote_devices || !hr_gds_platform(detail, sizeof detail)))
        return 0;
    for (uint32_t i = 0; i < loader->device_count && code == 0; i++)
        if (loader->devices[i].lane_count)
            code = open_ring(loader, &loader->devices[i], is_asked ? err : NULL);
    return is_asked ? code : 0;
}

void hr_loader_close_gds(struct hr_loader *loader, int is_child)
{
    for (uint32_t i = 0; i < loader->device_count; i++) {
        struct loader_device *target = &loader->devices[i];
        if (is_child) {
            hr_staging_forget(target->device_ring);
            hr_gds_forget(target->gds);
        } else {
            hr_staging_free(target->device_ring);
            hr_gds_close(target->gds);
        }
    }
}

/* The first ring, or NULL when some device has none. */
static const struct hr_gds *ring_of_all(const struct hr_loader *loader)
{
    for (uint32_t i = 0; i < loader->device_count; i++)
        if (!loader->devices[i].gds)
            return NULL;
    return loader->devices[0].gds;
}

int hr_load_is_direct(const struct hr_load *load, char *reason, size_t capacity)
{
    const struct hr_gds *gds = ring_of_all(load->loader);
    const struct hr_identity *identities = load->checkpoint->identities;
    char detail[120] = "nothing to read";
    uint64_t last = 0;
    int is_direct = gds && load->plan.chunk_count;
    if (!gds)
        snprintf(detail, sizeof detail, "not all devices have a ring");
    for (size_t i = 0; is_direct && i < load->plan.chunk_count; i++) {
        uint64_t device = identities[load->plan.chunks[i].file_index].device;
        if (i == 0 || device != last)
            is_direct = hr_gds_is_direct(gds, device, detail, sizeof detail);
        last = device;
    }
    snprintf(reason, capacity, "%s%s", is_direct ? "direct transfers: " : "compatibility mode: ", detail);
    return is_direct;
}

void hr_loader_describe_gds(const struct hr_loader *loader, char *text, size_t capacity)
{
    const struct hr_gds *gds = NULL;
    for (uint32_t i = 0; i < loader->device_count && !gds; i++)
        gds = loader->devices[i].gds;
    snprintf(text, capacity, "%s", gds ? hr_gds_detail(gds) : "");
}
