/*
 * dlpack.c: one allocation per exported tensor holds the struct, the shape and the strides.
 */
#include "engine/dlpack.h"

#include <stddef.h>

#include "base/error.h"
#include "base/sys.h"

/* ------------------------------------------------------------------------------- the protocol's ABI */

enum dl_type {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
    DL_FLOAT8_E4M3FN = 10,
    DL_FLOAT8_E4M3FNUZ = 11,
    DL_FLOAT8_E5M2 = 12,
    DL_FLOAT8_E5M2FNUZ = 13,
    DL_FLOAT8_E8M0FNU = 14,
    DL_FLOAT6_E2M3FN = 15,
    DL_FLOAT6_E3M2FN = 16,
    DL_FLOAT4_E2M1FN = 17
};

struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t rank;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* elements */
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

struct dl_managed_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* --------------------------------------------------------------------------------------- the export */

struct exported {
    union {
        struct dl_managed legacy;
        struct dl_managed_versioned versioned;
    } managed; /* first: its address is what the consumer gets */
    struct hr_block *block;
    int64_t numbers[]; /* shape, then strides */
};

static void exported_free(struct exported *exported)
{
    hr_block_unref(exported->block);
    hr_free(exported);
}

static void delete_legacy(struct dl_managed *self)
{
    exported_free(self->context);
}

static void delete_versioned(struct dl_managed_versioned *self)
{
    exported_free(self->context);
}

static const uint8_t dl_codes[HR_DTYPE_COUNT] = {
    [HR_DTYPE_BOOL] = DL_BOOL,
    [HR_DTYPE_F4] = DL_FLOAT4_E2M1FN,
    [HR_DTYPE_F6_E2M3] = DL_FLOAT6_E2M3FN,
    [HR_DTYPE_F6_E3M2] = DL_FLOAT6_E3M2FN,
    [HR_DTYPE_U8] = DL_UINT,
    [HR_DTYPE_I8] = DL_INT,
    [HR_DTYPE_F8_E5M2] = DL_FLOAT8_E5M2,
    [HR_DTYPE_F8_E4M3] = DL_FLOAT8_E4M3FN,
    [HR_DTYPE_F8_E8M0] = DL_FLOAT8_E8M0FNU,
    [HR_DTYPE_F8_E4M3FNUZ] = DL_FLOAT8_E4M3FNUZ,
    [HR_DTYPE_F8_E5M2FNUZ] = DL_FLOAT8_E5M2FNUZ,
    [HR_DTYPE_I16] = DL_INT,
    [HR_DTYPE_U16] = DL_UINT,
    [HR_DTYPE_F16] = DL_FLOAT,
    [HR_DTYPE_BF16] = DL_BFLOAT,
    [HR_DTYPE_I32] = DL_INT,
    [HR_DTYPE_U32] = DL_UINT,
    [HR_DTYPE_F32] = DL_FLOAT,
    [HR_DTYPE_C64] = DL_COMPLEX,
    [HR_DTYPE_F64] = DL_FLOAT,
    [HR_DTYPE_I64] = DL_INT,
    [HR_DTYPE_U64] = DL_UINT,
};

/* F4 counts pairs in its last dimension. */
static int fill_shape(const struct hr_view *view, int64_t *shape, struct hr_error *err)
{
    for (uint32_t i = 0; i < view->rank; i++) {
        if (view->shape[i] > INT64_MAX) /* only without elements */
            return hr_fail(err, HR_EUNSUPPORTED, "DLPack counts to 2^63 - 1, and dimension %u has %llu elements", i,
                           (unsigned long long)view->shape[i]);
        shape[i] = (int64_t)view->shape[i];
    }
    if (view->dtype != HR_DTYPE_F4)
        return 0;
    if (view->rank == 0 || shape[view->rank - 1] % 2)
        return hr_fail(err, HR_EUNSUPPORTED,
                       "DLPack holds F4 as pairs, and the last dimension is odd; use the bytes instead");
    shape[view->rank - 1] /= 2;
    return 0;
}

/* Row-major. Strides that do not fit are 0: only tensors without elements have them. */
static void fill_compact_strides(const int64_t *shape, uint32_t rank, int64_t *strides)
{
    int64_t stride = 1;
    for (uint32_t i = rank; i-- > 0;) {
        strides[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride))
            stride = 0;
    }
}

/* Shape and strides in elements. Sub-byte dtypes are compact. */
static int fill_numbers(const struct hr_view *view, struct exported *exported, struct hr_error *err)
{
    int64_t *shape = exported->numbers, *strides = exported->numbers + view->rank;
    uint32_t bits = hr_dtype_bits(view->dtype);
    int code = fill_shape(view, shape, err);
    if (code)
        return code;
    if (bits % 8) {
        fill_compact_strides(shape, view->rank, strides);
        return 0;
    }
    for (uint32_t i = 0; i < view->rank; i++) {
        if (view->strides[i] % (int64_t)(bits / 8))
            return hr_fail(err, HR_EUNSUPPORTED,
                           "DLPack counts strides in elements of %u bytes; stride %u is %lld bytes", bits / 8, i,
                           (long long)view->strides[i]);
        strides[i] = view->strides[i] / (int64_t)(bits / 8);
    }
    return 0;
}

static void fill_tensor(const struct hr_view *view, struct exported *exported, struct dl_tensor *tensor)
{
    tensor->data = view->data;
    tensor->device.type = (int32_t)view->device_type; /* the protocol's own numbers */
    tensor->device.id = view->device_ordinal;
    tensor->rank = (int32_t)view->rank;
    tensor->dtype.code = dl_codes[view->dtype];
    tensor->dtype.bits = (uint8_t)hr_dtype_bits(view->dtype);
    tensor->dtype.lanes = view->dtype == HR_DTYPE_F4 ? 2 : 1;
    tensor->shape = exported->numbers;
    tensor->strides = exported->numbers + view->rank;
    tensor->byte_offset = 0;
}

int hr_dlpack_export(const struct hr_view *view, struct hr_block *block, uint32_t major, void **ret_managed_tensor,
                     struct hr_error *err)
{
    if (major > 1)
        return hr_fail(err, HR_EUNSUPPORTED, "DLPack major version %u is not known; 0 and 1 are", major);
    size_t bytes = sizeof(struct exported) + 2 * view->rank * sizeof(int64_t);
    struct exported *exported = hr_alloc(bytes);
    if (!exported)
        return hr_fail_memory(err, bytes, "a DLPack tensor");
    int code = fill_numbers(view, exported, err);
    if (code < 0) {
        hr_free(exported);
        return code;
    }
    if (major == 0) {
        fill_tensor(view, exported, &exported->managed.legacy.tensor);
        exported->managed.legacy.context = exported;
        exported->managed.legacy.deleter = delete_legacy;
    } else {
        fill_tensor(view, exported, &exported->managed.versioned.tensor);
        exported->managed.versioned.version.major = 1;
        exported->managed.versioned.context = exported;
        exported->managed.versioned.deleter = delete_versioned;
    }
    if (block)
        hr_block_ref(block);
    exported->block = block;
    *ret_managed_tensor = exported;
    return 0;
}
