/*
 * test_misaligned.c: tensors at odd offsets, F32 at offset % 4 != 0, come out bit for bit on 256 bytes by every way, and
 * with no pass more than the same tensors in a file where all offsets are whole pages: as many bytes copied, sent and
 * placed by as many operations; of reads only what the grid of chunks and whole pages cut elsewhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/fake_storage.h"
#include "support/gpu.h"
#include "support/gpu_scene.h"
#include "support/test_model.h"

#define PAGE 4096u

/* Whole pages each, so that the first offset decides for all. */
static const struct test_tensor tensors[] = {
    {.name = "f32", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {300, 4096}, .seed = 1},
    {.name = "f64", .dtype = HR_DTYPE_F64, .rank = 1, .shape = {512}, .seed = 2},
    {.name = "bf16", .dtype = HR_DTYPE_BF16, .rank = 3, .shape = {5, 64, 2048}, .seed = 3},
    {.name = "i64", .dtype = HR_DTYPE_I64, .rank = 1, .shape = {8192}, .seed = 4},
    {.name = "c64", .dtype = HR_DTYPE_C64, .rank = 2, .shape = {16, 32768}, .seed = 5},
    {.name = "u8", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {12288}, .seed = 6},
};
#define COUNT (sizeof tensors / sizeof tensors[0])

/* Where the data sections of the models start, modulo the page; the first is what the others are compared with. */
static const size_t offsets[] = {0, 1, 3, 4, 255, PAGE - 1};
#define MODEL_COUNT (sizeof offsets / sizeof offsets[0])
static struct test_model models[MODEL_COUNT];

static void model_at(struct test_model *model, size_t offset)
{
    char name[32];
    snprintf(name, sizeof name, "at-%zu", offset);
    model_write(model, name, tensors, COUNT, COUNT, 0);
    model_open(model);
    uint64_t begin = hr_checkpoint_file(model->checkpoint, 0)->data_offset;
    model_close(model);
    model_write(model, name, tensors, COUNT, COUNT, (offset + PAGE - begin % PAGE) % PAGE);
    model_open(model);
    assert_int_equal(hr_checkpoint_file(model->checkpoint, 0)->data_offset % PAGE, offset);
}

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_COUNT; i++)
        model_at(&models[i], offsets[i]);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_COUNT; i++)
        model_close(&models[i]);
    return 0;
}

/* What a load did; of the same tensors elsewhere in a file it must be the same, but for reads of whole pages. */
struct work {
    struct hr_stats stats;
    atomic_uint_fast64_t copied; /* out of staging into place on a GPU, by spans of the timeline */
};

static void add_span(void *context, const struct hr_trace_event *event)
{
    struct work *work = context;
    if (event->kind == HR_TRACE_COPY)
        atomic_fetch_add(&work->copied, event->bytes);
}

static void load_and_check(const struct test_model *model, struct hr_loader_options options, uint32_t ownership,
                           struct work *ret_work)
{
    struct hr_load_options load_options = {
        .size = sizeof load_options, .ownership = ownership, .trace_context = ret_work, .trace = add_span};
    struct hr_error err = {0};
    options.size = sizeof options;
    options.chunk_bytes = 1 << 20;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, model, &load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, model);
    for (size_t i = 0; i < model->count; i++) {
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_view(load, i, &view, &err), err);
        assert_int_equal((uintptr_t)view.data % 256, 0);
    }
    ret_work->stats.size = sizeof ret_work->stats;
    assert_int_equal(hr_load_stats(load, &ret_work->stats), 0);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* `page_count` pages more may be read for a chunk: where reads are of whole pages. */
static void check_no_more_work(const struct work *work, const struct work *aligned, unsigned page_count)
{
    const struct hr_stats *stats = &work->stats, *base = &aligned->stats;
    uint64_t over_read = (uint64_t)page_count * PAGE * base->chunk_count;
    assert_int_equal(stats->route, base->route);
    assert_int_equal(stats->bytes_needed, base->bytes_needed);
    assert_int_equal(stats->chunk_count, base->chunk_count);
    assert_int_equal(stats->read_count, base->read_count);
    assert_int_equal(stats->copy_count, base->copy_count);
    assert_int_equal(stats->kernel_count, base->kernel_count);
    assert_true(stats->bytes_read <= base->bytes_read + over_read);
    assert_true(stats->bytes_sent <= base->bytes_sent + (stats->route == HR_ROUTE_GDS ? over_read : 0));
    assert_int_equal(atomic_load(&work->copied), atomic_load(&aligned->copied));
}

/* Every odd offset against whole pages; returns what the last load did. */
static struct hr_stats compare(struct hr_loader_options options, unsigned page_count)
{
    struct work work[MODEL_COUNT] = {0};
    for (uint32_t ownership = HR_OWN_ARENA; ownership <= HR_OWN_EACH; ownership++) {
        memset(work, 0, sizeof work);
        for (size_t i = 0; i < MODEL_COUNT; i++)
            load_and_check(&models[i], options, ownership, &work[i]);
        for (size_t i = 1; i < MODEL_COUNT; i++)
            check_no_more_work(&work[i], &work[0], page_count);
    }
    return work[MODEL_COUNT - 1].stats;
}

/* Read into place, without a buffer. */
static void test_host(void **state)
{
    static const uint32_t routes[] = {HR_ROUTE_PREAD, HR_ROUTE_AUTO, HR_ROUTE_URING};
    (void)state;
    for (size_t i = 0; i < (uring_usable() ? 3 : 2); i++) {
        struct hr_stats stats = compare((struct hr_loader_options){.route = routes[i]}, 0);
        assert_int_equal(stats.bytes_read, stats.bytes_needed);
    }
}

/* Past the page cache, in whole pages through a buffer, wherever tensors lie. */
static void test_cold(void **state)
{
    const char *devices[] = {gpu_name()};
    (void)state;
    for (size_t gpu_count = 0; gpu_count <= (devices[0] != NULL); gpu_count++) {
        fake_storage_install(&(struct fake_storage){.cold = 1});
        struct hr_stats stats = compare((struct hr_loader_options){.devices = devices, .device_count = gpu_count}, 2);
        fake_storage_remove();
        if (stats.bytes_direct == 0)
            print_message("not with O_DIRECT here: %s\n", stats.storage);
    }
}

static void compare_gpu(uint32_t route, unsigned page_count)
{
    const char *devices[] = {gpu_name()};
    struct hr_stats stats =
        compare((struct hr_loader_options){.route = route, .devices = devices, .device_count = 1}, page_count);
    assert_int_equal(stats.route, route);
    assert_true(stats.copy_count + stats.kernel_count > 0);
}

static void compare_gpu_routes(void)
{
    compare_gpu(HR_ROUTE_PREAD, 0);
    if (uring_usable())
        compare_gpu(HR_ROUTE_URING, 0);
    if (gds_usable())
        compare_gpu(HR_ROUTE_GDS, 2);
}

static void test_gpu(void **state)
{
    (void)state;
    if (!gpu_name())
        skip();
    compare_gpu_routes();
}

/* Without the placing kernel, and where kernels cannot read host memory. */
static void test_gpu_by_copies(void **state)
{
    static const char *const settings[] = {"no_kernel=1", "confidential=1"};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        scene_need_fake(settings[i]);
        compare_gpu_routes();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_cold),
        cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_gpu_by_copies),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
