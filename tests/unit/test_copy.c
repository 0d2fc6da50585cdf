/*
 * test_copy.c: hr_copy_past_caches() at every place of a cache line, and nothing beside the target.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/copy.h"

#define ROOM 20000u
#define BESIDE 64u

static void check(size_t target_at, size_t source_at, size_t size)
{
    static unsigned char source[ROOM], target[ROOM], expected[ROOM];
    for (size_t i = 0; i < ROOM; i++)
        source[i] = (unsigned char)(i * 31 + i / 256);
    memset(target, 0xa5, ROOM);
    memset(expected, 0xa5, ROOM);
    memcpy(expected + target_at, source + source_at, size);
    hr_copy_past_caches(target + target_at, source + source_at, size);
    assert_memory_equal(target, expected, ROOM);
}

static void test_places_and_sizes(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 4096 + 63, 4096 + 64, 4096 + 65, 19000};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t at = 0; at <= 64; at++) {
            check(BESIDE + at, BESIDE, sizes[i]);
            check(BESIDE + at, BESIDE + 64 - at, sizes[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places_and_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
