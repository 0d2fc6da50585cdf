/*
 * test_dlpack.c: exported tensors: the protocol's layout as its specification has it, dtypes, strides, and who frees
 * the memory when.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/counting_allocator.h"
#include "support/faults.h"
#include "support/test_model.h"

/* dlpack.h of dmlc/dlpack, as consumers have it, declared independently of the library's. */
typedef struct {
    int32_t device_type, device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
typedef struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

static struct test_model mixed;

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "mixed", 1000);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    return 0;
}

struct code {
    uint32_t dtype;
    DLDataType expected;
};

static const struct code codes[] = {
    {HR_DTYPE_BOOL, {6, 8, 1}},         {HR_DTYPE_F4, {17, 4, 2}},          {HR_DTYPE_F6_E2M3, {15, 6, 1}},
    {HR_DTYPE_F6_E3M2, {16, 6, 1}},     {HR_DTYPE_U8, {1, 8, 1}},           {HR_DTYPE_I8, {0, 8, 1}},
    {HR_DTYPE_F8_E5M2, {12, 8, 1}},     {HR_DTYPE_F8_E4M3, {10, 8, 1}},     {HR_DTYPE_F8_E8M0, {14, 8, 1}},
    {HR_DTYPE_F8_E4M3FNUZ, {11, 8, 1}}, {HR_DTYPE_F8_E5M2FNUZ, {13, 8, 1}}, {HR_DTYPE_I16, {0, 16, 1}},
    {HR_DTYPE_U16, {1, 16, 1}},         {HR_DTYPE_F16, {2, 16, 1}},         {HR_DTYPE_BF16, {4, 16, 1}},
    {HR_DTYPE_I32, {0, 32, 1}},         {HR_DTYPE_U32, {1, 32, 1}},         {HR_DTYPE_F32, {2, 32, 1}},
    {HR_DTYPE_C64, {5, 64, 1}},         {HR_DTYPE_F64, {2, 64, 1}},         {HR_DTYPE_I64, {0, 64, 1}},
    {HR_DTYPE_U64, {1, 64, 1}},
};

static DLDataType expected_dtype(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].dtype == dtype)
            return codes[i].expected;
    fail_msg("dtype %u is not in the table", dtype);
    return (DLDataType){0, 0, 0};
}

/* Compact, on the host, with strides; F4 in pairs. */
static void check_tensor(const DLTensor *exported, const struct test_tensor *tensor)
{
    DLDataType expected = expected_dtype(tensor->dtype);
    assert_int_equal(exported->dtype.code, expected.code);
    assert_int_equal(exported->dtype.bits, expected.bits);
    assert_int_equal(exported->dtype.lanes, expected.lanes);
    assert_int_equal(exported->device.device_type, 1);
    assert_int_equal(exported->device.device_id, 0);
    assert_int_equal(exported->byte_offset, 0);
    assert_int_equal(exported->ndim, tensor->rank);
    assert_non_null(exported->strides);
    int64_t stride = 1;
    for (uint32_t d = tensor->rank; d-- > 0;) {
        int64_t extent = (int64_t)tensor->shape[d];
        if (tensor->dtype == HR_DTYPE_F4 && d == tensor->rank - 1)
            extent /= 2;
        assert_int_equal(exported->shape[d], extent);
        assert_int_equal(exported->strides[d], stride);
        stride *= extent ? extent : 1;
    }
    size_t bytes = test_tensor_bytes(tensor);
    assert_int_equal(bytes ? test_tensor_mismatch(tensor, exported->data, 0, bytes) : 0, bytes);
}

static void *take(struct hr_load *load, size_t index, uint32_t major)
{
    struct hr_error err = {0};
    void *tensor = NULL;
    assert_ok(hr_load_take(load, index, major, &tensor, &err), err);
    assert_non_null(tensor);
    return tensor;
}

static void test_dtypes(void **state)
{
    (void)state;
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_MMAP; route += 2) {
        struct hr_error err = {0};
        struct hr_loader_options options = {.size = sizeof options, .route = route};
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_model(loader, &mixed, NULL);
        assert_ok(hr_load_wait_all(load, &err), err);
        for (size_t i = 0; i < mixed.count; i++) {
            DLManagedTensor *legacy = take(load, i, 0);
            check_tensor(&legacy->dl_tensor, &mixed.tensors[i]);
            legacy->deleter(legacy);
            DLManagedTensorVersioned *versioned = take(load, i, 1);
            assert_int_equal(versioned->version.major, 1);
            assert_int_equal(versioned->flags, 0);
            check_tensor(&versioned->dl_tensor, &mixed.tensors[i]);
            versioned->deleter(versioned);
        }
        hr_load_free(load);
        hr_loader_free(loader);
    }
}

