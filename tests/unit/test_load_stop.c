/*
 * test_load_stop.c: loads that end before their time, by cancel, by deadline or by being freed, and what they tell
 * while they run: progress and statistics.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/fake_storage.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define TENSOR_BYTES (100 * KIB)
#define TENSOR_COUNT 60
#define MS UINT64_C(1000000)

static struct test_model equal; /* 60 of 100 KiB in 4 files */

static int setup(void **state)
{
    (void)state;
    model_equal(&equal, "equal", TENSOR_COUNT, TENSOR_BYTES, 15);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&equal);
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

/* -------------------------------------------------------------------------------- cancel, deadline */

static void slow_storage(uint64_t delay_ns)
{
    struct fake_storage slow = {.seed = 1, .delay_ns = delay_ns};
    fake_storage_install(&slow);
}

static struct hr_loader *slow_loader(uint32_t route)
{
    struct hr_loader_options options = {
        .size = sizeof options, .route = route, .thread_count = 2, .chunk_bytes = 64 * KIB, .queue_depth = 4};
    return loader_make(&options);
}

/* After `cancelled`: what is ready stays, the rest says so, and the load ends promptly. */
static void check_cancelled(struct hr_load *load)
{
    struct hr_error err = {0};
    size_t index, count = 0;
    int code;
    while ((code = hr_load_next(load, &index, &err)) == 0) {
        check_item(load, index, &equal);
        count++;
    }
    assert_code(code, HR_ECANCELLED);
    assert_true(count < TENSOR_COUNT);
    assert_code(hr_load_wait_all(load, &err), HR_ECANCELLED);
    hr_load_cancel(load); /* again: nothing more */
}

static void test_cancel(void **state)
{
    (void)state;
    slow_storage(30 * MS);
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_URING; route++)
        for (uint32_t sequential = 0; sequential < 2; sequential++)
            for (uint32_t waits = 0; waits < 2; waits++) {
                struct hr_error err = {0};
                struct hr_load_options options = {.size = sizeof options, .sequential = sequential};
                if (route == HR_ROUTE_URING && !uring_usable())
                    continue;
                struct hr_loader *loader = slow_loader(route);
                struct hr_load *load = load_model(loader, &equal, &options);
                uint64_t from = now_ns();
                if (waits)
                    assert_ok(hr_load_wait(load, 50, &err), err);
                hr_load_cancel(load);
                check_cancelled(load);
                if (waits)
                    check_item(load, 50, &equal);
                hr_load_free(load);
                assert_true(now_ns() - from < 1000 * MS); /* all of it takes 3.6 s of reads */
                hr_loader_free(loader);
            }
    fake_storage_remove();
}

static void test_cancel_afterwards(void **state)
{
    struct hr_error err = {0};
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, &equal, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    hr_load_cancel(load);
    assert_ok(hr_load_wait_all(load, &err), err);
    size_t index, count = 0;
    while (hr_load_next(load, &index, NULL) == 0)
        check_item(load, index, &equal), count++;
    assert_int_equal(count, TENSOR_COUNT);
    hr_load_free(load);
    hr_loader_free(loader);
}

struct waiter {
    struct hr_load *load;
    size_t number;
    const char *failure;
};

/* Waiters on other threads come back when one cancels; only then the load may be freed. */
static void *wait_to_fail(void *argument)
{
    struct waiter *waiter = argument;
    struct hr_error err = {0};
    int code = waiter->number % 2 ? hr_load_wait(waiter->load, 59 - waiter->number, &err)
                                  : hr_load_wait_all(waiter->load, &err);
    if (code != HR_ECANCELLED || err.code != code)
        waiter->failure = hr_error_kind(code);
    return NULL;
}

static void test_cancel_wakes_waiters(void **state)
{
    (void)state;
    slow_storage(50 * MS);
    for (uint32_t sequential = 0; sequential < 2; sequential++) {
        struct hr_load_options options = {.size = sizeof options, .sequential = sequential, .window_bytes = 1};
        struct hr_loader *loader = slow_loader(HR_ROUTE_PREAD);
        struct hr_load *load = load_model(loader, &equal, &options);
        struct waiter waiters[4];
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++) {
            waiters[i] = (struct waiter){.load = load, .number = i};
            pthread_create(&threads[i], NULL, wait_to_fail, &waiters[i]);
        }
        usleep(20000);
        hr_load_cancel(load);
        for (size_t i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            if (waiters[i].failure)
                fail_msg("a waiter got %s", waiters[i].failure);
        }
        hr_load_free(load);
        hr_loader_free(loader);
    }
    fake_storage_remove();
}

static void test_free_at_once(void **state)
{
    (void)state;
    slow_storage(20 * MS);
    for (uint32_t route = HR_ROUTE_AUTO; route <= HR_ROUTE_MMAP; route++) {
        if (route == HR_ROUTE_URING && !uring_usable())
            continue;
        struct hr_loader *loader = slow_loader(route);
        uint64_t from = now_ns();
        hr_load_free(load_model(loader, &equal, NULL));
        assert_true(now_ns() - from < 1000 * MS);
        hr_loader_free(loader);
    }
    hr_load_free(NULL);
    fake_storage_remove();
}

