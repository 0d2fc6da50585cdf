/*
 * test_conformance.c: every case of tests/conformance/cases.tsv in strict mode, under compat, and with trailing
 * bytes allowed: verdict and kind. Cases too big for the table are made here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <headrace/headrace.h>

#include "support/make_files.h"

#define CASE_COUNT_MIN 390

struct expectation {
    const char *compat_kind, *strict_kind, *trailing_kind; /* "-": accepted */
};

/* The kind of opening a file, "-" when it opens. An error must name the file and say something. */
static const char *kind_of(const char *path, uint32_t mode, uint32_t allow_trailing)
{
    struct hr_open_options options = {.size = sizeof options, .mode = mode, .allow_trailing = allow_trailing};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    int code = hr_checkpoint_open(&path, 1, &options, &checkpoint, &err);
    if (code == 0) {
        hr_checkpoint_close(checkpoint);
        return "-";
    }
    assert_null(checkpoint);
    assert_int_equal(code, err.code);
    assert_string_equal(err.file, path);
    assert_true(strlen(err.message) > 10);
    return hr_error_kind(code);
}

static unsigned expect(const char *name, const char *how, const char *expected, const char *found)
{
    if (strcmp(expected, found) == 0)
        return 0;
    print_error("%s, %s: expected %s, found %s\n", name, how, expected, found);
    return 1;
}

static unsigned case_check(const char *name, const char *path, const struct expectation *expected)
{
    return expect(name, "compat", expected->compat_kind, kind_of(path, HR_OPEN_COMPAT, 0)) +
           expect(name, "strict", expected->strict_kind, kind_of(path, HR_OPEN_STRICT, 0)) +
           expect(name, "strict with trailing bytes", expected->trailing_kind, kind_of(path, HR_OPEN_STRICT, 1));
}

static size_t base64_decode(const char *text, unsigned char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = 0;
    unsigned bits = 0, bit_count = 0;
    for (; *text && *text != '='; text++) {
        bits = bits << 6 | (unsigned)(strchr(digits, *text) - digits);
        bit_count += 6;
        if (bit_count >= 8) {
            bit_count -= 8;
            out[size++] = (unsigned char)(bits >> bit_count);
        }
    }
    return size;
}

static void test_table(void **state)
{
    FILE *table = fopen(HR_SOURCE_DIR "/tests/conformance/cases.tsv", "r");
    char *line = NULL;
    size_t capacity = 0, count = 0;
    unsigned wrong = 0;
    const char *path = test_path("case.safetensors");
    assert_non_null(table);
    (void)state;
    while (getline(&line, &capacity, table) > 0) {
        if (line[0] == '#')
            continue;
        line[strcspn(line, "\n")] = '\0';
        char *rest = line, *fields[7];
        for (size_t i = 0; i < 7; i++)
            assert_non_null(fields[i] = strsep(&rest, "\t"));
        unsigned char *bytes = malloc(strlen(fields[4]) + 1);
        test_raw_write(path, bytes, base64_decode(fields[4], bytes));
        free(bytes);
        const struct expectation expected = {fields[2], fields[5], fields[6]};
        wrong += case_check(fields[0], path, &expected);
        wrong += expect(fields[0], "reference verdict", fields[1], strcmp(fields[2], "-") ? "reject" : "accept");
        wrong += expect(fields[0], "strict verdict", fields[3], strcmp(fields[5], "-") ? "reject" : "accept");
        count++;
    }
    free(line);
    fclose(table);
    assert_true(count >= CASE_COUNT_MIN);
    assert_int_equal(wrong, 0);
}

/* A header that grows piece by piece. */
struct json {
    char *text;
    size_t size, capacity;
};

static void json_add(struct json *json, const char *text)
{
    size_t size = strlen(text);
    if (json->size + size + 1 > json->capacity) {
        json->capacity = (json->size + size + 1) * 2;
        json->text = realloc(json->text, json->capacity);
        assert_non_null(json->text);
    }
    memcpy(json->text + json->size, text, size + 1);
    json->size += size;
}

static void json_repeat(struct json *json, const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++)
        json_add(json, text);
}

static void large_check(const char *name, struct json *json, uint64_t data_size, const struct expectation *expected)
{
    const char *path = test_path("large.safetensors");
    test_json_write(path, json->text, data_size, 1);
    free(json->text);
    assert_int_equal(case_check(name, path, expected), 0);
}

static void test_header_of_100_mb(void **state)
{
    (void)state;
    struct json json = {0};
    json_add(&json, "{}");
    json_repeat(&json, "          ", 9999999);
    json_add(&json, "        ");
    assert_int_equal(json.size, 100000000);
    large_check("100 MB", &json, 0, &(struct expectation){"-", "-", "-"});
}

static void test_nesting_of_100_000(void **state)
{
    (void)state;
    struct json json = {0};
    json_repeat(&json, "[", 100000);
    const char *kind = "InvalidHeaderDeserialization";
    large_check("deep", &json, 0, &(struct expectation){kind, kind, kind});
    json = (struct json){0};
    json_add(&json, "{\"t\":{\"x\":");
    json_repeat(&json, "[", 100000);
    large_check("deep inside", &json, 0, &(struct expectation){kind, kind, kind});
}

static void test_rank_of_100_000(void **state)
{
    (void)state;
    struct json json = {0};
    json_add(&json, "{\"t\":{\"dtype\":\"U8\",\"shape\":[1");
    json_repeat(&json, ",1", 99999);
    json_add(&json, "],\"data_offsets\":[0,1]}}");
    large_check("rank", &json, 1, &(struct expectation){"-", "RankTooLarge", "RankTooLarge"});
}

static void many_tensors(struct json *json, size_t count, const char *fields)
{
    char key[64];
    for (size_t i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%s\"w%zu\":", i ? "," : "{", i);
        json_add(json, key);
        json_add(json, fields);
    }
    json_add(json, "}");
}

static void test_100_000_tensors_over_one_range(void **state)
{
    (void)state;
    struct json json = {0};
    many_tensors(&json, 100000, "{\"dtype\":\"F32\",\"shape\":[200,200],\"data_offsets\":[0,160000]}");
    large_check("overlap", &json, 160000, &(struct expectation){"InvalidOffset", "InvalidOffset", "InvalidOffset"});
}

static void test_a_million_empty_tensors(void **state)
{
    (void)state;
    struct json json = {0};
    many_tensors(&json, 1000000, "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
    large_check("million", &json, 0, &(struct expectation){"-", "-", "-"});
}

static void test_name_of_1_mb(void **state)
{
    (void)state;
    struct json json = {0};
    json_add(&json, "{\"");
    json_repeat(&json, "aaaaaaaaaa", 100000);
    json_add(&json, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    large_check("name", &json, 1, &(struct expectation){"-", "-", "-"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_header_of_100_mb),
        cmocka_unit_test(test_nesting_of_100_000),
        cmocka_unit_test(test_rank_of_100_000),
        cmocka_unit_test(test_100_000_tensors_over_one_range),
        cmocka_unit_test(test_a_million_empty_tensors),
        cmocka_unit_test(test_name_of_1_mb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
