/*
 * test_numa_load.c: what loads to GPUs of a machine with several NUMA nodes bind, and that nothing else is bound: neither
 * where it cannot help, nor the caller's thread, ever. On the fake driver, whose GPUs are where the trees have them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "support/faults.h"
#include "support/gpu_scene.h"
#include "support/machines.h"
#include "support/test_model.h"

static struct test_model model;

static int setup(void **state)
{
    (void)state;
    model_equal(&model, "numa", 40, 1 << 20, 40);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    return 0;
}

struct expected {
    int node;         /* of staging and readers; -1: nothing is bound */
    const char *cpus; /* of readers */
    uint32_t thread_max;
    const char *text; /* in the statistics */
};

static void load_and_check(const struct hr_loader_options *options, int sequential, const struct expected *expected)
{
    struct hr_load_options load_options = {.size = sizeof load_options, .sequential = (uint32_t)sequential};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    struct hr_cpu_set cpus = {0};
    struct hr_loader *loader = loader_make(options);
    struct hr_load *load = load_model(loader, &model, &load_options);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &model);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    hr_load_free(load);
    hr_loader_free(loader);
    struct fake_sysfs_bound bound = fake_sysfs_bound();
    assert_int_equal(bound.own_count, 0);
    assert_in_range(stats.thread_count, 0, expected->thread_max);
    assert_int_equal(bound.thread_count, expected->node < 0 ? 0 : stats.thread_count);
    assert_int_equal(bound.node, expected->node);
    if (bound.thread_count) {
        assert_int_equal(hr_list_parse(expected->cpus, cpus.words, HR_CPU_COUNT_MAX), 0);
        assert_memory_equal(&bound.cpus, &cpus, sizeof cpus);
    }
    if (!strstr(stats.placement, expected->text))
        fail_msg("'%s' is not in '%s'", expected->text, stats.placement);
}

static struct hr_loader_options options_for(const char *const *devices, size_t count)
{
    return (struct hr_loader_options){
        .size = sizeof(struct hr_loader_options), .devices = devices, .device_count = count, .chunk_bytes = 1 << 20};
}

static void test_bound(void **state)
{
    static const char *const first[] = {"cuda:0"}, *const last[] = {"cuda:7"}, *const both[] = {"cuda:7", "cuda:0"},
                             *const beside[] = {"cuda:6", "cpu", "cuda:5"};
    const struct fake_sysfs all = MACHINE(two_sockets, 64, 32, "0-63"), part = MACHINE(two_sockets, 64, 32, "1,3,0,33"),
                            other = MACHINE(two_sockets, 64, 32, EVEN_CPUS), one = MACHINE(one_socket, 8, 4, "0-7");
    const struct {
        const struct fake_sysfs *machine;
        const char *const *devices;
        size_t device_count;
        uint32_t no_binding;
        int sequential;
        struct expected expected;
    } cases[] = {
        {&all, first, 1, 0, 0, {0, EVEN_CPUS, 16, "node 0 of 2"}},
        {&all, last, 1, 0, 0, {1, ODD_CPUS, 16, "node 1 of 2"}},
        {&all, beside, 3, 0, 0, {1, ODD_CPUS, 16, "node 1 of 2"}},
        {&all, last, 1, 0, 1, {1, NULL, 0, "node 1 of 2"}}, /* staging only: the waiting thread reads */
        {&all, both, 2, 0, 0, {-1, NULL, 16, "several NUMA nodes"}},
        {&all, last, 1, 1, 0, {-1, NULL, 16, "switched off"}},
        {&part, last, 1, 0, 0, {1, "1,3,33", 2, "2 cores"}},
        {&other, last, 1, 0, 0, {-1, NULL, 16, "leaves out"}},
        {&one, first, 1, 0, 0, {-1, NULL, 8, "one NUMA node"}},
        {&all, NULL, 0, 0, 0, {-1, NULL, 16, ""}},
    };
    (void)state;
    scene_need_fake("devices=8");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_loader_options options = options_for(cases[i].devices, cases[i].device_count);
        options.no_binding = cases[i].no_binding;
        print_message("case %zu\n", i);
        fake_sysfs_install(cases[i].machine);
        load_and_check(&options, cases[i].sequential, &cases[i].expected);
        fake_sysfs_remove();
    }
}

/* What is refused is said, and the load is as good as any. */
static void test_refused(void **state)
{
    static const char *const last[] = {"cuda:7"};
    struct fake_sysfs machine = MACHINE(two_sockets, 64, 32, "0-63");
    const struct hr_loader_options options = options_for(last, 1);
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_error err = {0};
    (void)state;
    scene_need_fake("devices=8");
    machine.refusal = EPERM;
    fake_sysfs_install(&machine);
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &model, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &model);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_non_null(strstr(stats.placement, "readers could not be bound: Operation not permitted"));
    assert_non_null(strstr(stats.staging, "mbind to node 1: Operation not permitted"));
    assert_non_null(strstr(stats.staging, "registered huge pages"));
    hr_load_free(load);
    hr_loader_free(loader);
    fake_sysfs_remove();
}

