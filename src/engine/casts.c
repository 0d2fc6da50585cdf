/*
 * casts.c: asks devices whether they can convert; they remember the answer.
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

int hr_casts_on_device(const struct hr_load *load, char *detail, size_t capacity)
{
    uint64_t devices = converting_devices(load);
    int can = 1;
    *detail = '\0';
    for (uint32_t i = 0; can && i < load->loader->device_count; i++)
        if (devices >> i & 1)
            can = hr_device_converts(load->loader->devices[i].device, detail, capacity);
    return can;
}

void hr_casts_prepare(struct hr_load *load)
{
    char detail[1];
    hr_casts_on_device(load, detail, sizeof detail);
}

void hr_casts_describe(const struct hr_load *load, char *text, size_t capacity)
{
    char detail[120];
    *text = '\0';
    if (!load->plan.cast_bytes)
        return;
    if (!converting_devices(load))
        snprintf(text, capacity, "readers");
    else if (!hr_casts_on_device(load, detail, sizeof detail))
        snprintf(text, capacity, "readers, since %s", detail);
    else
        snprintf(text, capacity, "%s", load->has_host_casts ? "readers, since the GPU cannot read staging" : "GPU");
}
