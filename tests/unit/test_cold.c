/*
 * test_cold.c: what storage must deliver. The page cache stays as it was, whatever the filesystem refuses; half of it
 * there, half of it not; bytes are right by every way, to host memory and to a GPU, and whatever fails is named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/sys.h"
#include "io/storage.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/gpu.h"
#include "support/page_cache.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)

static struct hr_loader *any_loader(struct hr_loader_options options, int gpu)
{
    const char *devices[] = {gpu_name()};
    options.size = sizeof options;
    options.devices = devices;
    options.device_count = (size_t)gpu;
    return loader_make(&options);
}

/* ---------------------------------------------------------------------------------- the real system */

/* Puts the model's files on the disk and out of the page cache; 0 where that cannot be had. */
static int make_cold(const struct test_model *model)
{
    int64_t left = 0;
    for (size_t i = 0; i < model->path_count; i++) {
        page_cache_drop(model->paths[i]);
        left += page_cache_held(model->paths[i]);
    }
    return left == 0;
}

/* Twice: the first read may drop what a probe with RWF_DONTCACHE has left marked. */
static void make_hot(const struct test_model *model)
{
    char block[65536];
    for (size_t i = 0; i < 2 * model->path_count; i++) {
        int fd = open(model->paths[i / 2], O_RDONLY);
        assert_true(fd >= 0);
        while (read(fd, block, sizeof block) > 0)
            ;
        close(fd);
    }
}

static void check_page_cache(const struct test_model *model, const struct hr_stats *stats)
{
    int64_t resident = 0;
    for (size_t i = 0; i < model->path_count; i++)
        resident += page_cache_held(model->paths[i]);
    if (resident > (int64_t)stats->bytes_needed / 100 + (int64_t)(64 * KIB))
        fail_msg("the page cache holds %lld bytes more", (long long)resident);
}

static void test_page_cache_stays(void **state)
{
    struct test_model model;
    (void)state;
    model_equal(&model, "cold", 12, 3000001, 4);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++) {
        struct hr_loader *loader = any_loader((struct hr_loader_options){.thread_count = 3}, gpu);
        if (!make_cold(&model)) {
            print_message("the page cache cannot be emptied here\n");
            hr_loader_free(loader);
            continue;
        }
        struct hr_stats stats = load_whole_model(loader, &model);
        check_page_cache(&model, &stats);
        print_message("%s: %llu of %llu bytes with O_DIRECT\n", gpu ? "gpu" : "host",
                      (unsigned long long)stats.bytes_direct, (unsigned long long)stats.bytes_read);
        hr_loader_free(loader);
    }
    model_close(&model);
}

static void test_keep_cache(void **state)
{
    struct test_model model;
    (void)state;
    model_equal(&model, "kept", 6, 1000001, 3);
    struct hr_loader *loader = any_loader((struct hr_loader_options){.thread_count = 2, .keep_cache = 1}, 0);
    make_cold(&model);
    struct hr_stats stats = load_whole_model(loader, &model);
    assert_int_equal(stats.bytes_direct, 0);
    assert_true(!*stats.storage || strncmp(stats.storage, "buffered by ", 12) == 0);
    assert_true(!*stats.storage || strstr(stats.storage, "keep_cache"));
    for (size_t i = 0; i < model.path_count; i++)
        assert_true(page_cache_held(model.paths[i]) > 2900000);
    make_hot(&model);
    stats = load_whole_model(loader, &model);
    assert_string_equal(stats.storage, "");
    hr_loader_free(loader);
    model_close(&model);
}

/* ------------------------------------------------------------------------------- other storage, played */

