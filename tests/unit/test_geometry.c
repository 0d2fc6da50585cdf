/*
 * test_geometry.c: canonical runs. All small shapes and ranges against the naive model, known cases by their exact
 * dims, and every refusal with its message.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/plan_model.h"

#define INTO ((void *)(uintptr_t)4096)

static const struct hr_plan_options plain = {.chunk_bytes = 1 << 20, .arena_bytes = 1 << 20, .device_count = 1};

/* How a destination is laid out. */
enum layout { LAYOUT_COMPACT, LAYOUT_PADDED, LAYOUT_TRANSPOSED, LAYOUT_NEGATIVE, LAYOUT_COUNT };

static void layout_strides(enum layout layout, uint32_t rank, const uint64_t *shape, int64_t element, int64_t *strides)
{
    int64_t next = element;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t d = layout == LAYOUT_TRANSPOSED ? i : rank - 1 - i;
        strides[d] = layout == LAYOUT_NEGATIVE && d % 2 == 0 ? -next : next;
        next *= (int64_t)(shape[d] ? shape[d] : 1);
        if (layout == LAYOUT_PADDED)
            next += element;
    }
}

/* The ranges of an extent that differ: every start and stop, and steps that skip something. */
static size_t list_ranges(uint64_t extent, struct hr_range *ranges)
{
    size_t count = 0;
    for (uint64_t start = 0; start <= extent; start++)
        for (uint64_t stop = start; stop <= extent; stop++)
            for (uint64_t step = 0; step == 0 || step < stop - start; step += step ? 1 : 2)
                ranges[count++] = (struct hr_range){start, stop, step};
    return count;
}

static unsigned long checked_count;

static void check_one(uint32_t dtype, uint32_t rank, const uint64_t *shape, const struct hr_range *ranges)
{
    static const uint64_t chunks[] = {1, 2, 3, 7, 16, 4096};
    uint64_t counts[8];
    int64_t strides[8];
    uint64_t bits = hr_dtype_bits(dtype);
    struct hr_tensor tensor;
    for (uint32_t d = 0; d < rank; d++) {
        bits *= shape[d];
        uint64_t step = ranges[d].step ? ranges[d].step : 1;
        counts[d] = (ranges[d].stop - ranges[d].start + step - 1) / step;
    }
    if (bits % 8)
        return;
    model_tensor(&tensor, dtype, rank, shape, 0, 5);
    for (int layout = 0; layout < (hr_dtype_bits(dtype) < 8 ? 1 : LAYOUT_COUNT); layout++) {
        checked_count++;
        struct hr_item item = {.size = sizeof item, .ranges = ranges};
        struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
        if (layout != LAYOUT_COMPACT) {
            layout_strides(layout, rank, counts, hr_dtype_bits(dtype) / 8, strides);
            item.into = INTO;
            item.into_strides = strides;
        }
        tested.options.chunk_bytes = chunks[checked_count % 6];
        tested.options.ownership = checked_count / 6 % 2;
        tested.options.window_bytes = checked_count / 12 % 3 * checked_count;
        tested.options.remote_devices = checked_count / 36 % 2;
        model_check(&tested);
    }
}

/* All shapes of `rank` with extents up to `extent_max`, all ranges. */
static void check_all(uint32_t dtype, uint32_t rank, uint64_t extent_max)
{
    struct hr_range lists[5][64];
    size_t list_counts[5];
    uint64_t shape[4] = {0};
    for (uint64_t extent = 0; extent <= extent_max; extent++)
        list_counts[extent] = list_ranges(extent, lists[extent]);
    for (int more_shapes = 1; more_shapes;) {
        size_t choice[4] = {0};
        for (int more_ranges = 1; more_ranges;) {
            struct hr_range ranges[4];
            for (uint32_t d = 0; d < rank; d++)
                ranges[d] = lists[shape[d]][choice[d]];
            check_one(dtype, rank, shape, ranges);
            uint32_t d = 0;
            for (; d < rank && ++choice[d] == list_counts[shape[d]]; d++)
                choice[d] = 0;
            more_ranges = d < rank;
        }
        uint32_t d = 0;
        for (; d < rank && ++shape[d] > extent_max; d++)
            shape[d] = 0;
        more_shapes = d < rank;
    }
}

