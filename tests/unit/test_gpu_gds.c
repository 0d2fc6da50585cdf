/*
 * test_gpu_gds.c: loads by the route gds, with the fake cuFile on a GPU, real or fake: every byte in its place, whatever
 * cuFile refuses, cuts short or fails; what it cannot do has its name; nothing stays behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "fake_cufile/fake_cufile.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/gpu.h"
#include "support/gpu_scene.h"
#include "support/test_model.h"

#define ROUND_MAX 2000

static struct {
    __typeof__(&fake_cufile_configure) configure;
    __typeof__(&fake_cufile_reset) reset;
    __typeof__(&fake_cufile_live) live;
    __typeof__(&fake_cufile_fired) fired;
} fake;

static struct test_model mixed;

static void load_symbol(void *library, void *ret_function, const char *name)
{
    void *symbol = dlsym(library, name);
    memcpy(ret_function, &symbol, sizeof symbol);
}

static int setup(void **state)
{
    void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
    (void)state;
    if (library) {
        load_symbol(library, &fake.configure, "fake_cufile_configure");
        load_symbol(library, &fake.reset, "fake_cufile_reset");
        load_symbol(library, &fake.live, "fake_cufile_live");
        load_symbol(library, &fake.fired, "fake_cufile_fired");
    }
    model_mixed(&mixed, "gds", 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    return 0;
}

/* The fakes as new, with these settings. */
static void begin(const char *settings)
{
    if (!fake.configure) {
        print_message("skipped: this needs the fake cuFile\n");
        skip();
    }
    if (scene_fake())
        scene_need_fake("");
    fake.reset();
    assert_int_equal(fake.configure(settings), 0);
}

static void end(void)
{
    struct fake_cufile_live live;
    fake.live(&live);
    assert_int_equal(live.open_count, 0);
    assert_int_equal(live.handle_count, 0);
    assert_int_equal(live.buffer_count, 0);
    assert_int_equal(live.violation_count, 0);
    scene_assert_nothing_live();
}

static int loader_try(struct hr_loader_options options, struct hr_loader **ret_loader, struct hr_error *err)
{
    const char *devices[] = {gpu_name()};
    options.size = sizeof options;
    options.route = HR_ROUTE_GDS;
    if (!options.devices) {
        options.devices = devices;
        options.device_count = 1;
    }
    return hr_loader_new(&options, ret_loader, err);
}

static struct hr_loader *gds_loader(struct hr_loader_options options)
{
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    assert_ok(loader_try(options, &loader, &err), err);
    return loader;
}

static struct hr_stats load_all(struct hr_loader *loader, const struct hr_load_options *options)
{
    struct hr_error err = {0};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_load *load = load_model(loader, &mixed, options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &mixed);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    return stats;
}

/* ------------------------------------------------------------------------------------- whole loads */

static void test_every_setting(void **state)
{
    static const struct hr_loader_options settings[] = {
        {.chunk_bytes = 0},
        {.chunk_bytes = 64 << 10, .thread_count = 1},
        {.chunk_bytes = 100001, .thread_count = 5, .lane_count = 1},
        {.chunk_bytes = 32 << 20, .thread_count = 2}, /* larger than a slot */
    };
    static const char *const fakes[] = {"", "short=4096", "short=73728", "aperture=131072", "major=0"};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (size_t k = 0; k < sizeof fakes / sizeof fakes[0]; k++) {
            struct hr_load_options options = {
                .size = sizeof options, .ownership = k & 1, .window_bytes = k & 2 ? 200 << 10 : 0, .sequential = k & 1};
            if (strstr(fakes[k], "aperture") && (settings[i].chunk_bytes == 0 || settings[i].chunk_bytes > 1 << 20))
                continue; /* no slot at all */
            begin(fakes[k]);
            struct hr_loader *loader = gds_loader(settings[i]);
            load_all(loader, &options);
            load_all(loader, NULL);
            hr_loader_free(loader);
            end();
        }
}

