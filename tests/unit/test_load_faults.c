/*
 * test_load_faults.c: loads whose files, storage, memory or threads fail: the error names what and where, nothing
 * half-loaded is handed out, nothing leaks, and the process can load again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "support/counting_allocator.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/gpu.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define TENSOR_BYTES (200 * KIB)
#define TENSOR_COUNT 12
#define PER_FILE 4

/* One way to load; the routes that read, and waiting threads that read themselves, to host memory and to a GPU. */
struct way {
    const char *name;
    uint32_t route, sequential;
    int gpu;
};

static const struct way ways[] = {{"pread", HR_ROUTE_PREAD, 0, 0},      {"uring", HR_ROUTE_URING, 0, 0},
                                  {"sequential", HR_ROUTE_PREAD, 1, 0}, {"pread gpu", HR_ROUTE_PREAD, 0, 1},
                                  {"uring gpu", HR_ROUTE_URING, 0, 1},  {"sequential gpu", HR_ROUTE_PREAD, 1, 1}};

static int way_usable(const struct way *way)
{
    return (way->route != HR_ROUTE_URING || uring_usable()) && (!way->gpu || gpu_name());
}

/* Calls `use` for each way that works here with a model of its own in three files. */
static void for_each_way(void (*use)(struct test_model *model, const struct way *way))
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct test_model model;
        if (!way_usable(&ways[i]))
            continue;
        model_equal(&model, "faulty", TENSOR_COUNT, TENSOR_BYTES, PER_FILE);
        use(&model, &ways[i]);
        model_close(&model);
    }
}

static struct hr_loader *way_loader(const struct way *way)
{
    const char *devices[] = {gpu_name()};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = devices,
                                        .device_count = (size_t)way->gpu,
                                        .route = way->route,
                                        .thread_count = 2,
                                        .chunk_bytes = 64 * KIB,
                                        .queue_depth = 2};
    return loader_make(&options);
}

static struct hr_load *way_load(struct hr_loader *loader, const struct test_model *model, const struct way *way)
{
    struct hr_load_options options = {.size = sizeof options, .sequential = way->sequential};
    return load_model(loader, model, &options);
}

/* Loads by `way` until the failure, checks what became ready before it, and returns the code. */
static int load_to_failure(const struct test_model *model, const struct way *way, struct hr_error *err)
{
    size_t index = SIZE_MAX;
    int code;
    struct hr_loader *loader = way_loader(way);
    struct hr_load *load = way_load(loader, model, way);
    while ((code = hr_load_next(load, &index, err)) == 0)
        check_item(load, index, model);
    if (code < 0 && code != HR_EEND) {
        struct hr_error again = {0};
        assert_int_equal(hr_load_wait_all(load, &again), code); /* it stays failed, for the same reason */
        assert_string_equal(again.message, err->message);
        assert_string_equal(again.tensor, err->tensor);
    }
    hr_load_free(load);
    hr_loader_free(loader);
    return code;
}

static void load_well(const struct test_model *model, const struct way *way)
{
    struct hr_error err = {0};
    assert_code(load_to_failure(model, way, &err), HR_EEND);
}

/* Whether `err` names a tensor of the file, and an offset that is that tensor's or leads to it. */
static void check_named(const struct hr_error *err, const struct test_model *model, size_t file_index)
{
    assert_string_equal(err->file, model->paths[file_index]);
    const struct hr_tensor *tensor = hr_checkpoint_find(model->checkpoint, err->tensor, strlen(err->tensor));
    assert_non_null(tensor);
    assert_int_equal(tensor->file_index, file_index);
    assert_true(err->offset < tensor->offset + tensor->size);
    assert_true(err->offset + 64 * KIB > tensor->offset);
}

static uint64_t file_size(const struct test_model *model, size_t file_index)
{
    return hr_checkpoint_file(model->checkpoint, file_index)->size;
}

/* ------------------------------------------------------------------------------------ changed files */

static void use_truncated(struct test_model *model, const struct way *way)
{
    struct hr_error err = {0};
    assert_int_equal(truncate(model->paths[1], (off_t)file_size(model, 1) - 1), 0);
    assert_code(load_to_failure(model, way, &err), HR_EFILE_CHANGED);
    check_named(&err, model, 1);
}

