/*
 * test_writer.c: what is written: headers byte by byte, layouts, the split into shards, contents from memory that lies in
 * any way, by whole checkpoints and tensor by tensor from several threads; and what is refused. That files are those of
 * the reference writer is tested in tests/python/test_save.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "support/make_files.h"
#include "support/write_scene.h"
#include "writer/layout.h"

static const uint64_t three[] = {3}, four[] = {4}, one[] = {1}, pair_and_none[] = {2, 0};

static void write_ok(const char *path, const struct write_scene *scene, const struct hr_write_options *options)
{
    struct hr_error err = {0};
    if (hr_write(path, scene->tensors, scene->sources, scene->count, options, &err))
        fail_msg("%s: %s", path, err.message);
}

static struct hr_write_options plain_options(void)
{
    return (struct hr_write_options){.size = sizeof(struct hr_write_options), .no_sync = 1};
}

static void test_header_bytes(void **state)
{
    static const char expected[] = "{\"__metadata__\":{\"k\\\"\\u001f\xc3\xa9\":\"\\t2\",\"z\":\"1\"},"
                                   "\"a\":{\"dtype\":\"I64\",\"shape\":[2,0],\"data_offsets\":[0,0]},"
                                   "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
                                   "\"A\xc3\xa9\\n\\\"/\x7f\\u0001\\\\\\b\\f\":"
                                   "{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[12,14]},"
                                   "\"c\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]}}";
    static const struct hr_metadata metadata[] = {{"k\"\x1f\xc3\xa9", 5, "\t2", 2}, {"z", 1, "1", 1}};
    struct hr_write_options options = plain_options();
    struct write_scene scene = {0};
    uint64_t length;
    size_t size;
    (void)state;
    write_scene_add(&scene, "b", HR_DTYPE_F32, 1, three);
    write_scene_add(&scene, "a", HR_DTYPE_I64, 2, pair_and_none);
    write_scene_add(&scene, "c", HR_DTYPE_U8, 0, NULL);
    write_scene_add(&scene, "A\xc3\xa9\n\"/\x7f\x01\\\b\f", HR_DTYPE_F16, 1, one);
    options.metadata = metadata;
    options.metadata_count = 2;
    write_ok(test_path("bytes.safetensors"), &scene, &options);
    write_scene_check(&scene, test_path("bytes.safetensors"));
    char *content = file_content(test_path("bytes.safetensors"), &size);
    memcpy(&length, content, sizeof length);
    assert_int_equal(length % 8, 0);
    assert_int_equal(size, 8 + length + 15);
    assert_memory_equal(content + 8, expected, strlen(expected));
    for (size_t i = strlen(expected); i < length; i++)
        assert_int_equal(content[8 + i], ' ');
    free(content);
    write_scene_release(&scene);
}

/* No tensors; no metadata and an empty one. */
static void test_nothing(void **state)
{
    static const struct hr_metadata metadata[1];
    static const char *const expected[] = {"{}      ", "{\"__metadata__\":{}}     "};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hr_write_options options = plain_options();
        struct write_scene scene = {0};
        size_t size;
        options.metadata = i ? metadata : NULL;
        write_ok(test_path("nothing.safetensors"), &scene, &options);
        write_scene_check(&scene, test_path("nothing.safetensors"));
        char *content = file_content(test_path("nothing.safetensors"), &size);
        assert_int_equal(size, 8 + strlen(expected[i]));
        assert_string_equal(content + 8, expected[i]);
        free(content);
    }
}

static void check_alignment(const char *path, uint64_t align)
{
    struct hr_checkpoint *checkpoint;
    int was_ragged = 0;
    assert_int_equal(hr_checkpoint_open(&path, 1, NULL, &checkpoint, NULL), 0);
    assert_int_equal(hr_checkpoint_file(checkpoint, 0)->data_offset % align, 0);
    for (size_t i = 0; i < hr_checkpoint_count(checkpoint); i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, i);
        int is_ragged = tensor->size % align != 0;
        assert_true(is_ragged || tensor->size == 0 || !was_ragged);
        assert_true(is_ragged || tensor->offset % align == 0 || tensor->size == 0);
        was_ragged |= is_ragged;
    }
    hr_checkpoint_close(checkpoint);
}

static void test_align(void **state)
{
    struct write_scene scene;
    (void)state;
    write_scene_fill(&scene);
    for (uint64_t align = 8; align <= 1 << 20; align *= 2) {
        struct hr_write_options options = plain_options();
        options.align = align;
        write_ok(test_path("aligned.safetensors"), &scene, &options);
        write_scene_check(&scene, test_path("aligned.safetensors"));
        check_alignment(test_path("aligned.safetensors"), align);
    }
    write_scene_release(&scene);
}

