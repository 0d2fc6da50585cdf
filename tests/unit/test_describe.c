/*
 * test_describe.c: the printed plan, letter by letter for one request with every kind of piece in it, and memory
 * that fails while it is printed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sys.h"
#include "plan/describe.h"

static const uint64_t shape_a[1] = {5000}, shape_b[2] = {100, 64}, shape_c[1] = {0};

static const struct hr_tensor tensors[] = {
    {.name = "a\"x", .name_size = 3, .dtype = HR_DTYPE_U8, .rank = 1, .shape = shape_a, .offset = 100, .size = 5000},
    {.name = "b", .name_size = 1, .dtype = HR_DTYPE_U8, .rank = 2, .shape = shape_b, .offset = 5100, .size = 6400},
    {.name = "c", .name_size = 1, .dtype = HR_DTYPE_U8, .rank = 1, .shape = shape_c, .offset = 11500},
    {.name = "d", .name_size = 1, .dtype = HR_DTYPE_U8, .rank = 1, .shape = shape_a, .file_index = 1, .size = 5000},
};

static const struct hr_file files[] = {
    {.path = "dir/one.safetensors", .size = 11500},
    {.path = "two\n", .size = 5000},
    {.path = "unused", .size = (uint64_t)3 << 40},
};

static const struct hr_plan_facts facts = {"pread", "io_uring is not usable here", 4, 8, 65536, NULL};

static struct hr_plan plan_all(void)
{
    static const struct hr_range columns[2] = {{0, 100, 1}, {0, 32, 1}};
    const struct hr_item items[] = {
        {.size = sizeof items[0], .tensor_index = 3, .into = (void *)(uintptr_t)4096},
        {.size = sizeof items[0], .tensor_index = 0},
        {.size = sizeof items[0], .tensor_index = 1, .ranges = columns},
        {.size = sizeof items[0], .tensor_index = 2},
    };
    struct hr_plan_options options = {.chunk_bytes = 4096, .arena_bytes = 1 << 20, .device_count = 1};
    struct hr_plan plan;
    assert_int_equal(hr_plan_make(tensors, 4, 3, items, 4, &options, &plan, NULL), 0);
    return plan;
}

static void expect_text(uint32_t format, const char *expected)
{
    struct hr_plan plan = plan_all();
    char *text = NULL;
    assert_int_equal(hr_plan_to_text(&plan, tensors, files, &facts, format, &text, NULL), 0);
    assert_string_equal(text, expected);
    hr_string_free(text);
    hr_plan_release(&plan);
}

static void test_json(void **state)
{
    (void)state;
    expect_text(
        HR_PLAN_JSON,
        "{\"version\":\"0.1.0\","
        "\"totals\":{\"items\":4,\"files\":2,\"bytes\":13200,\"read_bytes\":16336,\"over_read_bytes\":3136,\"groups\":"
        "1,\"chunks\":6,\"pieces\":6,\"target_bytes\":13200,\"converted_bytes\":0},"
        "\"options\":{\"chunk_bytes\":4096,\"arena_bytes\":1048576,\"window_bytes\":0,\"ownership\":\"arena\","
        "\"threads\":4,\"queue_depth\":8},"
        "\"route\":{\"name\":\"pread\",\"reason\":\"io_uring is not usable here\"},"
        "\"staging\":{\"bytes\":65536,\"chunk_bytes_max\":4064},"
        "\"files\":["
        "{\"path\":\"dir/"
        "one.safetensors\",\"size\":11500,\"bytes\":8200,\"read_bytes\":11336,\"chunks\":4,\"extents\":[{\"begin\":100,"
        "\"end\":9164},{\"begin\":9196,\"end\":11468}]},"
        "{\"path\":\"two\\u000a\",\"size\":5000,\"bytes\":5000,\"read_bytes\":5000,\"chunks\":2,\"extents\":[{"
        "\"begin\":0,\"end\":5000}]},"
        "{\"path\":\"unused\",\"size\":3298534883328,\"bytes\":0,\"read_bytes\":0,\"chunks\":0,\"extents\":[]}],"
        "\"groups\":["
        "{\"items\":4,\"chunks\":6,\"arena_bytes\":8320,\"window_bytes\":8320,\"device\":0}],"
        "\"chunks\":["
        "{\"file\":0,\"begin\":100,\"end\":4196,\"bytes\":4096,\"way\":\"direct\",\"group\":0,"
        "\"pieces\":[{\"item\":1,\"tensor\":\"a\\\"x\",\"begin\":0,\"end\":4096,\"source_offset\":100,\"target_"
        "offset\":0,\"target\":\"arena\",\"runs\":1}]},"
        "{\"file\":0,\"begin\":4196,\"end\":5100,\"bytes\":904,\"way\":\"direct\",\"group\":0,"
        "\"pieces\":[{\"item\":1,\"tensor\":\"a\\\"x\",\"begin\":4096,\"end\":5000,\"source_offset\":4196,\"target_"
        "offset\":0,\"target\":\"arena\",\"runs\":1}]},"
        "{\"file\":0,\"begin\":5100,\"end\":9164,\"bytes\":2048,\"way\":\"staged\",\"group\":0,"
        "\"pieces\":[{\"item\":2,\"tensor\":\"b\",\"begin\":0,\"end\":2048,\"source_offset\":5100,\"target_offset\":"
        "5120,\"target\":\"arena\",\"runs\":64}]},"
        "{\"file\":0,\"begin\":9196,\"end\":11468,\"bytes\":1152,\"way\":\"staged\",\"group\":0,"
        "\"pieces\":[{\"item\":2,\"tensor\":\"b\",\"begin\":2048,\"end\":3200,\"source_offset\":9196,\"target_offset\":"
        "5120,\"target\":\"arena\",\"runs\":36}]},"
        "{\"file\":1,\"begin\":0,\"end\":4096,\"bytes\":4096,\"way\":\"direct\",\"group\":0,"
        "\"pieces\":[{\"item\":0,\"tensor\":\"d\",\"begin\":0,\"end\":4096,\"source_offset\":0,\"target_offset\":0,"
        "\"target\":\"into\",\"runs\":1}]},"
        "{\"file\":1,\"begin\":4096,\"end\":5000,\"bytes\":904,\"way\":\"direct\",\"group\":0,"
        "\"pieces\":[{\"item\":0,\"tensor\":\"d\",\"begin\":4096,\"end\":5000,\"source_offset\":4096,\"target_offset\":"
        "0,\"target\":\"into\",\"runs\":1}]}]}\n");
}

static void test_text(void **state)
{
    (void)state;
    expect_text(HR_PLAN_TEXT, "items     4 from 2 of 3 files, 12.8 KiB; reads 15.9 KiB\n"
                              "route     pread: io_uring is not usable here\n"
                              "threads   4, queue depth 8\n"
                              "staging   64.0 KiB\n"
                              "groups    1, an arena for each\n"
                              "chunks    6 with 6 pieces, 904 B to 4.0 KiB\n"
                              "ways      4 direct, 9.7 KiB; 2 staged, 3.1 KiB\n"
                              "file      dir/one.safetensors: 8.0 KiB of 11.2 KiB in 4 chunks\n"
                              "file      two\\x0a: 4.8 KiB of 4.8 KiB in 2 chunks\n"
                              "file      unused: 0 B of 3.0 TiB in 0 chunks\n");
}

/* A conversion shows in the totals, in its piece, and in what the destinations take. */
static void test_cast(void **state)
{
    (void)state;
    const struct hr_item items[] = {{.size = sizeof items[0], .tensor_index = 3, .dtype = HR_DTYPE_F32},
                                    {.size = sizeof items[0], .tensor_index = 0}};
    static const char *const parts[] = {"\"target_bytes\":25000,\"converted_bytes\":5000}", "\"chunk_bytes_max\":4096}",
                                        "\"arena_bytes\":25120,", "\"way\":\"packed\"",
                                        "\"target_offset\":5120,\"from\":\"U8\",\"to\":\"F32\","};
    struct hr_plan_options options = {.chunk_bytes = 4096, .arena_bytes = 1 << 20, .device_count = 1};
    struct hr_plan plan;
    char *text = NULL;
    assert_int_equal(hr_plan_make(tensors, 4, 3, items, 2, &options, &plan, NULL), 0);
    assert_int_equal(hr_plan_to_text(&plan, tensors, files, &facts, HR_PLAN_JSON, &text, NULL), 0);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(text, parts[i]))
            fail_msg("'%s' is not in %s", parts[i], text);
    hr_string_free(text);
    assert_int_equal(hr_plan_to_text(&plan, tensors, files, &facts, HR_PLAN_TEXT, &text, NULL), 0);
    assert_non_null(strstr(text, "converts  4.8 KiB on the way; destinations take 24.4 KiB\n"));
    hr_string_free(text);
    hr_plan_release(&plan);
}

