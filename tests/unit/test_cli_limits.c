/*
 * test_cli_limits.c: entries of the limits file to JSON and back, and JSON that is not what the command writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "limits_file.h"

static struct json_input input_of(const char *text)
{
    return (struct json_input){.text = text, .size = strlen(text)};
}

/* Another value in each member that is kept; what stands in no member of the file stays 0. */
static void fill(struct limits_entry *entry)
{
    struct hr_limits *limits = &entry->limits;
    memset(entry, 0, sizeof *entry);
    snprintf(entry->host, sizeof entry->host, "a \"host\" \\ of\ttabs\x01 and \xc3\xa4");
    memset(entry->path, 'p', sizeof entry->path - 1);
    limits->size = sizeof *limits;
    limits->time = 1795987219;
    limits->device.type = HR_DEVICE_CUDA;
    limits->device.ordinal = 3;
    snprintf(limits->device.name, sizeof limits->device.name, "NVIDIA");
    snprintf(limits->device.uuid, sizeof limits->device.uuid, "GPU-1");
    snprintf(limits->device.pci, sizeof limits->device.pci, "0000:1b:00.0");
    limits->device.memory_bytes = UINT64_MAX;
    limits->core_count = UINT32_MAX;
    limits->page_cache_threads = 7;
    limits->memory_copy = 1;
    limits->page_cache = 2;
    limits->page_cache_fresh = 3;
    limits->storage = 4;
    for (uint64_t i = 0; i < HR_PROBE_SIZE_COUNT; i++) {
        limits->to_device_sizes[i] = 10 + i;
        limits->to_device[i] = 20 + i;
    }
    limits->from_device = 5;
    limits->page_cache_to_device = 6;
    limits->pin = 8;
    snprintf(limits->page_cache_detail, sizeof limits->page_cache_detail, "one");
    memset(limits->storage_detail, 'd', sizeof limits->storage_detail - 1);
}

static void entries_come_back(void **state)
{
    static struct limits_entry entry, found;
    char *text = NULL;
    size_t size = 0;
    (void)state;
    fill(&entry);
    struct json json = {.file = open_memstream(&text, &size)};
    limits_print(&json, NULL, &entry);
    fclose(json.file);
    struct json_input input = {.text = text, .size = size};
    assert_int_equal(limits_parse(&input, &found), 1);
    assert_int_equal(input.at, size);
    assert_memory_equal(&found, &entry, sizeof entry);
    for (size_t cut = 0; cut < size; cut++) { /* every text that is cut off is seen to be */
        struct json_input short_input = {.text = text, .size = cut};
        assert_int_equal(limits_parse(&short_input, &found), 0);
        assert_true(short_input.at <= cut);
    }
    free(text);
}

static void what_is_no_entry_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "{\"host\":\"a\"}",
        "{\"host\":\"\",\"time\":1}",
        "{\"host\":\"a\",\"time\":-1}",
        "{\"host\":\"a\",\"time\":18446744073709551616}",
        "{\"host\":\"a\",\"time\":9223372036854775808}",
        "{\"host\":\"a\",\"time\":\"1\"}",
        "{\"host\":1,\"time\":1}",
        "{\"host\":\"a\" \"time\":1}",
        "{\"host\":\"a\",\"time\":1,}",
        "{\"host\":\"a\",\"time\":1,\"cores\":4294967296}",
        "{\"host\":\"a\",\"time\":1,\"to_device\":[1,2,3]}",
        "{\"host\":\"a\",\"time\":1,\"to_device\":[1,2,3,4,5]}",
        "{\"host\":\"a\",\"time\":1,\"device_pci\":\"01234567890123456789012345678901\"}",
        "{\"host\":\"\\u0000\",\"time\":1}",
        "{\"host\":\"\\u00e4\",\"time\":1}",
        "{\"host\":\"\\x\",\"time\":1}",
        ("{\"host\":\"a\",\"time\":1,\"new\":"
         "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}"),
        "{\"host\":\"a\",\"time\":1,\"new\":[1 2]}",
        "{\"host\":\"a\",\"time\":1,\"new\":{\"a\":}}",
        "{\"host\":\"a\",\"time\":1,\"new\":what}",
    };
    static struct limits_entry found;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct json_input input = input_of(bad[i]);
        if (limits_parse(&input, &found))
            fail_msg("taken: %s", bad[i]);
    }
}

static void what_is_not_known_is_passed_over(void **state)
{
    static const char text[] =
        " { \"new\" : {\"a\":[1,-2.5e3,{}, []],\"b\":null} , \"host\":\"a\",\"more\":\"x\\\"\\u001f\","
        "\"time\":5,\"yes\":true,\"no\":false,\"path\":null}";
    static struct limits_entry found;
    struct json_input input = input_of(text);
    (void)state;
    assert_int_equal(limits_parse(&input, &found), 1);
    assert_string_equal(found.host, "a");
    assert_string_equal(found.path, "");
    assert_int_equal(found.limits.time, 5);
    assert_int_equal(found.limits.size, sizeof found.limits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(entries_come_back),
                                       cmocka_unit_test(what_is_no_entry_is_refused),
                                       cmocka_unit_test(what_is_not_known_is_passed_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
