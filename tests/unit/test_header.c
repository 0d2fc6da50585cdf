/*
 * test_header.c: the table that a header becomes: order, names, shapes, metadata; where errors are; what strict mode
 * and compat do with duplicates; memory. Verdicts by the hundred are test_conformance's part.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sys.h"
#include "format/header.h"
#include "support/faults.h"

static const struct hr_open_options compat = {.size = sizeof compat, .mode = HR_OPEN_COMPAT};
static const struct hr_open_options trailing = {.size = sizeof trailing, .allow_trailing = 1};

/* Parses `json` as if `data_size` bytes followed it. */
static int parse(const char *json, uint64_t data_size, const struct hr_open_options *options,
                 struct hr_header *ret_header, struct hr_error *err)
{
    size_t size = strlen(json);
    char *text = hr_sys->alloc(size + 1);
    if (!text)
        return hr_fail_memory(err, size + 1, "the test");
    memcpy(text, json, size);
    return hr_header_parse(text, size, 8 + size + data_size, options, ret_header, err);
}

static size_t find(const struct hr_header *header, const char *name)
{
    const struct hr_named array = {header->tensors, sizeof *header->tensors, header->hashes};
    return hr_names_find(&header->names, &array, name, strlen(name));
}

/* Out of order, in several forms, with a field of its own and a scalar. */
static const char usual[] =
    "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
    "\"__metadata__\":{\"z\":\"1\",\"a\\n\":\"\\u00e9\"},"
    "\"s\" : { \"data_offsets\" : [ 0 , 4 ] , \"x\" : [ { } ] , \"shape\" : [ ] , \"dtype\" : \"F32\" },"
    "\"e\\u0041\":{\"dtype\":\"F64\",\"shape\":[7,0,5],\"data_offsets\":[4,4]},"
    "\"f\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[16,18]}}  ";

static void tensor_is(const struct hr_header *header, size_t index, const char *name, uint32_t dtype, uint64_t offset,
                      uint64_t size)
{
    const struct hr_tensor *tensor = &header->tensors[index];
    assert_string_equal(tensor->name, name);
    assert_int_equal(tensor->name_size, strlen(name));
    assert_int_equal(tensor->dtype, dtype);
    assert_int_equal(tensor->offset, header->data_offset + offset);
    assert_int_equal(tensor->size, size);
    assert_int_equal(tensor->file_index, 0);
    assert_int_equal(find(header, name), index);
}

static void test_table(void **state)
{
    (void)state;
    struct hr_header header;
    assert_int_equal(parse(usual, 18, NULL, &header, NULL), 0);
    assert_int_equal(header.tensor_count, 4);
    assert_int_equal(header.data_offset, 8 + strlen(usual));
    tensor_is(&header, 0, "s", HR_DTYPE_F32, 0, 4);
    tensor_is(&header, 1, "eA", HR_DTYPE_F64, 4, 0);
    tensor_is(&header, 2, "b", HR_DTYPE_BF16, 4, 12);
    tensor_is(&header, 3, "f", HR_DTYPE_F4, 16, 2);
    assert_int_equal(header.tensors[0].rank, 0);
    assert_int_equal(header.tensors[1].rank, 3);
    assert_int_equal(header.tensors[1].shape[0], 7);
    assert_int_equal(header.tensors[1].shape[2], 5);
    assert_int_equal(header.tensors[2].shape[0], 2);
    assert_int_equal(header.tensors[2].shape[1], 3);
    assert_int_equal(header.tensors[3].shape[0], 4);
    assert_true(find(&header, "e") == HR_NAMES_NONE);
    assert_int_equal(header.metadata_count, 2);
    assert_string_equal(header.metadata[0].key, "z");
    assert_string_equal(header.metadata[0].value, "1");
    assert_string_equal(header.metadata[1].key, "a\n");
    assert_int_equal(header.metadata[1].key_size, 2);
    assert_string_equal(header.metadata[1].value, "\xc3\xa9");
    assert_int_equal(header.metadata[1].value_size, 2);
    hr_header_release(&header);
}