/* Rows and runs that are larger than a slot, and two large tensors that only the one slot can take in turn. */
static void test_large(void **state)
{
    static const struct test_tensor tensors[] = {
        {.name = "first", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {4099}, .seed = 3},
        {.name = "large", .dtype = HR_DTYPE_U8, .rank = 2, .shape = {4, 11000003}, .seed = 4},
    };
    const struct hr_range ranges[2] = {{0, 4, 2}, {1, 9900001, 0}};
    struct hr_item items[2] = {{.size = sizeof items[0], .tensor_index = 1},
                               {.size = sizeof items[0], .tensor_index = 1, .ranges = ranges}};
    struct test_model model;
    struct hr_error err = {0};
    (void)state;
    begin("");
    model_write(&model, "gds-large", tensors, 2, 2, 1);
    model_open(&model);
    struct hr_loader *loader = gds_loader((struct hr_loader_options){.chunk_bytes = 64 << 20, .thread_count = 2});
    struct hr_load *load = load_make(loader, model.checkpoint, items, 2, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    for (size_t i = 0; i < 2; i++) {
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_view(load, i, &view, &err), err);
        char *copy = malloc(view.bytes);
        assert_ok(hr_load_read(load, i, 0, view.bytes, copy, &err), err);
        uint64_t row = i ? 9900000 : 11000003, from = i ? 1 : 0, step = i ? 2 : 1;
        for (uint64_t r = 0; r < view.shape[0]; r++)
            assert_int_equal(test_mismatch(copy + r * row, 4, r * step * 11000003 + from, row), row);
        free(copy);
    }
    hr_load_free(load);
    hr_loader_free(loader);
    model_close(&model);
    end();
}

static void test_figures(void **state)
{
    (void)state;
    begin("aperture=700000");
    struct hr_loader *loader = gds_loader((struct hr_loader_options){.chunk_bytes = 64 << 10, .thread_count = 4});
    struct hr_stats stats = load_all(loader, NULL);
    struct fake_cufile_live live;
    fake.live(&live);
    assert_int_equal(stats.route, HR_ROUTE_GDS);
    assert_string_equal(hr_route_name(stats.route), "gds");
    assert_int_equal(hr_route_find("gds"), HR_ROUTE_GDS);
    assert_non_null(strstr(stats.route_reason, "asked for; compatibility mode: "));
    assert_non_null(strstr(stats.staging, "5 slots of 128 KiB, not 8: cuFileBufRegister: CU_FILE_GPU_MEMORY_PINNING"));
    assert_int_equal(stats.read_count, live.read_count);
    assert_true(stats.bytes_read >= stats.bytes_needed && stats.bytes_read < 2 * stats.bytes_needed);
    assert_int_equal(stats.bytes_sent, stats.bytes_read);
    assert_true(stats.copy_count + stats.kernel_count > 0);
    hr_loader_free(loader);
    end();
}

/* One load to host memory and to two GPUs, each through its own ring. */
static void test_mixed_devices(void **state)
{
    const char *devices[] = {"cpu", "cuda:0", "cuda:1"};
    struct hr_item *items = model_items(&mixed);
    struct hr_error err = {0};
    struct hr_device_info info = {.size = sizeof info};
    (void)state;
    begin("");
    size_t count = hr_device_find("cuda:1", &info, NULL) == 0 ? 3 : 2;
    for (size_t i = 0; i < mixed.count; i++)
        items[i].device_index = i % count;
    struct hr_loader *loader = gds_loader((struct hr_loader_options){
        .devices = devices, .device_count = count, .chunk_bytes = 64 << 10, .thread_count = 3});
    struct hr_load *load = load_make(loader, mixed.checkpoint, items, mixed.count, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &mixed);
    hr_load_free(load);
    hr_loader_free(loader);
    free(items);
    end();
}

/* ---------------------------------------------------------------------------------------- refusals */

static void refuse(const char *settings, int driver_code, const char *said)
{
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    begin(settings);
    assert_code(loader_try((struct hr_loader_options){.thread_count = 1}, &loader, &err), HR_EUNSUPPORTED);
    assert_null(loader);
    assert_int_equal(err.driver_code, driver_code);
    if (!strstr(err.message, said))
        fail_msg("'%s' is not in '%s'", said, err.message);
    end();
}

static void test_refusals(void **state)
{
    const char *host[] = {"cpu"};
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    (void)state;
    refuse("open=5001", 5001, "allow_compat_mode");
    refuse("open=5025", 5025, "/dev/nvidia-fs");
    refuse("open=5007", 5007, "CU_FILE_PLATFORM_NOT_SUPPORTED");
    refuse("aperture=0", 5036, "aperture");
    begin("");
    assert_code(loader_try((struct hr_loader_options){.devices = host, .device_count = 1}, &loader, &err),
                HR_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "'gds' is for GPUs"));
    end();
}

