/*
 * test_current_folder.c: programs that change their current folder between opening and loading, or while they write.
 * Relative names go on meaning the files of the folder of the open, and errors name them as their user did.
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
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "catalog/checkpoint.h"
#include "support/faults.h"
#include "support/test_model.h"
#include "support/write_scene.h"

#define PER_FILE 2

static struct test_model model; /* in DIR/here/shards; the checkpoint is opened from DIR/here */

static void go_here(void)
{
    assert_int_equal(chdir(test_path("here")), 0);
}

/* A folder with files of the same names that are others. */
static void go_elsewhere(void)
{
    assert_int_equal(chdir(test_path("elsewhere")), 0);
}

static int setup(void **state)
{
    (void)state;
    model_equal(&model, "here/shards/m", 6, 30000, PER_FILE);
    for (size_t i = 0; i < model.path_count; i++) {
        const char *text = strstr(model.paths[i], "shards/");
        char name[128];
        snprintf(name, sizeof name, "elsewhere/%s", text);
        test_raw_write(test_path(name), "not these", 9);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(chdir("/"), 0);
    model_close(&model);
    return 0;
}

static void load_elsewhere(struct hr_checkpoint *checkpoint, uint32_t route)
{
    struct hr_loader_options options = {.size = sizeof options, .route = route};
    struct hr_error err = {0};
    struct test_model seen = model;
    seen.checkpoint = checkpoint;
    go_elsewhere();
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_model(loader, &seen, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, &seen);
    hr_load_free(load);
    hr_loader_free(loader);
}

static struct hr_checkpoint *open_here(const char *const *paths, size_t count)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    go_here();
    assert_ok(hr_checkpoint_open(paths, count, NULL, &checkpoint, &err), err);
    return checkpoint;
}

/* A folder, a list, one of it by its absolute name, and detours. */
static void test_loads(void **state)
{
    static const uint32_t routes[] = {HR_ROUTE_AUTO, HR_ROUTE_PREAD, HR_ROUTE_MMAP, HR_ROUTE_URING};
    const char *const folder[] = {"shards"}, *const dots[] = {"../here/./shards"};
    const char *const list[] = {"shards/m-00000.safetensors", model.paths[1], "./shards/m-00002.safetensors"};
    (void)state;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (routes[i] == HR_ROUTE_URING && !uring_usable())
            continue;
        struct hr_checkpoint *checkpoints[] = {open_here(folder, 1), open_here(dots, 1), open_here(list, 3)};
        for (size_t k = 0; k < 3; k++)
            load_elsewhere(checkpoints[k], routes[i]);
        assert_string_equal(hr_checkpoint_file(checkpoints[0], 0)->path, "shards/m-00000.safetensors");
        assert_string_equal(hr_checkpoint_file(checkpoints[2], 1)->path, model.paths[1]);
        for (size_t k = 0; k < 3; k++)
            hr_checkpoint_close(checkpoints[k]);
    }
}

/* Of a checkpoint that is closed by then, too. */
static void test_tables(void **state)
{
    static const char *const paths[] = {"shards/m-00000.safetensors", "shards/m-00001.safetensors",
                                        "shards/m-00002.safetensors"};
    struct hr_checkpoint *opened = open_here(paths, 3), *table = NULL, *ranges = NULL;
    struct hr_extent extents[6];
    struct hr_error err = {0};
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(opened, i);
        extents[i] = (struct hr_extent){sizeof extents[i], tensor->name,  tensor->name_size,  tensor->dtype,
                                        tensor->rank,      tensor->shape, tensor->file_index, tensor->offset};
    }
    assert_ok(hr_checkpoint_from_table(paths, 3, extents, 6, &table, &err), err);
    go_elsewhere();
    assert_ok(hr_checkpoint_extents(table, extents, 6, &ranges, &err), err);
    load_elsewhere(table, HR_ROUTE_PREAD);
    hr_checkpoint_close(table);
    load_elsewhere(ranges, HR_ROUTE_PREAD);
    hr_checkpoint_close(ranges);
    hr_checkpoint_close(opened);
}

/* The file of the open is the one that is looked for, and its name is the one that was given. */
static void test_errors(void **state)
{
    static const char *const path = "gone.safetensors";
    struct hr_loader_options options = {.size = sizeof options};
    const struct test_tensor tensor = {.name = "t", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {9}};
    struct hr_item item = {.size = sizeof item};
    struct hr_error err = {0};
    (void)state;
    test_file_write(test_path("here/gone.safetensors"), &tensor, 1, 0);
    test_file_write(test_path("elsewhere/gone.safetensors"), &tensor, 1, 0);
    struct hr_checkpoint *checkpoint = open_here(&path, 1);
    assert_int_equal(unlink(path), 0);
    go_elsewhere();
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, checkpoint, &item, 1, NULL);
    assert_code(hr_load_wait_all(load, &err), HR_EFILE_CHANGED);
    assert_string_equal(err.file, path);
    assert_non_null(strstr(err.message, "gone"));
    hr_load_free(load);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
}

