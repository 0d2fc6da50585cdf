/*
 * gds_ring.h: what a ring of device memory is made of, for gds.c, and for gds_direct.c, which looks at the properties.
 */
#ifndef HR_DEVICE_GDS_RING_H
#define HR_DEVICE_GDS_RING_H

#include "device/gds.h"
#include "device/gds_driver.h"

struct hr_gds {
    struct hr_device *device;
    const struct hr_gds_driver *driver; /* NULL until it is acquired */
    struct hr_cu_file_properties properties;
    void *memory;
    uint64_t memory_bytes;
    char *slots; /* in `memory`, on a page of the device */
    uint64_t slot_bytes;
    uint32_t slot_count;
    char detail[160];
};

#endif
