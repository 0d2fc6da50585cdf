/*
 * test_window.c: orders of waiting, from one thread and from many, the size of the window, and memory given back on
 * the way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "support/counting_allocator.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define TENSOR_BYTES (100 * KIB)
#define TENSOR_COUNT 40
#define THREAD_COUNT 8

static struct test_model equal; /* 40 of 100 KiB in 3 files */
static struct test_model mixed;

static int setup(void **state)
{
    (void)state;
    model_equal(&equal, "equal", TENSOR_COUNT, TENSOR_BYTES, 15);
    model_mixed(&mixed, "mixed", 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&equal);
    model_close(&mixed);
    return 0;
}

/* A deterministic shuffle. */
static void shuffle(size_t *order, size_t count, uint64_t seed)
{
    for (size_t i = count; i > 1; i--) {
        size_t k = (test_byte(seed, 2 * i) | (size_t)test_byte(seed, 2 * i + 1) << 8) % i;
        size_t kept = order[i - 1];
        order[i - 1] = order[k];
        order[k] = kept;
    }
}

/* ------------------------------------------------------------------------------------------- order */

/* Runs `use` over every route, ownership, window, with and without threads of ours. */
static void for_all_settings(const struct test_model *model, void (*use)(struct hr_load *, const struct test_model *))
{
    static const uint64_t windows[] = {1, 250 * KIB, 1 << 20, 0};
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_MMAP; route++) {
        if (route == HR_ROUTE_URING && !uring_usable())
            continue;
        struct hr_loader_options options = {
            .size = sizeof options, .route = route, .thread_count = 3, .chunk_bytes = 64 * KIB, .queue_depth = 2};
        struct hr_loader *loader = loader_make(&options);
        for (size_t w = 0; w < 4; w++)
            for (uint32_t setting = 0; setting < 4; setting++) {
                struct hr_load_options load_options = {.size = sizeof load_options,
                                                       .window_bytes = windows[w],
                                                       .ownership = setting & 1,
                                                       .sequential = setting >> 1};
                struct hr_load *load = load_model(loader, model, &load_options);
                use(load, model);
                hr_load_free(load);
            }
        hr_loader_free(loader);
    }
}

static void wait_in(struct hr_load *load, const struct test_model *model, const size_t *order)
{
    struct hr_error err = {0};
    for (size_t i = 0; i < model->count; i++) {
        assert_ok(hr_load_wait(load, order[i], &err), err);
        check_item(load, order[i], model);
    }
}

static size_t *identity_order(size_t count)
{
    size_t *order = malloc(count * sizeof *order);
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    return order;
}

static void use_in_order(struct hr_load *load, const struct test_model *model)
{
    size_t *order = identity_order(model->count);
    wait_in(load, model, order);
    free(order);
}

static void use_reversed(struct hr_load *load, const struct test_model *model)
{
    size_t *order = identity_order(model->count);
    for (size_t i = 0; i < model->count; i++)
        order[i] = model->count - 1 - i;
    wait_in(load, model, order);
    free(order);
}

static void use_shuffled(struct hr_load *load, const struct test_model *model)
{
    size_t *order = identity_order(model->count);
    shuffle(order, model->count, 5);
    wait_in(load, model, order);
    wait_in(load, model, order); /* again: everything is there */
    free(order);
}

static void use_next(struct hr_load *load, const struct test_model *model)
{
    struct hr_error err = {0};
    char *seen = calloc(model->count, 1);
    size_t index = 0, count = 0;
    int code;
    while ((code = hr_load_next(load, &index, &err)) == 0) {
        assert_true(index < model->count);
        assert_int_equal(seen[index]++, 0);
        check_item(load, index, model);
        count++;
    }
    assert_code(code, HR_EEND);
    assert_int_equal(count, model->count);
    assert_code(hr_load_next(load, &index, NULL), HR_EEND);
    free(seen);
}

/* Every third by index, backwards, between calls of next; each item comes once. */
static void use_mixture(struct hr_load *load, const struct test_model *model)
{
    struct hr_error err = {0};
    char *seen = calloc(model->count, 1);
    size_t index = 0;
    for (size_t turn = 0;; turn++) {
        size_t wanted = model->count - 1 - turn;
        if (turn % 3 == 0 && turn < model->count && !seen[wanted]) {
            assert_ok(hr_load_wait(load, wanted, &err), err);
            seen[wanted] = 1;
            check_item(load, wanted, model);
            continue;
        }
        int code = hr_load_next(load, &index, &err);
        if (code == HR_EEND)
            break;
        assert_ok(code, err);
        assert_int_equal(seen[index]++, 0);
        check_item(load, index, model);
    }
    for (size_t i = 0; i < model->count; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
}

static void use_partly_then_all(struct hr_load *load, const struct test_model *model)
{
    struct hr_error err = {0};
    size_t index = 0;
    assert_ok(hr_load_wait(load, model->count / 2, &err), err);
    assert_ok(hr_load_next(load, &index, &err), err);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, model);
    assert_ok(hr_load_wait_all(load, &err), err);
    size_t count = 2;
    while (hr_load_next(load, &index, NULL) == 0)
        count++;
    assert_int_equal(count, model->count);
}

