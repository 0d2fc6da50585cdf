/*
 * cast_model.c: see cast_model.h. Slow and plain on purpose.
 */
#include "support/cast_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert_parts.h"
#include "support/plan_model.h"

#define GUARD 0xdb

static const struct test_tensor tensors[] = {
    {.name = "odd", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {13}, .seed = 1},
    {.name = "single", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {300, 257}, .seed = 2},
    {.name = "half", .dtype = HR_DTYPE_F16, .rank = 3, .shape = {7, 41, 29}, .seed = 3},
    {.name = "brain", .dtype = HR_DTYPE_BF16, .rank = 2, .shape = {211, 131}, .seed = 4},
    {.name = "double", .dtype = HR_DTYPE_F64, .rank = 3, .shape = {17, 11, 9}, .seed = 5},
    {.name = "scalar", .dtype = HR_DTYPE_F32, .rank = 0, .seed = 6},
    {.name = "empty", .dtype = HR_DTYPE_F32, .rank = 3, .shape = {5, 0, 7}, .seed = 7},
    {.name = "eight", .dtype = HR_DTYPE_F8_E4M3, .rank = 2, .shape = {65, 33}, .seed = 8},
    {.name = "scale", .dtype = HR_DTYPE_F8_E8M0, .rank = 1, .shape = {301}, .seed = 9},
    {.name = "long", .dtype = HR_DTYPE_I64, .rank = 2, .shape = {19, 23}, .seed = 10},
    {.name = "int", .dtype = HR_DTYPE_I32, .rank = 1, .shape = {1001}, .seed = 11},
    {.name = "short", .dtype = HR_DTYPE_U16, .rank = 1, .shape = {777}, .seed = 12},
    {.name = "bool", .dtype = HR_DTYPE_BOOL, .rank = 2, .shape = {31, 5}, .seed = 13},
    {.name = "nibbles", .dtype = HR_DTYPE_F4, .rank = 2, .shape = {3, 8}, .seed = 14},
    {.name = "row", .dtype = HR_DTYPE_F32, .rank = 1, .shape = {40000}, .seed = 15},
};
#define TENSOR_COUNT (sizeof tensors / sizeof tensors[0])

void cast_model_open(struct test_model *model, const char *name)
{
    model_write(model, name, tensors, TENSOR_COUNT, 6, 5);
    model_open(model);
}

static struct cast_request request_new(size_t capacity, size_t into_bytes)
{
    struct cast_request request = {.items = calloc(capacity, sizeof *request.items),
                                   .ranges = calloc(capacity, sizeof *request.ranges),
                                   .strides = calloc(capacity, sizeof *request.strides),
                                   .into_bytes = into_bytes,
                                   .into = malloc(capacity * into_bytes + 1)};
    memset(request.into, GUARD, capacity * into_bytes + 1);
    return request;
}

void cast_request_free(struct cast_request *request)
{
    free(request->items);
    free(request->ranges);
    free(request->strides);
    free(request->into);
}

struct cast_request cast_request_all(const struct test_model *model)
{
    struct cast_request request = request_new(TENSOR_COUNT * HR_DTYPE_COUNT, 0);
    for (size_t t = 0; t < model->count; t++)
        for (uint32_t dtype = HR_DTYPE_NONE; dtype < HR_DTYPE_COUNT; dtype++)
            if (dtype == HR_DTYPE_NONE || hr_dtype_converts(model->tensors[t].dtype, dtype))
                request.items[request.count++] =
                    (struct hr_item){.size = sizeof(struct hr_item), .tensor_index = t, .dtype = dtype};
    return request;
}

/* ------------------------------------------------------------------------------------------ random ones */

static uint32_t dtype_there(const struct test_model *model, const struct hr_item *item)
{
    return item->dtype ? item->dtype : model->tensors[item->tensor_index].dtype;
}

/* The elements of dimension d that an item takes: first, step, count. */
static void elements_of(const struct test_tensor *tensor, const struct hr_item *item, uint32_t d, uint64_t *ret_first,
                        uint64_t *ret_step, uint64_t *ret_count)
{
    struct hr_range range = item->ranges ? item->ranges[d] : (struct hr_range){0, tensor->shape[d], 1};
    *ret_step = range.step ? range.step : 1;
    *ret_first = range.start;
    *ret_count = range.start < range.stop ? (range.stop - range.start + *ret_step - 1) / *ret_step : 0;
    if (item->shard_world && d == item->shard_dim) {
        struct hr_range own;
        hr_shard_range(*ret_count, item->shard_rank, item->shard_world, &own);
        *ret_first += own.start * *ret_step;
        *ret_count = own.stop - own.start;
    }
}