static const struct fake_storage storages[] = {
    {.cold = 1},
    {.cold = 1, .short_percent = 30, .eintr_percent = 5, .reorder_percent = 30},
    {.cold = 1, .warm_bytes = 1 << 20},
    {.cold = 1, .warm_bytes = 1 << 20, .direct_open_error = EINVAL},
    {.cold = 1, .direct_open_error = EINVAL, .flags_error = EOPNOTSUPP},
    {.cold = 1, .direct_open_error = EINVAL, .flags_error = EOPNOTSUPP, .fadvise_error = EINVAL, .short_percent = 30},
    {.cold = 1, .alignment = {4096, 4096}, .short_percent = 20},
    {.cold = 1, .alignment = {4096, 65536}},
    {.cold = 1, .cachestat_error = ENOSYS},
    {.cold = 1, .cachestat_error = EPERM, .may_write_error = EPERM, .flags_error = EOPNOTSUPP},
    {.cold = 1, .bandwidth = 2, .latency_ns = 300000},
    {.cold = 1, .descriptor_max = 2},
};

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* The statistics name the rung that the load came to, and each that was refused above it. */
static void check_storage_text(const struct fake_storage *storage, const char *path, const char *text)
{
    struct hr_storage probed;
    int fd = open(path, O_RDONLY);
    hr_storage_probe(path, fd, &probed);
    close(fd);
    if (probed.is_memory || (storage->cachestat_error && storage->flags_error)) { /* nobody can tell: read as cached */
        assert_string_equal(text, "");
        return;
    }
    int is_coarse = hr_storage_wants_more_than_pages(&probed);
    const char *name = hr_read_mode_name(is_coarse ? probed.fallback_mode : probed.mode);
    assert_int_equal(strncmp(text, name, strlen(name)), 0);
    assert_contains(text + strlen(name), " by ");
    if (is_coarse)
        assert_contains(text, "alignment to more than pages");
    if (storage->direct_open_error)
        assert_contains(text, "no O_DIRECT: open says errno 22");
    if (storage->direct_open_error && storage->flags_error)
        assert_contains(text, "drop by ");
    if (storage->flags_error)
        assert_contains(text, "no RWF_DONTCACHE");
}

static void test_played(void **state)
{
    struct test_model mixed;
    (void)state;
    model_mixed(&mixed, "played", 20);
    for (size_t i = 0; i < sizeof storages / sizeof storages[0]; i++)
        for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++)
            for (uint32_t threads = 1; threads < 5; threads += 3) {
                struct fake_storage storage = storages[i];
                storage.seed = i * 10 + threads + 1;
                fake_storage_install(&storage);
                struct hr_loader *loader =
                    any_loader((struct hr_loader_options){.thread_count = threads, .chunk_bytes = 256 * KIB}, gpu);
                struct hr_stats stats = load_whole_model(loader, &mixed);
                hr_loader_free(loader);
                check_storage_text(&storage, mixed.paths[0], stats.storage);
                fake_storage_remove();
                if (i == 0 && stats.bytes_direct == 0)
                    print_message("the filesystem of the tests has no O_DIRECT\n");
                if (storage.direct_open_error)
                    assert_int_equal(stats.bytes_direct, 0);
            }
    model_close(&mixed);
}

/* What ended last of the two kinds of chunks, in the order in which reads ended. */
struct order {
    uint64_t warm_bytes;
    _Atomic unsigned edge_count, cold_count, cold_before_edges;
};

static void note_read(void *context, const struct hr_trace_event *event)
{
    struct order *order = context;
    if (event->kind != HR_TRACE_READ)
        return;
    if (event->offset >= order->warm_bytes)
        order->cold_count++;
    else if (event->offset + HR_HEAT_EDGE_BYTES > order->warm_bytes) {
        if (order->edge_count++ == 0)
            order->cold_before_edges = order->cold_count;
    }
}

