/*
 * test_in_place.c: what O_DIRECT reads straight to its place in host memory: on drives with all kinds of wishes, beside
 * tensors that must not be touched, where runs overlap, where places are refused, and while the process forks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/in_place.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/test_model.h"

#define KIB UINT64_C(1024)
#define PAGE UINT64_C(4096)
#define CANARY 0xa5

/* ------------------------------------------------------------------------------------------------ one run */

static void check_range(uint64_t offset, uint64_t bytes, uint64_t place, uint32_t alignment)
{
    struct hr_run run = {.source_offset = offset, .bytes = bytes};
    struct in_place_range range = hr_in_place(&run, (const char *)place, alignment);
    uint64_t lost = bytes - (range.end - range.begin);
    assert_true(range.begin >= offset && range.begin <= range.end && range.end <= offset + bytes);
    if (range.begin == range.end) {
        assert_true(!alignment || (place - offset) % alignment || bytes < HR_IN_PLACE_BYTES_MIN);
        return;
    }
    assert_true(range.begin % PAGE == 0 && range.end % PAGE == 0);
    assert_int_equal((place + (range.begin - offset)) % alignment, 0);
    assert_true(lost < 2 * PAGE);
}

static void test_ranges(void **state)
{
    static const uint32_t alignments[] = {0, 1, 4, 512, 4096};
    static const uint64_t sizes[] = {1, 4095, 4096, 65535, 65536, 65537, 69632, 1000003};
    (void)state;
    for (size_t a = 0; a < 5; a++)
        for (size_t s = 0; s < 8; s++)
            for (uint64_t offset = 0; offset < 3 * PAGE; offset += 509)
                for (uint64_t shift = 0; shift < 2 * PAGE; shift += 4)
                    check_range(offset, sizes[s], 64 * PAGE + offset + shift % (PAGE + 4), alignments[a]);
}

/* The system tells huge pages from small ones, where it can tell. */
static void test_large_pages(void **state)
{
    enum { BYTES = 8 << 20, HUGE_BYTES = 2 << 20 };
    (void)state;
    for (int large = 0; large < 2; large++) {
        char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(memory, MAP_FAILED);
        char *begin = memory + (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;
        madvise(begin, 2 * HUGE_BYTES, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        begin[100] = begin[HUGE_BYTES] = 1;
        int64_t found = hr_sys->large_page_bytes(begin, 2 * HUGE_BYTES);
        int answer = hr_in_large_pages(begin + 8, 2 * HUGE_BYTES - 4096);
        if (large && found != 2 * HUGE_BYTES)
            print_message("no huge pages, or nobody tells: %lld\n", (long long)found);
        assert_true(large || found <= 0);
        assert_int_equal(answer, found == 2 * HUGE_BYTES);
        munmap(memory, BYTES);
    }
}

/* --------------------------------------------------------------------------------- whole tensors, played */

/* Tensors in memory of ours that is full of canaries; `shift`: how each place differs from its place in a page of the file. */
struct scene {
    struct test_model model;
    struct hr_item *items;
    unsigned char *memory;
    size_t bytes;
    struct hr_stats stats; /* of the last load */
};

static const uint64_t sizes[] = {1,         100,    65535, 65536, 65537, 0,         4096, 300001,
                                 70 * 1000, 262144, 5000,  8191,  7,     600 * KIB, 12,   1000003};
#define TENSOR_COUNT (sizeof sizes / sizeof sizes[0])

static void scene_make(struct scene *scene, size_t padding)
{
    static const char *const names[TENSOR_COUNT] = {"a", "b", "c", "d", "e", "f", "g", "h",
                                                    "i", "j", "k", "l", "m", "n", "o", "p"};
    struct test_tensor tensors[TENSOR_COUNT];
    memset(tensors, 0, sizeof tensors);
    for (size_t i = 0; i < TENSOR_COUNT; i++)
        tensors[i] =
            (struct test_tensor){.name = names[i], .dtype = HR_DTYPE_U8, .rank = 1, .shape = {sizes[i]}, .seed = i + 3};
    model_write(&scene->model, "places", tensors, TENSOR_COUNT, 9, padding);
    model_open(&scene->model);
    scene->items = model_items(&scene->model);
    scene->bytes = 0;
    for (size_t i = 0; i < TENSOR_COUNT; i++)
        scene->bytes += (sizes[i] / PAGE + 4) * PAGE;
    assert_int_equal(posix_memalign((void **)&scene->memory, PAGE, scene->bytes), 0);
}

static void scene_free(struct scene *scene)
{
    model_close(&scene->model);
    free(scene->items);
    free(scene->memory);
}

static void place_items(struct scene *scene, uint64_t shift)
{
    unsigned char *at = scene->memory;
    memset(scene->memory, CANARY, scene->bytes);
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(scene->model.checkpoint, i);
        scene->items[i].into = at + (tensor->offset + shift) % PAGE;
        at += (sizes[i] / PAGE + 4) * PAGE;
    }
}

static void check_canaries(const struct scene *scene)
{
    const unsigned char *at = scene->memory;
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        const unsigned char *begin = scene->items[i].into;
        for (; at < begin; at++)
            assert_int_equal(*at, CANARY);
        at = begin + sizes[i];
    }
    for (; at < scene->memory + scene->bytes; at++)
        assert_int_equal(*at, CANARY);
}

