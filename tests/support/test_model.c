/*
 * test_model.c: see test_model.h.
 */
#include "support/test_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

void model_write(struct test_model *model, const char *name, const struct test_tensor *tensors, size_t count,
                 size_t per_file, size_t padding)
{
    char file[64];
    *model = (struct test_model){.count = count, .path_count = (count + per_file - 1) / per_file};
    model->tensors = malloc(count * sizeof *tensors);
    model->paths = malloc(model->path_count * sizeof *model->paths);
    memcpy(model->tensors, tensors, count * sizeof *tensors);
    for (size_t i = 0; i < model->path_count; i++) {
        size_t first = i * per_file;
        snprintf(file, sizeof file, "%s-%05zu.safetensors", name, i);
        model->paths[i] = test_path(file);
        test_file_write(model->paths[i], tensors + first, count - first < per_file ? count - first : per_file, padding);
    }
}

void model_open(struct test_model *model)
{
    struct hr_error err = {0};
    assert_ok(hr_checkpoint_open(model->paths, model->path_count, NULL, &model->checkpoint, &err), err);
    assert_int_equal(hr_checkpoint_count(model->checkpoint), model->count);
}

void model_close(struct test_model *model)
{
    hr_checkpoint_close(model->checkpoint);
    free(model->tensors);
    free(model->paths);
    *model = (struct test_model){0};
}

#define MIXED_COUNT (2 * (HR_DTYPE_COUNT - 1) + 12)

static const struct test_tensor mixed_extra[] = {
    {.name = "scalar.f32", .dtype = HR_DTYPE_F32, .rank = 0},
    {.name = "scalar.u8", .dtype = HR_DTYPE_U8, .rank = 0},
    {.name = "empty.first", .dtype = HR_DTYPE_F64, .rank = 3, .shape = {0, 5, 7}},
    {.name = "odd", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {131071}},
    {.name = "misaligned", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {123, 457}},
    {.name = "empty.last", .dtype = HR_DTYPE_BF16, .rank = 2, .shape = {9, 0}},
    {.name = "wide", .dtype = HR_DTYPE_BF16, .rank = 2, .shape = {3, 1000001}},
    {.name = "one", .dtype = HR_DTYPE_I8, .rank = 1, .shape = {1}},
    {.name = "tall", .dtype = HR_DTYPE_F16, .rank = 2, .shape = {70001, 5}},
    {.name = "deep", .dtype = HR_DTYPE_F32, .rank = 5, .shape = {7, 3, 11, 5, 13}},
    {.name = "large", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {1800, 1001}},
    {.name = "end", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {3}},
};

void model_mixed(struct test_model *model, const char *name, size_t per_file)
{
    static char names[MIXED_COUNT][32];
    struct test_tensor tensors[MIXED_COUNT];
    size_t count = 0;
    for (uint32_t dtype = 1; dtype < HR_DTYPE_COUNT; dtype++) {
        snprintf(names[count], sizeof names[count], "%s.matrix", hr_dtype_name(dtype));
        tensors[count] = (struct test_tensor){.name = names[count], .dtype = dtype, .rank = 2, .shape = {9, 24}};
        count++;
        snprintf(names[count], sizeof names[count], "%s.block", hr_dtype_name(dtype));
        tensors[count] = (struct test_tensor){.name = names[count], .dtype = dtype, .rank = 3, .shape = {11, 13, 8}};
        count++;
    }
    for (size_t i = 0; i < sizeof mixed_extra / sizeof mixed_extra[0]; i++)
        tensors[count++] = mixed_extra[i];
    for (size_t i = 0; i < count; i++)
        tensors[i].seed = i + 1;
    model_write(model, name, tensors, count, per_file, 3);
    model_open(model);
}

void model_equal(struct test_model *model, const char *name, size_t count, uint64_t size, size_t per_file)
{
    struct test_tensor *tensors = calloc(count, sizeof *tensors);
    char(*names)[32] = malloc(count * sizeof *names);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "t.%05zu", i);
        tensors[i] =
            (struct test_tensor){.name = names[i], .dtype = HR_DTYPE_U8, .rank = 1, .shape = {size}, .seed = i + 7};
    }
    model_write(model, name, tensors, count, per_file, 0);
    for (size_t i = 0; i < count; i++)
        model->tensors[i].name = NULL; /* lives here only */
    free(names);
    free(tensors);
    model_open(model);
}

const char *model_path(const struct test_model *model, size_t index)
{
    return model->paths[hr_checkpoint_at(model->checkpoint, index)->file_index];
}

struct hr_item *model_items(const struct test_model *model)
{
    struct hr_item *items = calloc(model->count ? model->count : 1, sizeof *items);
    for (size_t i = 0; i < model->count; i++)
        items[i] = (struct hr_item){.size = sizeof items[i], .tensor_index = i};
    return items;
}

/* ------------------------------------------------------------------------------------------ checks */

static uint64_t slice_extent(const struct test_tensor *tensor, const struct hr_range *ranges, uint32_t d)
{
    if (!ranges)
        return tensor->shape[d];
    uint64_t step = ranges[d].step ? ranges[d].step : 1;
    return (ranges[d].stop - ranges[d].start + step - 1) / step;
}

static unsigned source_bit(const struct test_tensor *tensor, uint64_t bit)
{
    return test_byte(tensor->seed, bit / 8) >> bit % 8 & 1;
}

