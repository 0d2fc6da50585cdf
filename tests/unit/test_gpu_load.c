/*
 * test_gpu_load.c: loads to a GPU, real or fake: every byte in its place by every setting, whoever owns the memory;
 * pinned memory shared, bounded and given back; devices mixed in one request; what ends early leaves nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device.h"
#include "support/gpu.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)

static struct test_model mixed;

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "gpu", 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    return 0;
}

static struct hr_loader *gpu_loader(struct hr_loader_options options)
{
    const char *devices[] = {gpu_name()};
    options.size = sizeof options;
    options.devices = devices;
    options.device_count = 1;
    return loader_make(&options);
}

static void load_all(struct hr_loader *loader, const struct hr_load_options *options)
{
    struct hr_error err = {0};
    struct hr_load *load = load_model(loader, &mixed, options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &mixed);
    hr_load_free(load);
}

static void test_every_setting(void **state)
{
    static const struct hr_loader_options settings[] = {
        {.chunk_bytes = 0},
        {.chunk_bytes = 64 << 10, .thread_count = 1},
        {.chunk_bytes = 64 << 10, .thread_count = 5, .lane_count = 1},
        {.chunk_bytes = 100001, .thread_count = 3, .staging_bytes = 100001}, /* a ring of one slot */
        {.chunk_bytes = 1 << 20, .thread_count = 4, .lane_count = 7, .arena_bytes = 300000},
        {.chunk_bytes = 64 << 10, .thread_count = 2, .route = HR_ROUTE_URING, .queue_depth = 3},
        {.chunk_bytes = 64 << 10, .thread_count = 2, .route = HR_ROUTE_URING, .staging_bytes = 64 << 10},
    };
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (uint32_t ways = 0; ways < 8; ways++) {
            struct hr_load_options options = {.size = sizeof options,
                                              .ownership = ways & 1,
                                              .window_bytes = ways & 2 ? 200 * KIB : 0,
                                              .sequential = ways >> 2};
            if (settings[i].route == HR_ROUTE_URING && !uring_usable())
                continue;
            struct hr_loader *loader = gpu_loader(settings[i]);
            load_all(loader, &options);
            load_all(loader, &options); /* with staging that is there already */
            hr_loader_free(loader);
        }
}

static void *load_some(void *loader)
{
    for (int i = 0; i < 3; i++)
        load_all(loader, NULL);
    return NULL;
}

/* More readers than slots, of several loads. */
static void test_shared_ring(void **state)
{
    pthread_t threads[4];
    struct hr_loader *loader =
        gpu_loader((struct hr_loader_options){.chunk_bytes = 64 << 10, .thread_count = 4, .staging_bytes = 600 * KIB});
    (void)state;
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_some, loader), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    hr_loader_free(loader);
}

static void test_trim(void **state)
{
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 2, .staging_bytes = 8 << 20});
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    (void)state;
    assert_int_equal(hr_loader_trim(loader), 0);
    struct hr_load *load = load_model(loader, &mixed, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_true(stats.staging_bytes > 0 && stats.staging_bytes <= 8 << 20);
    assert_true(strlen(stats.staging) > 0);
    hr_load_free(load);
    assert_int_equal(hr_loader_trim(loader), stats.staging_bytes);
    assert_int_equal(hr_loader_trim(loader), 0);
    load_all(loader, NULL);
    hr_loader_free(loader);
    assert_int_equal(hr_loader_trim(NULL), 0);
}

/* --------------------------------------------------------------------------------------- ownership */

struct hook {
    atomic_long live, count;
};

static void *hook_alloc(void *context, const struct hr_allocation *allocation)
{
    struct hook *hook = context;
    hook->live++;
    hook->count++;
    assert_int_equal(allocation->device_index, 0);
    return gpu_alloc(allocation->bytes, 0x11);
}

static void hook_free(void *context, void *memory, const struct hr_allocation *allocation)
{
    struct hook *hook = context;
    hook->live--;
    gpu_free(memory, allocation->bytes);
}

