/*
 * test_catalog.c: opening checkpoints: files, lists, folders, indexes checked both ways, links, what is not a file,
 * limits of descriptors, errors in the order of files, options, identity, and every call failing in turn.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sys.h"
#include "catalog/checkpoint.h"
#include "support/faults.h"
#include "support/make_files.h"

/* A file DIR/name with `count` U8 tensors of one byte, named from `first` on ("t0", "t1", ...). */
static void shard_write(const char *name, unsigned first, unsigned count)
{
    size_t used = 0, capacity = count * 96 + 16;
    char *json = malloc(capacity);
    assert_non_null(json);
    json[0] = '\0';
    for (unsigned i = 0; i < count; i++)
        used += (size_t)snprintf(json + used, capacity - used,
                                 "%s\"t%u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}", i ? "," : "{",
                                 first + i, i, i + 1);
    snprintf(json + used, capacity - used, count ? "}" : "{}");
    test_json_write(test_path(name), json, count, 1);
    free(json);
}

static void text_write(const char *name, const char *text)
{
    test_raw_write(test_path(name), text, strlen(text));
}

static int open_path(const char *name, struct hr_checkpoint **ret_checkpoint, struct hr_error *err)
{
    const char *path = test_path(name);
    return hr_checkpoint_open(&path, 1, NULL, ret_checkpoint, err);
}

/* Opens DIR/name, which must have this many files and tensors. */
static struct hr_checkpoint *opened(const char *name, size_t file_count, size_t tensor_count)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err;
    if (open_path(name, &checkpoint, &err))
        print_error("%s: %s\n", err.file, err.message);
    assert_non_null(checkpoint);
    assert_int_equal(hr_checkpoint_file_count(checkpoint), file_count);
    assert_int_equal(hr_checkpoint_count(checkpoint), tensor_count);
    return checkpoint;
}

/* DIR/name must fail with this code; the error names DIR/file and tensor, its message contains `text`. */
static void refused(const char *name, int code, const char *file, const char *tensor, const char *text)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    int result = open_path(name, &checkpoint, &err);
    if (result != code || !strstr(err.message, text))
        print_error("%s: %s: %s\n", name, hr_error_kind(result), err.message);
    assert_int_equal(result, code);
    assert_int_equal(err.code, code);
    assert_null(checkpoint);
    assert_string_equal(err.file, test_path(file));
    assert_string_equal(err.tensor, tensor);
    assert_non_null(strstr(err.message, text));
}

static void test_one_file(void **state)
{
    (void)state;
    shard_write("one/m.safetensors", 0, 3);
    struct hr_checkpoint *checkpoint = opened("one/m.safetensors", 1, 3);
    const struct hr_file *file = hr_checkpoint_file(checkpoint, 0);
    assert_string_equal(file->path, test_path("one/m.safetensors"));
    assert_int_equal(file->tensor_count, 3);
    assert_int_equal(file->size, file->data_offset + 3);
    assert_null(hr_checkpoint_file(checkpoint, 1));
    assert_null(hr_checkpoint_at(checkpoint, 3));
    assert_ptr_equal(hr_checkpoint_find(checkpoint, "t1", 2), hr_checkpoint_at(checkpoint, 1));
    assert_null(hr_checkpoint_find(checkpoint, "t9", 2));
    assert_null(hr_checkpoint_find(checkpoint, "t1", 1));
    assert_int_equal(hr_checkpoint_match(checkpoint, "t[12]", 0), 1);
    assert_int_equal(hr_checkpoint_match(checkpoint, "t[12]", 2), 2);
    assert_int_equal(hr_checkpoint_match(checkpoint, "x*", 0), 3);
    assert_int_equal(hr_checkpoint_match(checkpoint, "*", 99), 3);
    assert_null(hr_checkpoint_warning(checkpoint, 0));
    hr_checkpoint_close(checkpoint);
    hr_checkpoint_close(NULL);
}

