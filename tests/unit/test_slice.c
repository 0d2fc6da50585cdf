/*
 * test_slice.c: slice expressions against what numpy takes (slice_cases.inc), and refusals with their positions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/headrace.h>

struct slice_case {
    const char *text;
    uint32_t rank;
    uint64_t shape[4];
    int refused;
    uint64_t result[4]; /* shape, integers as dimensions of one */
    uint32_t hash;      /* of the elements' numbers, in order */
};

static const struct slice_case cases[] = {
#include "support/slice_cases.inc"
};

static struct hr_tensor tensor_of(uint32_t rank, const uint64_t *shape)
{
    return (struct hr_tensor){.name = "w", .name_size = 1, .dtype = HR_DTYPE_U8, .rank = rank, .shape = shape};
}

/* Elements of the ranges in row-major order; `element` is the number of the outer ones. */
static void hash_elements(const struct slice_case *c, const struct hr_range *ranges, uint32_t d, uint64_t element,
                          uint32_t *hash)
{
    if (d == c->rank) {
        *hash = *hash * 31 + (uint32_t)element + 1;
        return;
    }
    for (uint64_t i = ranges[d].start; i < ranges[d].stop; i += ranges[d].step) {
        hash_elements(c, ranges, d + 1, element * c->shape[d] + i, hash);
        if (ranges[d].step >= ranges[d].stop - i)
            break;
    }
}

