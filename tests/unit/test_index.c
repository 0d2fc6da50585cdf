/*
 * test_index.c: the index parser: the table it makes, duplicates, file names that escape, positions of errors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/sys.h"
#include "format/index.h"
#include "support/faults.h"

static int parse(const char *json, struct hr_index *ret_index, struct hr_error *err)
{
    size_t size = strlen(json);
    char *text = hr_sys->alloc(size + 1);
    if (!text)
        return hr_fail_memory(err, size + 1, "the test");
    memcpy(text, json, size);
    return hr_index_parse(text, size, ret_index, err);
}

static const char usual[] = "{\"metadata\":{\"total_size\":123456789012},\"weight_map\":{\"a\":\"m-2.safetensors\","
                            "\"b\":\"m-1.safetensors\",\"c\":\"m-1.safetensors\",\"d\":\"sub/m-3.safetensors\","
                            "\"e\":\"m-2.safetensors\"}}";

static void file_of(const struct hr_index *index, const char *tensor, const char *file)
{
    const struct hr_index_entry *entry = hr_index_find(index, tensor, strlen(tensor));
    assert_non_null(entry);
    assert_string_equal(entry->name, tensor);
    assert_string_equal(index->files[entry->file_index].name, file);
}

static void test_usual(void **state)
{
    (void)state;
    struct hr_index index;
    assert_int_equal(parse(usual, &index, NULL), 0);
    assert_int_equal(index.entry_count, 5);
    assert_int_equal(index.file_count, 3);
    assert_true(index.total_size == 123456789012.0);
    assert_string_equal(index.files[0].name, "m-1.safetensors");
    assert_string_equal(index.files[1].name, "m-2.safetensors");
    assert_string_equal(index.files[2].name, "sub/m-3.safetensors");
    file_of(&index, "a", "m-2.safetensors");
    file_of(&index, "b", "m-1.safetensors");
    file_of(&index, "c", "m-1.safetensors");
    file_of(&index, "d", "sub/m-3.safetensors");
    file_of(&index, "e", "m-2.safetensors");
    assert_null(hr_index_find(&index, "f", 1));
    assert_null(hr_index_find(&index, "", 0));
    hr_index_release(&index);
}

static void test_total_size_is_advisory(void **state)
{
    (void)state;
    static const struct {
        const char *metadata;
        double total_size;
    } cases[] = {
        {"{\"total_size\":1.5e3}", 1500},   {"{\"total_size\":\"many\"}", -1}, {"{}", -1}, {"null", -1}, {"[1]", -1},
        {"{\"x\":{\"total_size\":1}}", -1}, {"{\"total_size\":null}", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_index index;
        char json[256];
        snprintf(json, sizeof json, "{\"weight_map\":{\"a\":\"f\"},\"metadata\":%s}", cases[i].metadata);
        assert_int_equal(parse(json, &index, NULL), 0);
        assert_true(index.total_size == cases[i].total_size);
        hr_index_release(&index);
    }
}

/* `at` is where the error must be: the first occurrence of this text, or NULL for anywhere. */
static void refused(const char *json, int code, const char *at)
{
    struct hr_index index;
    struct hr_error err = {0};
    int result = parse(json, &index, &err);
    if (result != code)
        print_error("%s: %s\n", hr_error_kind(result), json);
    assert_int_equal(result, code);
    assert_int_equal(err.code, code);
    if (at)
        assert_int_equal(err.offset, strstr(json, at) - json);
}

static void test_duplicates(void **state)
{
    (void)state;
    refused("{\"weight_map\":{\"a\":\"f\",\"A\":\"f\",\"a\":\"g\"}}", HR_EDUPLICATE_KEY, "a\":\"g");
    refused("{\"weight_map\":{\"a\":\"f\",\"\\u0061\":\"f\"}}", HR_EDUPLICATE_KEY, NULL);
    refused("{\"weight_map\":{\"a\":\"f\"},\"weight_map\":{\"b\":\"f\"}}", HR_EDUPLICATE_KEY, "weight_map\":{\"b");
    refused("{\"metadata\":{},\"metadata\":{},\"weight_map\":{}}", HR_EDUPLICATE_KEY, "metadata\":{},\"weight");
    refused("{\"metadata\":{\"total_size\":1,\"total_size\":2},\"weight_map\":{}}", HR_EDUPLICATE_KEY,
            "total_size\":2");
}

