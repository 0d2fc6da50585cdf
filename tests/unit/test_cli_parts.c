/*
 * test_cli_parts.c: what the command is made of and what needs no checkpoint: values of options, the nearest name,
 * characters, tables, the progress line.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "characters.h"
#include "options.h"
#include "output.h"
#include "progress.h"

static void sizes_are_read(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"12B", 12},
                {"4MiB", 4u << 20},
                {"4M", 4u << 20},
                {"4MB", 4000000},
                {"1G", 1u << 30},
                {"1g", 1u << 30},
                {"64KiB", 65536},
                {"500kB", 500000},
                {"2TB", 2000000000000},
                {"1TiB", 1ull << 40},
                {"18446744073709551615", UINT64_MAX},
                {"16777215TiB", 16777215ull << 40}};
    static const char *const bad[] = {"",    "-1",         "+1",   " 1",    "1 ",  "1.5G",
                                      "MiB", "4MiBs",      "0x10", "4 MiB", "1e3", "18446744073709551616",
                                      "nan", "16777216TiB"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bytes = 77;
        assert_int_equal(parse_size(good[i].text, &bytes), 1);
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes;
        assert_int_equal(parse_size(bad[i], &bytes), 0);
    }
}

static void counts_are_read(void **state)
{
    static const char *const bad[] = {"", "-1", "4294967296", "1k", "1.0", " 1"};
    uint32_t count;
    (void)state;
    assert_int_equal(parse_count("0", &count), 1);
    assert_int_equal(count, 0);
    assert_int_equal(parse_count("4294967295", &count), 1);
    assert_true(count == UINT32_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(parse_count(bad[i], &count), 0);
}

static void seconds_are_read(void **state)
{
    static const char *const bad[] = {"", "0", "-1", "1s", "inf", "nan", "1e3", ".", "1.2.3", "99999999999"};
    uint64_t ns;
    (void)state;
    assert_int_equal(parse_seconds("2", &ns), 1);
    assert_true(ns == 2000000000u);
    assert_int_equal(parse_seconds("0.25", &ns), 1);
    assert_true(ns == 250000000u);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(parse_seconds(bad[i], &ns), 0);
}

static const char *name_at(const void *context, size_t index)
{
    return ((const char *const *)context)[index];
}

static void typing_errors_find_the_name(void **state)
{
    static const char *const names[] = {"check", "ls", "load", "queue-depth", NULL};
    (void)state;
    assert_string_equal(nearest_name("chekc", name_at, names), "check");
    assert_string_equal(nearest_name("laod", name_at, names), "load");
    assert_string_equal(nearest_name("queu-depth", name_at, names), "queue-depth");
    assert_null(nearest_name("convert", name_at, names));
    assert_null(nearest_name("a-name-that-is-longer-than-thirty-two-bytes", name_at, names));
}

static void lists_keep_what_is_added(void **state)
{
    struct text_list list = {0};
    static const char texts[100][4];
    (void)state;
    for (size_t i = 0; i < 100; i++)
        text_list_add(&list, texts[i]);
    assert_int_equal(list.count, 100);
    for (size_t i = 0; i < 100; i++)
        assert_ptr_equal(list.texts[i], texts[i]);
    text_list_release(&list);
    assert_int_equal(list.count, 0);
}

static void only_well_formed_characters_have_a_size(void **state)
{
    static const struct {
        const char *text;
        size_t size;
    } cases[] = {{"a", 1},
                 {"\xc3\xa9", 2},
                 {"\xe2\x82\xac", 3},
                 {"\xf0\x9f\x98\x80", 4},
                 {"\x80", 0},
                 {"\xc0\x80", 0},
                 {"\xe0\x80\x80", 0},
                 {"\xed\xa0\x80", 0},
                 {"\xf4\x90\x80\x80", 0},
                 {"\xff", 0},
                 {"\xc3", 0},
                 {"\xe2\x82", 0},
                 {"\xc3"
                  "a",
                  0},
                 {"\xf0\x8f\xbf\xbf", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(utf8_char_size(cases[i].text, strlen(cases[i].text)), cases[i].size);
    assert_int_equal(utf8_columns("a\xc3\xa9\xe2\x82\xac"), 3);
}

static void control_characters_are_escaped(void **state)
{
    (void)state;
    char *text = escape("a\nb\x1b[0m\x7f\0\xff\xc3\xa9", 12);
    assert_string_equal(text, "a\\x0ab\\x1b[0m\\x7f\\x00\\xff\xc3\xa9");
    free(text);
}

static void bytes_are_readable(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},       {1, "1 byte"},          {1023, "1023 bytes"},    {1024, "1.0 KiB"},
                 {1048575, "1.0 MiB"}, {16384000, "15.6 MiB"}, {1ull << 32, "4.0 GiB"}, {UINT64_MAX, "16.0 EiB"}};
    char out[32];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(human_bytes(out, cases[i].bytes), cases[i].text);
}

static void assert_table_prints(struct table *table, const char *expected)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    table_print(table, file);
    fclose(file);
    assert_string_equal(text, expected);
    free(text);
}

static void tables_line_up(void **state)
{
    struct table table;
    (void)state;
    table_init(&table, "lrl");
    for (int i = 0; i < 60; i += 3) {
        table_addf(&table, i ? "n%d" : "\xc3\xa9\xc3\xa9\xc3\xa9%d", i);
        table_addf(&table, "%d", i * i);
        table_addf(&table, "%s", i == 3 ? "" : "x");
    }
    table.cell_count = 9; /* the cells behind were only to make the table grow */
    for (size_t i = 9; i < 60; i++)
        free(table.cells[i]);
    assert_table_prints(&table, "\xc3\xa9\xc3\xa9\xc3\xa9"
                                "0   0  x\n"
                                "n3     9\n"
                                "n6    36  x\n");
    assert_table_prints(&table, "");
}