static void test_as_numpy(void **state)
{
    size_t taken_count = 0, refused_count = 0;
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        const struct slice_case *c = &cases[n];
        struct hr_tensor tensor = tensor_of(c->rank, c->shape);
        struct hr_range ranges[5];
        struct hr_error err = {.message = ""};
        uint32_t hash = 0;
        memset(ranges, 0x5a, sizeof ranges);
        int code = hr_slice_parse(c->text, &tensor, ranges, &err);
        if (code != (c->refused ? HR_EINVALID_ARGUMENT : 0))
            fail_msg("'%s' of rank %u: code %d, %s", c->text, c->rank, code, err.message);
        for (uint32_t d = code ? 0 : c->rank; d < 5; d++) /* nothing is written on failure or beyond the rank */
            assert_int_equal(ranges[d].start, 0x5a5a5a5a5a5a5a5a);
        refused_count += code != 0;
        taken_count += code == 0;
        if (code)
            continue;
        for (uint32_t d = 0; d < c->rank; d++) {
            assert_true(ranges[d].start <= ranges[d].stop && ranges[d].stop <= c->shape[d] && ranges[d].step > 0);
            uint64_t length = ranges[d].stop - ranges[d].start;
            uint64_t count = length ? (length - 1) / ranges[d].step + 1 : 0;
            if (count != c->result[d])
                fail_msg("'%s': dimension %u has %llu elements", c->text, d, (unsigned long long)count);
        }
        hash_elements(c, ranges, 0, 0, &hash);
        if (hash != c->hash)
            fail_msg("'%s' of rank %u takes other elements than numpy", c->text, c->rank);
    }
    assert_true(taken_count > 800 && refused_count > 200);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *part;
    } refusals[] = {
        {"", "ends at position 0"},
        {"   ", "ends at position 3"},
        {"[]", "at position 1 stands ']'"},
        {"[", "ends at position 1"},
        {"[1", "ends at position 2, where ',', ':' or ']' must stand"},
        {"1]", "at position 1 stands ']'"},
        {"[1]]", "at position 3 stands ']', where the end must stand"},
        {"[1] 2", "at position 4 stands '2'"},
        {"[[1]]", "at position 1 stands '[1]]'"},
        {",", "at position 0 stands ','"},
        {"1,,2", "at position 2 stands ',2'"},
        {"1 2", "at position 2 stands '2'"},
        {"::0", "the step at position 2 is zero"},
        {"::-0", "the step at position 2 is zero"},
        {"0:3:-1", "the step at position 4 is negative"},
        {":, :: -99999999999999999999999", "the step at position 6 is negative"},
        {"::1:", "at position 3 stands ':'"},
        {"..., ...", "a second '...' stands at position 5"},
        {"1, 2, 3, 4", "the entry at position 9 is one too many; the tensor has 3"},
        {"1, ..., 2, 3, 4", "the entry at position 14 is one too many"},
        {"2, 0, 0", "the integer at position 0 is out of range: dimension 0 has 2"},
        {"0, ..., -5", "the integer at position 8 is out of range: dimension 2 has 4"},
        {"18446744073709551616", "the integer at position 0 is out of range"},
        {"..", "at position 0 stands '..'"},
        {"....", "at position 3 stands '.'"},
        {"1.0", "at position 1 stands '.0'"},
        {"1e3", "at position 1 stands 'e3'"},
        {"0x10", "at position 1 stands 'x10'"},
        {"--1", "at position 1 stands '-1', where a digit must stand"},
        {"-", "ends at position 1, where a digit must stand"},
        {"1:-", "ends at position 3, where a digit must stand"},
        {"None", "at position 0 stands 'None'"},
        {"a", "at position 0 stands 'a'"},
        {"1\x01", "at position 1 stands '\\x01'"},
        {"\xff", "at position 0 stands '\\xff'"},
        {"1;this is a long text that is cut in messages", "..."},
    };
    static const uint64_t shape[3] = {2, 3, 4};
    (void)state;
    struct hr_tensor tensor = tensor_of(3, shape);
    for (size_t n = 0; n < sizeof refusals / sizeof refusals[0]; n++) {
        struct hr_range ranges[3] = {{7, 8, 9}, {7, 8, 9}, {7, 8, 9}};
        struct hr_error err = {.message = ""};
        assert_int_equal(hr_slice_parse(refusals[n].text, &tensor, ranges, NULL), HR_EINVALID_ARGUMENT);
        assert_int_equal(hr_slice_parse(refusals[n].text, &tensor, ranges, &err), HR_EINVALID_ARGUMENT);
        if (!strstr(err.message, refusals[n].part))
            fail_msg("'%s': %s", refusals[n].text, err.message);
        assert_string_equal(err.tensor, "w");
        assert_int_equal(ranges[0].start + ranges[1].start + ranges[2].start, 21);
    }
    struct hr_range ranges[3];
    assert_int_equal(hr_slice_parse(NULL, &tensor, ranges, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_slice_parse(":", NULL, ranges, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_slice_parse(":", &tensor, NULL, NULL), HR_EINVALID_ARGUMENT);
}

/* Many dimensions need no memory of ours. */
static void test_many_dimensions(void **state)
{
    enum { RANK = 300 };
    (void)state;
    uint64_t shape[RANK];
    struct hr_range ranges[RANK];
    for (int d = 0; d < RANK; d++)
        shape[d] = (uint64_t)d + 1;
    struct hr_tensor tensor = tensor_of(RANK, shape);
    assert_int_equal(hr_slice_parse("..., -1", &tensor, ranges, NULL), 0);
    assert_int_equal(ranges[RANK - 1].start, RANK - 1);
    assert_int_equal(ranges[RANK - 2].stop, RANK - 1);
    assert_int_equal(ranges[0].stop, 1);
}

/* A tensor without elements may have an extent of 64 set bits, which what does not fit 64 bits must not pass for. */
static void test_largest_extent(void **state)
{
    static const uint64_t shape[2] = {0, UINT64_MAX};
    (void)state;
    struct hr_tensor tensor = tensor_of(2, shape);
    struct hr_range ranges[2];
    assert_int_equal(hr_slice_parse(":, -18446744073709551615", &tensor, ranges, NULL), 0);
    assert_true(ranges[1].start == 0 && ranges[1].stop == 1);
    assert_int_equal(hr_slice_parse(":, -18446744073709551616", &tensor, ranges, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_slice_parse(":, 18446744073709551615", &tensor, ranges, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_slice_parse(":, -18446744073709551616:18446744073709551616", &tensor, ranges, NULL), 0);
    assert_true(ranges[1].start == 0 && ranges[1].stop == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_numpy),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_many_dimensions),
        cmocka_unit_test(test_largest_extent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