/* By whole checkpoints with each number of threads, and into memory: the same bytes. */
static void test_threads_and_memory(void **state)
{
    struct write_scene scene;
    struct hr_write_options options = plain_options();
    struct hr_error err = {0};
    uint64_t size;
    size_t file_size;
    (void)state;
    write_scene_fill(&scene);
    assert_int_equal(hr_serialize(scene.tensors, NULL, scene.count, NULL, NULL, 0, &size, &err), 0);
    char *memory = malloc(size);
    assert_int_equal(hr_serialize(scene.tensors, scene.sources, scene.count, NULL, memory, size - 1, &size, &err),
                     HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_serialize(scene.tensors, scene.sources, scene.count, NULL, memory, size, &size, &err), 0);
    for (options.thread_count = 0; options.thread_count < 5; options.thread_count++) {
        write_ok(test_path("threads.safetensors"), &scene, &options);
        write_scene_check(&scene, test_path("threads.safetensors"));
        char *content = file_content(test_path("threads.safetensors"), &file_size);
        assert_int_equal(file_size, size);
        assert_memory_equal(content, memory, size);
        free(content);
    }
    free(memory);
    write_scene_release(&scene);
}

/* ------------------------------------------------------------------------------------------ shards */

static void check_split(const uint64_t *sizes, size_t count, uint64_t limit, const size_t *expected,
                        size_t expected_count)
{
    struct hr_tensor tensors[16] = {{0}};
    size_t file_count = 0;
    for (size_t i = 0; i < count; i++)
        tensors[i].size = sizes[i];
    assert_int_equal(hr_layout_split(tensors, count, limit, &file_count, NULL), 0);
    assert_int_equal(file_count, expected_count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(tensors[i].file_index, expected[i]);
}

static void test_split(void **state)
{
    (void)state;
    /* in their order, filled to the last byte */
    check_split((const uint64_t[]){4, 6, 1, 9, 10}, 5, 10, (const size_t[]){0, 0, 1, 1, 2}, 3);
    /* one that is too large is by itself and ends nothing: it is numbered before the file that goes on */
    check_split((const uint64_t[]){4, 11, 6, 1}, 4, 10, (const size_t[]){1, 0, 1, 2}, 3);
    check_split((const uint64_t[]){11, 12}, 2, 10, (const size_t[]){0, 1}, 2);
    /* without bytes, without limit, without tensors */
    check_split((const uint64_t[]){10, 0, 0, 1, 0}, 5, 10, (const size_t[]){0, 0, 0, 1, 1}, 2);
    check_split((const uint64_t[]){4, UINT64_MAX / 4, 6}, 3, 0, (const size_t[]){0, 0, 0}, 1);
    check_split(NULL, 0, 10, NULL, 1);
}

static void test_shards(void **state)
{
    static const uint64_t limits[] = {1, 4000, 1 << 20, 20 << 20};
    struct write_scene scene;
    (void)state;
    write_scene_fill(&scene);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct hr_write_options options = plain_options();
        char name[64];
        snprintf(name, sizeof name, "shards%zu/model.safetensors", i);
        options.shard_bytes = limits[i];
        options.align = i % 2 ? 4096 : 0;
        write_ok(test_path(name), &scene, &options);
        snprintf(name, sizeof name, "shards%zu", i);
        write_scene_check(&scene, test_path(name)); /* a folder with an index */
    }
    assert_int_equal(folder_entry_count(test_path("shards0")), scene.count + 1);
    assert_int_equal(folder_entry_count(test_path("shards3")), 1);
    write_scene_check(&scene, test_path("shards3/model.safetensors"));
    write_scene_check(&scene, test_path("shards0/model.safetensors.index.json"));
    write_scene_release(&scene);
}

/* ---------------------------------------------------------------------------------------- contents */