static void assert_progress(size_t columns, uint64_t done, uint64_t total, uint64_t ns, const char *expected)
{
    struct hr_progress state = {.bytes_done = done, .bytes_total = total, .elapsed_ns = ns};
    char out[256];
    size_t length = progress_format(out, sizeof out, columns, &state);
    assert_string_equal(out, expected);
    assert_int_equal(length, strlen(expected));
    assert_true(length <= columns);
}

static void progress_fits_the_terminal(void **state)
{
    (void)state;
    assert_progress(47, 5000000000u, 10000000000u, 2000000000u, " 50% [#########          ] 2.50 GB/s, 0:02 left");
    assert_progress(38, 5000000000u, 10000000000u, 2000000000u, " 50% [#####     ] 2.50 GB/s, 0:02 left");
    assert_progress(30, 5000000000u, 10000000000u, 2000000000u, " 50% 2.50 GB/s, 0:02 left");
    assert_progress(10, 5000000000u, 10000000000u, 2000000000u, " 50%");
    assert_progress(3, 5000000000u, 10000000000u, 2000000000u, " 50");
    assert_progress(0, 5000000000u, 10000000000u, 2000000000u, "");
    assert_progress(30, 1000000000u, 7201000000000u, 1000000000u, "  0% 1.00 GB/s, 2:00:00 left");
    assert_progress(20, 0, 100, 0, "  0% 0.00 GB/s");
    assert_progress(20, 0, 0, 0, "100% 0.00 GB/s");
}

static void progress_is_silent_without_a_terminal(void **state)
{
    struct progress progress;
    struct hr_progress done = {.bytes_done = 1, .bytes_total = 2, .elapsed_ns = 1};
    (void)state;
    progress_init(&progress);
    progress.is_enabled = 0;
    progress_draw(&progress, &done);
    assert_int_equal(progress.drawn_columns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(counts_are_read),
        cmocka_unit_test(seconds_are_read),
        cmocka_unit_test(typing_errors_find_the_name),
        cmocka_unit_test(lists_keep_what_is_added),
        cmocka_unit_test(only_well_formed_characters_have_a_size),
        cmocka_unit_test(control_characters_are_escaped),
        cmocka_unit_test(bytes_are_readable),
        cmocka_unit_test(tables_line_up),
        cmocka_unit_test(progress_fits_the_terminal),
        cmocka_unit_test(progress_is_silent_without_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
