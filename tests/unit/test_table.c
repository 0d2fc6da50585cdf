/*
 * test_table.c: checkpoints of extents that the caller describes: order and names, what is refused and how it is said,
 * overlaps and holes through loads of every route, the twin over an open checkpoint, size, and every call failing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "catalog/checkpoint.h"
#include "support/faults.h"
#include "support/test_model.h"

#define FILE_BYTES 300000u

static const char *paths[2];
static const uint64_t vector[] = {5}, matrix[] = {3, 7}, large[] = {50001}, empty[] = {0, 9};

static int setup(void **state)
{
    static const char *const names[] = {"first.bin", "second.bin"};
    unsigned char *bytes = malloc(FILE_BYTES);
    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < 2; i++) {
        test_fill(bytes, i + 1, 0, FILE_BYTES);
        paths[i] = test_path(names[i]);
        test_raw_write(paths[i], bytes, FILE_BYTES);
    }
    free(bytes);
    return 0;
}

static struct hr_extent extent(const char *name, uint32_t dtype, uint32_t rank, const uint64_t *shape, size_t file,
                               uint64_t offset)
{
    return (struct hr_extent){
        sizeof(struct hr_extent), name, name ? strlen(name) : 0, dtype, rank, shape, file, offset};
}

/* Holes, overlaps, odd offsets, both files, not in order. */
static size_t some_extents(struct hr_extent *ret_extents)
{
    size_t count = 0;
    ret_extents[count++] = extent("z", HR_DTYPE_F32, 1, large, 1, 12345);
    ret_extents[count++] = extent("overlaps z", HR_DTYPE_U8, 1, large, 1, 12347);
    ret_extents[count++] = extent("to the end", HR_DTYPE_F64, 2, matrix, 0, FILE_BYTES - 21 * 8);
    ret_extents[count++] = extent("at 1", HR_DTYPE_BF16, 1, vector, 0, 1);
    ret_extents[count++] = extent("scalar", HR_DTYPE_F16, 0, NULL, 1, 0);
    ret_extents[count++] = extent("same place, later", HR_DTYPE_F16, 0, NULL, 1, 0);
    ret_extents[count++] = extent("empty at the end", HR_DTYPE_F32, 2, empty, 0, FILE_BYTES);
    ret_extents[count++] = extent("whole of z and more", HR_DTYPE_F32, 1, large, 1, 12340);
    return count;
}

static struct hr_checkpoint *made(const struct hr_extent *extents, size_t count)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    assert_ok(hr_checkpoint_from_table(paths, 2, extents, count, &checkpoint, &err), err);
    assert_int_equal(hr_checkpoint_count(checkpoint), count);
    return checkpoint;
}

static void test_order_and_names(void **state)
{
    static const char *const order[] = {"at 1",   "to the end",        "empty at the end",
                                        "scalar", "same place, later", "whole of z and more",
                                        "z",      "overlaps z"};
    struct hr_extent extents[8];
    const char *key, *value;
    size_t key_size, value_size;
    (void)state;
    struct hr_checkpoint *checkpoint = made(extents, some_extents(extents));
    for (size_t i = 0; i < 8; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, i);
        assert_string_equal(tensor->name, order[i]);
        assert_ptr_equal(hr_checkpoint_find(checkpoint, order[i], strlen(order[i])), tensor);
    }
    assert_null(hr_checkpoint_find(checkpoint, "nobody", 6));
    assert_int_equal(hr_checkpoint_match(checkpoint, "*end*", 2), 2);
    for (size_t i = 0; i < 2; i++) {
        const struct hr_file *file = hr_checkpoint_file(checkpoint, i);
        assert_string_equal(file->path, paths[i]);
        assert_ptr_not_equal(file->path, paths[i]);
        assert_int_equal(file->size, FILE_BYTES);
        assert_int_equal(file->data_offset, 0);
        assert_int_equal(file->tensor_first, i ? 3 : 0);
        assert_int_equal(file->tensor_count, i ? 5 : 3);
        assert_int_equal(hr_checkpoint_metadata(checkpoint, i, 0, &key, &key_size, &value, &value_size), HR_EEND);
    }
    assert_null(hr_checkpoint_warning(checkpoint, 0));
    hr_checkpoint_close(checkpoint);
    hr_checkpoint_close(made(NULL, 0));
}