static void test_metadata(void **state)
{
    (void)state;
    test_json_write(test_path("meta.safetensors"), "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"}}", 0, 1);
    struct hr_checkpoint *checkpoint = opened("meta.safetensors", 1, 0);
    const char *key, *value;
    size_t key_size, value_size;
    assert_int_equal(hr_checkpoint_metadata(checkpoint, 0, 0, &key, &key_size, &value, &value_size), 0);
    assert_string_equal(key, "format");
    assert_string_equal(value, "pt");
    assert_int_equal(key_size + value_size, 8);
    assert_int_equal(hr_checkpoint_metadata(checkpoint, 0, 1, &key, &key_size, &value, &value_size), 0);
    assert_string_equal(key, "k");
    assert_int_equal(value_size, 0);
    assert_int_equal(hr_checkpoint_metadata(checkpoint, 0, 2, &key, &key_size, &value, &value_size), HR_EEND);
    assert_int_equal(hr_checkpoint_metadata(checkpoint, 1, 0, &key, &key_size, &value, &value_size),
                     HR_EINVALID_ARGUMENT);
    assert_null(hr_checkpoint_find(checkpoint, "__metadata__", 12));
    hr_checkpoint_close(checkpoint);
}

/* Sorted by bytes; what does not end in .safetensors, or begins with a dot, does not belong. */
static void test_folder(void **state)
{
    (void)state;
    shard_write("folder/b.safetensors", 10, 2);
    shard_write("folder/a10.safetensors", 20, 1);
    shard_write("folder/a9.safetensors", 30, 1);
    text_write("folder/.hidden.safetensors", "junk");
    text_write("folder/config.json", "{}");
    struct hr_checkpoint *checkpoint = opened("folder", 3, 4);
    assert_string_equal(hr_checkpoint_at(checkpoint, 0)->name, "t20");
    assert_string_equal(hr_checkpoint_at(checkpoint, 1)->name, "t30");
    const struct hr_tensor *tensor = hr_checkpoint_find(checkpoint, "t11", 3);
    assert_int_equal(tensor - hr_checkpoint_at(checkpoint, 0), 3);
    assert_int_equal(tensor->file_index, 2);
    assert_int_equal(hr_checkpoint_file(checkpoint, 2)->tensor_first, 2);
    assert_string_equal(hr_checkpoint_file(checkpoint, 2)->path, test_path("folder/b.safetensors"));
    hr_checkpoint_close(checkpoint);
    checkpoint = opened("folder/", 3, 4);
    assert_string_equal(hr_checkpoint_file(checkpoint, 2)->path, test_path("folder/b.safetensors"));
    hr_checkpoint_close(checkpoint);
}

static void test_folder_without_safetensors(void **state)
{
    (void)state;
    text_write("other/pytorch_model.bin", "x");
    text_write("other/readme.md", "x");
    refused("other", HR_ENOT_SAFETENSORS, "other", "", "it holds pytorch_model.bin");
    text_write("plain/readme.md", "x");
    refused("plain", HR_ENOT_SAFETENSORS, "plain", "", "readme.md");
    assert_int_equal(mkdir(test_path("empty"), 0700), 0);
    refused("empty", HR_ENOT_SAFETENSORS, "empty", "", "empty");
}

static void test_index(void **state)
{
    (void)state;
    shard_write("indexed/m-1.safetensors", 0, 2);
    shard_write("indexed/sub/m-2.safetensors", 2, 1);
    text_write("indexed/stray.safetensors", "not read: the index decides");
    text_write("indexed/model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":3},\"weight_map\":{\"t2\":\"sub/m-2.safetensors\","
               "\"t0\":\"m-1.safetensors\",\"t1\":\"m-1.safetensors\"}}");
    struct hr_checkpoint *checkpoint = opened("indexed", 2, 3);
    assert_int_equal(hr_checkpoint_find(checkpoint, "t2", 2)->file_index, 1);
    assert_null(hr_checkpoint_warning(checkpoint, 0));
    hr_checkpoint_close(checkpoint);
    hr_checkpoint_close(opened("indexed/model.safetensors.index.json", 2, 3));
}

