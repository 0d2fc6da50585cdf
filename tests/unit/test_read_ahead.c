/*
 * test_read_ahead.c: what is read ahead of a checkpoint: all that is asked for, by kernels that take little at a time too;
 * the load that starts ends it, copies it, and leaves the page cache as it was; what was cached before stays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"
#include "catalog/ahead.h"
#include "support/page_cache.h"
#include "support/test_model.h"

#define MIB (UINT64_C(1) << 20)

/* ------------------------------------------------------------------------------------------------- claims */

static void test_claims(void **state)
{
    struct hr_ahead *ahead = hr_ahead_new(2);
    uint64_t begin, end;
    (void)state;
    assert_int_equal(hr_ahead_claim(ahead, 0, 0), 1);
    assert_int_equal(hr_ahead_claim(ahead, 0, 0), 0); /* one at a time */
    assert_int_equal(hr_ahead_announce(ahead, 0, 10, 20), 1);
    assert_int_equal(hr_ahead_announce(ahead, 0, 30, 40), 0); /* with a gap */
    assert_int_equal(hr_ahead_announce(ahead, 0, 20, 40), 1);
    hr_ahead_finish(ahead, 0);
    assert_int_equal(hr_ahead_claim(ahead, 0, 0), 0); /* no load took it */
    assert_int_equal(hr_ahead_claim(ahead, 1, 0), 1);
    hr_ahead_end(ahead);
    hr_ahead_take(ahead, 0, &begin, &end);
    assert_true(begin == 10 && end == 40);
    hr_ahead_take(ahead, 0, &begin, &end);
    assert_true(begin == end);
    hr_ahead_take(ahead, 1, &begin, &end);
    assert_true(begin == end);
    assert_int_equal(hr_ahead_announce(ahead, 1, 10, 20), 0); /* the load took the claim */
    assert_int_equal(hr_ahead_announce(ahead, 0, 40, 50), 0);
    assert_int_equal(hr_ahead_claim(ahead, 0, 0), 0); /* of a time before that load */
    assert_int_equal(hr_ahead_claim(ahead, 0, 1), 1);
    hr_ahead_finish(ahead, 0);
    assert_int_equal(hr_ahead_claim(ahead, 0, 1), 1);
    hr_free(ahead);
}

/* --------------------------------------------------------------------------------------------- page cache */

/* -1 where nobody tells. */
static int64_t resident_bytes(const struct test_model *model)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < model->path_count; i++) {
        int64_t here = page_cache_held(model->paths[i]);
        if (here < 0)
            return -1;
        bytes += here;
    }
    return bytes;
}

/* Two files of 24 MiB, out of the page cache but for what opening them reads; else the test is skipped. */
static void open_cold(struct test_model *model)
{
    model_equal(model, "ahead", 12, 4 * MIB + 12, 6);
    for (size_t i = 0; i < model->path_count; i++)
        page_cache_drop(model->paths[i]);
    if (resident_bytes(model) == 0)
        return;
    model_close(model);
    print_message("skipped: the page cache cannot be emptied here, or does not tell what it holds\n");
    skip();
}

static uint64_t read_ahead(const struct test_model *model, uint64_t most)
{
    struct hr_error err = {0};
    uint64_t bytes = UINT64_MAX;
    assert_ok(hr_checkpoint_read_ahead(model->checkpoint, most, &bytes, &err), err);
    return bytes;
}

static struct hr_loader *small_loader(uint32_t keep_cache)
{
    struct hr_loader_options options = {
        .size = sizeof options, .thread_count = 2, .chunk_bytes = 1 * MIB, .keep_cache = keep_cache};
    return loader_make(&options);
}

static struct hr_stats load_all(const struct test_model *model, uint32_t keep_cache)
{
    struct hr_loader *loader = small_loader(keep_cache);
    struct hr_stats stats = load_whole_model(loader, model);
    hr_loader_free(loader);
    return stats;
}