struct progress_log {
    unsigned count, cancel_at;
    uint64_t last_bytes;
    size_t last_items;
    int went_back;
};

static int log_progress(void *context, const struct hr_progress *progress)
{
    struct progress_log *log = context;
    log->went_back |= progress->bytes_done < log->last_bytes || progress->item_done < log->last_items;
    log->went_back |= progress->bytes_done > progress->bytes_total || progress->item_done > progress->item_count;
    log->last_bytes = progress->bytes_done;
    log->last_items = progress->item_done;
    return ++log->count == log->cancel_at;
}

static void test_progress(void **state)
{
    (void)state;
    slow_storage(10 * MS);
    for (uint32_t sequential = 0; sequential < 2; sequential++)
        for (unsigned cancel_at = 0; cancel_at < 4; cancel_at += 3) {
            struct hr_error err = {0};
            struct progress_log log = {.cancel_at = cancel_at};
            struct hr_load_options options = {.size = sizeof options,
                                              .sequential = sequential,
                                              .progress = log_progress,
                                              .progress_context = &log,
                                              .progress_ns = 20 * MS};
            struct hr_loader *loader = slow_loader(HR_ROUTE_PREAD);
            struct hr_load *load = load_model(loader, &equal, &options);
            uint64_t from = now_ns();
            assert_code(hr_load_wait_all(load, &err), cancel_at ? HR_ECANCELLED : 0);
            uint64_t turns = (now_ns() - from) / (20 * MS);
            assert_false(log.went_back);
            if (cancel_at)
                assert_int_equal(log.count, 3);
            else
                assert_true(log.count >= 5 && log.count <= turns);
            hr_load_free(load);
            hr_loader_free(loader);
        }
    fake_storage_remove();
}

/* A report that is always due again must not keep a waiting thread from the reading that is its own. */
static void test_progress_without_pause(void **state)
{
    (void)state;
    for (uint32_t sequential = 0; sequential < 2; sequential++) {
        struct hr_error err = {0};
        struct progress_log log = {0};
        struct hr_load_options options = {.size = sizeof options,
                                          .sequential = sequential,
                                          .progress = log_progress,
                                          .progress_context = &log,
                                          .progress_ns = 1};
        struct hr_loader *loader = loader_make(NULL);
        struct hr_load *load = load_model(loader, &equal, &options);
        for (size_t i = 0; i < TENSOR_COUNT; i++)
            assert_ok(hr_load_wait(load, i, &err), err);
        check_all_items(load, &equal);
        assert_true(log.count >= TENSOR_COUNT && !log.went_back);
        hr_load_free(load);
        hr_loader_free(loader);
    }
}

static void test_deadline(void **state)
{
    (void)state;
    slow_storage(40 * MS);
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_URING; route++)
        for (uint32_t sequential = 0; sequential < 2; sequential++) {
            struct hr_error err = {0};
            struct hr_load_options options = {
                .size = sizeof options, .sequential = sequential, .deadline_ns = 150 * MS};
            if (route == HR_ROUTE_URING && !uring_usable())
                continue;
            struct hr_loader *loader = slow_loader(route);
            struct hr_load *load = load_model(loader, &equal, &options);
            uint64_t from = now_ns();
            assert_code(hr_load_wait_all(load, &err), HR_EDEADLINE_EXCEEDED);
            assert_true(now_ns() - from >= 100 * MS);
            assert_true(now_ns() - from < 400 * MS);
            assert_int_equal(err.code, HR_EDEADLINE_EXCEEDED);
            hr_load_free(load);
            assert_true(now_ns() - from < 1000 * MS);
            hr_loader_free(loader);
        }
    fake_storage_remove();
}

/* Storage that does not answer: the error names which read it is that did not come back. */
static void test_hanging_storage(void **state)
{
    (void)state;
    slow_storage(1600 * MS);
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_URING; route++) {
        struct hr_error err = {0};
        struct hr_load_options options = {.size = sizeof options, .deadline_ns = 1300 * MS};
        if (route == HR_ROUTE_URING && !uring_usable())
            continue;
        struct hr_loader *loader = slow_loader(route);
        struct hr_load *load = load_model(loader, &equal, &options);
        assert_code(hr_load_wait_all(load, &err), HR_EDEADLINE_EXCEEDED);
        assert_non_null(strstr(err.message, "does not answer"));
        assert_true(strlen(err.file) > 0);
        assert_int_not_equal(err.offset, HR_NO_OFFSET);
        hr_load_free(load);
        hr_loader_free(loader);
    }
    fake_storage_remove();
}

/* Deadlines that are met, however far away, change nothing and cost no time of the processor. */
static void test_deadline_far_away(void **state)
{
    static const uint64_t deadlines[] = {UINT64_MAX, UINT64_MAX / 2, 60000 * MS};
    (void)state;
    slow_storage(5 * MS);
    for (size_t i = 0; i < 3; i++) {
        struct hr_error err = {0};
        struct hr_load_options options = {.size = sizeof options, .deadline_ns = deadlines[i]};
        struct hr_loader *loader = slow_loader(HR_ROUTE_PREAD);
        struct hr_load *load = load_model(loader, &equal, &options);
        struct timespec from, until;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        assert_ok(hr_load_wait_all(load, &err), err);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &until);
        uint64_t used = (uint64_t)(until.tv_sec - from.tv_sec) * 1000 * MS + (uint64_t)(until.tv_nsec - from.tv_nsec);
        assert_true(used < 100 * MS);
        check_all_items(load, &equal);
        hr_load_free(load);
        hr_loader_free(loader);
    }
    fake_storage_remove();
}

