/*
 * test_load.c: the bytes that loads deliver, over routes, thread counts, chunk sizes, queue depths, ownerships and
 * shapes of checkpoints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "support/counting_allocator.h"
#include "support/fake_storage.h"
#include "support/test_model.h"

static struct test_model mixed; /* all in one file */

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "mixed", 1000);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    return 0;
}

/* Loads the whole model, waits for all, and checks everything; returns the statistics. */
static struct hr_stats load_and_check(const struct test_model *model, const struct hr_loader_options *loader_options,
                                      const struct hr_load_options *load_options)
{
    struct hr_error err = {0};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_loader *loader = loader_make(loader_options);
    struct hr_load *load = load_model(loader, model, load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, model);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.bytes_ready, stats.bytes_needed);
    hr_load_free(load);
    hr_loader_free(loader);
    return stats;
}

static void sweep_threads(struct hr_loader_options options)
{
    static const uint32_t thread_counts[] = {1, 2, 8};
    static const uint64_t chunk_sizes[] = {64 << 10, 0};
    for (size_t t = 0; t < 3; t++)
        for (size_t c = 0; c < 2; c++)
            for (uint32_t ownership = HR_OWN_ARENA; ownership <= HR_OWN_EACH; ownership++) {
                options.thread_count = thread_counts[t];
                options.chunk_bytes = chunk_sizes[c];
                struct hr_load_options load = {.size = sizeof load, .ownership = ownership};
                struct hr_stats stats = load_and_check(&mixed, &options, &load);
                assert_int_equal(stats.route, options.route ? options.route : stats.route);
                assert_true(stats.thread_count <= thread_counts[t]);
            }
}

static void test_pread(void **state)
{
    (void)state;
    sweep_threads((struct hr_loader_options){.size = sizeof(struct hr_loader_options), .route = HR_ROUTE_PREAD});
}

static void test_auto(void **state)
{
    (void)state;
    sweep_threads((struct hr_loader_options){.size = sizeof(struct hr_loader_options)});
}

static void test_mmap(void **state)
{
    (void)state;
    sweep_threads((struct hr_loader_options){.size = sizeof(struct hr_loader_options), .route = HR_ROUTE_MMAP});
}

static void test_uring(void **state)
{
    static const uint32_t depths[] = {1, 0, 64};
    (void)state;
    if (!uring_usable())
        skip();
    for (size_t i = 0; i < 3; i++)
        sweep_threads((struct hr_loader_options){
            .size = sizeof(struct hr_loader_options), .route = HR_ROUTE_URING, .queue_depth = depths[i]});
}

static void test_sequential(void **state)
{
    static const uint32_t routes[] = {HR_ROUTE_AUTO, HR_ROUTE_MMAP};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (uint32_t ownership = HR_OWN_ARENA; ownership <= HR_OWN_EACH; ownership++) {
            struct hr_loader_options options = {.size = sizeof options, .route = routes[i]};
            struct hr_load_options load = {.size = sizeof load, .sequential = 1, .ownership = ownership};
            assert_int_equal(load_and_check(&mixed, &options, &load).thread_count, 0);
        }
}

/* The hook gets every byte back, is told the item where there is one, and its memory is what the views show. */
static void test_hook(void **state)
{
    (void)state;
    for (uint32_t ownership = HR_OWN_ARENA; ownership <= HR_OWN_EACH; ownership++) {
        struct counting_allocator counting = {0};
        struct hr_loader_options options = {.size = sizeof options, .allocator = counting_hook(&counting)};
        struct hr_load_options load = {.size = sizeof load, .ownership = ownership};
        struct hr_stats stats = load_and_check(&mixed, &options, &load);
        assert_int_equal(stats.bytes_allocated, atomic_load(&counting.peak_bytes));
        assert_int_equal(atomic_load(&counting.live_count), 0);
        if (ownership == HR_OWN_EACH)
            assert_int_equal(atomic_load(&counting.alloc_count), mixed.count - 2); /* two have no bytes */
        else
            assert_int_equal(atomic_load(&counting.alloc_count), 1);
    }
}

/* The data section at each of 8 alignments. */
static void test_alignments(void **state)
{
    static const uint32_t routes[] = {HR_ROUTE_PREAD, HR_ROUTE_MMAP, HR_ROUTE_URING};
    const struct test_tensor tensors[] = {
        {.name = "a", .dtype = HR_DTYPE_F64, .rank = 1, .shape = {4099}, .seed = 1},
        {.name = "b", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {3}, .seed = 2},
        {.name = "c", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {33, 77}, .seed = 3},
    };
    (void)state;
    for (size_t padding = 0; padding < 8; padding++) {
        struct test_model model;
        model_write(&model, "aligned", tensors, 3, 3, padding);
        model_open(&model);
        for (size_t r = 0; r < (uring_usable() ? 3 : 2); r++) {
            struct hr_loader_options options = {.size = sizeof options, .route = routes[r]};
            load_and_check(&model, &options, NULL);
        }
        model_close(&model);
    }
}