/* What the kernel reads ahead by itself, where the cached bytes of a file end, may stay. */
static void check_left_cold(const struct test_model *model)
{
    int64_t left = resident_bytes(model);
    if (left > (int64_t)(model->path_count * HR_HEAT_EDGE_BYTES + MIB))
        fail_msg("the page cache holds %lld bytes more", (long long)left);
}

static void test_all(void **state)
{
    struct test_model model;
    (void)state;
    for (uint32_t keep_cache = 0; keep_cache < 2; keep_cache++) {
        open_cold(&model);
        uint64_t bytes = read_ahead(&model, keep_cache ? UINT64_MAX : 0);
        assert_true(bytes > 47 * MIB && resident_bytes(&model) >= (int64_t)(47 * MIB));
        assert_int_equal(read_ahead(&model, 0), 0); /* once */
        struct hr_stats stats = load_all(&model, keep_cache);
        assert_non_null(strstr(stats.route_reason, "48 MiB were read ahead"));
        if (keep_cache)
            assert_true(resident_bytes(&model) >= (int64_t)(47 * MIB));
        else
            check_left_cold(&model);
        stats = load_all(&model, 0);
        assert_null(strstr(stats.route_reason, "ahead")); /* it was the first load's */
        model_close(&model);
    }
}

/* A part: the rest is read past the page cache, and the next call reads what is first then. */
static void test_part(void **state)
{
    struct test_model model;
    (void)state;
    open_cold(&model);
    assert_int_equal(read_ahead(&model, 9 * MIB), 9 * MIB);
    assert_true(resident_bytes(&model) >= (int64_t)(9 * MIB) && resident_bytes(&model) < (int64_t)(11 * MIB));
    assert_int_equal(read_ahead(&model, 5 * MIB), 5 * MIB); /* of the other file */
    struct hr_stats stats = load_all(&model, 0);
    assert_non_null(strstr(stats.route_reason, "14 MiB were read ahead"));
    check_left_cold(&model);
    model_close(&model);
}

/* What others have cached is not read, and stays. */
static void test_cached(void **state)
{
    struct test_model model;
    (void)state;
    open_cold(&model);
    for (size_t i = 0; i < model.path_count; i++) {
        int fd = open(model.paths[i], O_RDONLY | O_CLOEXEC);
        page_cache_fill(fd, i ? 20 * MIB : 0, i ? 2 * MIB : 24 * MIB);
        close(fd);
    }
    uint64_t bytes = read_ahead(&model, 0);
    assert_true(bytes >= 16 * MIB && bytes <= 20 * MIB);
    load_all(&model, 0);
    assert_true(resident_bytes(&model) >= (int64_t)(25 * MIB));
    model_close(&model);
}

/* Route and loads that know nothing of the page cache end it too. */
static void test_forced_route(void **state)
{
    struct test_model model;
    struct hr_loader_options options = {.size = sizeof options, .thread_count = 2, .route = HR_ROUTE_PREAD};
    (void)state;
    open_cold(&model);
    read_ahead(&model, 8 * MIB);
    struct hr_loader *loader = loader_make(&options);
    struct hr_stats stats = load_whole_model(loader, &model);
    assert_null(strstr(stats.route_reason, "ahead"));
    hr_loader_free(loader);
    model_close(&model);
}

/* --------------------------------------------------------------------------------------- odd kernels, played */

static struct {
    struct hr_sys table;
    uint64_t window; /* most bytes that one call reads ahead */
    int error;       /* of the call */
    int cachestat_error;
    atomic_int wants_load, calls, failure_count;
} played;

static int played_fadvise(int fd, uint64_t offset, uint64_t size, int advice)
{
    if (advice != POSIX_FADV_WILLNEED)
        return hr_sys_real.fadvise(fd, offset, size, advice);
    atomic_fetch_add(&played.calls, 1);
    while (atomic_load(&played.wants_load) == 1) /* the drive has enough to do until a load has started */
        usleep(1000);
    return played.error ? -played.error
                        : hr_sys_real.fadvise(fd, offset, size < played.window ? size : played.window, advice);
}

static int played_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    return played.cachestat_error ? -played.cachestat_error : hr_sys_real.cachestat(fd, offset, size, ret_page_count);
}