static void test_index_with_wrong_total_size(void **state)
{
    (void)state;
    shard_write("total/m.safetensors", 0, 2);
    text_write(
        "total/model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":1e3},\"weight_map\":{\"t0\":\"m.safetensors\",\"t1\":\"m.safetensors\"}}");
    struct hr_checkpoint *checkpoint = opened("total", 1, 2);
    assert_non_null(strstr(hr_checkpoint_warning(checkpoint, 0), "1000 bytes in all, they have 2"));
    assert_null(hr_checkpoint_warning(checkpoint, 1));
    hr_checkpoint_close(checkpoint);
}

static void test_index_both_ways(void **state)
{
    (void)state;
    shard_write("both/a.safetensors", 0, 2);
    shard_write("both/b.safetensors", 2, 1);
    const char *index = "both/model.safetensors.index.json";
    text_write(index, "{\"weight_map\":{\"t0\":\"a.safetensors\",\"t1\":\"a.safetensors\",\"t2\":\"b.safetensors\","
                      "\"t3\":\"b.safetensors\"}}");
    refused("both", HR_ETENSOR_NOT_IN_SHARD, "both/b.safetensors", "t3", "no file does");
    text_write(index, "{\"weight_map\":{\"t0\":\"a.safetensors\",\"t1\":\"b.safetensors\",\"t2\":\"b.safetensors\"}}");
    refused("both", HR_ETENSOR_NOT_IN_SHARD, "both/b.safetensors", "t1", "a.safetensors' does");
    text_write(index, "{\"weight_map\":{\"t0\":\"a.safetensors\",\"t2\":\"b.safetensors\"}}");
    refused("both", HR_ETENSOR_NOT_IN_INDEX, "both/a.safetensors", "t1", "does not list");
    shard_write("both/b.safetensors", 1, 2);
    text_write(index, "{\"weight_map\":{\"t0\":\"a.safetensors\",\"t1\":\"a.safetensors\",\"t2\":\"b.safetensors\"}}");
    refused("both", HR_ETENSOR_IN_TWO_SHARDS, "both/b.safetensors", "t1", "a.safetensors");
}

static void test_index_with_missing_files(void **state)
{
    (void)state;
    char index[8192] = "{\"weight_map\":{\"t0\":\"here.safetensors\"", entry[128];
    shard_write("missing/here.safetensors", 0, 1);
    strcat(index, ",\"a\":\"x-1.safetensors\",\"b\":\"x-2.safetensors\"");
    char small[8192];
    snprintf(small, sizeof small, "%s}}", index);
    text_write("missing/model.safetensors.index.json", small);
    refused("missing", HR_ESHARD_MISSING, "missing/model.safetensors.index.json", "",
            "2 of the 3 files that the index names are missing, download them: x-1.safetensors, x-2.safetensors");
    for (int i = 0; i < 100; i++) {
        snprintf(entry, sizeof entry, ",\"n%d\":\"missing-%d.safetensors\"", i, i);
        strcat(index, entry);
    }
    strcat(index, "}}");
    text_write("missing/model.safetensors.index.json", index);
    refused("missing", HR_ESHARD_MISSING, "missing/model.safetensors.index.json", "", "102 of the 103 files");
    refused("missing", HR_ESHARD_MISSING, "missing/model.safetensors.index.json", "", ", ...: No such file");
}