static const struct hr_sys *below;

static void *without_cufile(const char *name)
{
    return strstr(name, "cufile") ? NULL : below->library_open(name);
}

/* In a child, since the library is kept once it is there. */
static void test_no_library(void **state)
{
    int status = -1;
    (void)state;
    begin("");
    pid_t child = fork();
    if (child == 0) {
        char program[4096] = "";
        ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
        if (size > 0)
            execl(program, program, "no-library", (char *)NULL);
        _exit(99);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
}

static int no_library(void)
{
    struct hr_sys table = hr_sys_real;
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    below = hr_sys;
    table.library_open = without_cufile;
    hr_sys = &table;
    int code = loader_try((struct hr_loader_options){.thread_count = 1}, &loader, &err);
    hr_sys = below;
    return code != HR_EUNSUPPORTED || loader || !strstr(err.message, "finds no libcufile.so.0");
}

/* cuFile may close descriptor 0 when it starts and ends, with success or without; the program's stays what it was. */
static void test_descriptor_0(void **state)
{
    struct stat before, after;
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    (void)state;
    int kept = dup(0), file = open("/dev/null", O_RDONLY);
    assert_int_equal(dup2(file, 0), 0);
    assert_int_equal(fstat(0, &before), 0);
    begin("close_input=1");
    struct hr_loader *good = gds_loader((struct hr_loader_options){.thread_count = 1});
    load_all(good, NULL);
    hr_loader_free(good);
    assert_int_equal(fcntl(0, F_GETFD), 0);
    assert_int_equal(fake.configure("open=5001"), 0);
    assert_code(loader_try((struct hr_loader_options){.thread_count = 1}, &loader, &err), HR_EUNSUPPORTED);
    assert_int_equal(fstat(0, &after), 0);
    assert_true(before.st_rdev == after.st_rdev && before.st_ino == after.st_ino);
    if (scene_fake()) { /* a real driver opens files of its own, the first of which would be 0 */
        close(0);       /* nothing to guard */
        assert_code(loader_try((struct hr_loader_options){.thread_count = 1}, &loader, &err), HR_EUNSUPPORTED);
        assert_int_equal(fcntl(0, F_GETFD), -1);
    }
    dup2(kept, 0);
    close(kept);
    close(file);
    end();
}

/* ------------------------------------------------------------------------------ chosen by itself */

/* A machine with nvidia-fs or without, files on Lustre, and a page cache that holds all or nothing. */
static struct hr_sys machine;
static int has_nvidia_fs, is_cached, cufile_asked;

static int machine_stat(const char *path, struct stat *ret_stat)
{
    if (strcmp(path, "/proc/driver/nvidia-fs") == 0)
        return has_nvidia_fs ? 0 : -ENOENT;
    return hr_sys_real.stat(path, ret_stat);
}

static int machine_open(const char *path, int flags)
{
    char mount[100];
    struct stat file;
    if (strcmp(path, "/dev/nvidia-fs0") == 0)
        return hr_sys_real.open("/dev/null", flags);
    if (strcmp(path, "/proc/self/mountinfo") != 0)
        return hr_sys_real.open(path, flags);
    assert_int_equal(stat(mixed.paths[0], &file), 0);
    snprintf(mount, sizeof mount, "42 22 %u:%u / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw\n", major(file.st_dev),
             minor(file.st_dev));
    test_raw_write(test_path("mountinfo"), mount, strlen(mount));
    return hr_sys_real.open(test_path("mountinfo"), flags);
}

static int machine_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    (void)fd, (void)offset;
    *ret_page_count = is_cached ? (size + 4095) / 4096 : 0;
    return 0;
}

static void *machine_library(const char *name)
{
    cufile_asked |= strstr(name, "cufile") != NULL;
    return hr_sys_real.library_open(name);
}

static void auto_load(const char *settings, uint32_t route, const char *said)
{
    const char *devices[] = {gpu_name()};
    struct hr_loader_options options = {
        .size = sizeof options, .devices = devices, .device_count = 1, .thread_count = 2, .chunk_bytes = 64 << 10};
    begin(settings);
    machine = hr_sys_real;
    machine.stat = machine_stat;
    machine.open = machine_open;
    machine.cachestat = machine_cachestat;
    machine.library_open = machine_library;
    hr_sys = &machine;
    struct hr_loader *loader = loader_make(&options);
    struct hr_stats stats = load_all(loader, NULL);
    hr_loader_free(loader);
    hr_sys = &hr_sys_real;
    assert_string_equal(hr_route_name(stats.route), hr_route_name(route));
    if (!strstr(stats.route_reason, said))
        fail_msg("'%s' is not in '%s'", said, stats.route_reason);
    end();
}