/* Whatever the route: memory of ours starts where its elements may. */
static void test_memory_alignment(void **state)
{
    (void)state;
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_MMAP; route += 2) {
        struct hr_error err = {0};
        struct hr_loader_options options = {.size = sizeof options, .route = route};
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_model(loader, &mixed, NULL);
        for (size_t i = 0; i < mixed.count; i++) {
            struct hr_view view = {.size = sizeof view};
            assert_ok(hr_load_wait(load, i, &err), err);
            assert_ok(hr_load_view(load, i, &view, &err), err);
            size_t element = hr_dtype_bits(view.dtype) / 8;
            assert_int_equal((uintptr_t)view.data % (route == HR_ROUTE_PREAD ? 256 : element ? element : 1), 0);
        }
        hr_load_free(load);
        hr_loader_free(loader);
    }
}

static void test_many_tensors(void **state)
{
    struct test_model model;
    (void)state;
    model_equal(&model, "many", 20000, 501, 7000);
    for (uint32_t ownership = HR_OWN_ARENA; ownership <= HR_OWN_EACH; ownership++) {
        struct hr_loader_options options = {.size = sizeof options, .route = HR_ROUTE_PREAD, .thread_count = 4};
        struct hr_load_options load = {.size = sizeof load, .ownership = ownership};
        struct hr_stats stats = load_and_check(&model, &options, &load);
        assert_int_equal(stats.file_count, 3);
        assert_int_equal(stats.bytes_read, 20000 * 501);
        assert_true(stats.read_count < 500); /* far fewer than tensors */
    }
    model_close(&model);
}

static void load_with_limit(const struct test_model *model, uint32_t route, uint32_t threads, rlim_t descriptors)
{
    struct rlimit before, lowered;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    lowered = (struct rlimit){descriptors, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &lowered), 0);
    struct hr_loader_options options = {
        .size = sizeof options, .route = route, .thread_count = threads, .queue_depth = 8, .chunk_bytes = 64 << 10};
    for (uint32_t sequential = 0; sequential < 2; sequential++) {
        struct hr_load_options load = {.size = sizeof load, .sequential = sequential};
        assert_int_equal(load_and_check(model, &options, &load).file_count, model->path_count);
    }
    setrlimit(RLIMIT_NOFILE, &before);
}

/* More files than descriptors; some have several chunks, so that they are reopened. */
static void test_many_files(void **state)
{
    struct test_model model;
    struct fake_storage slow = {.seed = 1, .delay_random_ns = 200000};
    (void)state;
    model_equal(&model, "files", 300, 100000, 1);
    fake_storage_install(&slow); /* so that chunks overlap */
    load_with_limit(&model, HR_ROUTE_PREAD, 8, 24);
    load_with_limit(&model, HR_ROUTE_PREAD, 8, 12);
    load_with_limit(&model, HR_ROUTE_MMAP, 8, 24);
    if (uring_usable())
        load_with_limit(&model, HR_ROUTE_URING, 8, 24);
    fake_storage_remove();
    model_close(&model);
}

/* Files of which nothing is wanted are not even opened: here they are gone. */
static void test_unwanted_files(void **state)
{
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    model_equal(&model, "unwanted", 6, 3000, 2);
    remove(model.paths[0]);
    remove(model.paths[2]);
    struct hr_item items[2] = {{.size = sizeof items[0], .tensor_index = 3},
                               {.size = sizeof items[0], .tensor_index = 2}};
    for (uint32_t route = HR_ROUTE_AUTO; route <= HR_ROUTE_MMAP; route++) {
        if (route == HR_ROUTE_URING && !uring_usable())
            continue;
        struct hr_loader_options options = {.size = sizeof options, .route = route};
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_make(loader, model.checkpoint, items, 2, NULL);
        assert_ok(hr_load_wait_all(load, &err), err);
        for (size_t i = 0; i < 2; i++) {
            struct hr_view view = {.size = sizeof view};
            assert_ok(hr_load_view(load, i, &view, &err), err);
            check_view(&model.tensors[3 - i], NULL, &view);
        }
        hr_load_free(load);
        hr_loader_free(loader);
    }
    model_close(&model);
}

/* One tensor three times, once of it a part: each item has memory of its own. */
static void test_same_tensor_twice(void **state)
{
    size_t large = mixed.count - 2;
    struct hr_error err = {0};
    struct hr_range part[2] = {{100, 1700, 0}, {0, 1001, 0}};
    struct hr_item items[3] = {{.size = sizeof items[0], .tensor_index = large},
                               {.size = sizeof items[0], .tensor_index = large, .ranges = part},
                               {.size = sizeof items[0], .tensor_index = large}};
    void *data[3];
    (void)state;
    assert_int_equal(mixed.tensors[large].shape[0], 1800);
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_make(loader, mixed.checkpoint, items, 3, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    for (size_t i = 0; i < 3; i++) {
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_view(load, i, &view, &err), err);
        check_view(&mixed.tensors[large], i == 1 ? part : NULL, &view);
        data[i] = view.data;
    }
    assert_ptr_not_equal(data[0], data[1]);
    assert_ptr_not_equal(data[0], data[2]);
    hr_load_free(load);
    hr_loader_free(loader);
}