/* Strides with a gap in some order of the dimensions, some of them downwards; `into` such that all lies inside. */
static void random_strides(struct cast_request *request, const struct test_model *model, size_t i, uint64_t *seed)
{
    struct hr_item *item = &request->items[i];
    const struct test_tensor *tensor = &model->tensors[item->tensor_index];
    uint32_t turn = tensor->rank ? (uint32_t)model_random(seed, tensor->rank) : 0;
    int64_t stride = hr_dtype_bits(dtype_there(model, item)) / 8 + (int64_t)model_random(seed, 3), below = 0;
    for (uint32_t k = 0; k < tensor->rank; k++) {
        uint32_t d = (k + turn) % tensor->rank;
        uint64_t first, step, count;
        elements_of(tensor, item, d, &first, &step, &count);
        int is_down = model_random(seed, 2) && count > 0;
        request->strides[i][d] = is_down ? -stride : stride;
        below += is_down ? stride * (int64_t)(count - 1) : 0;
        stride = stride * (int64_t)(count ? count : 1) + (int64_t)model_random(seed, 20);
    }
    if ((size_t)stride + 64 > request->into_bytes)
        return;
    item->into = request->into + i * request->into_bytes + 16 + below + model_random(seed, 9);
    item->into_strides = request->strides[i];
}

static void random_item(struct cast_request *request, const struct test_model *model, size_t i, uint64_t *seed)
{
    struct hr_item *item = &request->items[i];
    *item = (struct hr_item){.size = sizeof *item, .tensor_index = model_random(seed, model->count - 2)};
    const struct test_tensor *tensor = &model->tensors[item->tensor_index];
    uint32_t dtype = (uint32_t)model_random(seed, HR_DTYPE_COUNT);
    item->dtype = hr_dtype_converts(tensor->dtype, dtype) ? dtype : HR_DTYPE_NONE;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint64_t a = model_random(seed, tensor->shape[d] + 1), b = model_random(seed, tensor->shape[d] + 1);
        request->ranges[i][d] = (struct hr_range){a < b ? a : b, a < b ? b : a, model_random(seed, 4)};
        if (model_random(seed, 3))
            request->ranges[i][d] = (struct hr_range){0, tensor->shape[d], 1};
    }
    if (model_random(seed, 3))
        item->ranges = request->ranges[i];
    if (tensor->rank && model_random(seed, 3) == 0) {
        item->shard_world = 1 + (uint32_t)model_random(seed, 5);
        item->shard_rank = (uint32_t)model_random(seed, item->shard_world);
        item->shard_dim = (uint32_t)model_random(seed, tensor->rank);
    }
    if (model_random(seed, 2))
        random_strides(request, model, i, seed);
}

struct cast_request cast_request_random(const struct test_model *model, size_t count, uint64_t seed)
{
    struct cast_request request = request_new(count, 1 << 20);
    request.count = count;
    for (size_t i = 0; i < count; i++)
        random_item(&request, model, i, &seed);
    return request;
}

/* --------------------------------------------------------------------------------------------- checks */

static unsigned long long stored_element(const struct test_tensor *tensor, uint64_t element)
{
    uint32_t bytes = hr_dtype_bits(tensor->dtype) / 8;
    unsigned long long bits = 0;
    for (uint32_t i = 0; i < bytes; i++)
        bits |= (unsigned long long)test_byte(tensor->seed, element * bytes + i) << 8 * i;
    return bits;
}

static unsigned long long masked(unsigned long long bits, uint32_t bytes)
{
    return bits & ~0ull >> (64 - bytes * 8);
}

