/*
 * test_sniff.c: what a file is called when it is not safetensors, and that nothing that may be one is called else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "format/sniff.h"

#define SNIFF(literal) hr_sniff((const unsigned char *)(literal), sizeof(literal) - 1)

static void says(const char *what, const char *expected)
{
    assert_non_null(what);
    if (!strstr(what, expected))
        print_error("'%s' does not say '%s'\n", what, expected);
    assert_non_null(strstr(what, expected));
}

static void test_known(void **state)
{
    (void)state;
    says(SNIFF("<!DOCTYPE HTML><html>"), "HTML");
    says(SNIFF("\xef\xbb\xbf\r\n <Html>"), "HTML");
    says(SNIFF("<?xml version=\"1.0\"?>"), "XML");
    says(SNIFF("version https://git-lfs.github.com/spec/v1\noid"), "git lfs pull");
    says(SNIFF("PK\x03\x04\x14\0\0\0\0\0\0\0"), "ZIP");
    says(SNIFF("\x80\x02}q\0(X"), "pickle");
    says(SNIFF("\x80\x05\x95\0\0\0\0"), "pickle");
    says(SNIFF("GGUF\3\0\0\0"), "GGUF");
    says(SNIFF("\x1f\x8b\x08\0\0\0\0\0\0\3"), "gzip");
    says(SNIFF("\x89HDF\r\n\x1a\n"), "HDF5");
    says(SNIFF("\x93NUMPY\1\0"), "numpy");
    says(SNIFF("\x7f\x45LF\2\1\1"), "ELF");
    says(SNIFF("{\"weight_map\":{}}"), ".index.json");
    says(SNIFF("Not Found"), "text");
}

static void test_unknown(void **state)
{
    (void)state;
    assert_null(SNIFF(""));
    assert_null(SNIFF("\x02\0\0\0\0\0\0\0{}"));
    assert_null(SNIFF("\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"));
    assert_null(SNIFF("\x80\x02\xff\xff"));
    assert_null(SNIFF("abcdefgh\0\1\2\3"));
    /* Lengths that look like another format's first bytes, with a header behind. */
    assert_null(SNIFF("\x1f\x8b\x08\0\0\0\0\0{\"a\""));
    assert_null(SNIFF("\x80\x02}\0\0\0\0\0 {\"a\""));
}

static void test_refine(void **state)
{
    (void)state;
    static const unsigned char page[] = "<html><body>";
    struct hr_error err;
    hr_fail(&err, HR_EHEADER_TOO_LARGE, "too large");
    assert_int_equal(hr_sniff_refine(HR_EHEADER_TOO_LARGE, page, sizeof page - 1, 1, &err), HR_ENOT_SAFETENSORS);
    assert_int_equal(err.code, HR_ENOT_SAFETENSORS);
    says(err.message, "HTML");
    hr_fail(&err, HR_EHEADER_TOO_LARGE, "too large");
    assert_int_equal(hr_sniff_refine(HR_EHEADER_TOO_LARGE, page, sizeof page - 1, 0, &err), HR_EHEADER_TOO_LARGE);
    assert_int_equal(err.code, HR_EHEADER_TOO_LARGE);
    says(err.message, "too large");
    says(err.message, "HTML");
    assert_int_equal(hr_sniff_refine(HR_EOUT_OF_MEMORY, page, sizeof page - 1, 1, NULL), HR_EOUT_OF_MEMORY);
    assert_int_equal(hr_sniff_refine(HR_EINVALID_HEADER, page, sizeof page - 1, 1, NULL), HR_ENOT_SAFETENSORS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_unknown),
                                       cmocka_unit_test(test_refine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