/* The drive under the files is told too. */
static void test_storage_is_told(void **state)
{
    static const char *const first[] = {"cuda:0"};
    struct sysfs_entry all[sizeof two_sockets / sizeof two_sockets[0] + 2];
    const struct fake_sysfs machine = MACHINE(all, 64, 32, "0-63");
    const struct hr_loader_options options = options_for(first, 1);
    const struct expected expected = {0, EVEN_CPUS, 16, "; storage at node 1"};
    size_t count = sizeof two_sockets / sizeof two_sockets[0];
    struct stat file;
    char path[64];
    (void)state;
    assert_int_equal(stat(model.paths[0], &file), 0);
    if (major(file.st_dev) == 0) /* no drive under them */
        skip();
    snprintf(path, sizeof path, "dev/block/%u:%u", major(file.st_dev), minor(file.st_dev));
    memcpy(all, two_sockets, sizeof two_sockets);
    all[count] = (struct sysfs_entry){path, NULL, "devices/pci0000:80/0000:c1:00.0/nvme/nvme0/nvme0n1"};
    all[count + 1] = (struct sysfs_entry){"devices/pci0000:80/0000:c1:00.0/numa_node", "1\n", NULL};
    scene_need_fake("devices=8");
    fake_sysfs_install(&machine);
    load_and_check(&options, 0, &expected);
    fake_sysfs_remove();
}

static void check_plan(struct hr_loader *loader, const struct hr_item *items, uint32_t format, const char *part)
{
    struct hr_error err = {0};
    char *text = NULL;
    assert_ok(hr_plan_describe(loader, model.checkpoint, items, model.count, NULL, format, &text, &err), err);
    if (part ? !strstr(text, part) : strstr(text, "NUMA") != NULL)
        fail_msg("%s: %.400s", part, text);
    hr_string_free(text);
}

/* The plan says beforehand what a load would do. */
static void test_plan(void **state)
{
    static const char *const last[] = {"cuda:7"}, *const host[] = {"cpu"};
    const struct fake_sysfs machine = MACHINE(two_sockets, 64, 32, "0-63");
    struct hr_loader_options options = options_for(last, 1), host_options = options_for(host, 1);
    struct hr_item *items = model_items(&model);
    (void)state;
    scene_need_fake("devices=8");
    fake_sysfs_install(&machine);
    struct hr_loader *loader = loader_make(&options), *host_loader = loader_make(&host_options);
    check_plan(loader, items, HR_PLAN_TEXT,
               "\nnuma      readers (16 cores) and staging at the GPU's NUMA node 1 of 2\n");
    check_plan(loader, items, HR_PLAN_JSON, "and staging at the GPU's NUMA node 1 of 2\"");
    check_plan(host_loader, items, HR_PLAN_TEXT, NULL);
    check_plan(host_loader, items, HR_PLAN_JSON, NULL);
    hr_loader_free(loader);
    hr_loader_free(host_loader);
    assert_int_equal(fake_sysfs_bound().thread_count + fake_sysfs_bound().memory_count, 0);
    fake_sysfs_remove();
    free(items);
}

static void test_doctor(void **state)
{
    struct fake_sysfs machine = MACHINE(two_sockets, 64, 32, "0-63");
    struct hr_capability entries[32], *numa = NULL;
    (void)state;
    scene_need_fake("devices=8");
    fake_sysfs_install(&machine);
    size_t count = hr_capabilities(entries, 32);
    fake_sysfs_remove();
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, "numa") == 0)
            numa = &entries[i];
    assert_non_null(numa);
    assert_int_equal(numa->usable, 1);
    assert_string_equal(numa->detail, "a load to cuda:0: readers (16 cores) and staging at the GPU's NUMA node 0 of 2; "
                                      "node 0: 16 of 16 cores, cuda 0 1 2 3; node 1: 16 of 16 cores, cuda 4 5 6 7");
}

static int load_once(void *context, struct hr_error *err)
{
    static const char *const devices[] = {"cuda:7"};
    const struct hr_loader_options options = options_for(devices, 1);
    struct hr_load_options load_options = {.size = sizeof load_options};
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    int code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, model.checkpoint, context, 4, &load_options, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    for (size_t i = 0; code == 0 && i < 4; i++)
        check_item(load, i, &model);
    hr_load_free(load);
    hr_loader_free(loader);
    return code;
}

static void test_sweep(void **state)
{
    const struct fake_sysfs machine = MACHINE(two_sockets, 64, 32, "0-63");
    struct hr_item *items = model_items(&model);
    (void)state;
    scene_need_fake("devices=8");
    fake_sysfs_install(&machine);
    assert_in_range(faults_sweep(FAULT_BIND, 0, load_once, items), 3, 100);
    assert_in_range(faults_sweep(FAULT_OPEN, EACCES, load_once, items), 30, 200);
    fake_sysfs_remove();
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound), cmocka_unit_test(test_refused), cmocka_unit_test(test_storage_is_told),
        cmocka_unit_test(test_plan),  cmocka_unit_test(test_doctor),  cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
