/*
 * test_load_fork.c: a fork in the middle of a load. The child gets a named error from what waits, can give up what
 * it inherited without hanging, and can load afresh; the parent does not notice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "support/fake_storage.h"
#include "support/test_model.h"

#define TENSOR_COUNT 40

static struct test_model equal;

static int setup(void **state)
{
    (void)state;
    model_equal(&equal, "equal", TENSOR_COUNT, 100000, 10);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&equal);
    return 0;
}

/* In the child: the number of the first step that went wrong, or 0. cmocka belongs to the parent. */
static int child_load_afresh(void)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    struct hr_item item = {.size = sizeof item, .tensor_index = 7};
    struct hr_view view = {.size = sizeof view};
    if (hr_checkpoint_open(equal.paths, equal.path_count, NULL, &checkpoint, NULL))
        return 21;
    if (hr_loader_new(NULL, &loader, NULL))
        return 22;
    if (hr_load_start(loader, checkpoint, &item, 1, NULL, &load, NULL))
        return 23;
    if (hr_load_wait(load, 0, NULL) || hr_load_view(load, 0, &view, NULL))
        return 24;
    if (test_tensor_mismatch(&equal.tensors[7], view.data, 0, view.bytes) != view.bytes)
        return 25;
    hr_load_free(load);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return 0;
}

static int child_main(struct hr_loader *loader, struct hr_load *load)
{
    struct hr_error err = {0};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_view view = {.size = sizeof view};
    struct hr_item item = {.size = sizeof item};
    struct hr_load *second = NULL;
    void *tensor;
    size_t index;
    alarm(20); /* a hang is a failure */
    if (hr_load_wait(load, 0, &err) != HR_EFORKED || err.code != HR_EFORKED)
        return 1;
    if (hr_load_next(load, &index, NULL) != HR_EFORKED || hr_load_wait_all(load, NULL) != HR_EFORKED)
        return 2;
    if (hr_load_view(load, 0, &view, NULL) != HR_EFORKED || hr_load_take(load, 0, 0, &tensor, NULL) != HR_EFORKED)
        return 3;
    if (hr_load_drop(load, 0, NULL) != HR_EFORKED || hr_load_stats(load, &stats) != HR_EFORKED)
        return 4;
    if (hr_load_start(loader, equal.checkpoint, &item, 1, NULL, &second, NULL) != HR_EFORKED)
        return 5;
    hr_load_cancel(load);
    hr_load_free(load);
    hr_loader_free(loader);
    return child_load_afresh();
}

static void *wait_all(void *load)
{
    hr_load_wait_all(load, NULL);
    return NULL;
}

/* Forks while readers read, wait for descriptors and for work, and another thread waits for the load. */
static void fork_within(uint32_t route, uint32_t sequential, uint64_t window_bytes, int with_waiter)
{
    struct hr_error err = {0};
    struct hr_loader_options options = {
        .size = sizeof options, .route = route, .thread_count = 4, .chunk_bytes = 1 << 16};
    struct hr_load_options load_options = {
        .size = sizeof load_options, .sequential = sequential, .window_bytes = window_bytes};
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &equal, &load_options);
    pthread_t waiter;
    int status = 0;
    assert_ok(hr_load_wait(load, 0, &err), err);
    if (with_waiter) {
        pthread_create(&waiter, NULL, wait_all, load);
        usleep(3000);
    }
    pid_t child = fork();
    if (child == 0)
        _exit(child_main(loader, load));
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the child ended with status %#x", (unsigned)status);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &equal);
    if (with_waiter)
        pthread_join(waiter, NULL);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* One file at a time, so that most readers wait for a descriptor. */
static int few_descriptors(uint64_t *ret_soft, uint64_t *ret_hard)
{
    *ret_soft = *ret_hard = 2;
    return 0;
}

static void test_fork(void **state)
{
    struct fake_storage slow = {.seed = 1, .delay_ns = 3000000};
    struct hr_sys table = hr_sys_real;
    (void)state;
#ifdef HEADRACE_TSAN
    skip(); /* its runtime takes the parent's threads for running in the child */
#endif
    table.descriptor_limits = few_descriptors;
    hr_sys = &table;
    fake_storage_install(&slow);
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_MMAP; route++) {
        if (route == HR_ROUTE_URING && !uring_usable())
            continue;
        for (int with_waiter = 0; with_waiter < 2; with_waiter++) {
            fork_within(route, 0, 0, with_waiter);
            fork_within(route, 0, 1, with_waiter);
            fork_within(route, 1, 0, with_waiter);
        }
    }
    fake_storage_remove();
    hr_sys = &hr_sys_real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fork)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