/* Taken by itself only for cold files and direct transfers; without nvidia-fs cuFile is not even loaded. */
static void test_auto(void **state)
{
    (void)state;
    if (!uring_usable())
        skip();
    has_nvidia_fs = is_cached = cufile_asked = 0;
    auto_load("", HR_ROUTE_URING, "holds 0 %");
    assert_int_equal(cufile_asked, 0);
    has_nvidia_fs = 1;
    auto_load("", HR_ROUTE_GDS, "direct transfers: lustre");
    auto_load("control=4", HR_ROUTE_URING, "holds 0 %");
    auto_load("open=5001", HR_ROUTE_URING, "holds 0 %");
    auto_load("aperture=0", HR_ROUTE_URING, "holds 0 %");
    is_cached = 1;
    auto_load("", HR_ROUTE_PREAD, "holds 100 %");
}

/* ------------------------------------------------------------------------------------------ faults */

static int load_code(struct hr_loader *loader, struct hr_error *err)
{
    struct hr_load *load = load_model(loader, &mixed, NULL);
    int code = hr_load_wait_all(load, err);
    if (code == 0)
        check_all_items(load, &mixed);
    hr_load_free(load);
    return code;
}

static void test_file_refused(void **state)
{
    struct hr_error err = {0};
    (void)state;
    begin("handle=5008");
    struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 2});
    assert_code(load_code(loader, &err), HR_EUNSUPPORTED);
    assert_int_equal(err.driver_code, 5008);
    assert_non_null(strstr(err.message, "use another route"));
    assert_non_null(strstr(err.file, "gds-"));
    hr_loader_free(loader);
    end();
}

static void test_reads_fail(void **state)
{
    struct hr_error err = {0};
    (void)state;
    begin("");
    struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 1, .chunk_bytes = 64 << 10});
    fake.configure("fail=9:5");
    assert_code(load_code(loader, &err), HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, 5);
    fake.configure("fail=9:5010");
    assert_code(load_code(loader, &err), HR_EIO_ERROR);
    assert_int_equal(err.driver_code, 5010);
    fake.configure("fail=9:4"); /* EINTR is tried again */
    assert_ok(load_code(loader, &err), err);
    assert_int_equal(fake.fired(), 1);
    fake.configure("excess=1");
    assert_code(load_code(loader, &err), HR_EIO_ERROR);
    assert_non_null(strstr(err.message, "where"));
    hr_loader_free(loader);
    end();
}

/* The n-th call of cuFile fails, from the first to the last. */
static void test_every_call_fails(void **state)
{
    unsigned long n, fired = 1, failed = 0;
    (void)state;
    for (n = 1; fired && n < ROUND_MAX; n++) {
        struct hr_loader *loader = NULL;
        struct hr_error err = {0};
        char setting[32];
        snprintf(setting, sizeof setting, "fail=%lu:5030", n);
        begin(setting);
        int code = loader_try((struct hr_loader_options){.thread_count = 2, .chunk_bytes = 1 << 20}, &loader, &err);
        if (code == 0)
            code = load_code(loader, &err);
        hr_loader_free(loader);
        fired = fake.fired();
        if (code && (code != err.code || err.driver_code != 5030))
            fail_msg("call %lu: %d: %s", n, err.driver_code, err.message);
        failed += code != 0;
        end();
    }
    assert_in_range(failed, 10, ROUND_MAX - 2);
}

/* When all is given back the device cannot be got at once: nothing stays registered whose memory is freed. */
static void test_end_tries_again(void **state)
{
    unsigned long n, fired = scene_fake() != NULL;
    struct fake_cuda_live live;
    (void)state;
    for (n = 1; fired && n < ROUND_MAX; n++) {
        struct hr_error err = {0};
        char setting[48];
        begin("");
        struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 2, .chunk_bytes = 64 << 10});
        struct hr_load *load = load_model(loader, &mixed, NULL);
        assert_ok(hr_load_wait_all(load, &err), err);
        snprintf(setting, sizeof setting, "fail_call=cuCtxPushCurrent:%lu:999", n);
        assert_int_equal(scene_fake()->configure(setting), 0);
        hr_load_free(load);
        hr_loader_free(loader);
        end();
        fired = scene_fake()->fired();
        scene_fake()->live(&live);
        assert_int_equal(live.abandoned_count, 0);
    }
    assert_true(!scene_fake() || n > 10);
}