/* Under compat the last of equal names counts, for tensors and for metadata. */
static void test_duplicates_under_compat(void **state)
{
    (void)state;
    struct hr_header header;
    assert_int_equal(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[9,9],\"data_offsets\":[50,60]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
                           "\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[7,8]},"
                           "\"\\u0061\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                           "\"__metadata__\":{\"k\":\"1\",\"l\":\"2\",\"k\":\"3\"}}",
                           3, &compat, &header, NULL),
                     0);
    assert_int_equal(header.tensor_count, 2);
    tensor_is(&header, 0, "a", HR_DTYPE_I8, 0, 1);
    tensor_is(&header, 1, "b", HR_DTYPE_U8, 1, 2);
    assert_int_equal(header.tensors[0].shape[0], 1);
    assert_int_equal(header.tensors[1].shape[0], 2);
    assert_int_equal(header.metadata_count, 2);
    assert_string_equal(header.metadata[0].key, "l");
    assert_string_equal(header.metadata[1].key, "k");
    assert_string_equal(header.metadata[1].value, "3");
    hr_header_release(&header);
}

/* An error: its code, tensor, and the text at which it is (found in `json`; NULL: do not look). */
static void refused(const char *json, uint64_t data_size, const struct hr_open_options *options, int code,
                    const char *tensor, const char *at)
{
    struct hr_header header = {.tensor_count = 99};
    struct hr_error err = {0};
    int result = parse(json, data_size, options, &header, &err);
    if (result != code)
        print_error("%s, %s: %s\n", hr_error_kind(result), err.message, json);
    assert_int_equal(result, code);
    assert_int_equal(err.code, code);
    assert_int_equal(header.tensor_count, 99);
    assert_string_equal(err.tensor, tensor);
    assert_null(strchr(err.message, '\n'));
    if (at)
        assert_int_equal(err.offset, 8 + (strstr(json, at) - json));
}

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_where_errors_are(void **state)
{
    (void)state;
    const int json_code = HR_EINVALID_HEADER_DESERIALIZATION;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":7}", 1, NULL, json_code, "b", "7");
    refused("{" TENSOR("t", "F99", "[1]", "[0,1]") "}", 1, NULL, json_code, "t", "F99");
    refused("{" TENSOR("t", "U8", "[1,-2]", "[0,1]") "}", 1, NULL, json_code, "t", "-2");
    refused("{" TENSOR("t", "U8", "[1]", "[0,1,2]") "}", 1, NULL, json_code, "t", "2]");
    refused("{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, NULL, json_code, "t",
            NULL);
    refused("{\"__metadata__\":{\"a\":1}}", 0, NULL, json_code, "", "1");
    refused("{} x", 0, NULL, json_code, "", "x");
    refused("{\"\xff\":1}", 0, NULL, HR_EINVALID_HEADER, "", "\xff");
    refused("{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("b", "U8", "[1]", "[2,3]") "}", 3, NULL,
            HR_EINVALID_OFFSET, "b", "b\":");
    refused("{" TENSOR("t", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, NULL, HR_EVALIDATION_OVERFLOW, "t",
            "t\":");
    refused("{" TENSOR("t", "F4", "[3]", "[0,2]") "}", 2, NULL, HR_EMISALIGNED_SLICE, "t", "t\":");
    refused("{" TENSOR("t", "F32", "[3]", "[0,2]") "}", 2, NULL, HR_ETENSOR_INVALID_INFO, "t", "t\":");
    refused("{" TENSOR("t", "U8", "[1]", "[0,1]") "," TENSOR("t", "U8", "[1]", "[1,2]") "}", 2, NULL,
            HR_EDUPLICATE_TENSOR, "t", NULL);
    refused("{\"__metadata__\":{\"key\":\"1\",\"k\":\"\",\"key\":\"2\"}}", 0, NULL, HR_EDUPLICATE_KEY, "", "key\":\"2");
    refused("{" TENSOR("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, NULL, HR_ENAME_HAS_NUL, "a\\x00b", "a\\u");
}

/* How much is missing or too much stands in the message, and where in the offset. */
static void test_data_of_wrong_size(void **state)
{
    (void)state;
    static const char json[] = "{" TENSOR("t", "U8", "[100]", "[0,100]") "}";
    const uint64_t end = 8 + sizeof json - 1 + 100;
    struct hr_header header;
    struct hr_error err;
    assert_int_equal(parse(json, 93, NULL, &header, &err), HR_EMETADATA_INCOMPLETE_BUFFER);
    assert_non_null(strstr(err.message, "7 are missing"));
    assert_int_equal(err.offset, end - 7);
    assert_int_equal(parse(json, 93, &trailing, &header, &err), HR_EMETADATA_INCOMPLETE_BUFFER);
    assert_int_equal(parse(json, 105, NULL, &header, &err), HR_EMETADATA_INCOMPLETE_BUFFER);
    assert_non_null(strstr(err.message, "5 bytes follow"));
    assert_int_equal(err.offset, end);
    assert_int_equal(parse(json, 105, &trailing, &header, &err), 0);
    hr_header_release(&header);
    struct hr_open_options both = compat;
    both.allow_trailing = 1;
    assert_int_equal(parse(json, 105, &both, &header, &err), 0);
    hr_header_release(&header);
}

static void test_length(void **state)
{
    (void)state;
    static const unsigned char prefix[] = {2, 0, 0, 0, 0, 0, 0, 0}, huge[] = {1, 0xe1, 0xf5, 5, 0, 0, 0, 0},
                               largest[] = {0, 0xe1, 0xf5, 5, 0, 0, 0, 0};
    size_t size = 77;
    struct hr_error err;
    assert_int_equal(hr_header_length(prefix, 0, 0, &size, &err), HR_EHEADER_TOO_SMALL);
    assert_non_null(strstr(err.message, "the file is empty"));
    assert_int_equal(hr_header_length(prefix, 7, 7, &size, &err), HR_EHEADER_TOO_SMALL);
    assert_int_equal(hr_header_length(huge, 8, UINT64_MAX, &size, &err), HR_EHEADER_TOO_LARGE);
    assert_int_equal(hr_header_length(prefix, 8, 9, &size, &err), HR_EINVALID_HEADER_LENGTH);
    assert_non_null(strstr(err.message, "1 are missing"));
    assert_int_equal(size, 77);
    assert_int_equal(hr_header_length(prefix, 8, 10, &size, &err), 0);
    assert_int_equal(size, 2);
    assert_int_equal(hr_header_length(largest, 8, 100000008, &size, &err), 0);
    assert_int_equal(size, 100000000);
}

static void test_dtypes(void **state)
{
    (void)state;
    for (uint32_t dtype = 1; dtype < HR_DTYPE_COUNT; dtype++) {
        const char *name = hr_dtype_name(dtype);
        assert_int_equal(hr_dtype_find(name, strlen(name)), dtype);
        assert_int_equal(hr_dtype_find(name, strlen(name) - 1) == dtype, 0);
        assert_true(hr_dtype_bits(dtype) >= 4 && hr_dtype_bits(dtype) <= 64);
    }
    assert_null(hr_dtype_name(HR_DTYPE_NONE));
    assert_null(hr_dtype_name(HR_DTYPE_COUNT));
    assert_int_equal(hr_dtype_bits(HR_DTYPE_NONE), 0);
    assert_int_equal(hr_dtype_bits(HR_DTYPE_COUNT), 0);
    assert_int_equal(hr_dtype_find("f32", 3), HR_DTYPE_NONE);
    assert_int_equal(hr_dtype_find("", 0), HR_DTYPE_NONE);
    assert_int_equal(hr_dtype_bits(HR_DTYPE_F4), 4);
    assert_int_equal(hr_dtype_bits(HR_DTYPE_F6_E2M3), 6);
    assert_int_equal(hr_dtype_bits(HR_DTYPE_C64), 64);
}

/* A permutation of many tensors, with empty ones between, is sorted; every name is found where it is. */
static void test_shuffled(void **state)
{
    (void)state;
    enum { COUNT = 4099 };
    char *json = hr_sys->alloc(COUNT * 96), name[32];
    struct hr_header header;
    assert_non_null(json);
    size_t used = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        unsigned place = i * 1009u % COUNT, has_bytes = place % 3 != 0, begin = place - (place + 2) / 3;
        used += (size_t)sprintf(json + used, "%s\"t%u\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[%u,%u]}",
                                i ? "," : "{", place, has_bytes, begin, begin + has_bytes);
    }
    sprintf(json + used, "}");
    assert_int_equal(parse(json, COUNT - (COUNT + 2) / 3, NULL, &header, NULL), 0);
    hr_free(json);
    assert_int_equal(header.tensor_count, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "t%u", i);
        size_t index = find(&header, name);
        assert_true(index < COUNT);
        assert_string_equal(header.tensors[index].name, name);
        assert_int_equal(header.tensors[index].shape[0], i % 3 != 0);
        assert_int_equal(header.tensors[index].size, i % 3 != 0);
        if (index > 0)
            assert_true(header.tensors[index].offset >= header.tensors[index - 1].offset);
    }
    hr_header_release(&header);
}

