/*
 * core_dlpack.h: DLPack's structs, versions 0 and 1, as the specification lays them out in memory. Only what is
 * needed here.
 */
#ifndef HR_CORE_DLPACK_H
#define HR_CORE_DLPACK_H

#include <stdint.h>

#define DLPACK_FLAG_COPIED 2u
#define DLPACK_FLAG_SUBBYTE_PADDED 4u

struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *shape;
    int64_t *strides; /* elements */
    uint64_t byte_offset;
};

struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self);
};

struct dlpack_versioned {
    uint32_t version_major, version_minor;
    void *context;
    void (*deleter)(struct dlpack_versioned *self);
    uint64_t flags;
    struct dlpack_tensor tensor;
};

#endif