static void test_in_order(void **state)
{
    (void)state;
    for_all_settings(&equal, use_in_order);
    for_all_settings(&mixed, use_in_order);
}

static void test_reversed(void **state)
{
    (void)state;
    for_all_settings(&equal, use_reversed);
    for_all_settings(&mixed, use_reversed);
}

static void test_shuffled(void **state)
{
    (void)state;
    for_all_settings(&equal, use_shuffled);
}

static void test_next(void **state)
{
    (void)state;
    for_all_settings(&equal, use_next);
    for_all_settings(&mixed, use_next);
}

static void test_mixture(void **state)
{
    (void)state;
    for_all_settings(&equal, use_mixture);
}

static void test_partly_then_all(void **state)
{
    (void)state;
    for_all_settings(&equal, use_partly_then_all);
}

/* ----------------------------------------------------------------------------------------- threads */

/* What one consumer thread does. cmocka's checks belong to the main thread: others only record. */
struct consumer {
    struct hr_load *load;
    const struct test_model *model;
    size_t number;
    atomic_size_t *returned; /* by next, per item */
    const char *failure;
};

static void consumer_check(struct consumer *consumer, size_t index)
{
    struct hr_view view = {.size = sizeof view};
    const struct test_tensor *tensor = &consumer->model->tensors[index];
    if (hr_load_view(consumer->load, index, &view, NULL) || view.bytes != test_tensor_bytes(tensor) ||
        test_tensor_mismatch(tensor, view.data, 0, view.bytes) != view.bytes)
        consumer->failure = "an item's bytes are wrong";
}

static void *consume_by_wait(void *argument)
{
    struct consumer *consumer = argument;
    size_t count = consumer->model->count;
    size_t *order = identity_order(count);
    shuffle(order, count, consumer->number);
    for (size_t i = 0; i < count; i++) {
        if (hr_load_wait(consumer->load, order[i], NULL))
            consumer->failure = "a wait failed";
        else
            consumer_check(consumer, order[i]);
    }
    free(order);
    return NULL;
}

static void *consume_by_next(void *argument)
{
    struct consumer *consumer = argument;
    size_t index;
    int code;
    while ((code = hr_load_next(consumer->load, &index, NULL)) == 0) {
        atomic_fetch_add(&consumer->returned[index], 1);
        consumer_check(consumer, index);
    }
    if (code != HR_EEND)
        consumer->failure = "next failed";
    return NULL;
}

static void *consume_all(void *argument)
{
    struct consumer *consumer = argument;
    if (hr_load_wait_all(consumer->load, NULL))
        consumer->failure = "wait_all failed";
    for (size_t i = 0; i < consumer->model->count; i++)
        consumer_check(consumer, i);
    return NULL;
}

typedef void *(*consumer_main)(void *);

static void run_consumers(struct hr_load *load, const struct test_model *model, const consumer_main mains[THREAD_COUNT],
                          atomic_size_t *returned)
{
    struct consumer consumers[THREAD_COUNT];
    pthread_t threads[THREAD_COUNT];
    for (size_t i = 0; i < THREAD_COUNT; i++) {
        consumers[i] = (struct consumer){load, model, i, returned, NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, mains[i], &consumers[i]), 0);
    }
    for (size_t i = 0; i < THREAD_COUNT; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREAD_COUNT; i++)
        if (consumers[i].failure)
            fail_msg("thread %zu: %s", i, consumers[i].failure);
}

static void use_threads(struct hr_load *load, const struct test_model *model)
{
    static const consumer_main mains[] = {consume_by_wait, consume_by_wait, consume_by_wait, consume_by_wait,
                                          consume_by_wait, consume_by_wait, consume_by_wait, consume_by_wait};
    run_consumers(load, model, mains, NULL);
}

static void use_threads_next(struct hr_load *load, const struct test_model *model)
{
    static const consumer_main mains[] = {consume_by_next, consume_by_next, consume_by_next, consume_by_next,
                                          consume_by_next, consume_by_next, consume_by_next, consume_by_next};
    atomic_size_t *returned = calloc(model->count, sizeof *returned);
    run_consumers(load, model, mains, returned);
    for (size_t i = 0; i < model->count; i++)
        assert_int_equal(returned[i], 1);
    free(returned);
}

static void use_threads_mixed(struct hr_load *load, const struct test_model *model)
{
    static const consumer_main mains[] = {consume_by_next, consume_by_wait, consume_by_next, consume_by_wait,
                                          consume_by_next, consume_all,     consume_by_next, consume_by_wait};
    atomic_size_t *returned = calloc(model->count, sizeof *returned);
    run_consumers(load, model, mains, returned);
    for (size_t i = 0; i < model->count; i++)
        assert_true(returned[i] <= 1);
    free(returned);
}

static void test_threads(void **state)
{
    (void)state;
    for_all_settings(&equal, use_threads);
    for_all_settings(&equal, use_threads_next);
    for_all_settings(&equal, use_threads_mixed);
}