/* Loads and checks all; the share of bytes that came straight to their places, in percent. */
static double load_scene(struct scene *scene, struct hr_loader_options options)
{
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    options.size = sizeof options;
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, scene->model.checkpoint, scene->items, TENSOR_COUNT, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &scene->model);
    check_canaries(scene);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    hr_loader_free(loader);
    scene->stats = stats;
    const char *share = strchr(stats.storage, ',');
    return share ? strtod(share + 1, NULL) : 0;
}

static void check_drive(struct scene *scene, struct fake_storage storage, uint64_t shift, double low, double high)
{
    for (uint32_t threads = 1; threads < 5; threads += 3)
        for (uint64_t chunk = 128 * KIB; chunk <= 2048 * KIB; chunk *= 4) {
            storage.seed = threads + chunk;
            storage.cold = storage.plays_direct = 1;
            place_items(scene, shift);
            fake_storage_install(&storage);
            double share = load_scene(scene, (struct hr_loader_options){.thread_count = threads, .chunk_bytes = chunk});
            unsigned long misaligned = fake_storage_misaligned_count();
            fake_storage_remove();
            assert_int_equal(misaligned, 0);
            if (share < low || share > high)
                fail_msg("%g %% came to their places at once", share);
        }
}

static void test_drives(void **state)
{
    struct fake_storage nvme = {.alignment = {4, 512}}, coarse = {.alignment = {512, 512}},
                        pages = {.alignment = {4096, 4096}}, small = {.alignment = {4, 512}, .small_pages = 1},
                        shorts = {.alignment = {4, 512}, .short_percent = 40};
    (void)state;
    for (size_t padding = 0; padding < 9; padding += 4) {
        struct scene scene;
        scene_make(&scene, padding);
        check_drive(&scene, nvme, 0, 60, 100);
        check_drive(&scene, nvme, 4 + 256, 60, 100);
        check_drive(&scene, nvme, 2, 0, 0);
        check_drive(&scene, small, 0, 0, 0);
        check_drive(&scene, coarse, 1024, 60, 100);
        check_drive(&scene, coarse, 256, 0, 0);
        check_drive(&scene, pages, 0, 60, 100);
        check_drive(&scene, pages, 512, 0, 0);
        check_drive(&scene, shorts, 8, 30, 100);
        scene_free(&scene);
    }
}

/*
 * Places are refused at once, or from some read on: the same bytes come through buffers, still past the page cache. One
 * reader's first two reads ask what works, the next are of the first file, which the statistics speak of.
 */
static void test_refused(void **state)
{
    struct scene scene;
    (void)state;
    scene_make(&scene, 0);
    for (unsigned long at = 3; at < 20; at++) {
        uint32_t threads = at % 2 ? 1 : 2;
        struct fake_storage storage = {
            .cold = 1, .plays_direct = 1, .alignment = {4, 512}, .event_at = at, .event = fake_event_want_pages};
        place_items(&scene, 8);
        fake_storage_install(&storage);
        load_scene(&scene, (struct hr_loader_options){.thread_count = threads, .chunk_bytes = 256 * KIB});
        fake_storage_remove();
        assert_int_equal(strncmp(scene.stats.storage, "direct by ", 10), 0);
        if (threads == 1 && at < 6)
            assert_non_null(strstr(scene.stats.storage, "through buffers"));
        storage.event = fake_event_refuse_direct;
        place_items(&scene, 8);
        fake_storage_install(&storage);
        load_scene(&scene, (struct hr_loader_options){.thread_count = threads, .chunk_bytes = 256 * KIB});
        fake_storage_remove();
    }
    scene_free(&scene);
}