/* Strides of any kind give the elements in row-major order. */
static void test_strides(void **state)
{
    static const uint64_t shape[] = {4, 3, 5};
    static const struct {
        int64_t start, strides[3];
    } cases[] = {{0, {60, 20, 4}}, {0, {4, 16, 48}}, {0, {64, 20, 4}}, {236, {-60, -20, -4}},
                 {16, {0, 0, -4}}, {0, {1, 7, 13}},  {8, {60, 0, 4}}};
    unsigned char memory[400], expected[240], content[1000];
    struct hr_tensor tensor = {.name = "t", .name_size = 1, .dtype = HR_DTYPE_F32, .rank = 3, .shape = shape};
    (void)state;
    test_fill(memory, 9, 0, sizeof memory);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t *strides = cases[i].strides;
        struct hr_source source = {.size = sizeof source, .data = memory + cases[i].start, .strides = strides};
        struct hr_error err = {0};
        uint64_t size;
        unsigned char *at = expected;
        for (int64_t a = 0; a < 4; a++)
            for (int64_t b = 0; b < 3; b++)
                for (int64_t c = 0; c < 5; c++, at += 4)
                    memcpy(at, memory + cases[i].start + a * strides[0] + b * strides[1] + c * strides[2], 4);
        assert_int_equal(hr_serialize(&tensor, &source, 1, NULL, content, sizeof content, &size, &err), 0);
        assert_memory_equal(content + size - 240, expected, 240);
    }
}

/* A transposed tensor of a few blocks, whose elements blocks cut in two, through a file. */
static void test_large_strides(void **state)
{
    const uint64_t shape[] = {1500, 2001};
    const int64_t strides[] = {4, 1500 * 4};
    struct hr_tensor tensors[] = {{.name = "odd", .name_size = 3, .dtype = HR_DTYPE_F64, .rank = 1, .shape = three},
                                  {.name = "t", .name_size = 1, .dtype = HR_DTYPE_F32, .rank = 2, .shape = shape}};
    struct hr_write_options options = plain_options();
    uint32_t *memory = malloc(1500 * 2001 * 4);
    struct hr_source sources[] = {{.size = sizeof sources[0], .data = memory},
                                  {.size = sizeof sources[0], .data = memory, .strides = strides}};
    struct hr_error err = {0};
    size_t size;
    (void)state;
    for (uint32_t i = 0; i < 1500 * 2001; i++)
        memory[i] = i * 2654435761u;
    assert_int_equal(hr_write(test_path("transposed.safetensors"), tensors, sources, 2, &options, &err), 0);
    char *content = file_content(test_path("transposed.safetensors"), &size);
    for (size_t row = 0; row < 1500; row++)
        for (size_t column = 0; column < 2001; column++)
            if (memcmp(content + size - (1500 * 2001 - row * 2001 - column) * 4, &memory[column * 1500 + row], 4))
                fail_msg("row %zu, column %zu differ", row, column);
    free(content);
    free(memory);
}

struct putting {
    struct hr_writer *writer;
    const struct write_scene *scene;
    size_t first, step;
};

static void *put_some(void *argument)
{
    const struct putting *putting = argument;
    for (size_t i = putting->first; i < putting->scene->count; i += putting->step)
        if (hr_writer_put(putting->writer, putting->scene->count - 1 - i,
                          &putting->scene->sources[putting->scene->count - 1 - i], NULL))
            return (void *)1;
    return NULL;
}

/* Tensor by tensor, last first, from three threads at once. */
static void test_put_threads(void **state)
{
    struct write_scene scene;
    (void)state;
    write_scene_fill(&scene);
    for (uint64_t limit = 0; limit <= 1 << 20; limit += 1 << 18) {
        struct hr_write_options options = plain_options();
        struct putting puttings[3];
        pthread_t threads[3];
        struct hr_error err = {0};
        struct hr_writer *writer = NULL;
        options.shard_bytes = limit;
        assert_int_equal(
            hr_writer_new(test_path("put/p.safetensors"), scene.tensors, scene.count, &options, &writer, &err), 0);
        for (size_t i = 0; i < 3; i++) {
            puttings[i] = (struct putting){writer, &scene, i, 3};
            pthread_create(&threads[i], NULL, put_some, &puttings[i]);
        }
        for (size_t i = 0; i < 3; i++) {
            void *result;
            pthread_join(threads[i], &result);
            assert_null(result);
        }
        assert_int_equal(hr_writer_finish(writer, &err), 0);
        assert_null(hr_writer_path(writer, hr_writer_file_count(writer)));
        assert_true(limit ? hr_writer_file_count(writer) > 1 : hr_writer_file_count(writer) == 1);
        hr_writer_free(writer);
        write_scene_check(&scene, test_path(limit ? "put/p.safetensors.index.json" : "put/p.safetensors"));
    }
    write_scene_release(&scene);
}

