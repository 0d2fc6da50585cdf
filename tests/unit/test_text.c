/*
 * test_text.c: text that grows, JSON's commas and quoting, and memory that runs out in the middle; strict UTF-8
 * against a decoder written the slow way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/sys.h"
#include "base/text.h"
#include "base/utf8.h"
#include "support/faults.h"

static void assert_taken(struct hr_text *text, const char *expected)
{
    char *bytes = hr_text_take(text);
    assert_non_null(bytes);
    assert_string_equal(bytes, expected);
    hr_free(bytes);
    assert_null(text->bytes);
    assert_int_equal(text->size, 0);
}

static void test_empty(void **state)
{
    struct hr_text text = {0};
    (void)state;
    assert_taken(&text, "");
    hr_text_release(&text);
}

static void test_growth(void **state)
{
    struct hr_text text = {0};
    char expected[8000] = "";
    size_t size = 0;
    (void)state;
    for (int i = 0; i < 1000; i++) {
        hr_text_printf(&text, "%d,", i);
        size += (size_t)sprintf(expected + size, "%d,", i);
        hr_text_add(&text, "xyz", 2);
        size += (size_t)sprintf(expected + size, "xy");
        assert_int_equal(text.size, size);
        assert_int_equal(strlen(text.bytes), size);
    }
    assert_taken(&text, expected);
}

static void test_commas(void **state)
{
    struct hr_text text = {0};
    (void)state;
    hr_json_open(&text, NULL, '{');
    hr_json_u64(&text, "big", UINT64_MAX);
    hr_json_i64(&text, "small", INT64_MIN);
    hr_json_open(&text, "list", '[');
    hr_json_open(&text, NULL, '[');
    hr_json_close(&text, ']');
    hr_json_open(&text, NULL, '{');
    hr_json_close(&text, '}');
    hr_json_bool(&text, NULL, 2);
    hr_json_null(&text, NULL);
    hr_json_close(&text, ']');
    hr_json_bool(&text, "no", 0);
    hr_json_string(&text, "", "", 0);
    hr_json_close(&text, '}');
    assert_taken(&text, "{\"big\":18446744073709551615,\"small\":-9223372036854775808,\"list\":[[],{},true,null],"
                        "\"no\":false,\"\":\"\"}");
}

static void test_quoting(void **state)
{
    static const struct {
        const char *value, *quoted;
    } cases[] = {
        {"plain", "plain"},
        {"a\"b\\c", "a\\\"b\\\\c"},
        {"\n\t\x1f\x7f", "\\u000a\\u0009\\u001f\\u007f"},
        {"\xc3\xa9\xf0\x9f\x98\x80", "\xc3\xa9\xf0\x9f\x98\x80"},
        {"a\xff\xc3", "a\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80z", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"}, /* a surrogate */
        {"\"", "\\\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_text text = {0};
        char expected[128];
        snprintf(expected, sizeof expected, "{\"%s\":\"%s\"}", cases[i].quoted, cases[i].quoted);
        hr_json_open(&text, NULL, '{');
        hr_json_string(&text, cases[i].value, cases[i].value, strlen(cases[i].value));
        hr_json_close(&text, '}');
        assert_taken(&text, expected);
    }
    struct hr_text text = {0};
    hr_json_string(&text, NULL, "a\0b", 3);
    assert_taken(&text, "\"a\\u0000b\"");
}

/* Writes enough to grow several times; the end tells whether all of it is there. */
static int write_document(void *context, struct hr_error *err)
{
    struct hr_text text = {0};
    (void)context;
    hr_json_open(&text, NULL, '[');
    for (int i = 0; i < 300; i++)
        hr_json_string(&text, NULL, "some text \n", 11);
    hr_json_close(&text, ']');
    char *bytes = hr_text_take(&text);
    if (!bytes) {
        hr_text_release(&text);
        return hr_fail_memory(err, 1, "a document");
    }
    assert_int_equal(strlen(bytes), 2 + 300 * 19 - 1);
    hr_free(bytes);
    return 0;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    assert_true(faults_sweep(FAULT_MEMORY, 0, write_document, NULL) >= 4);
}

/* The size of the character by RFC 3629's definition: decode, encode anew, compare. */
static size_t slow_char_size(const unsigned char *text, size_t size)
{
    static const uint32_t first_of_length[] = {0, 0, 0x80, 0x800, 0x10000};
    if (size == 0)
        return 0;
    if (text[0] < 0x80)
        return 1;
    size_t length = text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    if (length == 0 || length > size)
        return 0;
    uint32_t code = text[0] & ((1u << (7 - length)) - 1);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return code < first_of_length[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? 0 : length;
}

/* All first and second bytes, with thirds and fourths at the borders of their ranges, cut at every size. */
static void test_utf8_characters(void **state)
{
    static const unsigned char borders[] = {0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    (void)state;
    for (unsigned head = 0; head < 65536; head++)
        for (size_t tail = 0; tail < sizeof borders * sizeof borders; tail++) {
            unsigned char text[4] = {(unsigned char)(head >> 8), (unsigned char)head, borders[tail / sizeof borders],
                                     borders[tail % sizeof borders]};
            for (size_t size = 0; size <= 4; size++)
                if (hr_utf8_char_size(text, size) != slow_char_size(text, size))
                    fail_msg("%02x %02x %02x %02x cut at %zu", text[0], text[1], text[2], text[3], size);
        }
}

/* A bad byte at every place around the words that are passed over at once. */
static void test_utf8_prefix(void **state)
{
    unsigned char text[40];
    (void)state;
    for (size_t size = 0; size <= sizeof text; size++)
        for (size_t bad = 0; bad <= size; bad++) {
            memset(text, 'a', sizeof text);
            if (bad < size)
                text[bad] = 0x80;
            assert_int_equal(hr_utf8_valid_prefix(text, size), bad);
        }
    for (size_t at = 0; at + 3 <= sizeof text; at++) {
        memset(text, 'a', sizeof text);
        memcpy(text + at, "\xe2\x82\xac", 3);
        assert_int_equal(hr_utf8_valid_prefix(text, sizeof text), sizeof text);
        assert_int_equal(hr_utf8_valid_prefix(text, at + 2), at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),           cmocka_unit_test(test_growth),
        cmocka_unit_test(test_commas),          cmocka_unit_test(test_quoting),
        cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_utf8_characters),
        cmocka_unit_test(test_utf8_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