/* Loads all tensors of a checkpoint over the two files and compares each byte. */
static void load_and_compare(const struct hr_checkpoint *checkpoint, const struct hr_loader_options *options)
{
    size_t count = hr_checkpoint_count(checkpoint);
    struct hr_item *items = calloc(count + 1, sizeof *items);
    struct hr_error err = {0};
    struct hr_loader *loader = loader_make(options);
    for (size_t i = 0; i < count; i++)
        items[i] = (struct hr_item){.size = sizeof *items, .tensor_index = i};
    struct hr_load *load = load_make(loader, checkpoint, items, count, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    for (size_t i = 0; i < count; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, i);
        struct hr_view view = {.size = sizeof view};
        assert_ok(hr_load_view(load, i, &view, &err), err);
        assert_int_equal(view.bytes, tensor->size);
        assert_int_equal(test_mismatch(view.data, tensor->file_index + 1, tensor->offset, tensor->size), tensor->size);
        assert_int_equal(options->route == HR_ROUTE_MMAP ? 0 : (uintptr_t)view.data % 256, 0);
    }
    hr_load_free(load);
    hr_loader_free(loader);
    free(items);
}

static void test_every_route(void **state)
{
    static const uint32_t routes[] = {HR_ROUTE_AUTO, HR_ROUTE_PREAD, HR_ROUTE_MMAP, HR_ROUTE_URING};
    struct hr_extent extents[8];
    (void)state;
    struct hr_checkpoint *checkpoint = made(extents, some_extents(extents));
    for (size_t i = 0; i < (uring_usable() ? 4 : 3); i++)
        for (uint64_t chunk = 0; chunk <= 64 << 10; chunk += 64 << 10) {
            struct hr_loader_options options = {.size = sizeof options, .route = routes[i], .chunk_bytes = chunk};
            load_and_compare(checkpoint, &options);
        }
    hr_checkpoint_close(checkpoint);
}

/* One of the extents is refused with this code; the error names it as it should. */
static void refused(const struct hr_extent *bad, int code, const char *text)
{
    struct hr_extent extents[2] = {extent("good", HR_DTYPE_U8, 1, vector, 0, 0), *bad};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    int result = hr_checkpoint_from_table(paths, 2, extents, 2, &checkpoint, &err);
    if (result != code || !strstr(err.message, text))
        print_error("%s: %s\n", hr_error_kind(result), err.message);
    assert_code(result, code);
    assert_null(checkpoint);
    assert_non_null(strstr(err.message, text));
    assert_true(bad->size != sizeof *bad || err.offset == bad->offset);
    assert_string_equal(err.file, bad->file_index < 2 && bad->size == sizeof *bad ? paths[bad->file_index] : "");
    if (bad->name && bad->size == sizeof *bad)
        assert_memory_equal(err.tensor, bad->name, strnlen(bad->name, 3));
}