/* -------------------------------------------------------------------------------------- statistics */

static void check_stats_grow(const struct hr_stats *before, const struct hr_stats *after)
{
    assert_true(after->bytes_ready >= before->bytes_ready);
    assert_true(after->bytes_read >= before->bytes_read);
    assert_true(after->read_count >= before->read_count);
    assert_true(after->bytes_allocated >= before->bytes_allocated);
    assert_true(after->peak_window_bytes >= before->peak_window_bytes);
    assert_true(after->wait_ns >= before->wait_ns);
    assert_true(after->read_ns >= before->read_ns);
    assert_true(after->idle_ns >= before->idle_ns);
    assert_true(after->total_ns >= before->total_ns);
}

static void test_stats(void **state)
{
    struct hr_error err = {0};
    struct hr_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    struct hr_loader_options options = {.size = sizeof options, .route = HR_ROUTE_PREAD, .thread_count = 2};
    struct hr_load_options load_options = {.size = sizeof load_options, .window_bytes = 3 * TENSOR_BYTES};
    size_t index;
    (void)state;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &equal, &load_options);
    assert_int_equal(hr_load_stats(load, &before), 0);
    while (hr_load_next(load, &index, &err) == 0) {
        assert_int_equal(hr_load_stats(load, &after), 0);
        check_stats_grow(&before, &after);
        before = after;
    }
    assert_int_equal(hr_load_stats(load, &after), 0);
    assert_int_equal(after.bytes_needed, TENSOR_COUNT * TENSOR_BYTES);
    assert_int_equal(after.bytes_ready, TENSOR_COUNT * TENSOR_BYTES);
    assert_int_equal(after.bytes_read, TENSOR_COUNT * TENSOR_BYTES);
    assert_int_equal(after.item_count, TENSOR_COUNT);
    assert_int_equal(after.file_count, 4);
    assert_true(after.chunk_count >= 4 && after.read_count >= after.chunk_count);
    assert_int_equal(after.thread_count, 2);
    assert_int_equal(after.route, HR_ROUTE_PREAD);
    assert_string_equal(after.route_reason, "asked for");
    assert_true(after.bottleneck[0] != '\0');
    usleep(2000);
    uint64_t total = after.total_ns;
    assert_int_equal(hr_load_stats(load, &after), 0);
    assert_int_equal(after.total_ns, total); /* it ended when the last item was ready */
    hr_load_free(load);
    hr_loader_free(loader);
}

/* A struct of an older program is filled as far as it goes. */
static void test_stats_size(void **state)
{
    struct hr_stats stats;
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, &equal, NULL);
    memset(&stats, 0xdb, sizeof stats);
    stats.size = offsetof(struct hr_stats, bytes_read);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.size, offsetof(struct hr_stats, bytes_read));
    assert_int_equal(stats.bytes_needed, TENSOR_COUNT * TENSOR_BYTES);
    assert_int_equal(stats.bytes_read, UINT64_C(0xdbdbdbdbdbdbdbdb));
    stats.size = 3;
    assert_code(hr_load_stats(load, &stats), HR_EINVALID_ARGUMENT);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* The lock is free while the caller is told: also of a reader that had nothing to do, and asks for statistics. */
static struct hr_load *_Atomic traced;
static atomic_int idle_count;

static void ask_in_trace(void *context, const struct hr_trace_event *event)
{
    struct hr_stats stats = {.size = sizeof stats};
    (void)context;
    if (event->kind != HR_TRACE_IDLE || !traced)
        return;
    idle_count += hr_load_stats(traced, &stats) == 0;
}

static void test_stats_in_trace(void **state)
{
    struct hr_load_options options = {
        .size = sizeof options, .window_bytes = 2 * TENSOR_BYTES, .ownership = HR_OWN_EACH, .trace = ask_in_trace};
    struct hr_loader *loader = slow_loader(HR_ROUTE_PREAD);
    struct hr_load *load = load_model(loader, &equal, &options);
    struct hr_error err = {0};
    size_t item_index;
    (void)state;
    traced = load;
    alarm(20); /* a hang is a failure */
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        usleep(2000);
        assert_ok(hr_load_next(load, &item_index, &err), err);
    }
    hr_load_free(load);
    traced = NULL;
    alarm(0);
    assert_true(idle_count > 0);
    hr_loader_free(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_afterwards),
        cmocka_unit_test(test_cancel_wakes_waiters),
        cmocka_unit_test(test_free_at_once),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_progress_without_pause),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_hanging_storage),
        cmocka_unit_test(test_deadline_far_away),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_stats_size),
        cmocka_unit_test(test_stats_in_trace),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