static void test_versions(void **state)
{
    struct hr_error err = {0};
    void *tensor = &err;
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, &mixed, NULL);
    assert_ok(hr_load_wait(load, 0, &err), err);
    assert_code(hr_load_take(load, 0, 2, &tensor, &err), HR_EUNSUPPORTED);
    assert_string_equal(err.tensor, mixed.tensors[0].name);
    assert_ptr_equal(tensor, &err);
    hr_load_free(load);
    hr_loader_free(loader);
}

static void *delete_legacy(void *argument)
{
    DLManagedTensor *tensor = argument;
    tensor->deleter(tensor);
    return NULL;
}

/* A tensor that outlives load, loader and checkpoint; its memory goes with it, on whatever thread. */
static void test_outlives_all(void **state)
{
    (void)state;
    for (uint32_t ownership = HR_OWN_ARENA; ownership <= HR_OWN_EACH; ownership++) {
        struct counting_allocator counting = {0};
        struct hr_error err = {0};
        struct test_model model;
        struct hr_loader_options options = {.size = sizeof options, .allocator = counting_hook(&counting)};
        struct hr_load_options load_options = {.size = sizeof load_options, .ownership = ownership};
        model_equal(&model, "outlived", 3, 70000, 2);
        struct test_tensor first = model.tensors[0], last = model.tensors[2];
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_model(loader, &model, &load_options);
        assert_ok(hr_load_wait_all(load, &err), err);
        DLManagedTensor *one = take(load, 0, 0), *again = take(load, 0, 0);
        DLManagedTensorVersioned *other = take(load, 2, 1);
        assert_ptr_equal(one->dl_tensor.data, again->dl_tensor.data);
        hr_load_free(load);
        hr_loader_free(loader);
        model_close(&model);

        check_tensor(&one->dl_tensor, &first);
        one->deleter(one);
        check_tensor(&again->dl_tensor, &first);
        check_tensor(&other->dl_tensor, &last);
        assert_int_equal(atomic_load(&counting.live_count), ownership == HR_OWN_EACH ? 2 : 1);
        pthread_t thread;
        pthread_create(&thread, NULL, delete_legacy, again);
        pthread_join(thread, NULL);
        assert_int_equal(atomic_load(&counting.live_count), 1);
        check_tensor(&other->dl_tensor, &last);
        other->deleter(other);
        assert_int_equal(atomic_load(&counting.live_count), 0);
    }
}

/* After a drop the bytes live as long as the tensor taken before it. */
static void test_drop_then_delete(void **state)
{
    struct counting_allocator counting = {0};
    struct hr_error err = {0};
    struct hr_loader_options options = {.size = sizeof options, .allocator = counting_hook(&counting)};
    struct hr_load_options load_options = {.size = sizeof load_options, .ownership = HR_OWN_EACH};
    (void)state;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &mixed, &load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    long all = atomic_load(&counting.live_count);
    DLManagedTensorVersioned *tensor = take(load, 5, 1);
    assert_ok(hr_load_drop(load, 5, &err), err);
    assert_int_equal(atomic_load(&counting.live_count), all);
    check_tensor(&tensor->dl_tensor, &mixed.tensors[5]);
    tensor->deleter(tensor);
    assert_int_equal(atomic_load(&counting.live_count), all - 1);
    assert_ok(hr_load_drop(load, 6, &err), err);
    assert_int_equal(atomic_load(&counting.live_count), all - 2);
    hr_load_free(load);
    assert_int_equal(atomic_load(&counting.live_count), 0);
    hr_loader_free(loader);
}

/* Mapped files too: the mapping goes with the last tensor of it. */
static void test_mapping_outlives(void **state)
{
    struct hr_error err = {0};
    struct hr_loader_options options = {.size = sizeof options, .route = HR_ROUTE_MMAP};
    size_t large = mixed.count - 2;
    (void)state;
    faults_install();
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &mixed, NULL);
    assert_ok(hr_load_wait(load, large, &err), err);
    DLManagedTensor *tensor = take(load, large, 0);
    hr_load_free(load);
    hr_loader_free(loader);
    assert_true(faults_live().mapping_bytes > 1800 * 1001 * 4);
    check_tensor(&tensor->dl_tensor, &mixed.tensors[large]);
    memset(tensor->dl_tensor.data, 7, 1000); /* private and writable: the file stays */
    tensor->deleter(tensor);
    faults_assert_nothing_live();
    faults_remove();
}

