/*
 * test_staging.c: who waits for a slot of the ring is never left behind, a shortage of memory passes, and who takes
 * slots early leaves one to others.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/sys.h"
#include "device/device.h"
#include "engine/staging.h"
#include "support/faults.h"

#define WAITER_COUNT 3

static void *wait_for_slot(void *staging)
{
    hr_staging_wait(staging);
    return NULL;
}

static int join_within(pthread_t thread, time_t seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return pthread_timedjoin_np(thread, NULL, &until);
}

/* A reader whose file is gone by then takes no slot: the others must learn all the same that there is one. */
static void test_waiters_that_take_nothing(void **state)
{
    struct hr_device *device = NULL;
    struct hr_staging *staging = NULL;
    struct hr_staging_slot *slot = NULL, *second = NULL;
    pthread_t waiters[WAITER_COUNT];
    uint64_t grown = 0;
    (void)state;
    assert_int_equal(hr_device_open("cpu", &device, NULL), 0);
    assert_int_equal(hr_staging_new(device, 4096, 1, -1, &staging, NULL), 0);
    assert_int_equal(hr_staging_take(staging, 1, 0, &slot, &grown, NULL), 0);
    assert_int_equal(hr_staging_take(staging, 1, 0, &second, &grown, NULL), 1);
    for (int i = 0; i < WAITER_COUNT; i++)
        assert_int_equal(pthread_create(&waiters[i], NULL, wait_for_slot, staging), 0);
    usleep(50000);
    hr_staging_give(staging, slot);
    for (int i = 0; i < WAITER_COUNT; i++)
        assert_int_equal(join_within(waiters[i], 10), 0);
    hr_staging_free(staging);
}

/* Where memory was short once, the ring is as large as before once it has been given back. */
static void test_shortage_passes(void **state)
{
    struct hr_device *device = NULL;
    struct hr_staging *staging = NULL;
    struct hr_staging_slot *slots[2] = {NULL, NULL};
    uint64_t grown = 0;
    (void)state;
    faults_install();
    assert_int_equal(hr_device_open("cpu", &device, NULL), 0);
    assert_int_equal(hr_staging_new(device, 4096, 2 << 20, -1, &staging, NULL), 0);
    uint64_t bytes_max = hr_staging_bytes_max(staging);
    assert_int_equal(hr_staging_take(staging, 1, 0, &slots[0], &grown, NULL), 0);
    faults_fail_from(FAULT_MEMORY | FAULT_MAP, 1, 0);
    assert_int_equal(hr_staging_take(staging, 1, 0, &slots[1], &grown, NULL), 1);
    faults_fail(0, 0, 0);
    assert_int_equal(hr_staging_take(staging, 1, 0, &slots[1], &grown, NULL), 1);
    hr_staging_give(staging, slots[0]);
    assert_true(hr_staging_trim(staging) > 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hr_staging_take(staging, 1, 0, &slots[i], &grown, NULL), 0);
    assert_int_equal(hr_staging_bytes_max(staging), bytes_max);
    for (int i = 0; i < 2; i++)
        hr_staging_give(staging, slots[i]);
    hr_staging_free(staging);
    faults_assert_nothing_live();
    faults_remove();
}

#define GIVEN_COUNT 7

/* A ring of which others give all slots back, and take early what they may, while it fails to grow. */
static struct {
    struct hr_sys sys;
    struct hr_staging *staging;
    struct hr_staging_slot *given[GIVEN_COUNT], *early[GIVEN_COUNT];
    size_t early_count;
} greedy;

static void *alloc_too_late(size_t bytes)
{
    uint64_t grown = 0;
    (void)bytes;
    greedy.sys.alloc = hr_sys_real.alloc;
    for (int i = 0; i < GIVEN_COUNT; i++)
        hr_staging_give(greedy.staging, greedy.given[i]);
    while (greedy.early_count < GIVEN_COUNT &&
           hr_staging_take(greedy.staging, 1, 1, &greedy.early[greedy.early_count], &grown, NULL) == 0)
        greedy.early_count++;
    return NULL;
}

/* Slots that are being made, and never will be, do not count for those that early takers must leave. */
static void test_early_slots_while_growing(void **state)
{
    struct hr_device *device = NULL;
    struct hr_staging_slot *slot = NULL;
    uint64_t grown = 0;
    (void)state;
    memset(&greedy, 0, sizeof greedy);
    greedy.sys = hr_sys_real;
    hr_sys = &greedy.sys;
    assert_int_equal(hr_device_open("cpu", &device, NULL), 0);
    assert_int_equal(hr_staging_new(device, 4096, 64 << 20, -1, &greedy.staging, NULL), 0);
    for (int i = 0; i < GIVEN_COUNT; i++)
        assert_int_equal(hr_staging_take(greedy.staging, 1, 0, &greedy.given[i], &grown, NULL), 0);
    greedy.sys.alloc = alloc_too_late;
    assert_int_equal(hr_staging_take(greedy.staging, 4, 0, &slot, &grown, NULL), 0);
    assert_int_equal(greedy.early_count, GIVEN_COUNT - 1);
    hr_staging_give(greedy.staging, slot);
    while (greedy.early_count > 0)
        hr_staging_give(greedy.staging, greedy.early[--greedy.early_count]);
    hr_staging_free(greedy.staging);
    hr_sys = &hr_sys_real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiters_that_take_nothing),
        cmocka_unit_test(test_shortage_passes),
        cmocka_unit_test(test_early_slots_while_growing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