static int few_descriptors(uint64_t *ret_soft, uint64_t *ret_hard)
{
    *ret_soft = *ret_hard = 2;
    return 0;
}

/* One file at a time: readers, and waiting threads that read themselves, wait for each other's files. */
static void test_threads_few_descriptors(void **state)
{
    struct hr_sys table = hr_sys_real;
    (void)state;
    table.descriptor_limits = few_descriptors;
    hr_sys = &table;
    for_all_settings(&equal, use_threads);
    for_all_settings(&equal, use_threads_mixed);
    hr_sys = &hr_sys_real;
}

/* ------------------------------------------------------------------------------------------ window */

/*
 * Loads with a window, holding at most `held_max` items taken as views, dropping the oldest. The bytes that exist
 * never exceed the window (or one tensor, where that is larger) and what the consumer holds.
 */
static void stream(uint64_t window_bytes, size_t held_max, uint32_t ownership, uint32_t sequential)
{
    struct counting_allocator counting = {0};
    struct hr_error err = {0};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_loader_options options = {
        .size = sizeof options, .route = HR_ROUTE_PREAD, .thread_count = 2, .allocator = counting_hook(&counting)};
    struct hr_load_options load_options = {
        .size = sizeof load_options, .window_bytes = window_bytes, .ownership = ownership, .sequential = sequential};
    size_t held[TENSOR_COUNT + 1], first = 0, count = 0;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &equal, &load_options);
    while (hr_load_next(load, &held[count], &err) == 0) {
        check_item(load, held[count++], &equal);
        if (count - first > held_max)
            assert_ok(hr_load_drop(load, held[first++], &err), err);
    }
    assert_int_equal(count, TENSOR_COUNT);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    uint64_t window = window_bytes < TENSOR_BYTES || sequential ? TENSOR_BYTES : window_bytes;
    /* an arena lives until its last item is dropped: a quarter of the window, or one tensor, at most */
    uint64_t arena = ownership == HR_OWN_EACH ? 0 : window / 4 > TENSOR_BYTES ? window / 4 : TENSOR_BYTES;
    assert_true(stats.peak_window_bytes <= window);
    assert_true(stats.peak_window_bytes >= TENSOR_BYTES);
    uint64_t bound = window + (held_max + 1) * TENSOR_BYTES + 2 * arena;
    if ((uint64_t)atomic_load(&counting.peak_bytes) > bound)
        fail_msg("%ld bytes existed, the bound is %llu", atomic_load(&counting.peak_bytes), (unsigned long long)bound);
    assert_true(atomic_load(&counting.live_bytes) <= (long)((held_max + 1) * TENSOR_BYTES + 2 * arena));
    hr_load_free(load);
    assert_int_equal(atomic_load(&counting.live_bytes), 0);
    hr_loader_free(loader);
}

static void test_window_bounds_memory(void **state)
{
    static const uint64_t windows[] = {1, TENSOR_BYTES, 3 * TENSOR_BYTES, 12 * TENSOR_BYTES};
    (void)state;
    for (size_t w = 0; w < 4; w++)
        for (uint32_t setting = 0; setting < 4; setting++) {
            stream(windows[w], 0, setting & 1, setting >> 1);
            stream(windows[w], 5, setting & 1, setting >> 1);
        }
}

static void test_dropped(void **state)
{
    struct hr_error err = {0};
    void *tensor = &err;
    struct hr_view view = {.size = sizeof view};
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, &equal, NULL);
    assert_ok(hr_load_wait(load, 3, &err), err);
    assert_ok(hr_load_drop(load, 3, &err), err);
    assert_code(hr_load_drop(load, 3, &err), HR_EINVALID_ARGUMENT);
    assert_code(hr_load_view(load, 3, &view, &err), HR_EINVALID_ARGUMENT);
    assert_code(hr_load_take(load, 3, 0, &tensor, &err), HR_EINVALID_ARGUMENT);
    assert_ptr_equal(tensor, &err);
    assert_ok(hr_load_wait(load, 3, &err), err); /* it was ready */
    assert_code(hr_load_drop(load, SIZE_MAX, &err), HR_EINVALID_ARGUMENT);
    assert_code(hr_load_view(load, equal.count, &view, &err), HR_EINVALID_ARGUMENT);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* What has not been waited for has no memory yet, so it can be neither seen nor taken. */
static void test_not_ready(void **state)
{
    struct hr_error err = {0};
    struct hr_view view = {.size = sizeof view};
    struct hr_load_options options = {.size = sizeof options, .sequential = 1};
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, &equal, &options);
    assert_code(hr_load_view(load, 0, &view, &err), HR_EINVALID_ARGUMENT);
    assert_code(hr_load_drop(load, 0, &err), HR_EINVALID_ARGUMENT);
    hr_load_free(load);
    hr_loader_free(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_reversed),
        cmocka_unit_test(test_shuffled),
        cmocka_unit_test(test_next),
        cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_partly_then_all),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_few_descriptors),
        cmocka_unit_test(test_window_bounds_memory),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_not_ready),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