/* The caller's memory, with the caller's strides, is never freed. */
static void test_into(void **state)
{
    static const int64_t strides[] = {4, 1800 * 4};
    size_t large = mixed.count - 2, bytes = 1800 * 1001 * 4;
    char *memory = malloc(bytes);
    struct hr_error err = {0};
    struct hr_item item = {.size = sizeof item, .tensor_index = large, .into = memory, .into_strides = strides};
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_make(loader, mixed.checkpoint, &item, 1, NULL);
    assert_ok(hr_load_wait(load, 0, &err), err);
    DLManagedTensor *tensor = take(load, 0, 0);
    hr_load_free(load);
    hr_loader_free(loader);
    assert_ptr_equal(tensor->dl_tensor.data, memory);
    assert_int_equal(tensor->dl_tensor.strides[0], 1);
    assert_int_equal(tensor->dl_tensor.strides[1], 1800);
    tensor->deleter(tensor);
    struct hr_view view = {.data = memory,
                           .bytes = bytes,
                           .dtype = HR_DTYPE_F32,
                           .rank = 2,
                           .shape = mixed.tensors[large].shape,
                           .strides = strides};
    check_view(&mixed.tensors[large], NULL, &view);
    free(memory);
}

/* What DLPack cannot say is refused and can still be viewed. */
static void test_unsayable(void **state)
{
    const struct test_tensor tensors[] = {
        {.name = "odd", .dtype = HR_DTYPE_F4, .rank = 2, .shape = {4, 3}, .seed = 1},
        {.name = "huge", .dtype = HR_DTYPE_U8, .rank = 2, .shape = {0, UINT64_C(1) << 63}, .seed = 2},
        {.name = "pairs", .dtype = HR_DTYPE_F4, .rank = 3, .shape = {0, UINT64_C(1) << 40, UINT64_C(1) << 40}},
        {.name = "numbers", .dtype = HR_DTYPE_F32, .rank = 1, .shape = {10}, .seed = 4},
    };
    static const int64_t unaligned = 6;
    char memory[60];
    struct test_model model;
    struct hr_error err = {0};
    void *tensor = NULL;
    (void)state;
    model_write(&model, "unsayable", tensors, 4, 4, 0);
    model_open(&model);
    struct hr_item *items = model_items(&model);
    items[3].into = memory;
    items[3].into_strides = &unaligned;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_make(loader, model.checkpoint, items, 4, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    for (size_t i = 0; i < 4; i++) {
        int code = hr_load_take(load, i, 1, &tensor, &err);
        assert_code(code, i == 2 ? 0 : HR_EUNSUPPORTED);
        if (code < 0)
            assert_string_equal(err.tensor, tensors[i].name);
        check_item(load, i, &model);
    }
    DLManagedTensorVersioned *pairs = tensor;
    for (int d = 0; d < 3; d++)
        assert_true(pairs->dl_tensor.shape[d] >= 0 && pairs->dl_tensor.strides[d] >= 0);
    pairs->deleter(pairs);
    hr_load_free(load);
    hr_loader_free(loader);
    free(items);
    model_close(&model);
}

/* A take that runs out of memory leaves nothing behind, and the next one works. */
static void test_no_memory(void **state)
{
    struct hr_error err = {0};
    void *tensor = NULL;
    (void)state;
    faults_install();
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, &mixed, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    faults_fail(FAULT_MEMORY, 1, 0);
    assert_code(hr_load_take(load, 1, 0, &tensor, &err), HR_EOUT_OF_MEMORY);
    assert_null(tensor);
    faults_fail(0, 0, 0);
    DLManagedTensor *legacy = take(load, 1, 0);
    hr_load_free(load);
    hr_loader_free(loader);
    legacy->deleter(legacy);
    faults_assert_nothing_live();
    faults_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),           cmocka_unit_test(test_versions),
        cmocka_unit_test(test_outlives_all),     cmocka_unit_test(test_drop_then_delete),
        cmocka_unit_test(test_mapping_outlives), cmocka_unit_test(test_into),
        cmocka_unit_test(test_unsayable),        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
