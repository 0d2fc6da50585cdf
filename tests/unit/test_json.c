/*
 * test_json.c: the scanner by itself: what it takes, what it refuses and where, and that it stays in its buffer
 * (every text is scanned in memory of exactly its size and one byte).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "format/json.h"

#define BASE 1000u

struct scan {
    struct hr_json json;
    struct hr_error err;
    char *text;
};

static void scan_start(struct scan *scan, const char *text, size_t size)
{
    *scan = (struct scan){.text = malloc(size + 1)};
    assert_non_null(scan->text);
    memcpy(scan->text, text, size);
    hr_json_init(&scan->json, scan->text, size, BASE, HR_EINDEX_INVALID, &scan->err);
}

/* Skips one value and finishes; returns the error's position in the text, or -1. */
static long skip_error(const char *text, size_t size)
{
    struct scan scan;
    scan_start(&scan, text, size);
    int result = hr_json_skip(&scan.json);
    if (!result)
        result = hr_json_finish(&scan.json);
    free(scan.text);
    if (!result)
        return -1;
    assert_int_equal(result, HR_EINDEX_INVALID);
    assert_int_equal(scan.err.code, result);
    assert_true(scan.err.offset >= BASE && scan.err.offset <= BASE + size);
    return (long)(scan.err.offset - BASE);
}

static void accepted(const char *text)
{
    long position = skip_error(text, strlen(text));
    if (position >= 0)
        print_error("refused at %ld: %s\n", position, text);
    assert_int_equal(position, -1);
}

static void refused(const char *text, long position)
{
    long found = skip_error(text, strlen(text));
    if (found != position)
        print_error("found %ld: %s\n", found, text);
    assert_int_equal(found, position);
}

static void test_values(void **state)
{
    (void)state;
    accepted("null");
    accepted(" \t\r\n true \t\r\n ");
    accepted("[]");
    accepted("{}");
    accepted("[1,[2,[3]],{\"a\":{\"b\":[]}},\"\",false]");
    accepted("{\"a\":[{}, {\"b\" : 1}] , \"a\":2}");
    refused("", 0);
    refused("nul", 0);
    refused("True", 0);
    refused("[1,]", 3);
    refused("[,1]", 1);
    refused("[1 2]", 3);
    refused("[1}", 2);
    refused("{\"a\"}", 4);
    refused("{\"a\":}", 5);
    refused("{\"a\":1,}", 7);
    refused("{a:1}", 1);
    refused("{} {}", 3);
    refused("[1", 2);
    refused("\f1", 0);
    refused("1\v", 1);
    assert_int_equal(skip_error("[1,\0]", 5), 3);
    assert_int_equal(skip_error("{}\0", 3), 2);
}

static void test_numbers(void **state)
{
    (void)state;
    static const char *const good[] = {"0",
                                       "-0",
                                       "1",
                                       "-1",
                                       "10",
                                       "0.5",
                                       "-0.0",
                                       "1e5",
                                       "1E+5",
                                       "1e-5",
                                       "1e308",
                                       "1e-400",
                                       "0e400",
                                       "0e99999999999",
                                       "1e-99999999999",
                                       "18446744073709551616",
                                       "1.79769313486231581e308",
                                       "123456789012345678901234567890.5e-20"};
    static const char *const bad[] = {"-",
                                      "+1",
                                      ".5",
                                      "1.",
                                      "1.e5",
                                      "1e",
                                      "1e+",
                                      "00",
                                      "01",
                                      "-01",
                                      "0x10",
                                      "1e309",
                                      "-1e400",
                                      "1.7976931348623158e308",
                                      "1e99999999999",
                                      "Infinity",
                                      "NaN",
                                      "--1"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        accepted(good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (skip_error(bad[i], strlen(bad[i])) < 0)
            print_error("accepted: %s\n", bad[i]);
        assert_true(skip_error(bad[i], strlen(bad[i])) >= 0);
    }
}

static double number_value(const char *text, int *ret_is_integer, uint64_t *ret_integer)
{
    struct scan scan;
    struct hr_json_number number = {0};
    scan_start(&scan, text, strlen(text));
    assert_int_equal(hr_json_number(&scan.json, &number), 0);
    free(scan.text);
    *ret_is_integer = number.is_integer;
    *ret_integer = number.integer;
    return number.value;
}

static void test_number_values(void **state)
{
    (void)state;
    int is_integer;
    uint64_t integer;
    assert_true(number_value("18446744073709551615", &is_integer, &integer) == 18446744073709551615.0);
    assert_true(is_integer && integer == UINT64_MAX);
    assert_true(number_value("18446744073709551616", &is_integer, &integer) == 18446744073709551616.0);
    assert_false(is_integer);
    assert_true(number_value("-2", &is_integer, &integer) == -2.0);
    assert_false(is_integer);
    assert_true(number_value("2.5e3", &is_integer, &integer) == 2500.0);
    assert_false(is_integer);
    assert_true(number_value("1e2", &is_integer, &integer) == 100.0);
    assert_false(is_integer);
    assert_true(number_value("0", &is_integer, &integer) == 0.0);
    assert_true(is_integer && integer == 0);
}

static void test_unsigned(void **state)
{
    (void)state;
    static const char *const bad[] = {"-1",    "-0",   "1.0", "1e0", "01", "18446744073709551616",
                                      "\"1\"", "null", "[1]", ""};
    struct scan scan;
    uint64_t value = 7;
    scan_start(&scan, " 18446744073709551615]", 22);
    assert_int_equal(hr_json_unsigned(&scan.json, &value), 0);
    assert_true(value == UINT64_MAX);
    assert_true(hr_json_peek(&scan.json) == ']');
    free(scan.text);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        value = 7;
        scan_start(&scan, bad[i], strlen(bad[i]));
        assert_int_equal(hr_json_unsigned(&scan.json, &value), HR_EINDEX_INVALID);
        assert_true(value == 7);
        free(scan.text);
    }
}

