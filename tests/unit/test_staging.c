/*
 * test_staging.c: who waits for a slot of the ring is never left behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "device/device.h"
#include "engine/staging.h"

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
    assert_int_equal(hr_staging_take(staging, 1, &slot, &grown, NULL), 0);
    assert_int_equal(hr_staging_take(staging, 1, &second, &grown, NULL), 1);
    for (int i = 0; i < WAITER_COUNT; i++)
        assert_int_equal(pthread_create(&waiters[i], NULL, wait_for_slot, staging), 0);
    usleep(50000);
    hr_staging_give(staging, slot);
    for (int i = 0; i < WAITER_COUNT; i++)
        assert_int_equal(join_within(waiters[i], 10), 0);
    hr_staging_free(staging);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiters_that_take_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
