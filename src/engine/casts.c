/*
 * casts.c: asks the devices of a load whether they can convert, and remembers the answer for its route and statistics.
 */
#include "engine/casts.h"

#include <stdio.h>

#include "base/error.h"

/* GPUs that something is converted for, a bit each. */
static uint64_t converting_devices(const struct hr_load *load)
{
    uint64_t devices = 0;
    for (size_t i = 0; load->plan.cast_bytes && i < load->plan.item_count; i++)
        if (hr_plan_is_cast(&load->plan.items[i]) && load->plan.items[i].bytes)
            devices |= UINT64_C(1) << load->plan.items[i].device_index;
    return devices & load->loader->remote_devices;
}

/* What comes by collectives never comes to the host. */
static int check_spread(const struct hr_load *load, struct hr_error *err)
{
    for (size_t i = 0; !load->casts.gpu_can && i < load->plan.item_count; i++)
        if (load->plan.items[i].is_spread && hr_plan_is_cast(&load->plan.items[i]))
            return hr_fail(err, HR_EUNSUPPORTED,
                           "item %zu: what comes by collectives cannot be converted here: %s; load it as it is stored",
                           i, load->casts.why_not);
    return 0;
}

int hr_casts_prepare(struct hr_load *load, struct hr_error *err)
{
    uint64_t devices = converting_devices(load);
    load->casts.on_gpu = devices != 0;
    load->casts.gpu_can = 1;
    for (uint32_t i = 0; load->casts.gpu_can && i < load->loader->device_count; i++)
        if (devices >> i & 1)
            load->casts.gpu_can =
                hr_device_converts(load->loader->devices[i].device, load->casts.why_not, sizeof load->casts.why_not);
    return check_spread(load, err);
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
