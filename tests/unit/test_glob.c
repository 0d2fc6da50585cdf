/*
 * test_glob.c: a table of patterns, and a pattern that would take for ever with more than one point of return.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/glob.h"

static const struct {
    const char *pattern, *text;
    int matches;
} cases[] = {
    {"", "", 1},
    {"", "a", 0},
    {"*", "", 1},
    {"*", "model.layers.0/weight", 1},
    {"**", "", 1},
    {"**a", "a", 1},
    {"abc", "abc", 1},
    {"abc", "ab", 0},
    {"ab", "abc", 0},
    {"ABC", "abc", 0},
    {"*.weight", "a.b.weight", 1},
    {"*.weight", "a.b.weights", 0},
    {"*.experts.3.*", "m.experts.3.up", 1},
    {"*.experts.3.*", "m.experts.31.up", 0},
    {"a*b*c", "axxbyybzzc", 1},
    {"a*b*c", "axxbyybzz", 0},
    {"*ab", "aab", 1},
    {"*aab*", "aaab", 1},
    {"a*", "", 0},
    {"?", "", 0},
    {"?", "a", 1},
    {"?", "ab", 0},
    {"a?c", "abc", 1},
    {"?*", "", 0},
    {"*?", "a", 1},
    /* characters, not bytes */
    {"?", "\xc3\xa9", 1},
    {"??", "\xc3\xa9", 0},
    {"*??", "\xf0\x9f\x98\x80", 0},
    {"*?", "\xf0\x9f\x98\x80", 1},
    {"\xc3\xa9*", "\xc3\xa9t\xc3\xa9", 1},
    {"[\xc3\xa9x]", "\xc3\xa9", 1},
    {"[\xc3\xa9x]", "\xc3\xa8", 0},
    {"[!a]", "\xc3\xa9", 1},
    {"[\xc3\xa0-\xc3\xbf]", "\xc3\xa9", 1},
    {"[a-z]", "\xc3\xa9", 0},
    {"[\xce\xb1-\xcf\x89]?", "\xce\xb2\xc3\xa9", 1},
    /* bytes that are no UTF-8 are characters of their own */
    {"?", "\xff", 1},
    {"\xff", "\xff", 1},
    {"\xff", "\xfe", 0},
    {"??", "\xc3\xc3", 1},
    {"[\x01-\x7f]", "\xff", 0},
    /* sets */
    {"[abc]", "b", 1},
    {"[abc]", "d", 0},
    {"[abc]", "", 0},
    {"[a-c]x", "bx", 1},
    {"[a-c]x", "dx", 0},
    {"[!a-c]", "d", 1},
    {"[!a-c]", "b", 0},
    {"[^a-c]", "d", 1},
    {"[a-cx-z0]", "y", 1},
    {"[a-cx-z0]", "0", 1},
    {"[a-cx-z0]", "m", 0},
    {"[]]", "]", 1},
    {"[]a]", "a", 1},
    {"[!]]", "]", 0},
    {"[!]]", "a", 1},
    {"[a-]", "-", 1},
    {"[-a]", "-", 1},
    {"[z-a]", "m", 0},
    {"[\\]]", "]", 1},
    {"[\\]]", "\\", 0},
    {"[a\\-c]", "b", 0},
    {"[a\\-c]", "-", 1},
    {"[+-\\]]", ",", 1},
    {"*[0-9]", "layer9", 1},
    {"*[0-9]", "layer", 0},
    /* sets that are not closed are text */
    {"[", "[", 1},
    {"[abc", "[abc", 1},
    {"[abc", "a", 0},
    {"[]", "[]", 1},
    {"[!", "[!", 1},
    {"[a-", "[a-", 1},
    /* quoting */
    {"\\*", "*", 1},
    {"\\*", "a", 0},
    {"\\?", "?", 1},
    {"\\[a]", "[a]", 1},
    {"\\\\", "\\", 1},
    {"a\\", "a\\", 1},
    {"\\a", "a", 1},
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (hr_glob_match(cases[i].pattern, cases[i].text, strlen(cases[i].text)) != cases[i].matches)
            fail_msg("'%s' against '%s' must give %d", cases[i].pattern, cases[i].text, cases[i].matches);
}

/* The text ends where its size says: it may hold NUL, and what lies behind it does not count. */
static void test_size_rules(void **state)
{
    (void)state;
    assert_int_equal(hr_glob_match("a?b", "a\0b", 3), 1);
    assert_int_equal(hr_glob_match("a*", "a\0b", 3), 1);
    assert_int_equal(hr_glob_match("a", "a\0b", 3), 0);
    assert_int_equal(hr_glob_match("a", "ab", 1), 1);
    assert_int_equal(hr_glob_match("?", "\xc3\xa9", 1), 1); /* half a character */
}

static void test_no_blow_up(void **state)
{
    static char text[20000];
    (void)state;
    memset(text, 'a', sizeof text);
    assert_int_equal(hr_glob_match("a*a*a*a*a*a*a*a*a*a*a*a*b", text, sizeof text), 0);
    assert_int_equal(hr_glob_match("a*a*a*a*a*a*a*a*a*a*a*a*a", text, sizeof text), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_size_rules),
        cmocka_unit_test(test_no_blow_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