/* Compares one element: bits that lie compact when there are fewer than 8, else bytes at `element`. */
static void check_element(const struct test_tensor *tensor, uint64_t source_index, uint64_t target_index, uint32_t bits,
                          const uint8_t *data, const uint8_t *element)
{
    int same = 1;
    if (bits >= 8)
        same = test_mismatch(element, tensor->seed, source_index * (bits / 8), bits / 8) == bits / 8;
    for (uint64_t i = 0; bits < 8 && i < bits; i++) {
        uint64_t at = target_index * bits + i;
        same &= source_bit(tensor, source_index * bits + i) == (data[at / 8] >> at % 8 & 1u);
    }
    if (!same)
        fail_msg("seed %llu: element %llu of the slice is not element %llu of the tensor",
                 (unsigned long long)tensor->seed, (unsigned long long)target_index, (unsigned long long)source_index);
}

/* Goes through the slice's elements in row-major order. */
static void check_elements(const struct test_tensor *tensor, const struct hr_range *ranges, const struct hr_view *view)
{
    uint64_t count = 1, index[8] = {0};
    uint32_t bits = hr_dtype_bits(tensor->dtype);
    for (uint32_t d = 0; d < tensor->rank; d++)
        count *= slice_extent(tensor, ranges, d);
    for (uint64_t k = 0; k < count; k++) {
        uint64_t source = 0;
        const uint8_t *element = view->data;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            uint64_t start = ranges ? ranges[d].start : 0, step = ranges && ranges[d].step ? ranges[d].step : 1;
            source = source * tensor->shape[d] + start + index[d] * step;
            element += (int64_t)index[d] * view->strides[d];
        }
        check_element(tensor, source, k, bits, view->data, element);
        for (uint32_t d = tensor->rank; d-- > 0;) {
            if (++index[d] < slice_extent(tensor, ranges, d))
                break;
            index[d] = 0;
        }
    }
}

static int is_compact(const struct hr_view *view)
{
    uint64_t stride = hr_dtype_bits(view->dtype) / 8;
    for (uint32_t d = view->rank; d-- > 0; stride *= view->shape[d])
        if (view->shape[d] > 1 && stride && view->strides[d] != (int64_t)stride)
            return 0;
    return 1;
}

void check_view(const struct test_tensor *tensor, const struct hr_range *ranges, const struct hr_view *view)
{
    uint64_t bits = hr_dtype_bits(tensor->dtype);
    assert_int_equal(view->dtype, tensor->dtype);
    assert_int_equal(view->rank, tensor->rank);
    for (uint32_t d = 0; d < tensor->rank; d++) {
        assert_int_equal(view->shape[d], slice_extent(tensor, ranges, d));
        bits *= view->shape[d];
    }
    assert_int_equal(view->bytes, bits / 8);
    if (ranges || !is_compact(view)) {
        check_elements(tensor, ranges, view);
        return;
    }
    size_t same = view->bytes ? test_tensor_mismatch(tensor, view->data, 0, view->bytes) : 0;
    if (same != view->bytes)
        fail_msg("seed %llu: byte %zu of %llu is wrong", (unsigned long long)tensor->seed, same,
                 (unsigned long long)view->bytes);
}

void check_item(struct hr_load *load, size_t item_index, const struct test_model *model)
{
    struct hr_error err = {0};
    struct hr_view view = {.size = sizeof view};
    assert_ok(hr_load_view(load, item_index, &view, &err), err);
    void *copy = NULL;
    if (view.device_type != HR_DEVICE_CPU) {
        copy = malloc(view.bytes + 1);
        assert_ok(hr_load_read(load, item_index, 0, view.bytes, copy, &err), err);
        view.data = copy;
    }
    check_view(&model->tensors[item_index], NULL, &view);
    free(copy);
}

void check_all_items(struct hr_load *load, const struct test_model *model)
{
    for (size_t i = 0; i < model->count; i++)
        check_item(load, i, model);
}

/* ------------------------------------------------------------------------------------------- calls */

void assert_ok_at(int code, const struct hr_error *err, const char *what, const char *file, int line)
{
    if (code == 0)
        return;
    print_error("%s: %s: %s (tensor '%s', file '%s')\n", what, hr_error_kind(code), err->message, err->tensor,
                err->file);
    _fail(file, line);
}

struct hr_loader *loader_make(const struct hr_loader_options *options)
{
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    assert_ok(hr_loader_new(options, &loader, &err), err);
    return loader;
}

struct hr_load *load_make(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                          size_t item_count, const struct hr_load_options *options)
{
    struct hr_load *load = NULL;
    struct hr_error err = {0};
    assert_ok(hr_load_start(loader, checkpoint, items, item_count, options, &load, &err), err);
    return load;
}

struct hr_load *load_model(struct hr_loader *loader, const struct test_model *model,
                           const struct hr_load_options *options)
{
    struct hr_item *items = model_items(model);
    struct hr_load *load = load_make(loader, model->checkpoint, items, model->count, options);
    free(items); /* a load does not need them any more */
    return load;
}

int uring_usable(void)
{
    static int usable = -1;
    char detail[160];
    if (usable < 0) {
        usable = hr_io_uring.probe(detail, sizeof detail);
        if (!usable)
            print_message("io_uring is left out: %s\n", detail);
    }
    return usable;
}

struct hr_stats load_whole_model(struct hr_loader *loader, const struct test_model *model)
{
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    struct hr_load *load = load_model(loader, model, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, model);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    return stats;
}