static void test_hook(void **state)
{
    (void)state;
    for (uint32_t ownership = 0; ownership < 2; ownership++) {
        struct hook hook = {0};
        struct hr_load_options options = {.size = sizeof options, .ownership = ownership, .window_bytes = 1 << 20};
        struct hr_loader *loader =
            gpu_loader((struct hr_loader_options){.allocator = {&hook, hook_alloc, hook_free}, .thread_count = 2});
        load_all(loader, &options);
        hr_loader_free(loader);
        assert_int_equal(hook.live, 0);
        assert_true(hook.count > (ownership ? 40 : 1));
    }
}

#define NEIGHBOUR_BYTES (UINT64_C(2) << 20)

/*
 * Tensors that follow each other in the file, into allocations that follow each other in the device's memory: the
 * driver refuses a copy from one into the other. A real one may leave a gap, which shows nothing.
 */
static void test_neighbouring_allocations(void **state)
{
    enum { COUNT = 6 };
    void *memory[COUNT];
    struct hr_error err = {0};
    struct test_model model;
    size_t first = COUNT;
    (void)state;
    model_equal(&model, "neighbours", 2, NEIGHBOUR_BYTES, 2);
    for (size_t i = 0; i < COUNT; i++)
        memory[i] = gpu_alloc(NEIGHBOUR_BYTES, 0);
    struct hr_item *items = model_items(&model);
    for (size_t i = 0; i < COUNT; i++)
        for (size_t k = 0; k < COUNT && first == COUNT; k++)
            if ((char *)memory[i] + NEIGHBOUR_BYTES == memory[k]) {
                items[0].into = memory[first = i];
                items[1].into = memory[k];
            }
    if (first == COUNT)
        print_message("no two allocations are neighbours\n");
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 1, .chunk_bytes = 8 << 20});
    struct hr_load *load = load_make(loader, model.checkpoint, items, 2, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &model);
    hr_load_free(load);
    hr_loader_free(loader);
    for (size_t i = 0; i < COUNT; i++)
        gpu_free(memory[i], NEIGHBOUR_BYTES);
    free(items);
    model_close(&model);
}

/* As the protocol lays it out; all that is needed of it. */
struct legacy_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct legacy_tensor *self);
};

/* A tensor that was taken outlives load and loader; its arena is freed with it, by the reaper. */
static void test_dlpack(void **state)
{
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 2});
    struct hr_load *load = load_model(loader, &mixed, NULL);
    struct hr_device *device = NULL;
    struct hr_error err = {0};
    struct legacy_tensor *tensor = NULL;
    uint64_t before, after, total;
    size_t large = mixed.count - 2, bytes = test_tensor_bytes(&mixed.tensors[large]);
    (void)state;
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_ok(hr_load_take(load, large, 0, (void **)&tensor, &err), err);
    assert_int_equal(tensor->device_type, HR_DEVICE_CUDA);
    assert_int_equal(tensor->device_id, 0);
    hr_load_free(load);
    hr_loader_free(loader);
    char *copy = malloc(bytes);
    gpu_read(copy, tensor->data, bytes);
    assert_int_equal(test_tensor_mismatch(&mixed.tensors[large], copy, 0, bytes), bytes);
    free(copy);
    assert_ok(hr_device_open(gpu_name(), &device, &err), err);
    hr_device_memory(device, &before, &total);
    tensor->deleter(tensor);
    hr_device_reap(device);
    hr_device_memory(device, &after, &total);
    assert_true(after >= before + bytes);
    hr_device_unref(device);
}

/* --------------------------------------------------------------------------------- several devices */