static void string_is(const char *text, const char *expected, size_t expected_size)
{
    struct scan scan;
    struct hr_json_string string;
    scan_start(&scan, text, strlen(text));
    assert_int_equal(hr_json_text(&scan.json, &string, "a string"), 0);
    assert_int_equal(hr_json_finish(&scan.json), 0);
    assert_int_equal(string.size, expected_size);
    assert_memory_equal(string.bytes, expected, expected_size);
    assert_int_equal(string.bytes[string.size], 0);
    free(scan.text);
}

static void test_strings(void **state)
{
    (void)state;
    string_is("\"\"", "", 0);
    string_is("\"abc\"", "abc", 3);
    string_is("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    string_is("\"\\u0041\\u00e9\\u65E5\\ud83d\\uDE00\"", "A\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", 10);
    string_is("\"a\\u0000b\"", "a\0b", 3);
    string_is("\"\\uffff\\ue000\\ud7ff\"", "\xef\xbf\xbf\xee\x80\x80\xed\x9f\xbf", 9);
    string_is("\"\x7f\xe2\x80\xa8\"", "\x7f\xe2\x80\xa8", 4);
    refused("\"abc", 4);
    refused("\"a\nb\"", 2);
    refused("\"0123456789abcdefghij\x1f\"", 21);
    refused("\"a\\x\"", 2);
    refused("\"a\\", 2);
    refused("\"a\\u12\"", 2);
    refused("\"\\ud800\"", 1);
    refused("\"\\ud800\\u0041\"", 1);
    refused("\"\\ude00\"", 1);
    refused("\"\\ud800\\ud800\"", 1);
}

/* A quote, an escape or a control character is found at every distance from the start, in every tail of the buffer. */
static void test_string_positions(void **state)
{
    (void)state;
    char text[128], expected[128];
    for (size_t before = 0; before < 40; before++)
        for (size_t after = 0; after < 40; after++) {
            memset(text, 'x', sizeof text);
            memset(expected, 'x', sizeof expected);
            text[0] = text[1 + before + 2 + after] = '"';
            memcpy(text + 1 + before, "\\n", 2);
            text[1 + before + 2 + after + 1] = '\0';
            expected[before] = '\n';
            string_is(text, expected, before + 1 + after);
            memcpy(text + 1 + before, "\x1fx", 2);
            refused(text, (long)(1 + before));
        }
}

static void nest(char *text, char bracket, char closing, int depth)
{
    for (int i = 0; i < depth; i++)
        text[i] = bracket;
    for (int i = 0; i < depth; i++)
        text[depth + i] = closing;
    text[2 * depth] = '\0';
}

static void test_depth(void **state)
{
    (void)state;
    char text[2 * HR_JSON_DEPTH_MAX + 3];
    nest(text, '[', ']', HR_JSON_DEPTH_MAX);
    accepted(text);
    nest(text, '[', ']', HR_JSON_DEPTH_MAX + 1);
    refused(text, HR_JSON_DEPTH_MAX);
    size_t size = 4000000;
    char *deep = malloc(size + 1);
    assert_non_null(deep);
    memset(deep, '[', size);
    deep[size] = '\0';
    refused(deep, HR_JSON_DEPTH_MAX);
    free(deep);
    /* Objects and arrays that alternate, so that a wrong bracket at any depth would be noticed. */
    char mixed[1024] = "";
    for (int i = 0; i < 60; i++)
        strcat(mixed, i % 3 ? "[" : "{\"k\":");
    for (int i = 60; i-- > 0;)
        strcat(mixed, i == 0 ? "]" : i % 3 ? "]" : "}");
    refused(mixed, (long)strlen(mixed) - 1);
    mixed[strlen(mixed) - 1] = '}';
    accepted(mixed);
}

static void test_without_error_object(void **state)
{
    (void)state;
    struct hr_json json;
    char text[] = "[1,";
    hr_json_init(&json, text, 3, 0, HR_EINDEX_INVALID, NULL);
    assert_int_equal(hr_json_skip(&json), HR_EINDEX_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_number_values), cmocka_unit_test(test_unsigned),
        cmocka_unit_test(test_strings),       cmocka_unit_test(test_string_positions),
        cmocka_unit_test(test_depth),         cmocka_unit_test(test_without_error_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