static void test_truncated(void **state)
{
    (void)state;
    for_each_way(use_truncated);
}

static void use_truncated_meanwhile(struct test_model *model, const struct way *way)
{
    for (unsigned long at = 1; at < 25; at += 4) {
        struct test_model own;
        model_equal(&own, "shrinking", TENSOR_COUNT, TENSOR_BYTES, TENSOR_COUNT);
        struct fake_truncation truncation = {own.paths[0], file_size(&own, 0) / 2};
        struct fake_storage storage = {.event_at = at, .event = fake_event_truncate, .event_context = &truncation};
        struct hr_error err = {0};
        fake_storage_install(&storage);
        int code = load_to_failure(&own, way, &err);
        fake_storage_remove();
        assert_true(code == HR_ESHORT_READ || code == HR_EFILE_CHANGED);
        check_named(&err, &own, 0);
        if (code == HR_ESHORT_READ)
            assert_true(err.offset >= truncation.size);
        model_close(&own);
    }
    load_well(model, way);
}

static void test_truncated_meanwhile(void **state)
{
    (void)state;
    for_each_way(use_truncated_meanwhile);
}

/* A file of the same size under the same name. */
static const char *write_other(const struct test_model *model, size_t file_index)
{
    struct test_tensor others[PER_FILE];
    char names[PER_FILE][8];
    const char *path = test_path("other.safetensors");
    for (size_t i = 0; i < PER_FILE; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(model->checkpoint, file_index * PER_FILE + i);
        memcpy(names[i], tensor->name, 8);
        others[i] = model->tensors[file_index * PER_FILE + i];
        others[i].name = names[i];
        others[i].seed += 1000;
    }
    test_file_write(path, others, PER_FILE, 0);
    return path;
}

static void use_replaced(struct test_model *model, const struct way *way)
{
    struct hr_error err = {0};
    assert_int_equal(rename(write_other(model, 2), model->paths[2]), 0);
    assert_code(load_to_failure(model, way, &err), HR_EFILE_CHANGED);
    check_named(&err, model, 2);
}

static void test_replaced(void **state)
{
    (void)state;
    for_each_way(use_replaced);
}

/* Replaced while it is open: the old file's bytes, which are still there, are what was asked for. */
static void use_replaced_meanwhile(struct test_model *model, const struct way *way)
{
    struct fake_replacement replacement = {write_other(model, 0), model->paths[0]};
    struct fake_storage storage = {.event_at = 2, .event = fake_event_replace, .event_context = &replacement};
    fake_storage_install(&storage);
    load_well(model, way); /* the second read is still of file 0 */
    fake_storage_remove();
    struct hr_error err = {0};
    assert_code(load_to_failure(model, way, &err), HR_EFILE_CHANGED);
}

static void test_replaced_meanwhile(void **state)
{
    (void)state;
    for_each_way(use_replaced_meanwhile);
}

/* One byte is written in place, without a change of size. */
static void event_rewrite(void *path)
{
    int fd = open(path, O_WRONLY);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1700000000}};
    if (fd < 0 || pwrite(fd, "x", 1, 5000) != 1 || futimens(fd, times))
        print_error("cannot rewrite the file\n");
    close(fd);
}

static void use_rewritten_meanwhile(struct test_model *model, const struct way *way)
{
    struct fake_storage storage = {
        .event_at = 3, .event = event_rewrite, .event_context = (void *)(uintptr_t)model->paths[0]};
    struct hr_error err = {0};
    fake_storage_install(&storage);
    assert_code(load_to_failure(model, way, &err), HR_EFILE_CHANGED);
    fake_storage_remove();
    check_named(&err, model, 0);
}

static void test_rewritten_meanwhile(void **state)
{
    (void)state;
    for_each_way(use_rewritten_meanwhile);
}

static void use_removed(struct test_model *model, const struct way *way)
{
    struct hr_error err = {0};
    unlink(model->paths[1]);
    assert_code(load_to_failure(model, way, &err), HR_EFILE_CHANGED);
    check_named(&err, model, 1);
}