static void test_all_small(void **state)
{
    static const uint32_t dtypes[] = {HR_DTYPE_U8, HR_DTYPE_F16, HR_DTYPE_F32, HR_DTYPE_F4, HR_DTYPE_F6_E2M3};
    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        for (uint32_t rank = 0; rank <= 2; rank++)
            check_all(dtypes[i], rank, 4);
    check_all(HR_DTYPE_F32, 3, 3);
    check_all(HR_DTYPE_F16, 3, 4);
    check_all(HR_DTYPE_F4, 3, 4);
    check_all(HR_DTYPE_F6_E3M2, 3, 4);
    check_all(HR_DTYPE_U8, 4, 3);
    check_all(HR_DTYPE_F16, 4, 2);
    print_message("%lu plans held against the model\n", checked_count);
    assert_true(checked_count > 500000);
}

/* Strides at random: the model knows exactly which of them write a byte twice; those must be refused. */
static void test_random_strides(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    size_t refused = 0, accepted = 0;
    for (int n = 0; n < 200000; n++) {
        uint64_t shape[3] = {model_random(&seed, 4), model_random(&seed, 4), 1 + model_random(&seed, 3)};
        int64_t strides[3];
        struct hr_tensor tensor;
        struct hr_plan plan;
        model_tensor(&tensor, n % 2 ? HR_DTYPE_U8 : HR_DTYPE_BF16, 3, shape, 0, 0);
        for (int d = 0; d < 3; d++)
            strides[d] = (int64_t)model_random(&seed, 41) - 20;
        struct hr_item item = {.size = sizeof item, .into = INTO, .into_strides = strides};
        struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
        int code = hr_plan_make(&tensor, 1, 1, &item, 1, &plain, &plan, NULL);
        assert_true(code == 0 || code == HR_EINVALID_ARGUMENT);
        if (model_item(&tensor, &item))
            assert_int_equal(code, HR_EINVALID_ARGUMENT);
        refused += code != 0;
        accepted += code == 0;
        if (code)
            continue;
        model_check_plan(&tested, &plan);
        hr_plan_release(&plan);
    }
    assert_true(refused > 1000 && accepted > 1000);
}

/* One item planned, for cases whose dims are known. */
static struct hr_plan plan_one(const struct hr_tensor *tensor, const struct hr_item *item)
{
    struct hr_plan plan;
    struct hr_error err = {0};
    if (hr_plan_make(tensor, 1, 1, item, 1, &plain, &plan, &err))
        fail_msg("%s", err.message);
    return plan;
}

static void test_known_dims(void **state)
{
    (void)state;
    uint64_t shape[3] = {4, 6, 8};
    struct hr_tensor tensor;
    model_tensor(&tensor, HR_DTYPE_F32, 3, shape, 0, 100);
    struct hr_range columns[3] = {{0, 4, 1}, {0, 6, 1}, {2, 6, 1}};
    struct hr_item item = {.size = sizeof item, .ranges = columns};
    struct hr_plan plan = plan_one(&tensor, &item);
    assert_int_equal(plan.items[0].dim_count, 1); /* rows of both outer dimensions continue: one dim of 24 */
    assert_int_equal(plan.items[0].run_bytes, 16);
    assert_int_equal(plan.items[0].dims[0].count, 24);
    assert_int_equal(plan.items[0].dims[0].source_stride, 32);
    assert_int_equal(plan.items[0].dims[0].target_stride, 16);
    assert_int_equal(plan.items[0].source_offset, 108);
    assert_int_equal(plan.items[0].strides[0], 96);
    hr_plan_release(&plan);

    struct hr_range middle[3] = {{0, 4, 2}, {1, 3, 1}, {0, 8, 1}};
    item.ranges = middle;
    plan = plan_one(&tensor, &item);
    assert_int_equal(plan.items[0].dim_count, 1);
    assert_int_equal(plan.items[0].run_bytes, 64);
    assert_int_equal(plan.items[0].dims[0].count, 2);
    assert_int_equal(plan.items[0].dims[0].source_stride, 384);
    hr_plan_release(&plan);
}