static int no_folder(char *ret_path, size_t capacity)
{
    (void)ret_path;
    (void)capacity;
    return -ENOENT;
}

/* The name of another folder, as of one that was moved meanwhile. */
static int other_folder(char *ret_path, size_t capacity)
{
    snprintf(ret_path, capacity, "%s", test_path("elsewhere"));
    return 0;
}

static int unreachable_folder(char *ret_path, size_t capacity)
{
    snprintf(ret_path, capacity, "(unreachable)/here");
    return 0;
}

/* Where the folder's name does not lead to it, relative names do what they did: who stays in the folder can load. */
static void test_without_a_name(void **state)
{
    static const char *const folder = "shards";
    int (*const answers[])(char *, size_t) = {no_folder, other_folder, unreachable_folder};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct hr_sys table = hr_sys_real;
        struct hr_loader_options options = {.size = sizeof options};
        struct hr_error err = {0};
        struct test_model seen = model;
        table.current_folder = answers[i];
        hr_sys = &table;
        seen.checkpoint = open_here(&folder, 1);
        struct hr_loader *loader = loader_make(&options);
        struct hr_load *load = load_model(loader, &seen, NULL);
        assert_ok(hr_load_wait_all(load, &err), err);
        check_all_items(load, &seen);
        hr_load_free(load);
        hr_loader_free(loader);
        hr_checkpoint_close(seen.checkpoint);
        hr_sys = &hr_sys_real;
    }
}

/* ------------------------------------------------------------------------------------------ writing */

/* All files, the index too, come into being where the writer was made. */
static void test_writer(void **state)
{
    struct write_scene scene = {0};
    (void)state;
    write_scene_fill(&scene);
    for (int is_split = 0; is_split <= 1; is_split++) {
        struct hr_write_options options = {.size = sizeof options, .shard_bytes = is_split ? 3000000 : 0};
        struct hr_writer *writer = NULL;
        struct hr_error err = {0};
        const char *name = is_split ? "split/w.safetensors" : "w.safetensors";
        mkdir(test_path("here/split"), 0700);
        size_t elsewhere = folder_entry_count(test_path("elsewhere"));
        go_here();
        assert_ok(hr_writer_new(name, scene.tensors, scene.count, &options, &writer, &err), err);
        go_elsewhere();
        for (size_t i = 0; i < scene.count; i++)
            assert_ok(hr_writer_put(writer, i, &scene.sources[i], &err), err);
        assert_ok(hr_writer_finish(writer, &err), err);
        assert_int_equal(strncmp(hr_writer_path(writer, 0), is_split ? "split/w-00001-of-" : name, 11), 0);
        assert_int_equal(hr_writer_file_count(writer) > 1, is_split);
        hr_writer_free(writer);
        assert_int_equal(folder_entry_count(test_path("elsewhere")), elsewhere);
        write_scene_check(&scene, test_path(is_split ? "here/split/w.safetensors.index.json" : "here/w.safetensors"));
    }
    write_scene_release(&scene);
}

/* What is given up is removed where it lies, and errors say the name that was given. */
static void test_writer_fails(void **state)
{
    struct write_scene scene = {0};
    struct hr_writer *writer = NULL;
    struct hr_error err = {0};
    (void)state;
    write_scene_fill(&scene);
    mkdir(test_path("here/failing"), 0700);
    go_here();
    assert_ok(hr_writer_new("failing/w", scene.tensors, scene.count, NULL, &writer, &err), err);
    go_elsewhere();
    hr_writer_free(writer);
    assert_int_equal(folder_entry_count(test_path("here/failing")), 0);
    go_here();
    faults_install();
    faults_fail_from(FAULT_WRITE, 1, EIO);
    assert_code(hr_writer_new("failing/w", scene.tensors, scene.count, NULL, &writer, &err), HR_EIO_ERROR);
    faults_remove();
    assert_string_equal(err.file, "failing/w");
    assert_null(strstr(err.message, test_dir()));
    assert_int_equal(folder_entry_count(test_path("here/failing")), 0);
    write_scene_release(&scene);
}

static int open_scenario(void *context, struct hr_error *err)
{
    const char *path = context;
    struct hr_checkpoint *checkpoint = NULL;
    int code = hr_checkpoint_open(&path, 1, NULL, &checkpoint, err);
    hr_checkpoint_close(checkpoint);
    return code;
}

/* Without memory for the paths nothing is half open. */
static void test_every_allocation_fails(void **state)
{
    char folder[] = "shards";
    (void)state;
    go_here();
    assert_true(faults_sweep(FAULT_MEMORY, 0, open_scenario, folder) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_without_a_name),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_writer_fails),
        cmocka_unit_test(test_every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