static void test_removed(void **state)
{
    (void)state;
    for_each_way(use_removed);
}

/* The mapping of a changed file is refused when it is made. */
static void test_mmap_changed(void **state)
{
    static const struct way mapped = {"mmap", HR_ROUTE_MMAP, 0, 0};
    struct test_model model;
    struct hr_error err = {0};
    struct hr_load *load = NULL;
    (void)state;
    model_equal(&model, "mapped", 4, TENSOR_BYTES, 4);
    assert_int_equal(truncate(model.paths[0], 5000), 0);
    struct hr_loader *loader = way_loader(&mapped);
    struct hr_item *items = model_items(&model);
    assert_code(hr_load_start(loader, model.checkpoint, items, 4, NULL, &load, &err), HR_EFILE_CHANGED);
    assert_null(load);
    assert_string_equal(err.file, model.paths[0]);
    assert_string_equal(err.tensor, "t.00000");
    free(items);
    hr_loader_free(loader);
    model_close(&model);
}

/* ------------------------------------------------------------------------------------------ storage */

static void use_unreliable(struct test_model *model, const struct way *way)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct fake_storage storage = {
            .seed = seed, .short_percent = 60, .eintr_percent = 20, .eagain_percent = 20, .delay_random_ns = 100000};
        fake_storage_install(&storage);
        load_well(model, way);
        fake_storage_remove();
    }
}

static void test_unreliable(void **state)
{
    struct test_model mixed;
    (void)state;
    for_each_way(use_unreliable);
    model_mixed(&mixed, "mixed", 10);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (way_usable(&ways[i]))
            use_unreliable(&mixed, &ways[i]);
    model_close(&mixed);
}

/* One bad place: its item fails, those that were ready stay, and when the storage is well again so is the loader. */
static void use_bad_place(struct test_model *model, const struct way *way)
{
    struct hr_error err = {0};
    const struct hr_tensor *bad = hr_checkpoint_at(model->checkpoint, 9);
    struct fake_storage storage = {
        .fail_begin = bad->offset + 100 * KIB, .fail_end = bad->offset + 100 * KIB + 1, .fail_path = model->paths[2]};
    /* so small a window that the bad item is not read before somebody waits for it */
    struct hr_load_options options = {.size = sizeof options, .sequential = way->sequential, .window_bytes = 1};
    struct hr_loader *loader = way_loader(way);
    fake_storage_install(&storage);
    struct hr_load *load = load_model(loader, model, &options);
    assert_ok(hr_load_wait(load, 0, &err), err);
    assert_code(hr_load_wait(load, 9, &err), HR_EIO_ERROR);
    check_named(&err, model, 2);
    assert_string_equal(err.tensor, bad->name);
    assert_int_equal(err.sys_errno, EIO);
    assert_true(err.offset <= bad->offset + 100 * KIB);
    assert_code(hr_load_wait(load, 9, NULL), HR_EIO_ERROR);
    assert_ok(hr_load_wait(load, 0, &err), err);
    check_item(load, 0, model);
    hr_load_free(load);
    fake_storage_remove();
    load = way_load(loader, model, way);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, model);
    hr_load_free(load);
    hr_loader_free(loader);
}

static void test_bad_place(void **state)
{
    (void)state;
    for_each_way(use_bad_place);
}

/* ---------------------------------------------------------------------------- memory, threads, files */