/* The row-major element `number` of the item: which one of the tensor, and how far it lies from view->data. */
static uint64_t locate(const struct test_tensor *tensor, const struct hr_item *item, const struct hr_view *view,
                       uint64_t number, int64_t *ret_target)
{
    uint64_t index[4] = {0}, element = 0;
    *ret_target = 0;
    for (uint32_t d = tensor->rank; d-- > 0;) {
        uint64_t first, step, count;
        elements_of(tensor, item, d, &first, &step, &count);
        assert_int_equal(view->shape[d], count);
        index[d] = first + number % count * step;
        *ret_target += (int64_t)(number % count) * view->strides[d];
        number /= count;
    }
    for (uint32_t d = 0; d < tensor->rank; d++)
        element = element * tensor->shape[d] + index[d];
    return element;
}

static void check_compact(const struct hr_view *view, uint32_t bytes)
{
    int64_t stride = bytes;
    for (uint32_t d = view->rank; d-- > 0;) {
        assert_int_equal(view->strides[d], stride);
        stride *= view->shape[d] ? (int64_t)view->shape[d] : 1;
    }
}

void cast_check_view(const struct test_model *model, const struct hr_item *item, const struct hr_view *view)
{
    const struct test_tensor *tensor = &model->tensors[item->tensor_index];
    uint32_t dtype = dtype_there(model, item), bytes = hr_dtype_bits(dtype) / 8;
    uint64_t count = 1;
    assert_int_equal(view->dtype, dtype);
    assert_int_equal(view->rank, tensor->rank);
    if (bytes == 0) { /* never converted */
        check_view(tensor, item->ranges, view);
        return;
    }
    for (uint32_t d = 0; d < tensor->rank; d++)
        count *= view->shape[d];
    assert_int_equal(view->bytes, count * bytes);
    if (count == 0)
        return;
    if (item->into_strides)
        assert_memory_equal(view->strides, item->into_strides, tensor->rank * sizeof *view->strides);
    else
        check_compact(view, bytes);
    for (uint64_t n = 0; n < count; n++) {
        int64_t target;
        uint64_t element = locate(tensor, item, view, n, &target);
        unsigned long long stored = stored_element(tensor, element), found = 0;
        unsigned long long wanted =
            dtype == tensor->dtype ? stored : masked(hr_convert_bits(tensor->dtype, dtype, stored), bytes);
        memcpy(&found, (const char *)view->data + target, bytes);
        if (found != wanted)
            fail_msg("'%s' to %s: element %llu is %llx, not %llx (stored %llx)", tensor->name, hr_dtype_name(dtype),
                     (unsigned long long)n, found, wanted, stored);
    }
}

/* What of the caller's memory no element covers is as it was: counted, since elements may have the guard's value. */
static void check_guards(const struct cast_request *request, size_t i, const struct hr_view *view, char *copy)
{
    const struct hr_item *item = &request->items[i];
    uint32_t bytes = hr_dtype_bits(view->dtype) / 8;
    uint64_t count = view->bytes / bytes;
    char *begin = copy + ((char *)item->into - (request->into + i * request->into_bytes));
    for (uint64_t n = 0; n < count; n++) {
        int64_t target = 0;
        uint64_t number = n;
        for (uint32_t d = view->rank; d-- > 0; number /= view->shape[d])
            target += (int64_t)(number % view->shape[d]) * view->strides[d];
        memset(begin + target, GUARD, bytes);
    }
    for (size_t at = 0; at < request->into_bytes; at++)
        if ((unsigned char)copy[at] != GUARD)
            fail_msg("item %zu wrote byte %zu beside its elements", i, at);
}

void cast_check(struct hr_load *load, const struct test_model *model, const struct cast_request *request,
                const char *into)
{
    char *copy = malloc(request->into_bytes + 1);
    into = into ? into : request->into;
    for (size_t i = 0; i < request->count; i++) {
        const struct hr_item *item = &request->items[i];
        struct hr_view view = {.size = sizeof view};
        struct hr_error err = {0};
        char *bytes = NULL;
        assert_ok(hr_load_view(load, i, &view, &err), err);
        if (item->into) {
            view.data = (char *)into + ((char *)item->into - request->into);
        } else {
            bytes = malloc(view.bytes + 1);
            assert_ok(hr_load_read(load, i, 0, view.bytes, bytes, &err), err);
            view.data = bytes;
        }
        cast_check_view(model, item, &view);
        if (item->into && view.bytes) {
            memcpy(copy, into + i * request->into_bytes, request->into_bytes);
            check_guards(request, i, &view, copy);
        }
        free(bytes);
    }
    free(copy);
}