/* Each tensor is put once, all of them are, and none after the end. */
static void test_put_once(void **state)
{
    struct write_scene scene = {0};
    struct hr_writer *writer = NULL;
    struct hr_error err = {0};
    struct hr_source wrong = {.size = sizeof wrong};
    (void)state;
    write_scene_add(&scene, "a", HR_DTYPE_F32, 1, three);
    write_scene_add(&scene, "b", HR_DTYPE_F32, 1, three);
    const char *path = test_path("once/w.safetensors");
    assert_int_equal(hr_writer_new(path, scene.tensors, 2, NULL, &writer, &err), 0);
    assert_int_equal(hr_writer_put(writer, 2, &scene.sources[0], &err), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_writer_put(writer, 0, &wrong, &err), HR_EINVALID_ARGUMENT);
    assert_string_equal(err.tensor, "a");
    assert_int_equal(hr_writer_put(writer, 0, &scene.sources[0], &err), 0);
    assert_int_equal(hr_writer_put(writer, 0, &scene.sources[0], &err), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_writer_finish(writer, &err), HR_EINVALID_ARGUMENT);
    assert_string_equal(err.tensor, "b");
    assert_int_equal(hr_writer_put(writer, 1, &scene.sources[1], &err), 0);
    assert_int_equal(hr_writer_finish(writer, &err), 0);
    assert_int_equal(hr_writer_finish(writer, &err), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_writer_put(writer, 1, &scene.sources[1], &err), HR_EINVALID_ARGUMENT);
    hr_writer_free(writer);
    write_scene_check(&scene, path);
    assert_int_equal(folder_entry_count(test_path("once")), 1);
    write_scene_release(&scene);
}

/* ------------------------------------------------------------------------------------ what is refused */

static const uint64_t huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 40}, wide[] = {UINT64_C(1) << 62}, ones[65];

static const struct {
    const char *name;
    size_t name_size;
    uint32_t dtype, rank;
    const uint64_t *shape;
    int code;
    const char *said;
} refused[] = {
    {"__metadata__", 12, HR_DTYPE_U8, 1, three, HR_EINVALID_ARGUMENT, "__metadata__"},
    {"a\0b", 3, HR_DTYPE_U8, 1, three, HR_ENAME_HAS_NUL, "NUL"},
    {"a\xff", 2, HR_DTYPE_U8, 1, three, HR_EINVALID_ARGUMENT, "UTF-8 at byte 1"},
    {NULL, 1, HR_DTYPE_U8, 1, three, HR_EINVALID_ARGUMENT, "NULL"},
    {"x", 1, HR_DTYPE_NONE, 1, three, HR_EINVALID_ARGUMENT, "not a dtype"},
    {"x", 1, HR_DTYPE_COUNT, 1, three, HR_EINVALID_ARGUMENT, "not a dtype"},
    {"x", 1, HR_DTYPE_F4, 1, three, HR_EMISALIGNED_SLICE, "3 elements of F4"},
    {"x", 1, HR_DTYPE_F6_E3M2, 1, three, HR_EMISALIGNED_SLICE, "3 elements of F6_E3M2"},
    {"x", 1, HR_DTYPE_U8, 2, huge, HR_EVALIDATION_OVERFLOW, "overflows"},
    {"x", 1, HR_DTYPE_F64, 1, wide, HR_EVALIDATION_OVERFLOW, "bits"},
    {"x", 1, HR_DTYPE_U8, 65, ones, HR_ERANK_TOO_LARGE, "65"},
    {"x", 1, HR_DTYPE_U8, 1, NULL, HR_EINVALID_ARGUMENT, "shape"},
    {"same", 4, HR_DTYPE_U8, 1, three, HR_EDUPLICATE_TENSOR, "same name"},
};

static void test_refused_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct hr_tensor tensors[] = {{.name = "same", .name_size = 4, .dtype = HR_DTYPE_U8, .rank = 1, .shape = three},
                                      {.name = refused[i].name,
                                       .name_size = refused[i].name_size,
                                       .dtype = refused[i].dtype,
                                       .rank = refused[i].rank,
                                       .shape = refused[i].shape}};
        struct hr_writer *writer = NULL;
        struct hr_error err = {0};
        int code = hr_writer_new(test_path("refused/r.safetensors"), tensors, 2, NULL, &writer, &err);
        if (code != refused[i].code || !strstr(err.message, refused[i].said))
            fail_msg("case %zu: %d, %s", i, code, err.message);
        assert_null(writer);
        if (refused[i].name)
            assert_true(err.tensor[0] != '\0');
    }
    assert_int_equal(folder_entry_count(test_path("refused")), 0);
}