/* The n-th call of the hook fails: in the start or in a wait, with the tensor where it is for one. */
static void test_hook_fails(void **state)
{
    struct test_model model;
    (void)state;
    model_equal(&model, "hooked", TENSOR_COUNT, TENSOR_BYTES, TENSOR_COUNT);
    struct hr_item *items = model_items(&model);
    for (long n = 1; n <= TENSOR_COUNT + 1; n++)
        for (uint32_t sequential = 0; sequential < 2; sequential++) {
            struct counting_allocator counting = {.fail_at = n};
            struct hr_error err = {0};
            struct hr_load *load = NULL;
            struct hr_loader_options options = {.size = sizeof options, .allocator = counting_hook(&counting)};
            struct hr_load_options load_options = {.size = sizeof load_options,
                                                   .ownership = HR_OWN_EACH,
                                                   .sequential = sequential,
                                                   .window_bytes = 3 * TENSOR_BYTES};
            struct hr_loader *loader = loader_make(&options);
            size_t index, count = 0;
            int code = hr_load_start(loader, model.checkpoint, items, model.count, &load_options, &load, &err);
            while (code == 0 && (code = hr_load_next(load, &index, &err)) == 0) {
                check_item(load, index, &model);
                count++;
            }
            if (n > TENSOR_COUNT) {
                assert_code(code, HR_EEND);
            } else {
                assert_code(code, HR_EOUT_OF_MEMORY);
                assert_true(count < (size_t)n);
                assert_memory_equal(err.tensor, "t.", 2);
            }
            hr_load_free(load);
            hr_loader_free(loader);
            assert_int_equal(atomic_load(&counting.live_count), 0);
        }
    free(items);
    model_close(&model);
}

/* Threads that cannot be started: fewer of them go on; none is an error. */
static void test_threads_fail(void **state)
{
    struct test_model model;
    struct hr_loader_options options = {
        .size = sizeof options, .route = HR_ROUTE_PREAD, .thread_count = 4, .chunk_bytes = 64 * KIB};
    (void)state;
    model_equal(&model, "threads", TENSOR_COUNT, TENSOR_BYTES, PER_FILE);
    struct hr_item *items = model_items(&model);
    faults_install();
    for (unsigned long n = 1; n <= 5; n++) {
        struct hr_error err = {0};
        struct hr_load *load = NULL;
        struct hr_stats stats = {.size = sizeof stats};
        struct hr_loader *loader = loader_make(&options);
        faults_fail_from(FAULT_THREAD, n, 0);
        int code = hr_load_start(loader, model.checkpoint, items, model.count, NULL, &load, &err);
        faults_fail(0, 0, 0);
        if (n == 1) {
            assert_code(code, HR_EOUT_OF_MEMORY);
            assert_int_equal(err.sys_errno, EAGAIN);
            assert_null(load);
        } else {
            assert_ok(code, err);
            assert_int_equal(err.code, 0); /* untouched */
            assert_ok(hr_load_wait_all(load, &err), err);
            check_all_items(load, &model);
            assert_int_equal(hr_load_stats(load, &stats), 0);
            assert_int_equal(stats.thread_count, n - 1);
        }
        hr_load_free(load);
        hr_loader_free(loader);
        struct faults_live live = faults_live();
        assert_int_equal(live.allocation_count + live.mapping_bytes + live.descriptor_count + live.thread_count, 0);
    }
    faults_remove();
    free(items);
    model_close(&model);
}

/* No descriptor at all is an error that says so; one comes through with one. */
static void use_without_descriptors(struct test_model *model, const struct way *way)
{
    struct hr_error err = {0};
    faults_install();
    faults_fail_from(FAULT_OPEN, 1, EMFILE);
    assert_code(load_to_failure(model, way, &err), HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, EMFILE);
    faults_assert_nothing_live();
    faults_remove();
}

static void test_without_descriptors(void **state)
{
    (void)state;
    for_each_way(use_without_descriptors);
}

/* Every second open fails for want of a descriptor, so that readers wait for each other. */
static atomic_uint open_count;
static int open_every_second(const char *path, int flags)
{
    unsigned number = atomic_fetch_add(&open_count, 1);
    return number > 0 && number % 2 ? -EMFILE : hr_sys_real.open(path, flags);
}