static void test_several_indexes(void **state)
{
    (void)state;
    static const char map[] = "{\"weight_map\":{\"t0\":\"m.safetensors\"}}";
    shard_write("several/m.safetensors", 0, 1);
    text_write("several/one.safetensors.index.json", map);
    hr_checkpoint_close(opened("several", 1, 1));
    text_write("several/two.safetensors.index.json", "{\"weight_map\":{\"zz\":\"m.safetensors\"}}");
    refused("several", HR_EINDEX_INVALID, "several", "", "one.safetensors.index.json, two.safetensors.index.json");
    text_write("several/diffusion_pytorch_model.safetensors.index.json", map);
    hr_checkpoint_close(opened("several", 1, 1));
    text_write("several/model.safetensors.index.json", "{\"weight_map\":{\"t0\":\"../m.safetensors\"}}");
    refused("several", HR_EINDEX_PATH_ESCAPES, "several/model.safetensors.index.json", "", "'..' component");
}

static void test_index_that_is_none(void **state)
{
    (void)state;
    text_write("config.json", "{\"architectures\":[]}");
    refused("config.json", HR_EINDEX_INVALID, "config.json", "", "no weight_map");
    text_write("nothing.index.json", "{\"weight_map\":{}}");
    refused("nothing.index.json", HR_EINDEX_INVALID, "nothing.index.json", "", "names no file");
    assert_int_equal(truncate(test_path("nothing.index.json"), 200000001), 0);
    refused("nothing.index.json", HR_ELIMIT_EXCEEDED, "nothing.index.json", "", "at most 200000000");
}

static void test_list(void **state)
{
    (void)state;
    shard_write("list/b.safetensors", 0, 1);
    shard_write("list/a.safetensors", 1, 1);
    shard_write("list/none.safetensors", 0, 0);
    const char *paths[] = {test_path("list/b.safetensors"), test_path("list/a.safetensors"),
                           test_path("list/none.safetensors"), test_path("list/none.safetensors")};
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    assert_int_equal(hr_checkpoint_open(paths, 4, NULL, &checkpoint, &err), 0);
    assert_string_equal(hr_checkpoint_at(checkpoint, 0)->name, "t0");
    assert_int_equal(hr_checkpoint_at(checkpoint, 1)->file_index, 1);
    hr_checkpoint_close(checkpoint);
    paths[2] = paths[0];
    assert_int_equal(hr_checkpoint_open(paths, 3, NULL, &checkpoint, &err), HR_ETENSOR_IN_TWO_SHARDS);
    assert_string_equal(err.tensor, "t0");
    paths[2] = test_path("list");
    assert_int_equal(hr_checkpoint_open(paths, 3, NULL, &checkpoint, &err), HR_ENOT_A_REGULAR_FILE);
    assert_non_null(strstr(err.message, "folder"));
    paths[1] = NULL;
    assert_int_equal(hr_checkpoint_open(paths, 3, NULL, &checkpoint, &err), HR_EINVALID_ARGUMENT);
}

static void test_missing(void **state)
{
    (void)state;
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    refused("absent.safetensors", HR_EIO_ERROR, "absent.safetensors", "", "check the path");
    assert_int_equal(open_path("absent.safetensors", &checkpoint, &err), HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, ENOENT);
}

/* As the Hugging Face cache lays them out. */
static void test_links(void **state)
{
    (void)state;
    shard_write("hub/blobs/0123abcd", 0, 1);
    text_write("hub/blobs/ffff", "{\"weight_map\":{\"t0\":\"model.safetensors\"}}");
    text_write("hub/snapshots/rev/keep", "");
    assert_int_equal(symlink("../../blobs/0123abcd", test_path("hub/snapshots/rev/model.safetensors")), 0);
    hr_checkpoint_close(opened("hub/snapshots/rev", 1, 1));
    hr_checkpoint_close(opened("hub/snapshots/rev/model.safetensors", 1, 1));
    assert_int_equal(symlink("../../blobs/ffff", test_path("hub/snapshots/rev/model.safetensors.index.json")), 0);
    hr_checkpoint_close(opened("hub/snapshots/rev", 1, 1));
    assert_int_equal(symlink("../../blobs/gone", test_path("hub/snapshots/rev/dangling.safetensors")), 0);
    refused("hub/snapshots/rev/dangling.safetensors", HR_EIO_ERROR, "hub/snapshots/rev/dangling.safetensors", "",
            "a link to '../../blobs/gone', which does not exist");
}