static void play(uint64_t window, int error, int cachestat_error)
{
    memset(&played, 0, sizeof played);
    played.table = hr_sys_real;
    played.table.fadvise = played_fadvise;
    played.table.cachestat = played_cachestat;
    played.window = window;
    played.error = error;
    played.cachestat_error = cachestat_error;
    hr_sys = &played.table;
}

static void test_small_windows(void **state)
{
    struct test_model model;
    (void)state;
    for (int way = 0; way < 3; way++) {
        open_cold(&model);
        play(way == 1 ? 300 << 10 : 128 << 10, 0, way == 2 ? EPERM : 0);
        uint64_t bytes = read_ahead(&model, 0);
        hr_sys = &hr_sys_real;
        assert_true(bytes > 38 * MIB);
        assert_true(resident_bytes(&model) >= (int64_t)bytes / 10 * 9);
        load_all(&model, 0);
        model_close(&model);
    }
}

/* Refused, a page at a time, of a file that is gone: no error, and no endless loop. */
static void test_refusals(void **state)
{
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    for (int way = 0; way < 3; way++) {
        open_cold(&model);
        play(way == 1 ? 1 : MIB, way == 0 ? EINVAL : 0, 0);
        if (way == 2)
            assert_int_equal(unlink(model.paths[0]), 0);
        uint64_t bytes = read_ahead(&model, 0);
        hr_sys = &hr_sys_real;
        if (way == 0)
            assert_int_equal(bytes, 0);
        if (way < 2)
            load_all(&model, 0);
        model_close(&model);
    }
    assert_code(hr_checkpoint_read_ahead(NULL, 0, NULL, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "checkpoint"));
}

/* ------------------------------------------------------------------------------------------- beside a load */

static void *read_ahead_main(void *model)
{
    if (hr_checkpoint_read_ahead(((struct test_model *)model)->checkpoint, 0, NULL, NULL))
        atomic_fetch_add(&played.failure_count, 1);
    return NULL;
}

/* A load starts while the first step is being asked for: no other step comes after it, of no file. */
static void test_load_ends_it(void **state)
{
    struct test_model model;
    struct hr_error err = {0};
    pthread_t thread;
    (void)state;
    open_cold(&model);
    play(UINT64_MAX, 0, 0);
    atomic_store(&played.wants_load, 1);
    struct hr_loader *loader = small_loader(0);
    assert_int_equal(pthread_create(&thread, NULL, read_ahead_main, &model), 0);
    while (atomic_load(&played.calls) == 0)
        usleep(100);
    struct hr_load *load = load_model(loader, &model, NULL);
    atomic_store(&played.wants_load, 2);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&played.failure_count), 0);
    assert_true(atomic_load(&played.calls) <= 2); /* the rest of the step that was announced */
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &model);
    hr_sys = &hr_sys_real;
    hr_load_free(load);
    hr_loader_free(loader);
    model_close(&model);
}

#ifdef HEADRACE_TSAN /* takes five times as long */
#define TURN_COUNT 8
#else
#define TURN_COUNT 30
#endif

/* Whenever it starts. */
static void test_races(void **state)
{
    struct test_model model;
    (void)state;
    open_cold(&model);
    played.failure_count = 0;
    struct hr_loader *loader = small_loader(0);
    for (int turn = 0; turn < TURN_COUNT; turn++) {
        pthread_t threads[2];
        for (size_t i = 0; i < model.path_count; i++)
            page_cache_drop(model.paths[i]);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, read_ahead_main, &model), 0);
        usleep((useconds_t)turn * 6000 / TURN_COUNT);
        load_whole_model(loader, &model);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&played.failure_count), 0);
    }
    hr_loader_free(loader);
    model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims),   cmocka_unit_test(test_all),          cmocka_unit_test(test_part),
        cmocka_unit_test(test_cached),   cmocka_unit_test(test_forced_route), cmocka_unit_test(test_small_windows),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_load_ends_it), cmocka_unit_test(test_races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