static size_t live_bytes, peak_bytes;

static void *counted(void *memory)
{
    live_bytes += memory ? malloc_usable_size(memory) : 0;
    peak_bytes = live_bytes > peak_bytes ? live_bytes : peak_bytes;
    return memory;
}

static void *counting_alloc(size_t bytes)
{
    return counted(malloc(bytes));
}

static void *counting_resize(void *memory, size_t bytes)
{
    live_bytes -= memory ? malloc_usable_size(memory) : 0;
    return counted(realloc(memory, bytes));
}

static void counting_free(void *memory)
{
    live_bytes -= memory ? malloc_usable_size(memory) : 0;
    free(memory);
}

/* The most memory that a header of `count` times `unit` (NULL: numbered tensors) took, in bytes a byte of header. */
static double peak_ratio(const char *start, const char *unit, size_t count, const char *end, uint64_t data_size)
{
    struct hr_sys table = hr_sys_real;
    struct hr_header header;
    table.alloc = counting_alloc;
    table.resize = counting_resize;
    table.free = counting_free;
    hr_sys = &table;
    live_bytes = peak_bytes = 0;
    char *json = hr_sys->alloc(strlen(start) + count * (unit ? strlen(unit) : 64) + strlen(end) + 1);
    assert_non_null(json);
    size_t size = (size_t)sprintf(json, "%s", start);
    for (size_t i = 0; i < count; i++)
        size += (size_t)(unit ? sprintf(json + size, "%s", unit)
                              : sprintf(json + size, "%s" TENSOR("w%zu", "U8", "[0]", "[0,0]"), i ? "," : "", i));
    size += (size_t)sprintf(json + size, "%s", end);
    json = hr_sys->resize(json, size + 1);
    assert_int_equal(hr_header_parse(json, size, 8 + size + data_size, &compat, &header, NULL), 0);
    hr_header_release(&header);
    hr_sys = &hr_sys_real;
    assert_int_equal(live_bytes, 0);
    return (double)peak_bytes / (double)size;
}