static void test_unknown_format(void **state)
{
    (void)state;
    struct hr_plan plan = plan_all();
    struct hr_error err;
    char *text = (char *)&plan;
    assert_int_equal(hr_plan_to_text(&plan, tensors, files, &facts, 2, &text, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "format is 2"));
    assert_ptr_equal(text, &plan);
    hr_plan_release(&plan);
}

static size_t call_count, fail_at;
static long live_count;

static void *failing_resize(void *memory, size_t bytes)
{
    if (++call_count == fail_at)
        return NULL;
    live_count += memory == NULL;
    return realloc(memory, bytes);
}

static void *failing_alloc(size_t bytes)
{
    return failing_resize(NULL, bytes);
}

static void failing_free(void *memory)
{
    live_count -= memory != NULL;
    free(memory);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    struct hr_plan plan = plan_all();
    struct hr_sys failing = hr_sys_real;
    failing.alloc = failing_alloc;
    failing.resize = failing_resize;
    failing.free = failing_free;
    hr_sys = &failing;
    for (fail_at = 1;; fail_at++) {
        struct hr_error err = {0};
        char *text = NULL;
        call_count = 0;
        live_count = 0;
        int code = hr_plan_to_text(&plan, tensors, files, &facts, HR_PLAN_JSON, &text, &err);
        hr_free(text);
        assert_int_equal(live_count, 0);
        if (code == 0)
            break;
        assert_int_equal(code, HR_EOUT_OF_MEMORY);
        assert_int_equal(err.code, HR_EOUT_OF_MEMORY);
        assert_null(text);
    }
    assert_true(fail_at > 3);
    hr_sys = &hr_sys_real;
    hr_plan_release(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_unknown_format),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