static void test_few_descriptors(void **state)
{
    struct test_model model;
    struct hr_sys table = hr_sys_real;
    (void)state;
    model_equal(&model, "few", 40, 50 * KIB, 1);
    table.open = open_every_second;
    hr_sys = &table;
    struct fake_storage storage = {.seed = 3, .delay_random_ns = 1000000};
    fake_storage_install(&storage);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (!way_usable(&ways[i]) || ways[i].gpu)
            continue;
        struct hr_error err = {0};
        struct hr_loader_options options = {
            .size = sizeof options, .route = ways[i].route, .thread_count = 6, .queue_depth = 4};
        struct hr_load_options load_options = {.size = sizeof load_options, .sequential = ways[i].sequential};
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_model(loader, &model, &load_options);
        int code = hr_load_wait_all(load, &err);
        if (code == 0)
            check_all_items(load, &model);
        else /* a thread may have met the refusal when no other held a file */
            assert_int_equal(err.sys_errno, EMFILE);
        hr_load_free(load);
        hr_loader_free(loader);
    }
    fake_storage_remove();
    hr_sys = &hr_sys_real;
    model_close(&model);
}

enum { VERY_FEW = 3 };
static atomic_int descriptor_count;

static int very_few_open(const char *path, int flags)
{
    int is_left = atomic_fetch_add(&descriptor_count, 1) < VERY_FEW;
    int fd = is_left ? hr_sys_real.open(path, flags) : -EMFILE;
    if (fd < 0)
        atomic_fetch_sub(&descriptor_count, 1);
    return fd;
}

/* A descriptor that is given back is taken until it is closed, which may take a while. */
static int slow_close(int fd)
{
    usleep(300);
    int code = hr_sys_real.close(fd);
    atomic_fetch_sub(&descriptor_count, 1);
    return code;
}

/* More threads than descriptors, and files of one chunk each: all of it loads, however threads come to fail. */
static void test_very_few_descriptors(void **state)
{
    struct test_model model;
    struct hr_sys table = hr_sys_real;
    (void)state;
    model_equal(&model, "very few", 60, 5 * KIB, 1);
    table.open = very_few_open;
    table.close = slow_close;
    hr_sys = &table;
    for (unsigned round = 0; round < 10; round++) {
        struct hr_error err = {0};
        struct hr_loader_options options = {.size = sizeof options, .route = HR_ROUTE_PREAD, .thread_count = 8};
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_model(loader, &model, NULL);
        assert_ok(hr_load_wait_all(load, &err), err);
        check_all_items(load, &model);
        hr_load_free(load);
        hr_loader_free(loader);
        assert_int_equal(atomic_load(&descriptor_count), 0);
    }
    hr_sys = &hr_sys_real;
    model_close(&model);
}

/* -------------------------------------------------------------------------------------------- sweeps */

struct scenario {
    const struct test_model *model;
    uint32_t route, sequential, ownership;
    uint64_t window_bytes;
    int gpu;
};

static int scenario_consume(struct hr_load *load, const struct scenario *scenario, struct hr_error *err)
{
    size_t index = 0;
    int code;
    while ((code = hr_load_next(load, &index, err)) == 0) {
        void *tensor = NULL;
        check_item(load, index, scenario->model);
        code = hr_load_take(load, index, 1, &tensor, err);
        if (code < 0) {
            assert_null(tensor);
            return code;
        }
        struct {
            uint64_t version;
            void *context;
            void (*deleter)(void *self);
        } *managed = tensor;
        managed->deleter(tensor);
        code = hr_load_drop(load, index, err);
        if (code < 0)
            return code;
    }
    return code == HR_EEND ? 0 : code;
}

static int run_scenario(void *context, struct hr_error *err)
{
    const struct scenario *scenario = context;
    const char *devices[] = {gpu_name()};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = devices,
                                        .device_count = (size_t)scenario->gpu,
                                        .route = scenario->route,
                                        .thread_count = 2,
                                        .chunk_bytes = 64 * KIB,
                                        .queue_depth = 2};
    struct hr_load_options load_options = {.size = sizeof load_options,
                                           .window_bytes = scenario->window_bytes,
                                           .ownership = scenario->ownership,
                                           .sequential = scenario->sequential};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    struct hr_item *items = model_items(scenario->model);
    int code = hr_checkpoint_open(scenario->model->paths, scenario->model->path_count, NULL, &checkpoint, err);
    if (code == 0)
        code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, checkpoint, items, scenario->model->count, &load_options, &load, err);
    if (code == 0)
        code = scenario_consume(load, scenario, err);
    hr_load_free(load);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    free(items);
    return code;
}