static void test_not_regular(void **state)
{
    (void)state;
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    const char *device = "/dev/null";
    assert_int_equal(mkfifo(test_path("fifo.safetensors"), 0600), 0);
    refused("fifo.safetensors", HR_ENOT_A_REGULAR_FILE, "fifo.safetensors", "", "FIFO");
    assert_int_equal(rename(test_path("fifo.safetensors"), test_path("fifo.index.json")), 0);
    refused("fifo.index.json", HR_ENOT_A_REGULAR_FILE, "fifo.index.json", "", "FIFO");
    assert_int_equal(hr_checkpoint_open(&device, 1, NULL, &checkpoint, &err), HR_ENOT_A_REGULAR_FILE);
    assert_non_null(strstr(err.message, "character device"));
    text_write("dirs/x.safetensors/inner", "");
    refused("dirs", HR_ENOT_A_REGULAR_FILE, "dirs/x.safetensors", "", "folder");
}

/* root may read everything, so it becomes somebody else for a moment. */
static void assert_denied(const char *path, const char *says)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err;
    int is_root = geteuid() == 0;
    if (is_root)
        assert_int_equal(seteuid(65534), 0);
    int result = hr_checkpoint_open(&path, 1, NULL, &checkpoint, &err);
    if (is_root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(result, HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, EACCES);
    assert_string_equal(err.file, path);
    if (!strstr(err.message, says))
        fail_msg("%s: '%s' does not say '%s'", path, err.message, says);
}

static void assert_closed(const char *path, const char *folder)
{
    char says[600];
    snprintf(says, sizeof says, "the folder '%s' may not be entered", folder);
    assert_denied(path, says);
}

static void test_permission_denied(void **state)
{
    (void)state;
    shard_write("denied.safetensors", 0, 1);
    shard_write("listed/x.safetensors", 0, 1);
    assert_int_equal(chmod(test_dir(), 0755), 0);
    assert_int_equal(chmod(test_path("denied.safetensors"), 0), 0);
    assert_denied(test_path("denied.safetensors"), "it may not be read; check its permissions");
    assert_int_equal(chmod(test_path("listed"), 0), 0);
    assert_denied(test_path("listed"), "it may not be read; check its permissions");
    assert_int_equal(chmod(test_path("listed"), 0755), 0);
}

/* The message names the one folder that is closed, at any depth, by any spelling, and through links. */
static void test_closed_folders(void **state)
{
    (void)state;
    shard_write("closed/model/x.safetensors", 0, 1);
    const char *closed = test_path("closed"), *link = test_path("way in");
    assert_int_equal(symlink("closed/model/x.safetensors", link), 0);
    assert_int_equal(chmod(test_dir(), 0755), 0);
    assert_int_equal(chmod(closed, 0), 0);
    assert_closed(test_path("closed/model"), closed);
    assert_closed(test_path("closed/model/"), closed);
    assert_closed(test_path("closed/model/x.safetensors"), closed);
    assert_closed(test_path("closed//none/nor/this.json"), closed);
    assert_denied(link, "way in' is a link, and a folder on the way of its target may not be entered");
    int before = open(".", O_RDONLY | O_DIRECTORY);
    assert_int_equal(chdir(test_dir()), 0);
    assert_closed("closed/model", "closed");
    assert_int_equal(chmod(closed, 0755), 0);
    assert_int_equal(chdir("closed"), 0);
    assert_int_equal(chmod(closed, 0), 0); /* behind who is in it */
    assert_closed("model/x.safetensors", ".");
    assert_closed("model", ".");
    assert_int_equal(fchdir(before), 0);
    close(before);
    assert_int_equal(chmod(closed, 0755), 0);
}