/* What is cached just before what is not: it is read last, unless somebody waits for it, or it is much of what is cached. */
static void test_edges(void **state)
{
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    model_equal(&model, "edges", 24, 4 * KIB * KIB, 24);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++)
        for (uint64_t warm = 16; warm <= 64; warm += 48) {
            struct order order = {.warm_bytes = warm * KIB * KIB};
            struct fake_storage storage = {.cold = 1, .warm_bytes = order.warm_bytes};
            struct hr_load_options options = {.size = sizeof options, .trace = note_read, .trace_context = &order};
            fake_storage_install(&storage);
            struct hr_loader *loader =
                any_loader((struct hr_loader_options){.thread_count = 3, .chunk_bytes = 512 * KIB}, gpu);
            struct hr_load *load = load_model(loader, &model, &options);
            if (warm == 64) {
                assert_ok(hr_load_wait_all(load, &err), err);
                assert_int_equal(order.cold_before_edges, order.cold_count);
            } else {
                assert_ok(hr_load_wait(load, 2, &err), err);
                assert_ok(hr_load_wait_all(load, &err), err);
                assert_true(order.cold_before_edges < order.cold_count);
            }
            check_all_items(load, &model);
            hr_load_free(load);
            hr_loader_free(loader);
            fake_storage_remove();
            assert_true(order.edge_count && order.cold_count);
        }
    model_close(&model);
}

/* A reader's reads that began though a chunk that it had read before was not on its way to the GPU. */
struct pipeline {
    uint64_t read_begin[256], copy_begin[256];
    size_t read_count, copy_count;
};

static void note_begin(void *context, const struct hr_trace_event *event)
{
    struct pipeline *pipeline = context;
    if (event->kind == HR_TRACE_READ && pipeline->read_count < 256)
        pipeline->read_begin[pipeline->read_count++] = event->begin_ns;
    if (event->kind == HR_TRACE_COPY && pipeline->copy_count < 256)
        pipeline->copy_begin[pipeline->copy_count++] = event->begin_ns;
}

/* With io_uring what the page cache holds is read while it is asked for: it goes on before the next is asked for. */
static void test_hot_by_uring(void **state)
{
    struct test_model model;
    struct hr_error err = {0};
    struct pipeline pipeline = {.read_count = 0};
    struct hr_load_options options = {.size = sizeof options, .trace = note_begin, .trace_context = &pipeline};
    size_t late_count = 0;
    (void)state;
    if (!gpu_name() || !uring_usable())
        skip();
    model_equal(&model, "by-uring", 32, 1024 * KIB, 8);
    make_hot(&model);
    struct hr_loader *loader =
        any_loader((struct hr_loader_options){.thread_count = 1, .chunk_bytes = 512 * KIB, .route = HR_ROUTE_URING}, 1);
    struct hr_load *load = load_model(loader, &model, &options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &model);
    hr_load_free(load);
    hr_loader_free(loader);
    assert_true(pipeline.read_count >= 32 && pipeline.read_count == pipeline.copy_count);
    for (size_t i = 1; i < pipeline.read_count; i++)
        late_count += pipeline.read_begin[i] < pipeline.copy_begin[i - 1];
    assert_true(late_count < pipeline.read_count / 4);
    model_close(&model);
}

/*
 * The file opens with O_DIRECT and refuses the reads: what was begun is read anew in the next best mode, also where no
 * descriptor is to spare.
 */
static void test_direct_refused_late(void **state)
{
    struct test_model model;
    (void)state;
    model_equal(&model, "refused", 8, 900001, 4);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++)
        for (unsigned long at = 2; at < 14; at++) {
            struct fake_storage storage = {
                .cold = 1, .event_at = at, .event = fake_event_refuse_direct, .descriptor_max = at % 2 ? 2 : 0};
            fake_storage_install(&storage);
            struct hr_loader *loader =
                any_loader((struct hr_loader_options){.thread_count = 2, .chunk_bytes = 256 * KIB}, gpu);
            struct hr_stats stats = load_whole_model(loader, &model);
            hr_loader_free(loader);
            fake_storage_remove();
            if (stats.bytes_direct)
                assert_contains(stats.storage, "no O_DIRECT: ");
        }
    model_close(&model);
}

static const struct hr_sys *below_scarce;
static atomic_uint direct_opens;