static void test_escaping_names(void **state)
{
    (void)state;
    static const char *const escaping[] = {"/etc/passwd", "../x", "a/../b",    "a/..", "..",     "a\\\\b",
                                           "C:x",         "c:/x", "a\\u0000b", "/",    "./../x", "\\u002e./x"};
    static const char *const staying[] = {"x", "./x", "a/b/c", "..x", "x..", "a/..b", "...", "a/.../b", "1:x", "ab:c"};
    char json[128];
    for (size_t i = 0; i < sizeof escaping / sizeof escaping[0]; i++) {
        snprintf(json, sizeof json, "{\"weight_map\":{\"t\":\"ok\",\"u\":\"%s\"}}", escaping[i]);
        refused(json, HR_EINDEX_PATH_ESCAPES, NULL);
    }
    for (size_t i = 0; i < sizeof staying / sizeof staying[0]; i++) {
        struct hr_index index;
        snprintf(json, sizeof json, "{\"weight_map\":{\"t\":\"%s\"}}", staying[i]);
        assert_int_equal(parse(json, &index, NULL), 0);
        hr_index_release(&index);
    }
}

static void test_invalid(void **state)
{
    (void)state;
    refused("", HR_EINDEX_INVALID, NULL);
    refused("[]", HR_EINDEX_INVALID, "[");
    refused("{}", HR_EINDEX_INVALID, NULL);
    refused("{\"weight_map\":null}", HR_EINDEX_INVALID, "null");
    refused("{\"weight_map\":[]}", HR_EINDEX_INVALID, "[");
    refused("{\"weight_map\":{\"a\":1}}", HR_EINDEX_INVALID, "1");
    refused("{\"weight_map\":{\"a\":\"\"}}", HR_EINDEX_INVALID, NULL);
    refused("{\"weight_map\":{\"a\":\"f\",}}", HR_EINDEX_INVALID, "}}");
    refused("{\"weight_map\":{\"a\":\"f\"}} x", HR_EINDEX_INVALID, "x");
    refused("{\"weight_map\":{\"a\":\"f\"},\"x\":1e999}", HR_EINDEX_INVALID, "1e999");
    refused("{\"weight_map\":{\"a\xff\":\"f\"}}", HR_EINDEX_INVALID, "\xff");
}

/* Sorting and the file table, on more files than fit any small case. */
static void test_many_files(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    struct hr_index index;
    char *json = hr_sys->alloc(COUNT * 64), name[32];
    assert_non_null(json);
    size_t used = (size_t)sprintf(json, "{\"weight_map\":{");
    for (unsigned i = 0; i < COUNT; i++)
        used += (size_t)sprintf(json + used, "%s\"t%u\":\"f%05u\"", i ? "," : "", i, i * 7919u % COUNT);
    sprintf(json + used, "}}");
    assert_int_equal(parse(json, &index, NULL), 0);
    hr_free(json);
    assert_int_equal(index.file_count, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "f%05u", i);
        assert_string_equal(index.files[i].name, name);
        assert_int_equal(index.entries[i].file_index, i * 7919u % COUNT);
    }
    hr_index_release(&index);
}

static int parse_scenario(void *context, struct hr_error *err)
{
    (void)context;
    struct hr_index index;
    int result = parse(usual, &index, err);
    if (!result)
        hr_index_release(&index);
    return result;
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    assert_true(faults_sweep(FAULT_MEMORY, 0, parse_scenario, NULL) >= 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usual),
        cmocka_unit_test(test_total_size_is_advisory),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_escaping_names),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