/* Several bad files: the first in order is reported, by any number of threads, in every run. */
static void test_first_error_wins(void **state)
{
    (void)state;
    char name[64];
    for (unsigned i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "errors/s%02u.safetensors", i);
        shard_write(name, 10 * i, i % 7 + 1);
        if (i >= 31)
            text_write(name, i % 2 ? "" : "<html></html>");
    }
    const char *path = test_path("errors");
    for (unsigned i = 0; i < 200; i++) {
        struct hr_open_options options = {.size = sizeof options, .thread_count = i % 12};
        struct hr_checkpoint *checkpoint;
        struct hr_error err;
        assert_int_equal(hr_checkpoint_open(&path, 1, &options, &checkpoint, &err), HR_EHEADER_TOO_SMALL);
        assert_string_equal(err.file, test_path("errors/s31.safetensors"));
    }
}

static void test_1400_files_with_few_descriptors(void **state)
{
    (void)state;
    char name[64];
    struct rlimit before, limit;
    for (unsigned i = 0; i < 1400; i++) {
        snprintf(name, sizeof name, "many/model-%05u-of-01400.safetensors", i + 1);
        shard_write(name, 2 * i, 2);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t count = 256; count >= 32; count /= 8) {
        limit = before;
        limit.rlim_cur = count < before.rlim_max ? count : before.rlim_max;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        struct hr_checkpoint *checkpoint = opened("many", 1400, 2800);
        assert_int_equal(hr_checkpoint_find(checkpoint, "t2799", 5)->file_index, 1399);
        hr_checkpoint_close(checkpoint);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    }
}

/* As many descriptors as are open, and `spare` ones. */
static void descriptors_limit(rlim_t spare, struct rlimit *ret_before)
{
    assert_int_equal(getrlimit(RLIMIT_NOFILE, ret_before), 0);
    int next = dup(0); /* the lowest that is free, and with it all above */
    assert_true(next >= 0);
    close(next);
    struct rlimit limit = {(rlim_t)next + spare, ret_before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Threads that find no descriptor leave their part to those who have one; one is enough, none is an error. */
static void test_more_threads_than_descriptors(void **state)
{
    (void)state;
    char name[64];
    struct rlimit before;
    const char *path = test_path("scarce");
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "scarce/s%03u.safetensors", i);
        shard_write(name, i, 1);
    }
    for (rlim_t spare = 0; spare <= 9; spare++) {
        struct hr_open_options options = {.size = sizeof options, .thread_count = 16};
        struct hr_checkpoint *checkpoint = NULL;
        struct hr_error err;
        descriptors_limit(spare, &before);
        int code = hr_checkpoint_open(&path, 1, &options, &checkpoint, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(code, spare ? 0 : HR_EIO_ERROR);
        if (!spare)
            assert_int_equal(err.sys_errno, EMFILE);
        if (spare)
            assert_int_equal(hr_checkpoint_count(checkpoint), 300);
        hr_checkpoint_close(checkpoint);
    }
}

static atomic_uint open_count;
static unsigned scarce_from, scarce_every;

/* From one open on, all fail that `scarce_every` divides. */
static int scarce_open(const char *path, int flags)
{
    unsigned number = atomic_fetch_add(&open_count, 1);
    return number >= scarce_from && number % scarce_every == 0 ? -EMFILE : hr_sys_real.open(path, flags);
}

/* The first error in the order of files stays the one that is reported, whoever meets it and however late. */
static void test_first_error_wins_without_descriptors(void **state)
{
    (void)state;
    char name[64];
    const char *path = test_path("scarce errors");
    struct hr_sys table = hr_sys_real;
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "scarce errors/s%02u.safetensors", i);
        shard_write(name, i, 1);
        if (i >= 20)
            text_write(name, "");
    }
    table.open = scarce_open;
    hr_sys = &table;
    for (unsigned i = 0; i < 400; i++) {
        struct hr_open_options options = {.size = sizeof options, .thread_count = i % 9};
        struct hr_checkpoint *checkpoint;
        struct hr_error err;
        atomic_store(&open_count, 0);
        scarce_from = i / 9 % 5;
        scarce_every = i % 4 + 1;
        int code = hr_checkpoint_open(&path, 1, &options, &checkpoint, &err);
        if (err.sys_errno == EMFILE) /* the last thread met it too */
            continue;
        assert_int_equal(code, HR_EHEADER_TOO_SMALL);
        assert_string_equal(err.file, test_path("scarce errors/s20.safetensors"));
    }
    hr_sys = &hr_sys_real;
}