/* No descriptor for the first open with O_DIRECT, which is the one that asks what the storage can. */
static int scarce_open(const char *path, int flags)
{
    if (flags & O_DIRECT && atomic_fetch_add(&direct_opens, 1) == 0)
        return -EMFILE;
    return below_scarce->open(path, flags);
}

/* A shortage that passes does not leave the storage without O_DIRECT. */
static void test_direct_after_a_shortage(void **state)
{
    struct test_model model;
    struct fake_storage storage = {.cold = 1, .plays_direct = 1, .alignment = {4, 512}};
    (void)state;
    model_equal(&model, "scarce", 8, 900001, 4);
    fake_storage_install(&storage);
    struct hr_sys table = *hr_sys;
    below_scarce = hr_sys;
    table.open = scarce_open;
    atomic_store(&direct_opens, 0);
    hr_sys = &table;
    struct hr_loader *loader =
        any_loader((struct hr_loader_options){.thread_count = 1, .chunk_bytes = 256 * KIB, .route = HR_ROUTE_AUTO}, 0);
    struct hr_stats stats = load_whole_model(loader, &model);
    hr_loader_free(loader);
    hr_sys = below_scarce;
    fake_storage_remove();
    assert_true(atomic_load(&direct_opens) > 1);
    assert_true(stats.bytes_direct > stats.bytes_read / 2);
    model_close(&model);
}

/* O_DIRECT is refused and the file is gone: that is what the error says. */
static void refuse_and_remove(void *path)
{
    fake_event_refuse_direct(NULL);
    unlink(path);
}

static void test_gone_when_refused(void **state)
{
    struct test_model model;
    struct hr_storage probed;
    struct hr_error err = {0};
    (void)state;
    model_equal(&model, "gone", 4, 900001, 4);
    int fd = open(model.paths[0], O_RDONLY);
    hr_storage_probe(model.paths[0], fd, &probed);
    close(fd);
    if (probed.mode != HR_READ_DIRECT) {
        model_close(&model);
        skip();
    }
    struct fake_storage storage = {
        .cold = 1, .event_at = 4, .event = refuse_and_remove, .event_context = (void *)(uintptr_t)model.paths[0]};
    fake_storage_install(&storage);
    struct hr_loader *loader = any_loader((struct hr_loader_options){.thread_count = 1, .chunk_bytes = 256 * KIB}, 0);
    struct hr_load *load = load_model(loader, &model, NULL);
    int code = hr_load_wait_all(load, &err);
    hr_load_free(load);
    hr_loader_free(loader);
    fake_storage_remove();
    assert_code(code, HR_EFILE_CHANGED);
    assert_string_equal(err.file, model.paths[0]);
    model_close(&model);
}

/* Slices of a cold file: rows, and columns that lie far apart. */
static void test_slices(void **state)
{
    const struct test_tensor tensor = {.name = "m", .dtype = HR_DTYPE_BF16, .rank = 2, .shape = {700, 9001}, .seed = 5};
    const struct hr_range rows[2] = {{100, 311, 0}, {0, 9001, 0}}, columns[2] = {{0, 700, 0}, {4500, 9001, 0}},
                          narrow[2] = {{3, 690, 2}, {17, 20, 0}};
    const struct hr_range *const slices[] = {rows, columns, narrow};
    struct fake_storage storage = {.cold = 1, .short_percent = 10, .seed = 3};
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    model_write(&model, "slices", &tensor, 1, 1, 5);
    model_open(&model);
    fake_storage_install(&storage);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++)
        for (size_t i = 0; i < 3; i++) {
            struct hr_loader *loader =
                any_loader((struct hr_loader_options){.thread_count = 2, .chunk_bytes = 128 * KIB}, gpu);
            struct hr_item item = {.size = sizeof item, .ranges = slices[i]};
            struct hr_load *load = load_make(loader, model.checkpoint, &item, 1, NULL);
            struct hr_view view = {.size = sizeof view};
            assert_ok(hr_load_wait(load, 0, &err), err);
            assert_ok(hr_load_view(load, 0, &view, &err), err);
            void *copy = malloc(view.bytes);
            assert_ok(hr_load_read(load, 0, 0, view.bytes, copy, &err), err);
            view.data = copy;
            check_view(&tensor, slices[i], &view);
            free(copy);
            hr_load_free(load);
            hr_loader_free(loader);
        }
    fake_storage_remove();
    model_close(&model);
}

