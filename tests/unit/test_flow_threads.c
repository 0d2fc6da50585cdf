/*
 * test_flow_threads.c: the process's budget of bytes in flight in the hands of many threads: its sum, its queue, the
 * end of waiting, its size as loaders come and go, and a fork in the middle.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sys.h"
#include "engine/flow.h"

#define MIB (UINT64_C(1) << 20)
#define BYTES_MAX (12 * MIB)
#define THREAD_COUNT 16
#define OPERATION_COUNT 200
#define OWN_MAX 4

static atomic_uint_fast64_t in_flight, most_in_flight;
static atomic_int stopping;

static struct hr_flow *flow_make(uint64_t bytes_max)
{
    struct hr_flow *flow = NULL;
    struct hr_error error;
    assert_int_equal(hr_flow_new(bytes_max, &flow, &error), 0);
    return flow;
}

static void short_sleep(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Called while the operation is counted, so the sum never exceeds what is counted. */
static uint64_t started(uint64_t bytes)
{
    uint64_t now = atomic_fetch_add(&in_flight, bytes) + bytes, most = most_in_flight;
    while (now > most && !atomic_compare_exchange_weak(&most_in_flight, &most, now))
        ;
    return hr_sys->clock_ns();
}

static void ended(struct hr_flow *flow, uint64_t bytes, uint64_t started_ns, int succeeded)
{
    atomic_fetch_sub(&in_flight, bytes);
    hr_flow_end(flow, bytes, started_ns, succeeded);
}

/* As a reader does: more as long as it may, else ends its own, and waits only with nothing of its own in flight. */
static void *reader_main(void *argument)
{
    struct hr_flow *flow = argument;
    struct {
        uint64_t bytes, started_ns;
    } own[OWN_MAX];
    for (int own_count = 0, done = 0; done < OPERATION_COUNT || own_count; done++) {
        uint64_t bytes = MIB + (uint64_t)(done % 4) * MIB;
        int wants_more = done < OPERATION_COUNT && own_count < OWN_MAX;
        if (wants_more && (own_count ? hr_flow_begin(flow, bytes) : hr_flow_wait(flow, bytes, NULL))) {
            own[own_count].bytes = bytes;
            own[own_count++].started_ns = started(bytes);
            continue;
        }
        short_sleep();
        own_count--;
        ended(flow, own[own_count].bytes, own[own_count].started_ns, done % 50 != 0);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    struct hr_flow *flows[2] = {flow_make(BYTES_MAX), flow_make(BYTES_MAX / 2)};
    pthread_t threads[THREAD_COUNT];
    uint64_t counted;
    (void)state;
    most_in_flight = 0;
    for (int i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader_main, flows[i % 2]), 0);
    for (int i = 0; i < THREAD_COUNT; i++)
        pthread_join(threads[i], NULL);
    assert_true(most_in_flight <= BYTES_MAX && most_in_flight > 4 * MIB);
    assert_true(hr_flow_limit(flows[0], &counted) <= BYTES_MAX);
    assert_int_equal(counted, 0);
    hr_flow_free(flows[0]);
    hr_flow_free(flows[1]);
}

static void *waiter_main(void *argument)
{
    return hr_flow_wait(argument, 8 * MIB, &stopping) ? argument : NULL;
}

/* Who waits is served before those who try, also small ones; one operation is allowed whatever its size. */
static void test_queue(void **state)
{
    struct hr_flow *flow = flow_make(BYTES_MAX);
    pthread_t thread;
    void *result;
    (void)state;
    stopping = 0;
    assert_int_equal(hr_flow_begin(flow, 100 * BYTES_MAX), 1);
    assert_int_equal(hr_flow_begin(flow, 1), 0);
    hr_flow_end(flow, 100 * BYTES_MAX, hr_sys->clock_ns(), 1);
    assert_int_equal(hr_flow_begin(flow, 8 * MIB), 1);
    assert_int_equal(pthread_create(&thread, NULL, waiter_main, flow), 0);
    while (hr_flow_begin(flow, 1)) { /* until the other thread waits */
        hr_flow_end(flow, 1, hr_sys->clock_ns(), 1);
        short_sleep();
    }
    hr_flow_end(flow, 8 * MIB, hr_sys->clock_ns(), 1);
    pthread_join(thread, &result);
    assert_ptr_equal(result, flow);
    assert_int_equal(hr_flow_begin(flow, 1), 1);
    hr_flow_end(flow, 1, hr_sys->clock_ns(), 1);
    hr_flow_end(flow, 8 * MIB, hr_sys->clock_ns(), 1);
    hr_flow_free(flow);
}

/* Waiting ends when its load does, though what others have in flight hangs; those behind in the queue come through. */
static void test_stopping(void **state)
{
    struct hr_flow *flow = flow_make(BYTES_MAX);
    pthread_t threads[4];
    void *result;
    uint64_t counted;
    (void)state;
    stopping = 0;
    assert_int_equal(hr_flow_begin(flow, 8 * MIB), 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, waiter_main, flow), 0);
    short_sleep();
    stopping = 1;
    hr_flow_wake(flow);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    assert_int_equal(hr_flow_begin(flow, MIB), 1);
    hr_flow_limit(flow, &counted);
    assert_int_equal(counted, 9 * MIB);
    hr_flow_end(flow, MIB, hr_sys->clock_ns(), 1);
    hr_flow_end(flow, 8 * MIB, hr_sys->clock_ns(), 0);
    hr_flow_free(flow);
}

/* The budget is as large as the largest share, and small again when that has left. */
static void test_shares(void **state)
{
    struct hr_flow *small = flow_make(2 * MIB);
    uint64_t counted;
    (void)state;
    assert_int_equal(hr_flow_limit(small, &counted), 2 * MIB);
    struct hr_flow *large = flow_make(0);
    assert_int_equal(hr_flow_begin(large, 2 * MIB), 1);
    hr_flow_free(small);
    small = flow_make(2 * MIB);
    hr_flow_end(large, 2 * MIB, hr_sys->clock_ns(), 1);
    hr_flow_free(large);
    assert_int_equal(hr_flow_limit(small, &counted), 2 * MIB);
    hr_flow_free(small);
    hr_flow_free(NULL);
}

#ifndef HEADRACE_TSAN /* forks of threads are nothing for it */
/* The parent's share is in use when the process forks: the child drops it and has a budget of its own. */
static int child_main(struct hr_flow *inherited)
{
    struct hr_flow *flow = NULL;
    struct hr_error error;
    uint64_t counted;
    hr_flow_free(inherited);
    if (hr_flow_new(BYTES_MAX, &flow, &error))
        return 1;
    hr_flow_limit(flow, &counted);
    if (counted || !hr_flow_wait(flow, BYTES_MAX, NULL) || hr_flow_begin(flow, 1))
        return 2;
    hr_flow_end(flow, BYTES_MAX, hr_sys->clock_ns(), 1);
    hr_flow_free(flow);
    return 0;
}

static void test_fork(void **state)
{
    struct hr_flow *flow = flow_make(BYTES_MAX);
    pthread_t threads[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader_main, flow), 0);
    for (int i = 0; i < 20; i++) {
        int status = -1;
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            alarm(20);
            _exit(child_main(flow));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    hr_flow_free(flow);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads), cmocka_unit_test(test_queue),
        cmocka_unit_test(test_stopping),     cmocka_unit_test(test_shares),
#ifndef HEADRACE_TSAN
        cmocka_unit_test(test_fork),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