/* A header much longer than what is read at first, and one that ends just around there. */
static void test_header_sizes(void **state)
{
    (void)state;
    shard_write("big.safetensors", 0, 50000);
    struct hr_checkpoint *checkpoint = opened("big.safetensors", 1, 50000);
    assert_string_equal(hr_checkpoint_at(checkpoint, 49999)->name, "t49999");
    hr_checkpoint_close(checkpoint);
    const size_t first_read = 256 << 10;
    char *json = malloc(first_read + 16);
    assert_non_null(json);
    for (size_t size = first_read - 10; size < first_read + 3; size++) {
        memset(json, ' ', size);
        memcpy(json, "{}", 2);
        json[size] = '\0';
        test_json_write(test_path("edge.safetensors"), json, size % 2 * 100, 1);
        const char *path = test_path("edge.safetensors");
        struct hr_open_options options = {.size = sizeof options, .allow_trailing = 1};
        assert_int_equal(hr_checkpoint_open(&path, 1, &options, &checkpoint, NULL), 0);
        assert_int_equal(hr_checkpoint_file(checkpoint, 0)->data_offset, 8 + size);
        hr_checkpoint_close(checkpoint);
    }
    free(json);
}

static void test_options(void **state)
{
    (void)state;
    shard_write("options.safetensors", 0, 1);
    const char *path = test_path("options.safetensors");
    struct hr_checkpoint *checkpoint;
    struct {
        struct hr_open_options known;
        uint64_t unknown;
    } options = {.known = {.size = sizeof options}};
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), 0);
    hr_checkpoint_close(checkpoint);
    options.known.size = sizeof(size_t);
    options.known.mode = 99; /* beyond the size that is told */
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), 0);
    hr_checkpoint_close(checkpoint);
    checkpoint = NULL;
    options.known.size = sizeof options.known;
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    options.known = (struct hr_open_options){.size = sizeof options};
    options.unknown = 1;
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    options.known.size = 0;
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    options.known = (struct hr_open_options){.size = sizeof options.known, .thread_count = 129};
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    options.known = (struct hr_open_options){.size = sizeof options.known, .reserved = 1};
    assert_int_equal(hr_checkpoint_open(&path, 1, &options.known, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_checkpoint_open(&path, 0, NULL, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_checkpoint_open(NULL, 1, NULL, &checkpoint, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_checkpoint_open(&path, 1, NULL, NULL, NULL), HR_EINVALID_ARGUMENT);
    assert_null(checkpoint);
}

static void identity_differs(const struct hr_identity *opened_identity, struct stat now, int code, const char *text)
{
    struct hr_error err;
    assert_int_equal(hr_identity_check(opened_identity, &now, "some/file", &err), code);
    assert_string_equal(err.file, "some/file");
    assert_non_null(strstr(err.message, text));
}

static void test_identity(void **state)
{
    (void)state;
    struct stat now = {.st_mode = S_IFREG | 0600, .st_size = 100, .st_ino = 7, .st_dev = 3, .st_mtim = {5, 6}}, other;
    struct hr_identity identity;
    hr_identity_of(&now, &identity);
    assert_int_equal(hr_identity_check(&identity, &now, "some/file", NULL), 0);
    other = now;
    other.st_size = 90;
    identity_differs(&identity, other, HR_EFILE_CHANGED, "10 bytes shorter");
    other.st_size = 101;
    identity_differs(&identity, other, HR_EFILE_CHANGED, "1 bytes longer");
    other = now;
    other.st_ino = 8;
    identity_differs(&identity, other, HR_EFILE_CHANGED, "another file");
    other = now;
    other.st_mtim.tv_nsec = 7;
    identity_differs(&identity, other, HR_EFILE_CHANGED, "mtime");
    now.st_mtim.tv_sec = INT64_MAX; /* which tmpfs keeps */
    hr_identity_of(&now, &identity);
    assert_int_equal(hr_identity_check(&identity, &now, "some/file", NULL), 0);
    other = now;
    other.st_mtim.tv_sec = INT64_MIN;
    identity_differs(&identity, other, HR_EFILE_CHANGED, "mtime");
    other = now;
    other.st_mode = S_IFIFO;
    identity_differs(&identity, other, HR_ENOT_A_REGULAR_FILE, "regular");
}

/* A file that is shorter when it is read than fstat said. */
static ssize_t short_preadv(int fd, const struct iovec *vectors, int vector_count, uint64_t offset, int flags)
{
    ssize_t size = hr_sys_real.preadv(fd, vectors, vector_count, offset, flags);
    return offset >= 20 ? 0 : size > 20 ? 20 : size;
}

static void test_file_shrinks(void **state)
{
    (void)state;
    shard_write("shrinks.safetensors", 0, 1);
    struct hr_sys table = hr_sys_real;
    table.preadv = short_preadv;
    hr_sys = &table;
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    int result = open_path("shrinks.safetensors", &checkpoint, &err);
    hr_sys = &hr_sys_real;
    assert_int_equal(result, HR_ESHORT_READ);
    assert_int_equal(err.offset, 20);
    assert_string_equal(err.file, test_path("shrinks.safetensors"));
}

static int open_scenario(void *context, struct hr_error *err)
{
    struct hr_checkpoint *checkpoint = NULL;
    int result = open_path(context, &checkpoint, err);
    if (result)
        assert_null(checkpoint);
    else
        assert_int_equal(hr_checkpoint_count(checkpoint), 6);
    hr_checkpoint_close(checkpoint);
    return result;
}

static void test_every_call_fails(void **state)
{
    (void)state;
    char folder[] = "sweep", file[] = "single.safetensors";
    shard_write("sweep/a.safetensors", 0, 3);
    shard_write("sweep/b.safetensors", 3, 3);
    shard_write("single.safetensors", 0, 6);
    assert_true(faults_sweep(FAULT_ALL, 0, open_scenario, folder) > 20);
    assert_true(faults_sweep(FAULT_ALL, 0, open_scenario, file) > 10);
    text_write(
        "sweep/model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"t0\":\"a.safetensors\",\"t1\":\"a.safetensors\",\"t2\":"
        "\"a.safetensors\",\"t3\":\"b.safetensors\",\"t4\":\"b.safetensors\",\"t5\":\"b.safetensors\"}}");
    assert_true(faults_sweep(FAULT_ALL, 0, open_scenario, folder) > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_folder_without_safetensors),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_index_with_wrong_total_size),
        cmocka_unit_test(test_index_both_ways),
        cmocka_unit_test(test_index_with_missing_files),
        cmocka_unit_test(test_several_indexes),
        cmocka_unit_test(test_index_that_is_none),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_not_regular),
        cmocka_unit_test(test_permission_denied),
        cmocka_unit_test(test_closed_folders),
        cmocka_unit_test(test_first_error_wins),
        cmocka_unit_test(test_1400_files_with_few_descriptors),
        cmocka_unit_test(test_more_threads_than_descriptors),
        cmocka_unit_test(test_first_error_wins_without_descriptors),
        cmocka_unit_test(test_header_sizes),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_file_shrinks),
        cmocka_unit_test(test_every_call_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