static void test_host_and_gpu(void **state)
{
    const char *devices[] = {"cpu", gpu_name()};
    struct hr_loader_options options = {
        .size = sizeof options, .devices = devices, .device_count = 2, .thread_count = 3, .chunk_bytes = 64 << 10};
    struct hr_device_info info = {.size = sizeof info};
    struct hr_item *items = model_items(&mixed);
    struct hr_error err = {0};
    (void)state;
    for (size_t i = 0; i < mixed.count; i++)
        items[i].device_index = i % 2;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, mixed.checkpoint, items, mixed.count, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    for (size_t i = 0; i < mixed.count; i++) {
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_view(load, i, &view, &err), err);
        assert_int_equal(view.device_type, i % 2 ? HR_DEVICE_CUDA : HR_DEVICE_CPU);
        check_item(load, i, &mixed);
    }
    hr_load_free(load);
    assert_int_equal(hr_loader_device(loader, 0, &info), 0);
    assert_string_equal(info.name, "cpu");
    assert_int_equal(hr_loader_device(loader, 1, &info), 0);
    assert_int_equal(info.type, HR_DEVICE_CUDA);
    assert_code(hr_loader_device(loader, 2, &info), HR_EINVALID_ARGUMENT);
    hr_loader_free(loader);
    free(items);
}

/* ------------------------------------------------------------------------------ figures and refusals */

struct spans {
    atomic_uint_fast64_t read, copied, pinned, allocated, count;
};

static void add_span(void *context, const struct hr_trace_event *event)
{
    struct spans *spans = context;
    atomic_uint_fast64_t *sums[HR_TRACE_KIND_COUNT] = {[HR_TRACE_READ] = &spans->read,
                                                       [HR_TRACE_COPY] = &spans->copied,
                                                       [HR_TRACE_STAGING] = &spans->pinned,
                                                       [HR_TRACE_ALLOCATE] = &spans->allocated};
    spans->count++;
    if (event->size == sizeof *event && event->begin_ns <= event->end_ns && sums[event->kind])
        *sums[event->kind] += event->bytes;
}

static void test_figures(void **state)
{
    struct spans spans = {0};
    struct hr_load_options options = {.size = sizeof options, .trace_context = &spans, .trace = add_span};
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 2});
    struct hr_load *load = load_model(loader, &mixed, &options);
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    (void)state;
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.bytes_sent, stats.bytes_needed);
    assert_true(stats.copy_count + stats.kernel_count > 0);
    assert_true(stats.cpu_ns > 0);
    assert_int_equal(spans.read, stats.bytes_read);
    assert_int_equal(spans.copied, stats.bytes_needed);
    assert_int_equal(spans.pinned, stats.staging_bytes);
    assert_int_equal(spans.allocated, stats.bytes_allocated);
    hr_load_free(load);
    hr_loader_free(loader);
}

static void refuse(struct hr_loader_options options, int code, const char *said)
{
    const char *devices[] = {gpu_name()};
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    options.size = sizeof options;
    if (!options.devices) {
        options.devices = devices;
        options.device_count = 1;
    }
    assert_code(hr_loader_new(&options, &loader, &err), code);
    assert_null(loader);
    if (!strstr(err.message, said))
        fail_msg("'%s' is not in '%s'", said, err.message);
}

static void test_refusals(void **state)
{
    const char *far[] = {"cuda:4711"}, *nonsense[] = {"gpu"}, *twice[] = {"cpu", "cuda:4711"};
    (void)state;
    refuse((struct hr_loader_options){.route = HR_ROUTE_MMAP}, HR_EUNSUPPORTED, "mmap");
    refuse((struct hr_loader_options){.chunk_bytes = 128 << 20}, HR_EINVALID_ARGUMENT, "chunk_bytes");
    refuse((struct hr_loader_options){.staging_bytes = 1 << 20}, HR_EINVALID_ARGUMENT, "staging_bytes");
    refuse((struct hr_loader_options){.lane_count = 17}, HR_EINVALID_ARGUMENT, "lane_count");
    refuse((struct hr_loader_options){.devices = far, .device_count = 1}, HR_EDEVICE_UNAVAILABLE, "4711");
    refuse((struct hr_loader_options){.devices = twice, .device_count = 2}, HR_EDEVICE_UNAVAILABLE, "4711");
    refuse((struct hr_loader_options){.devices = nonsense, .device_count = 1}, HR_EINVALID_ARGUMENT, "gpu");
}