static void test_no_items(void **state)
{
    struct hr_error err = {0};
    size_t index = 77;
    (void)state;
    for (uint32_t sequential = 0; sequential < 2; sequential++) {
        struct hr_loader *loader = loader_make(NULL);
        struct hr_load_options options = {.size = sizeof options, .sequential = sequential};
        struct hr_load *load = load_make(loader, mixed.checkpoint, NULL, 0, &options);
        assert_ok(hr_load_wait_all(load, &err), err);
        assert_code(hr_load_next(load, &index, &err), HR_EEND);
        assert_int_equal(err.code, HR_EEND);
        assert_int_equal(index, 77);
        assert_code(hr_load_wait(load, 0, &err), HR_EINVALID_ARGUMENT);
        assert_code(hr_load_wait(load, SIZE_MAX, &err), HR_EINVALID_ARGUMENT);
        hr_load_free(load);
        hr_loader_free(loader);
    }
}

/* Items without bytes only, with and without memory of the caller's. */
static void test_empty_items(void **state)
{
    struct hr_error err = {0};
    char memory[8];
    struct hr_range none[2] = {{5, 5, 0}, {0, 24, 0}};
    struct hr_item items[2] = {{.size = sizeof items[0], .ranges = none},
                               {.size = sizeof items[0], .ranges = none, .into = memory}};
    (void)state;
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_make(loader, mixed.checkpoint, items, 2, NULL);
    for (size_t i = 0; i < 2; i++) {
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_wait(load, i, &err), err);
        assert_ok(hr_load_view(load, i, &view, &err), err);
        check_view(&mixed.tensors[0], none, &view);
        assert_ptr_equal(view.data, i ? memory : NULL);
    }
    hr_load_free(load);
    hr_loader_free(loader);
}

/* Over 4 GiB in one tensor, sparse: mapped whole, and its ends by reading. */
static void test_over_4_gib(void **state)
{
    const struct test_tensor tensors[] = {
        {.name = "big", .dtype = HR_DTYPE_U16, .rank = 2, .shape = {1 << 20, 2200}, .seed = 5, .sparse = 1},
        {.name = "after", .dtype = HR_DTYPE_F32, .rank = 1, .shape = {1000}, .seed = 6},
    };
    struct hr_range ends[2][2] = {{{0, 4, 0}, {0, 2200, 0}}, {{(1 << 20) - 4, 1 << 20, 0}, {0, 2200, 0}}};
    struct hr_item items[4] = {{.size = sizeof items[0], .ranges = ends[0]},
                               {.size = sizeof items[0], .ranges = ends[1]},
                               {.size = sizeof items[0], .tensor_index = 1},
                               {.size = sizeof items[0]}};
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    model_write(&model, "sparse", tensors, 2, 2, 0);
    model_open(&model);
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_MMAP; route += 2) {
        size_t count = route == HR_ROUTE_MMAP ? 4 : 3;
        struct hr_loader_options options = {.size = sizeof options, .route = route};
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_make(loader, model.checkpoint, items, count, NULL);
        assert_ok(hr_load_wait_all(load, &err), err);
        for (size_t i = 0; i < count; i++) {
            struct hr_view view = {.size = sizeof view};
            uint64_t bytes = test_tensor_bytes(&tensors[0]), part = UINT64_C(4) * 2200 * 2;
            assert_ok(hr_load_view(load, i, &view, &err), err);
            if (i == 0)
                assert_int_equal(test_tensor_mismatch(&tensors[0], view.data, 0, part), part);
            if (i == 1)
                assert_int_equal(test_tensor_mismatch(&tensors[0], view.data, bytes - part, part), part);
            if (i == 2)
                check_view(&tensors[1], NULL, &view);
            if (i == 3)
                assert_int_equal(
                    test_tensor_mismatch(&tensors[0], (char *)view.data + bytes - part, bytes - part, part), part);
        }
        hr_load_free(load);
        hr_loader_free(loader);
    }
    remove(model.paths[0]);
    model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pread),          cmocka_unit_test(test_auto),
        cmocka_unit_test(test_mmap),           cmocka_unit_test(test_uring),
        cmocka_unit_test(test_sequential),     cmocka_unit_test(test_hook),
        cmocka_unit_test(test_alignments),     cmocka_unit_test(test_memory_alignment),
        cmocka_unit_test(test_many_tensors),   cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_unwanted_files), cmocka_unit_test(test_same_tensor_twice),
        cmocka_unit_test(test_no_items),       cmocka_unit_test(test_empty_items),
        cmocka_unit_test(test_over_4_gib),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