static void test_many_dimensions(void **state)
{
    enum { RANK = 1000 };
    (void)state;
    uint64_t *shape = calloc(RANK, sizeof *shape);
    struct hr_range *ranges = calloc(RANK, sizeof *ranges);
    for (int d = 0; d < RANK; d++) {
        shape[d] = 1;
        ranges[d] = (struct hr_range){0, 1, 0};
    }
    shape[3] = shape[500] = shape[999] = 5;
    struct hr_tensor tensor;
    model_tensor(&tensor, HR_DTYPE_U8, RANK, shape, 0, 8);
    struct hr_item item = {.size = sizeof item};
    struct hr_plan plan = plan_one(&tensor, &item);
    assert_int_equal(plan.items[0].dim_count, 0);
    assert_int_equal(plan.items[0].run_bytes, 125);
    hr_plan_release(&plan);
    ranges[3].stop = ranges[999].stop = 5;
    ranges[500] = (struct hr_range){1, 4, 2};
    item.ranges = ranges;
    plan = plan_one(&tensor, &item);
    assert_int_equal(plan.items[0].run_bytes, 5);
    assert_int_equal(plan.items[0].dim_count, 2);
    hr_plan_release(&plan);
    free(shape);
    free(ranges);
}

/* 130 dimensions of which 16 cannot be merged: the destination has them in the opposite order. */
static void test_unmerged_dims(void **state)
{
    (void)state;
    uint64_t shape[130];
    int64_t strides[130];
    struct hr_range ranges[130];
    for (int d = 0; d < 130; d++) {
        shape[d] = d % 8 == 0 && d < 128 ? 2 : 1;
        ranges[d] = (struct hr_range){0, shape[d], 1};
        strides[d] = (int64_t)1 << d / 8;
    }
    struct hr_tensor tensor;
    model_tensor(&tensor, HR_DTYPE_U8, 130, shape, 0, 0);
    struct hr_item item = {.size = sizeof item, .ranges = ranges, .into = INTO, .into_strides = strides};
    struct hr_plan plan = plan_one(&tensor, &item);
    assert_int_equal(plan.items[0].dim_count, 16);
    assert_int_equal(plan.items[0].run_bytes, 1);
    hr_plan_release(&plan);
}

struct refusal {
    uint32_t dtype;
    uint64_t shape[2];
    struct hr_range ranges[2];
    int code;
    const char *part; /* of the message */
};