static void test_memory(void **state)
{
    (void)state;
    assert_true(peak_ratio("{", NULL, 1000000, "}", 0) < 4);
    assert_true(peak_ratio("{}", " ", 20000000, "", 0) < 3);
    assert_true(peak_ratio("{\"t\":{\"dtype\":\"U8\",\"shape\":[1", ",1", 100000, "],\"data_offsets\":[0,1]}}", 1) <
                16);
    assert_true(peak_ratio("{\"", "a", 1000000, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1) < 3);
    assert_true(peak_ratio("{\"__metadata__\":{\"a\":\"\"", ",\"a\":\"\"", 100000, "}}", 0) < 16);
}

static int parse_scenario(void *context, struct hr_error *err)
{
    struct hr_header header = {.tensor_count = 99};
    int result = parse(usual, 18, context, &header, err);
    if (!result)
        hr_header_release(&header);
    else
        assert_int_equal(header.tensor_count, 99);
    return result;
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    struct hr_open_options options = compat;
    assert_true(faults_sweep(FAULT_MEMORY, 0, parse_scenario, NULL) >= 8);
    assert_true(faults_sweep(FAULT_MEMORY, 0, parse_scenario, &options) >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_duplicates_under_compat),
        cmocka_unit_test(test_where_errors_are),
        cmocka_unit_test(test_data_of_wrong_size),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_shuffled),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