/* The sanitizer of threads takes minutes for all settings on a GPU. */
#ifdef HEADRACE_TSAN
#define GPU_SETTING_STEP 3
#else
#define GPU_SETTING_STEP 1
#endif

static void sweep_route(const struct test_model *model, uint32_t route, int gpu)
{
    for (uint32_t setting = 0; setting < 4; setting += gpu ? GPU_SETTING_STEP : 1) {
        struct scenario scenario = {model, route, setting == 1, setting == 2, setting == 3 ? 200 * KIB : 0, gpu};
        if (route == HR_ROUTE_URING && (!uring_usable() || scenario.sequential))
            continue;
        assert_true(faults_sweep(FAULT_ALL, 0, run_scenario, &scenario) > 20);
    }
}

static void test_sweep(void **state)
{
    struct test_model model;
    (void)state;
    model_equal(&model, "swept", 6, 90 * KIB, 3);
    for (uint32_t route = HR_ROUTE_PREAD; route <= HR_ROUTE_MMAP; route++)
        sweep_route(&model, route, 0);
    model_close(&model);
}

static void test_sweep_gpu(void **state)
{
    struct test_model model;
    (void)state;
    if (!gpu_name())
        skip();
    model_equal(&model, "swept", 6, 90 * KIB, 3);
    sweep_route(&model, HR_ROUTE_PREAD, 1);
    sweep_route(&model, HR_ROUTE_URING, 1);
    model_close(&model);
}

/* Strided slices, which need bounce buffers, and files that are read in turns of EINTR. */
static int run_staged(void *context, struct hr_error *err)
{
    const struct scenario *scenario = context;
    struct hr_range columns[2] = {{0, 900, 0}, {3, 50, 0}};
    struct hr_item item = {.size = sizeof item, .ranges = columns};
    const char *devices[] = {gpu_name()};
    struct hr_loader_options options = {.size = sizeof options,
                                        .devices = devices,
                                        .device_count = (size_t)scenario->gpu,
                                        .route = scenario->route,
                                        .thread_count = 2,
                                        .chunk_bytes = 64 * KIB};
    struct hr_load_options load_options = {.size = sizeof load_options, .sequential = scenario->sequential};
    struct hr_view view = {.size = sizeof view};
    static char copy[900 * 47 * 4];
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    int code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, scenario->model->checkpoint, &item, 1, &load_options, &load, err);
    if (code == 0)
        code = hr_load_wait(load, 0, err);
    if (code == 0) {
        assert_int_equal(hr_load_view(load, 0, &view, err), 0);
        if (scenario->gpu) {
            assert_int_equal(view.bytes, sizeof copy);
            code = hr_load_read(load, 0, 0, sizeof copy, copy, err);
            view.data = copy;
        }
    }
    if (code == 0)
        check_view(&scenario->model->tensors[0], columns, &view);
    hr_load_free(load);
    hr_loader_free(loader);
    return code;
}

static void test_sweep_staged(void **state)
{
    const struct test_tensor tensor = {.name = "rows", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {900, 60}, .seed = 1};
    struct test_model model;
    (void)state;
    model_write(&model, "staged", &tensor, 1, 1, 0);
    model_open(&model);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct scenario scenario = {&model, ways[i].route, ways[i].sequential, 0, 0, ways[i].gpu};
        if (way_usable(&ways[i]))
            assert_true(faults_sweep(FAULT_ALL, 0, run_staged, &scenario) > 10);
    }
    model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_truncated_meanwhile),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_replaced_meanwhile),
        cmocka_unit_test(test_rewritten_meanwhile),
        cmocka_unit_test(test_removed),
        cmocka_unit_test(test_mmap_changed),
        cmocka_unit_test(test_unreliable),
        cmocka_unit_test(test_bad_place),
        cmocka_unit_test(test_hook_fails),
        cmocka_unit_test(test_threads_fail),
        cmocka_unit_test(test_without_descriptors),
        cmocka_unit_test(test_few_descriptors),
        cmocka_unit_test(test_very_few_descriptors),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_sweep_gpu),
        cmocka_unit_test(test_sweep_staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