static void test_refused_ranges(void **state)
{
    static const struct refusal refusals[] = {
        {HR_DTYPE_F32, {4, 4}, {{0, 4, 1}, {0, 5, 1}}, HR_EINVALID_ARGUMENT, "dimension 1 has 4 elements"},
        {HR_DTYPE_F32, {4, 4}, {{3, 2, 1}, {0, 4, 1}}, HR_EINVALID_ARGUMENT, "its range is 3 to 2"},
        {HR_DTYPE_F32, {4, 0}, {{0, 4, 1}, {1, 1, 1}}, HR_EINVALID_ARGUMENT, "dimension 1 has 0 elements"},
        {HR_DTYPE_F4, {4, 3}, {{1, 3, 1}, {0, 3, 1}}, HR_EUNSUPPORTED, "begins at bit 12"},
        {HR_DTYPE_F4, {4, 3}, {{0, 1, 1}, {0, 3, 1}}, HR_EUNSUPPORTED, "has 12 bits and ends inside a byte"},
        {HR_DTYPE_F4, {4, 3}, {{0, 2, 1}, {0, 2, 1}}, HR_EUNSUPPORTED, "begin 12 bits apart"},
        {HR_DTYPE_F6_E2M3, {4, 4}, {{0, 4, 1}, {1, 4, 1}}, HR_EUNSUPPORTED, "begins at bit 6"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *refusal = &refusals[i];
        struct hr_tensor tensor;
        struct hr_plan plan;
        struct hr_error err;
        memset(&plan, 0x5a, sizeof plan);
        model_tensor(&tensor, refusal->dtype, 2, refusal->shape, 0, 0);
        struct hr_item items[2] = {{.size = sizeof items[0]}, {.size = sizeof items[0], .ranges = refusal->ranges}};
        assert_int_equal(hr_plan_make(&tensor, 1, 1, items, 2, &plain, &plan, &err), refusal->code);
        assert_non_null(strstr(err.message, refusal->part));
        assert_non_null(strstr(err.message, "item 1"));
        assert_string_equal(err.tensor, "t");
        for (size_t b = 0; b < sizeof plan; b++)
            assert_int_equal(((unsigned char *)&plan)[b], 0x5a);
    }
}

static void test_refused_strides(void **state)
{
    (void)state;
    uint64_t shape[2] = {3, 4};
    struct {
        uint32_t dtype;
        int64_t strides[2];
        int code;
        const char *part;
    } cases[] = {
        {HR_DTYPE_F32, {0, 4}, HR_EINVALID_ARGUMENT, "dimension 0 has a stride of 0 bytes"},
        {HR_DTYPE_F32, {16, -3}, HR_EINVALID_ARGUMENT, "dimension 1 has a stride of -3 bytes"},
        {HR_DTYPE_F32, {12, 4}, HR_EINVALID_ARGUMENT, "overlap"},
        {HR_DTYPE_F32, {INT64_MAX, 4}, HR_EINVALID_ARGUMENT, "63 bits"},
        {HR_DTYPE_F32, {INT64_MIN, 4}, HR_EINVALID_ARGUMENT, "63 bits"},
        {HR_DTYPE_F4, {3, 0}, HR_EUNSUPPORTED, "dimension 0 has a stride of 3 bytes"},
        {HR_DTYPE_F4, {2, 0}, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_tensor tensor;
        struct hr_plan plan;
        struct hr_error err;
        model_tensor(&tensor, cases[i].dtype, 2, shape, 0, 0);
        struct hr_item item = {.size = sizeof item, .into = INTO, .into_strides = cases[i].strides};
        assert_int_equal(hr_plan_make(&tensor, 1, 1, &item, 1, &plain, &plan, &err), cases[i].code);
        if (cases[i].part)
            assert_non_null(strstr(err.message, cases[i].part));
        else
            hr_plan_release(&plan);
    }
    struct hr_tensor tensor;
    struct hr_plan plan;
    struct hr_error err;
    int64_t compact[2] = {16, 4};
    model_tensor(&tensor, HR_DTYPE_F32, 2, shape, 0, 0);
    struct hr_item item = {.size = sizeof item, .into_strides = compact};
    assert_int_equal(hr_plan_make(&tensor, 1, 1, &item, 1, &plain, &plan, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "without into"));
}

static void test_overflow(void **state)
{
    (void)state;
    uint64_t huge[3] = {(uint64_t)1 << 40, (uint64_t)1 << 40, 2};
    uint64_t empty[3] = {0, (uint64_t)1 << 40, (uint64_t)1 << 40};
    struct hr_tensor tensor = {.name = "t", .name_size = 1, .dtype = HR_DTYPE_F32, .rank = 3, .shape = huge};
    struct hr_item item = {.size = sizeof item};
    struct hr_plan plan;
    struct hr_error err;
    assert_int_equal(hr_plan_make(&tensor, 1, 1, &item, 1, &plain, &plan, &err), HR_EVALIDATION_OVERFLOW);
    tensor.shape = empty;
    assert_int_equal(hr_plan_make(&tensor, 1, 1, &item, 1, &plain, &plan, &err), 0);
    assert_int_equal(plan.items[0].bytes, 0);
    assert_int_equal(plan.chunk_count, 0);
    hr_plan_release(&plan);
    uint64_t long_shape[1] = {1000};
    model_tensor(&tensor, HR_DTYPE_U8, 1, long_shape, 0, 0);
    struct hr_range range = {0, 1000, UINT64_MAX};
    item.ranges = &range;
    plan = plan_one(&tensor, &item);
    assert_int_equal(plan.items[0].bytes, 1);
    hr_plan_release(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_small),       cmocka_unit_test(test_random_strides),
        cmocka_unit_test(test_known_dims),      cmocka_unit_test(test_many_dimensions),
        cmocka_unit_test(test_unmerged_dims),   cmocka_unit_test(test_refused_ranges),
        cmocka_unit_test(test_refused_strides), cmocka_unit_test(test_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