static void test_refused(void **state)
{
    static const uint64_t overflowing[] = {UINT64_C(1) << 33, UINT64_C(1) << 31}, wide[65] = {0};
    struct hr_extent bad = extent(NULL, HR_DTYPE_U8, 1, vector, 1, 7);
    (void)state;
    refused(&bad, HR_EINVALID_ARGUMENT, "no name");
    bad = extent("", HR_DTYPE_U8, 1, vector, 1, 7);
    refused(&bad, HR_EINVALID_ARGUMENT, "no name");
    bad = extent("ab\xff", HR_DTYPE_U8, 1, vector, 1, 7);
    struct hr_extent extents[2] = {extent("good", HR_DTYPE_U8, 1, vector, 0, 0), bad};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    assert_code(hr_checkpoint_from_table(paths, 2, extents, 2, &checkpoint, &err), HR_EINVALID_ARGUMENT);
    assert_string_equal(err.tensor, "ab\\xff");
    assert_non_null(strstr(err.message, "byte 2"));
    bad = extent("nul", HR_DTYPE_U8, 1, vector, 1, 7);
    bad.name_size = 4;
    refused(&bad, HR_ENAME_HAS_NUL, "NUL");
    bad = extent("good", HR_DTYPE_U8, 1, vector, 1, 7);
    refused(&bad, HR_EDUPLICATE_TENSOR, "also at byte 0 of");
    bad = extent("file", HR_DTYPE_U8, 1, vector, 2, 7);
    refused(&bad, HR_EINVALID_ARGUMENT, "file index is 2, but there are 2");
    bad = extent("none", HR_DTYPE_NONE, 1, vector, 1, 7);
    refused(&bad, HR_EINVALID_ARGUMENT, "dtype is 0");
    bad = extent("dtype", HR_DTYPE_COUNT, 1, vector, 1, 7);
    refused(&bad, HR_EINVALID_ARGUMENT, "dtype is 23");
    bad = extent("rank", HR_DTYPE_U8, 65, wide, 1, 7);
    refused(&bad, HR_ERANK_TOO_LARGE, "65 dimensions");
    bad = extent("shape", HR_DTYPE_U8, 1, NULL, 1, 7);
    refused(&bad, HR_EINVALID_ARGUMENT, "no shape");
    bad = extent("many", HR_DTYPE_U8, 2, overflowing, 1, 7);
    refused(&bad, HR_EVALIDATION_OVERFLOW, "dimension 1");
    bad = extent("bits", HR_DTYPE_F32, 1, overflowing, 1, UINT64_MAX);
    refused(&bad, HR_EMETADATA_INCOMPLETE_BUFFER, "past the end");
    bad = extent("f4", HR_DTYPE_F4, 1, vector, 1, 7);
    refused(&bad, HR_EMISALIGNED_SLICE, "whole bytes");
    bad = extent("end", HR_DTYPE_F32, 1, vector, 1, FILE_BYTES - 19);
    refused(&bad, HR_EMETADATA_INCOMPLETE_BUFFER, "20 bytes at byte 299981");
    bad = extent("far", HR_DTYPE_F32, 2, empty, 1, FILE_BYTES + 1);
    refused(&bad, HR_EMETADATA_INCOMPLETE_BUFFER, "past the end");
    bad = extent("size", HR_DTYPE_U8, 1, vector, 1, 7);
    bad.size -= 8;
    refused(&bad, HR_EINVALID_ARGUMENT, "all must be equal");
}

/* Structs of a later header: taken when what this library does not know is zero. */
static void test_longer_structs(void **state)
{
    struct {
        struct hr_extent extent;
        uint64_t later;
    } extents[2] = {{extent("a", HR_DTYPE_U8, 1, vector, 0, 3), 0}, {extent("b", HR_DTYPE_U8, 1, vector, 0, 1), 0}};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err;
    (void)state;
    extents[0].extent.size = extents[1].extent.size = sizeof extents[0];
    assert_ok(hr_checkpoint_from_table(paths, 1, &extents[0].extent, 2, &checkpoint, &err), err);
    assert_string_equal(hr_checkpoint_at(checkpoint, 0)->name, "b");
    hr_checkpoint_close(checkpoint);
    extents[1].later = 1;
    checkpoint = NULL;
    assert_code(hr_checkpoint_from_table(paths, 1, &extents[0].extent, 2, &checkpoint, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "extent 1: byte 56 is set"));
    assert_null(checkpoint);
}

