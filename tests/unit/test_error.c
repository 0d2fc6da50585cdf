/*
 * test_error.c: the list of codes, the error object, and how text from outside is escaped and cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

static const struct {
    int code;
    const char *kind;
} listed[] = {
#define LISTED(name, number, kind, text) {HR_E##name, kind},
    HR_ERROR_LIST(LISTED)
#undef LISTED
};
#define LISTED_COUNT (sizeof listed / sizeof listed[0])

static void test_list(void **state)
{
    (void)state;
    for (size_t i = 0; i < LISTED_COUNT; i++) {
        assert_true(listed[i].code < 0);
        assert_string_equal(hr_error_kind(listed[i].code), listed[i].kind);
        assert_true(strlen(hr_strerror(listed[i].code)) > 10);
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(listed[i].code, listed[k].code);
            assert_string_not_equal(listed[i].kind, listed[k].kind);
        }
    }
    assert_string_equal(hr_error_kind(0), "Ok");
    assert_string_equal(hr_strerror(0), "no error");
    assert_string_equal(hr_error_kind(-9999), "Unknown");
    assert_string_equal(hr_error_kind(1), "Unknown");
    assert_string_equal(hr_strerror(-9999), "unknown error");
}

static void test_fields(void **state)
{
    struct hr_error err;
    (void)state;
    memset(&err, 0x7f, sizeof err);
    assert_int_equal(hr_fail(&err, HR_ECANCELLED, "%d of %s", 3, "four"), HR_ECANCELLED);
    assert_int_equal(err.code, HR_ECANCELLED);
    assert_int_equal(err.sys_errno, 0);
    assert_int_equal(err.driver_code, 0);
    assert_true(err.offset == HR_NO_OFFSET);
    assert_string_equal(err.message, "3 of four");
    assert_string_equal(err.tensor, "");
    assert_string_equal(err.file, "");
    assert_int_equal(hr_fail_at(&err, HR_EINVALID_OFFSET, 17, "there"), HR_EINVALID_OFFSET);
    assert_int_equal(err.offset, 17);
    assert_int_equal(hr_fail_sys(&err, HR_EIO_ERROR, ENOENT, "cannot open '%s'", "x"), HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_true(err.offset == HR_NO_OFFSET);
    assert_string_equal(err.message, "cannot open 'x': No such file or directory (errno 2)");
    assert_int_equal(hr_fail_memory(&err, 1234, "a test"), HR_EOUT_OF_MEMORY);
    assert_string_equal(err.message, "out of memory: 1234 bytes for a test");
    assert_int_equal(err.sys_errno, 0);
}

static void test_no_object(void **state)
{
    (void)state;
    assert_int_equal(hr_fail(NULL, HR_EEND, "x"), HR_EEND);
    assert_int_equal(hr_fail_at(NULL, HR_EEND, 1, "x"), HR_EEND);
    assert_int_equal(hr_fail_sys(NULL, HR_EEND, EIO, "x"), HR_EEND);
    assert_int_equal(hr_fail_memory(NULL, 1, "x"), HR_EOUT_OF_MEMORY);
    hr_error_in_file(NULL, "x");
    hr_error_in_tensor(NULL, "x", 1);
}

/* The first who knows says it. */
static void test_where(void **state)
{
    struct hr_error err;
    (void)state;
    hr_fail(&err, HR_EIO_ERROR, "x");
    hr_error_in_tensor(&err, "a\nb", 3);
    hr_error_in_tensor(&err, "other", 5);
    hr_error_in_file(&err, "dir/file");
    hr_error_in_file(&err, "other");
    assert_string_equal(err.tensor, "a\\x0ab");
    assert_string_equal(err.file, "dir/file");
}

/* A message stays one line of valid UTF-8 and keeps the reason, whatever goes into it; it may quote itself. */
static void test_message(void **state)
{
    struct hr_error err;
    char long_name[3000];
    (void)state;
    hr_fail(&err, HR_EIO_ERROR, "a\nb\033[31m\xff");
    assert_string_equal(err.message, "a\\x0ab\\x1b[31m\\xff");
    hr_fail(&err, HR_EIO_ERROR, "item 3: %s", err.message);
    assert_string_equal(err.message, "item 3: a\\x0ab\\x1b[31m\\xff");

    for (size_t i = 0; i + 2 < sizeof long_name; i += 2)
        memcpy(long_name + i, "\xc3\xa9", 3);
    hr_fail_sys(&err, HR_EIO_ERROR, EACCES, "cannot open '%s'", long_name);
    assert_non_null(strstr(err.message, "...: Permission denied (errno 13)"));
    assert_in_range(strlen(err.message), sizeof err.message - 3, sizeof err.message - 1);
    assert_int_equal(hr_utf8_valid_prefix((unsigned char *)err.message, strlen(err.message)), strlen(err.message));
    hr_fail(&err, HR_EIO_ERROR, "%s", long_name);
    assert_string_equal(err.message + strlen(err.message) - 3, "...");
    assert_int_equal(hr_utf8_valid_prefix((unsigned char *)err.message, strlen(err.message)), strlen(err.message));
}

static void test_escape(void **state)
{
    static const struct {
        size_t capacity;
        const char *text, *escaped;
    } cases[] = {
        {64, "", ""},
        {64, "model.layers.0", "model.layers.0"},
        {64, "\x01\x7f", "\\x01\\x7f"},
        {64, "a\\b", "a\\b"},
        {64, "\xc3\xa9\xe2\x82\xac", "\xc3\xa9\xe2\x82\xac"},
        {64, "\xc3", "\\xc3"},
        {64, "\xc2\x9b\x31m", "\\xc2\\x9b1m"}, /* a terminal's control sequence in one character */
        {64, "\xc2\xa0", "\xc2\xa0"},
        {64, "\xed\xa0\x80", "\\xed\\xa0\\x80"},
        {8, "1234567", "1234567"},
        {8, "12345678", "1234..."},
        {8, "1234567890", "1234..."},
        {8, "123\xc3\xa9 6", "123\xc3\xa9 6"}, /* seven bytes */
        {8, "123\xc3\xa9 67", "123..."},       /* no half character */
        {8, "12345\x01", "1234..."},           /* no half escape */
        {8, "\x01\x02", "\\x01..."},
        {7, "\x01\x02", "..."},
        {4, "123", "123"},
        {4, "1234", "..."},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[65];
        memset(out, 0x55, sizeof out);
        assert_ptr_equal(hr_escape(out, cases[i].capacity, cases[i].text, strlen(cases[i].text)), out);
        assert_string_equal(out, cases[i].escaped);
        assert_int_equal(out[cases[i].capacity], 0x55);
    }
    char out[16];
    assert_string_equal(hr_escape(out, sizeof out, "a\0b", 3), "a\\x00b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),  cmocka_unit_test(test_fields),  cmocka_unit_test(test_no_object),
        cmocka_unit_test(test_where), cmocka_unit_test(test_message), cmocka_unit_test(test_escape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
