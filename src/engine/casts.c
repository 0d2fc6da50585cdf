/*
 * casts.c: asks the devices of a load whether they can convert, and remembers the answer for its route and statistics.
 */
#include "engine/casts.h"

#include <stdio.h>

/* GPUs that chunks with conversions go to, a bit each. */
static uint64_t converting_devices(const struct hr_load *load)
{
    uint64_t devices = 0;
    for (size_t i = 0; load->plan.cast_bytes && i < load->plan.chunk_count; i++) {
        const struct hr_plan_chunk *chunk = &load->plan.chunks[i];
        if (chunk->has_cast)
            devices |= UINT64_C(1) << load->plan.groups[chunk->group_index].device_index;
    }
    return devices & load->loader->remote_devices;
}

void hr_casts_prepare(struct hr_load *load)
{
    uint64_t devices = converting_devices(load);
    load->casts.on_gpu = devices != 0;
    load->casts.gpu_can = 1;
    for (uint32_t i = 0; load->casts.gpu_can && i < load->loader->device_count; i++)
        if (devices >> i & 1)
            load->casts.gpu_can =
                hr_device_converts(load->loader->devices[i].device, load->casts.why_not, sizeof load->casts.why_not);
}

void hr_casts_describe(const struct hr_load *load, char *text, size_t capacity)
{
    *text = '\0';
    if (!load->plan.cast_bytes)
        return;
    if (!load->casts.on_gpu)
        snprintf(text, capacity, "readers");
    else if (!load->casts.gpu_can)
        snprintf(text, capacity, "readers, since %s", load->casts.why_not);
    else
        snprintf(text, capacity, "%s", load->casts.by_host ? "readers, since the GPU cannot read staging" : "GPU");
}