static void test_arguments_and_files(void **state)
{
    const char *folder[] = {test_dir()}, *missing[] = {paths[0], test_path("missing.bin")}, *hole[] = {paths[0], NULL};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err;
    (void)state;
    assert_code(hr_checkpoint_from_table(NULL, 1, NULL, 0, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_from_table(paths, 0, NULL, 0, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_from_table(paths, 1, NULL, 0, NULL, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_from_table(paths, 1, NULL, 1, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_from_table(hole, 2, NULL, 0, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_from_table(paths, 100001, NULL, 0, &checkpoint, NULL), HR_ELIMIT_EXCEEDED);
    assert_code(hr_checkpoint_from_table(folder, 1, NULL, 0, &checkpoint, &err), HR_ENOT_A_REGULAR_FILE);
    assert_code(hr_checkpoint_from_table(missing, 2, NULL, 0, &checkpoint, &err), HR_EIO_ERROR);
    assert_string_equal(err.file, missing[1]);
    assert_null(checkpoint);
}

/* The identity is that of the call: a file that was written since fails its load. */
static void test_changed_file(void **state)
{
    const char *path = test_path("changes.bin");
    struct hr_extent one = extent("a", HR_DTYPE_U8, 1, vector, 0, 0);
    struct hr_item item = {.size = sizeof item};
    struct hr_loader_options options = {.size = sizeof options};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err;
    (void)state;
    test_raw_write(path, "0123456789", 10);
    assert_ok(hr_checkpoint_from_table(&path, 1, &one, 1, &checkpoint, &err), err);
    assert_int_equal(truncate(path, 9), 0);
    struct hr_loader *loader = loader_make(&options);
    struct hr_load *load = load_make(loader, checkpoint, &item, 1, NULL);
    assert_code(hr_load_wait_all(load, &err), HR_EFILE_CHANGED);
    assert_string_equal(err.file, path);
    hr_load_free(load);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
}

/* 100,000 ranges of an open checkpoint's files, last first, without names; the files need not be touched. */
static void test_extents_of_a_checkpoint(void **state)
{
    enum { COUNT = 100000 };
    struct hr_extent *ranges = calloc(COUNT, sizeof *ranges), extents[8];
    struct hr_checkpoint *of = made(extents, some_extents(extents)), *checkpoint = NULL;
    struct hr_error err = {0};
    struct hr_loader_options options = {.size = sizeof options};
    (void)state;
    for (size_t i = 0; i < COUNT; i++)
        ranges[i] = extent(i == 3 || i == 4 ? "same" : NULL, HR_DTYPE_U8, 1, vector, i % 2, (COUNT - i) * 2);
    faults_install();
    assert_ok(hr_checkpoint_extents(of, ranges, COUNT, &checkpoint, &err), err);
    assert_int_equal(faults_count(FAULT_OPEN | FAULT_STAT | FAULT_READ), 0);
    assert_true(faults_count(FAULT_MEMORY) < 16);
    faults_remove();
    assert_memory_equal(checkpoint->identities, of->identities, 2 * sizeof *of->identities);
    hr_checkpoint_close(of);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(hr_checkpoint_at(checkpoint, i)->offset, ranges[i].offset);
    assert_null(hr_checkpoint_find(checkpoint, "same", 4));
    assert_string_equal(hr_checkpoint_at(checkpoint, 3)->name, "same");
    assert_string_equal(hr_checkpoint_at(checkpoint, 5)->name, "");
    load_and_compare(checkpoint, &options);
    hr_checkpoint_close(checkpoint);
    free(ranges);
}

static int table_scenario(void *context, struct hr_error *err)
{
    struct hr_extent extents[8];
    struct hr_checkpoint *checkpoint = NULL, *twin = NULL;
    size_t count = some_extents(extents);
    (void)context;
    int result = hr_checkpoint_from_table(paths, 2, extents, count, &checkpoint, err);
    if (!result)
        result = hr_checkpoint_extents(checkpoint, extents, count, &twin, err);
    if (result)
        assert_null(twin);
    else
        assert_int_equal(hr_checkpoint_count(twin), count);
    hr_checkpoint_close(twin);
    hr_checkpoint_close(checkpoint);
    return result;
}

static void test_every_call_fails(void **state)
{
    (void)state;
    assert_true(faults_sweep(FAULT_ALL, 0, table_scenario, NULL) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_names),
        cmocka_unit_test(test_every_route),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_longer_structs),
        cmocka_unit_test(test_arguments_and_files),
        cmocka_unit_test(test_changed_file),
        cmocka_unit_test(test_extents_of_a_checkpoint),
        cmocka_unit_test(test_every_call_fails),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
