/*
 * test_shard.c: the block rule against a naive one, and sharded items against items with the ranges spelled out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/plan_model.h"

static const struct hr_plan_options plain = {.chunk_bytes = 1 << 20, .arena_bytes = 1 << 20, .device_count = 1};

/* Element e belongs to the rank whose block of ceil(extent / world) holds it. */
static void test_blocks(void **state)
{
    (void)state;
    for (uint64_t extent = 0; extent <= 40; extent++)
        for (uint32_t world = 1; world <= 12; world++) {
            uint64_t block = (extent + world - 1) / world, at = 0;
            for (uint32_t rank = 0; rank < world; rank++) {
                struct hr_range range;
                hr_shard_range(extent, rank, world, &range);
                assert_int_equal(range.step, 1);
                assert_true(range.start <= range.stop && range.stop <= extent);
                for (uint64_t e = range.start; e < range.stop; e++, at++) {
                    assert_int_equal(e, at);
                    assert_int_equal(e / block, rank);
                }
            }
            assert_int_equal(at, extent);
        }
    struct hr_range range = {7, 8, 9};
    hr_shard_range(UINT64_MAX, UINT32_MAX - 1, UINT32_MAX, &range);
    assert_true(range.start < range.stop && range.stop == UINT64_MAX);
    hr_shard_range(10, 2, 2, &range);
    assert_int_equal(range.start, range.stop);
    hr_shard_range(10, 0, 0, &range);
    assert_int_equal(range.start, range.stop);
}

static int plan_of(const struct hr_tensor *tensor, const struct hr_item *item, struct hr_plan *ret_plan,
                   struct hr_error *err)
{
    return hr_plan_make(tensor, 1, 1, item, 1, &plain, ret_plan, err);
}

static void check_same(const struct hr_tensor *tensor, const struct hr_item *sharded, const struct hr_item *spelled)
{
    struct hr_plan a, b;
    assert_int_equal(plan_of(tensor, sharded, &a, NULL), 0);
    assert_int_equal(plan_of(tensor, spelled, &b, NULL), 0);
    assert_int_equal(a.items[0].bytes, b.items[0].bytes);
    assert_memory_equal(a.items[0].shape, b.items[0].shape, tensor->rank * sizeof(uint64_t));
    assert_memory_equal(a.items[0].strides, b.items[0].strides, tensor->rank * sizeof(int64_t));
    if (a.items[0].bytes) {
        assert_int_equal(a.items[0].source_offset, b.items[0].source_offset);
        assert_int_equal(a.items[0].source_end, b.items[0].source_end);
        assert_int_equal(a.items[0].run_bytes, b.items[0].run_bytes);
        assert_int_equal(a.items[0].dim_count, b.items[0].dim_count);
        assert_memory_equal(a.items[0].dims, b.items[0].dims, a.items[0].dim_count * sizeof(struct hr_plan_dim));
    }
    hr_plan_release(&a);
    hr_plan_release(&b);
}

/* With and without ranges, of all steps: the block is taken of what the range leaves. */
static void test_same_as_ranges(void **state)
{
    (void)state;
    uint64_t shape[3] = {7, 5, 6};
    struct hr_tensor tensor;
    model_tensor(&tensor, HR_DTYPE_F32, 3, shape, 0, 5);
    for (uint32_t dim = 0; dim < 3; dim++)
        for (uint32_t world = 1; world <= 8; world++)
            for (uint32_t rank = 0; rank < world; rank++)
                for (uint64_t step = 0; step <= 3; step++) {
                    struct hr_range given[3] = {{1, 7, step}, {0, 5, 1}, {2, 5, 2}}, spelled[3];
                    memcpy(spelled, given, sizeof given);
                    uint64_t stride = given[dim].step ? given[dim].step : 1, count = 0;
                    for (uint64_t e = given[dim].start; e < given[dim].stop; e += stride)
                        count++;
                    struct hr_range block;
                    hr_shard_range(count, rank, world, &block);
                    spelled[dim].start = given[dim].start + block.start * stride;
                    spelled[dim].stop = given[dim].start + block.stop * stride;
                    if (spelled[dim].stop > given[dim].stop)
                        spelled[dim].stop = given[dim].stop;
                    if (block.start == block.stop)
                        spelled[dim].start = spelled[dim].stop;
                    struct hr_item a = {.size = sizeof a, .ranges = given};
                    a.shard_dim = dim;
                    a.shard_rank = rank;
                    a.shard_world = world;
                    struct hr_item b = {.size = sizeof b, .ranges = spelled};
                    check_same(&tensor, &a, &b);
                    struct hr_range whole[3] = {{0, 7, 1}, {0, 5, 1}, {0, 6, 1}};
                    hr_shard_range(shape[dim], rank, world, &whole[dim]);
                    a.ranges = NULL;
                    b.ranges = whole;
                    check_same(&tensor, &a, &b);
                }
}

static void test_refused(void **state)
{
    (void)state;
    uint64_t shape[2] = {4, 4};
    struct hr_tensor tensor;
    struct hr_plan plan;
    struct hr_error err;
    model_tensor(&tensor, HR_DTYPE_F32, 2, shape, 0, 5);
    struct hr_item item = {.size = sizeof item, .shard_rank = 2, .shard_world = 2};
    assert_int_equal(plan_of(&tensor, &item, &plan, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "shard rank 2"));
    assert_string_equal(err.tensor, "t");
    item.shard_rank = 1;
    item.shard_dim = 2;
    assert_int_equal(plan_of(&tensor, &item, &plan, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "dimension 2"));
    item.shard_dim = 0;
    item.reserved = 1;
    assert_int_equal(plan_of(&tensor, &item, &plan, &err), HR_EINVALID_ARGUMENT);
    model_tensor(&tensor, HR_DTYPE_F4, 1, (uint64_t[]){6}, 0, 5); /* blocks of 3 end inside a byte */
    item = (struct hr_item){.size = sizeof item, .shard_world = 2};
    assert_int_equal(plan_of(&tensor, &item, &plan, &err), HR_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_same_as_ranges),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