static void test_read_bounds(void **state)
{
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 1});
    struct hr_load *load = load_model(loader, &mixed, NULL);
    size_t large = mixed.count - 2, bytes = test_tensor_bytes(&mixed.tensors[large]);
    struct hr_error err = {0};
    char some[100];
    (void)state;
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_ok(hr_load_read(load, large, bytes - 100, 100, some, &err), err);
    assert_int_equal(test_tensor_mismatch(&mixed.tensors[large], some, bytes - 100, 100), 100);
    assert_ok(hr_load_read(load, large, bytes, 0, NULL, &err), err);
    assert_code(hr_load_read(load, large, bytes - 99, 100, some, &err), HR_EINVALID_ARGUMENT);
    assert_code(hr_load_read(load, large, UINT64_MAX, 2, some, &err), HR_EINVALID_ARGUMENT);
    assert_code(hr_load_read(load, large, 0, 100, NULL, &err), HR_EINVALID_ARGUMENT);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* --------------------------------------------------------------------------------------- early ends */

static void test_cancel(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 20; turn++) {
        struct hr_error err = {0};
        struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 3, .chunk_bytes = 64 << 10});
        struct hr_load *load = load_model(loader, &mixed, NULL);
        if (turn % 2)
            assert_ok(hr_load_wait(load, turn, &err), err);
        if (turn % 4 < 2)
            hr_load_cancel(load);
        hr_load_free(load);
        load_all(loader, NULL);
        hr_loader_free(loader);
    }
}

/* A child of fork() gets errors by name, and frees without touching what the driver knows. */
static void test_fork(void **state)
{
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){.thread_count = 2});
    struct hr_load *load = load_model(loader, &mixed, NULL);
    struct legacy_tensor *tensor = NULL;
    struct hr_error err = {0};
    int status = 0;
    (void)state;
    assert_ok(hr_load_wait_all(load, &err), err);
    assert_ok(hr_load_take(load, 0, 0, (void **)&tensor, &err), err);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        int bad = hr_load_read(load, 0, 0, 1, &byte, NULL) != HR_EFORKED || hr_loader_trim(loader) != 0;
        tensor->deleter(tensor);
        hr_load_free(load);
        hr_loader_free(loader);
        _exit(bad);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    tensor->deleter(tensor);
    check_all_items(load, &mixed);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* Calls of the fake driver in this child; of a real one it is not known. */
static unsigned long forked_calls(void)
{
    unsigned long (*count)(void) = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *address = library ? dlsym(library, "fake_cuda_forked_calls") : NULL;
    memcpy(&count, &address, sizeof address);
    return count ? count() : 0;
}

/* A sequential load keeps its reader between two waits, and with it the reader's fences. */
static void test_fork_sequential(void **state)
{
    struct hr_loader *loader = gpu_loader((struct hr_loader_options){0});
    struct hr_load_options options = {.size = sizeof options, .sequential = 1};
    struct hr_load *load = load_model(loader, &mixed, &options);
    struct hr_error err = {0};
    int status = 0;
    (void)state;
    assert_ok(hr_load_wait(load, 0, &err), err);
    pid_t child = fork();
    if (child == 0) {
        hr_load_free(load);
        hr_loader_free(loader);
        _exit(forked_calls() != 0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &mixed);
    hr_load_free(load);
    hr_loader_free(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_setting),
        cmocka_unit_test(test_shared_ring),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_hook),
        cmocka_unit_test(test_neighbouring_allocations),
        cmocka_unit_test(test_dlpack),
        cmocka_unit_test(test_host_and_gpu),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_read_bounds),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_fork_sequential),
    };
    return gpu_name() ? cmocka_run_group_tests(tests, setup, teardown) : 0;
}