/* The file ends in the middle of a tensor, in the middle of a page. */
static void test_truncated(void **state)
{
    static const struct test_tensor tensor = {
        .name = "t", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {3000000}, .seed = 9};
    static const char *const settings[] = {"truncate=1500000", "truncate=1503232", "truncate=100",
                                           "truncate=1500000,short=8192"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct test_model model;
        struct hr_error err = {0};
        begin("");
        model_write(&model, "gds-cut", &tensor, 1, 1, 0);
        model_open(&model);
        struct hr_item item = {.size = sizeof item};
        struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 1});
        assert_int_equal(fake.configure(settings[i]), 0);
        struct hr_load *load = load_make(loader, model.checkpoint, &item, 1, NULL);
        assert_code(hr_load_wait(load, 0, &err), HR_ESHORT_READ);
        assert_int_equal(err.offset, strtoull(settings[i] + 9, NULL, 10));
        assert_string_equal(err.tensor, "t");
        hr_load_free(load);
        hr_loader_free(loader);
        model_close(&model);
        end();
    }
}

/* A fault scenario: a load, where the n-th system call fails. */
static int load_once(void *context, struct hr_error *err)
{
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    struct hr_item *items = model_items(&mixed);
    (void)context;
    int code = loader_try((struct hr_loader_options){.thread_count = 2, .chunk_bytes = 1 << 20}, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, mixed.checkpoint, items, mixed.count, NULL, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    if (code == 0)
        check_all_items(load, &mixed);
    hr_load_free(load);
    hr_loader_free(loader);
    free(items);
    end();
    return code;
}

/* Not on a real driver, which takes its time to start and end at each of them. */
static void test_system_calls_fail(void **state)
{
    (void)state;
    scene_need_fake("");
    begin("");
    assert_true(faults_sweep(FAULT_MEMORY | FAULT_OPEN | FAULT_THREAD, 0, load_once, NULL) > 10);
}

static void test_cancel(void **state)
{
    (void)state;
    begin("");
    for (size_t turn = 0; turn < 10; turn++) {
        struct hr_error err = {0};
        struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 3, .chunk_bytes = 64 << 10});
        struct hr_load *load = load_model(loader, &mixed, NULL);
        if (turn % 2)
            assert_ok(hr_load_wait(load, turn, &err), err);
        hr_load_cancel(load);
        hr_load_free(load);
        load_all(loader, NULL);
        hr_loader_free(loader);
    }
    end();
}

/* Filesystems without O_DIRECT say so in two ways; cuFile reads such files too. */
static void test_without_o_direct(void **state)
{
    static const int errors[] = {EINVAL, EOPNOTSUPP};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct fake_storage storage = {.seed = 1, .direct_open_error = errors[i]};
        begin("");
        fake_storage_install(&storage);
        struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 2});
        load_all(loader, NULL);
        hr_loader_free(loader);
        fake_storage_remove();
        end();
    }
}

static void test_fork(void **state)
{
    int status = 0;
    (void)state;
    begin("");
    struct hr_loader *loader = gds_loader((struct hr_loader_options){.thread_count = 2});
    struct hr_load *load = load_model(loader, &mixed, NULL);
    struct hr_error err = {0};
    assert_ok(hr_load_wait_all(load, &err), err);
    pid_t child = fork();
    if (child == 0) {
        hr_load_free(load);
        hr_loader_free(loader);
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    check_all_items(load, &mixed);
    hr_load_free(load);
    hr_loader_free(loader);
    end();
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_setting),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_mixed_devices),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_library),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_descriptor_0),
        cmocka_unit_test(test_file_refused),
        cmocka_unit_test(test_reads_fail),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_end_tries_again),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_system_calls_fail),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_without_o_direct),
        cmocka_unit_test(test_fork),
    };
    if (count > 1 && strcmp(arguments[1], "no-library") == 0)
        return no_library();
    return gpu_name() ? cmocka_run_group_tests(tests, setup, teardown) : 0;
}