static void refuse_options(struct hr_write_options options, int code, const char *said)
{
    struct hr_tensor tensor = {.name = "a", .name_size = 1, .dtype = HR_DTYPE_U8, .rank = 1, .shape = three};
    struct hr_writer *writer = NULL;
    struct hr_error err = {0};
    if (!options.size)
        options.size = sizeof options;
    assert_int_equal(hr_writer_new(test_path("refused/r.safetensors"), &tensor, 1, &options, &writer, &err), code);
    if (!strstr(err.message, said))
        fail_msg("'%s' is not in: %s", said, err.message);
    assert_null(writer);
    assert_int_equal(folder_entry_count(test_path("refused")), 0);
}

static void test_refused_options(void **state)
{
    static const struct hr_metadata twice[] = {{"k", 1, "1", 1}, {"l", 1, "", 0}, {"k", 1, "2", 1}};
    static const struct hr_metadata binary[] = {{"k", 1, "\xc3", 1}}, missing[] = {{"k", 1, NULL, 1}};
    static const char *const devices[] = {"cpu", "no device"};
    char *blob = malloc(100000001);
    (void)state;
    memset(blob, 'x', 100000001);
    struct hr_metadata large[] = {{"k", 1, blob, 100000001}};
    refuse_options((struct hr_write_options){.metadata = twice, .metadata_count = 3}, HR_EDUPLICATE_KEY, "'k'");
    refuse_options((struct hr_write_options){.metadata = binary, .metadata_count = 1}, HR_EINVALID_ARGUMENT, "UTF-8");
    refuse_options((struct hr_write_options){.metadata = missing, .metadata_count = 1}, HR_EINVALID_ARGUMENT, "NULL");
    refuse_options((struct hr_write_options){.metadata_count = 1}, HR_EINVALID_ARGUMENT, "metadata is NULL");
    refuse_options((struct hr_write_options){.metadata = large, .metadata_count = 1}, HR_EHEADER_TOO_LARGE, "100000");
    refuse_options((struct hr_write_options){.align = 4}, HR_EINVALID_ARGUMENT, "align");
    refuse_options((struct hr_write_options){.align = 24}, HR_EINVALID_ARGUMENT, "align");
    refuse_options((struct hr_write_options){.align = 2 << 20}, HR_EINVALID_ARGUMENT, "align");
    refuse_options((struct hr_write_options){.thread_count = 129}, HR_EINVALID_ARGUMENT, "thread_count");
    refuse_options((struct hr_write_options){.devices = devices, .device_count = 2}, HR_EINVALID_ARGUMENT, "no device");
    refuse_options((struct hr_write_options){.size = 4}, HR_EINVALID_ARGUMENT, "size");
    free(blob);
}

static void refuse_source(uint32_t dtype, struct hr_source source, int code, const char *said)
{
    static const int64_t zero_stride[] = {0};
    struct hr_tensor tensor = {.name = "four", .name_size = 4, .dtype = dtype, .rank = 1, .shape = four};
    struct hr_error err = {0};
    if (source.strides)
        source.strides = zero_stride;
    source.size = sizeof source;
    assert_int_equal(hr_write(test_path("refused/r.safetensors"), &tensor, &source, 1, NULL, &err), code);
    assert_string_equal(err.tensor, "four");
    assert_non_null(strstr(err.message, said));
    assert_int_equal(folder_entry_count(test_path("refused")), 0);
}

static void test_refused_sources(void **state)
{
    static const int64_t any[1];
    (void)state;
    refuse_source(HR_DTYPE_U8, (struct hr_source){0}, HR_EINVALID_ARGUMENT, "NULL");
    refuse_source(HR_DTYPE_U8, (struct hr_source){.data = any, .device_index = 1}, HR_EINVALID_ARGUMENT,
                  "device_index");
    refuse_source(HR_DTYPE_F4, (struct hr_source){.data = any, .strides = any}, HR_EUNSUPPORTED, "strides");
    refuse_source(HR_DTYPE_U8, (struct hr_source){.data = any, .reserved = 1}, HR_EINVALID_ARGUMENT, "reserved");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_bytes),    cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_align),           cmocka_unit_test(test_threads_and_memory),
        cmocka_unit_test(test_split),           cmocka_unit_test(test_shards),
        cmocka_unit_test(test_strides),         cmocka_unit_test(test_large_strides),
        cmocka_unit_test(test_put_threads),     cmocka_unit_test(test_put_once),
        cmocka_unit_test(test_refused_tensors), cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_refused_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