/* -------------------------------------------------------------------------------------- what ends early */

static void test_truncated(void **state)
{
    (void)state;
    for (unsigned long at = 2; at < 14; at += 3) {
        struct test_model model;
        model_equal(&model, "shrinking", 6, 500000, 6);
        struct fake_truncation truncation = {model.paths[0], hr_checkpoint_file(model.checkpoint, 0)->size / 2};
        struct fake_storage storage = {
            .cold = 1, .event_at = at, .event = fake_event_truncate, .event_context = &truncation};
        struct hr_error err = {0};
        fake_storage_install(&storage);
        struct hr_loader *loader =
            any_loader((struct hr_loader_options){.thread_count = 2, .chunk_bytes = 128 * KIB}, 0);
        struct hr_load *load = load_model(loader, &model, NULL);
        int code = hr_load_wait_all(load, &err);
        hr_load_free(load);
        hr_loader_free(loader);
        fake_storage_remove();
        assert_true(code == HR_ESHORT_READ || code == HR_EFILE_CHANGED);
        assert_string_equal(err.file, model.paths[0]);
        assert_true(strlen(err.tensor) > 0);
        model_close(&model);
    }
}

/* Freed while reads are in flight and others wait for the budget. */
static void test_freed_early(void **state)
{
    struct fake_storage storage = {.cold = 1, .bandwidth = 0.5, .latency_ns = 2000000};
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    model_equal(&model, "early", 10, 700001, 5);
    fake_storage_install(&storage);
    for (size_t turn = 0; turn < 12; turn++) {
        int gpu = turn % 2 && gpu_name();
        struct hr_loader *loader =
            any_loader((struct hr_loader_options){.thread_count = 4, .chunk_bytes = 64 * KIB}, gpu);
        struct hr_load *load = load_model(loader, &model, NULL);
        if (turn % 3)
            assert_ok(hr_load_wait(load, turn % 3, &err), err);
        hr_load_free(load);
        hr_loader_free(loader);
    }
    fake_storage_remove();
    model_close(&model);
}

struct scenario {
    const struct test_model *model;
    int gpu;
};

static int run_scenario(void *context, struct hr_error *err)
{
    const struct scenario *scenario = context;
    const char *devices[] = {gpu_name()};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = devices,
                                        .device_count = (size_t)scenario->gpu,
                                        .thread_count = 2,
                                        .chunk_bytes = 64 * KIB};
    struct hr_item *items = model_items(scenario->model);
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    int code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, scenario->model->checkpoint, items, scenario->model->count, NULL, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    if (code == 0)
        check_all_items(load, scenario->model);
    hr_load_free(load);
    hr_loader_free(loader);
    free(items);
    return code;
}

static void test_sweep(void **state)
{
    struct fake_storage storage = {.cold = 1};
    struct test_model model;
    (void)state;
    model_equal(&model, "swept", 5, 90 * KIB, 3);
    fake_storage_install(&storage);
    for (int gpu = 0; gpu <= (gpu_name() != NULL); gpu++) {
        struct scenario scenario = {&model, gpu};
        assert_true(faults_sweep(FAULT_ALL, 0, run_scenario, &scenario) > 20);
    }
    fake_storage_remove();
    model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_cache_stays),
        cmocka_unit_test(test_keep_cache),
        cmocka_unit_test(test_played),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_hot_by_uring),
        cmocka_unit_test(test_direct_refused_late),
        cmocka_unit_test(test_direct_after_a_shortage),
        cmocka_unit_test(test_gone_when_refused),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_freed_early),
        cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