/* ------------------------------------------------------------------------------------- slices that overlap */

static void check_slices(const struct test_tensor *tensor, const struct hr_range *const *slices, size_t count)
{
    struct fake_storage storage = {.cold = 1, .plays_direct = 1, .alignment = {1, 512}, .short_percent = 10, .seed = 5};
    struct hr_item items[3] = {{0}};
    struct hr_error err = {0};
    struct test_model model;
    model_write(&model, "overlapping", tensor, 1, 1, 5);
    model_open(&model);
    fake_storage_install(&storage);
    for (size_t i = 0; i < count; i++)
        items[i] = (struct hr_item){.size = sizeof items[0], .ranges = slices[i]};
    struct hr_loader_options options = {.size = sizeof options, .thread_count = 2, .chunk_bytes = 8192 * KIB};
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, model.checkpoint, items, count, NULL);
    for (size_t i = 0; i < count; i++) {
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_wait(load, i, &err), err);
        assert_ok(hr_load_view(load, i, &view, &err), err);
        check_view(tensor, slices[i], &view);
    }
    hr_load_free(load);
    hr_loader_free(loader);
    assert_int_equal(fake_storage_misaligned_count(), 0);
    fake_storage_remove();
    model_close(&model);
}

static void test_slices(void **state)
{
    const struct test_tensor tensor = {
        .name = "m", .dtype = HR_DTYPE_U8, .rank = 2, .shape = {5, 200 * KIB}, .seed = 5};
    const struct hr_range all[2] = {{0, 5, 0}, {0, 200 * KIB, 0}}, rows[2] = {{1, 4, 0}, {0, 200 * KIB, 0}},
                          left[2] = {{0, 5, 0}, {0, 130 * KIB, 0}}, right[2] = {{0, 5, 0}, {100 * KIB, 200 * KIB, 0}};
    (void)state;
    check_slices(&tensor, (const struct hr_range *const[]){all, rows, all}, 3);
    check_slices(&tensor, (const struct hr_range *const[]){left, right}, 2);
    check_slices(&tensor, (const struct hr_range *const[]){rows, right, left}, 3);
    check_slices(&tensor, (const struct hr_range *const[]){right}, 1);
}

/* ------------------------------------------------------------------------------------------------- forking */

static void fork_now(void *unused)
{
    (void)unused;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    assert_true(child > 0);
    waitpid(child, NULL, 0);
}

/* Once while a read is under way: what that reads is read again, through its buffer. */
static void test_fork(void **state)
{
    struct scene scene;
    (void)state;
    scene_make(&scene, 0);
    struct fake_storage storage = {.plays_direct = 1, .cold = 1, .alignment = {4, 512}};
    double shares[2];
    for (int forks = 0; forks < 2; forks++) {
        storage.event_at = forks ? 4 : 0;
        storage.event = fork_now;
        place_items(&scene, 0);
        fake_storage_install(&storage);
        shares[forks] = load_scene(&scene, (struct hr_loader_options){.thread_count = 1, .chunk_bytes = 1024 * KIB});
        fake_storage_remove();
    }
    assert_true(shares[1] < shares[0]);
    scene_free(&scene);
}

/* --------------------------------------------------------------------------------------------------- faults */

static int run_scenario(void *context, struct hr_error *err)
{
    const struct scene *scene = context;
    struct hr_loader_options options = {.size = sizeof options, .thread_count = 1, .chunk_bytes = 1024 * KIB};
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    int code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, scene->model.checkpoint, scene->items, TENSOR_COUNT, NULL, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    if (code == 0)
        check_all_items(load, &scene->model);
    hr_load_free(load);
    hr_loader_free(loader);
    check_canaries(scene);
    return code;
}

static void test_sweep(void **state)
{
    struct scene scene;
    struct fake_storage storage = {.cold = 1, .plays_direct = 1, .alignment = {4, 512}};
    (void)state;
    scene_make(&scene, 0);
    place_items(&scene, 4);
    fake_storage_install(&storage);
    assert_true(faults_sweep(FAULT_ALL, 0, run_scenario, &scene) > 20);
    fake_storage_remove();
    scene_free(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),  cmocka_unit_test(test_large_pages), cmocka_unit_test(test_drives),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_slices),      cmocka_unit_test(test_fork),
        cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
