/*
 * make_files.c: see make_files.h. Content is made of 8-byte words, each a hash of the seed and the word's number.
 */
#include "support/make_files.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *dir;
static pid_t dir_owner;

struct path_node {
    struct path_node *next;
    char text[];
};
static struct path_node *paths;

static int entry_remove(const char *path, const struct stat *stat, int type, struct FTW *walk)
{
    (void)stat, (void)type, (void)walk;
    return remove(path);
}

static void dir_remove(void)
{
    if (getpid() != dir_owner) /* a forked child must not take its parent's files away */
        return;
    nftw(dir, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
    while (paths) {
        struct path_node *next = paths->next;
        free(paths);
        paths = next;
    }
}

const char *test_dir(void)
{
    if (dir)
        return dir;
    const char *base = getenv("TMPDIR");
    if (asprintf(&dir, "%s/headrace-test-XXXXXX", base && *base ? base : "/tmp") < 0 || !mkdtemp(dir))
        fail_msg("no folder for test files: %s", strerror(errno));
    dir_owner = getpid();
    atexit(dir_remove);
    return dir;
}

const char *test_path(const char *name)
{
    size_t dir_size = strlen(test_dir());
    struct path_node *node = malloc(sizeof *node + dir_size + 1 + strlen(name) + 1);
    sprintf(node->text, "%s/%s", dir, name);
    node->next = paths;
    paths = node;
    for (char *slash = strchr(node->text + dir_size + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(node->text, 0777);
        *slash = '/';
    }
    return node->text;
}

static uint64_t content_word(uint64_t seed, uint64_t number)
{
    uint64_t x = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + number * UINT64_C(0xd1b54a32d192ed03);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint8_t test_byte(uint64_t seed, uint64_t position)
{
    return (uint8_t)(content_word(seed, position / 8) >> (position % 8 * 8));
}

void test_fill(void *memory, uint64_t seed, uint64_t position, size_t size)
{
    uint8_t *bytes = memory;
    size_t i = 0;
    for (; i < size && (position + i) % 8; i++)
        bytes[i] = test_byte(seed, position + i);
    for (; i + 8 <= size; i += 8) {
        uint64_t word = content_word(seed, (position + i) / 8); /* little-endian, as test_byte has it */
        memcpy(bytes + i, &word, 8);
    }
    for (; i < size; i++)
        bytes[i] = test_byte(seed, position + i);
}

size_t test_mismatch(const void *memory, uint64_t seed, uint64_t position, size_t size)
{
    const uint8_t *bytes = memory;
    uint8_t expected[4096];
    for (size_t i = 0; i < size; i += sizeof expected) {
        size_t part = size - i < sizeof expected ? size - i : sizeof expected;
        test_fill(expected, seed, position + i, part);
        for (size_t k = 0; memcmp(bytes + i, expected, part) != 0; k++)
            if (bytes[i + k] != expected[k])
                return i + k;
    }
    return size;
}

/* A table of its own, so that the library's can be wrong and be found out. */
static const struct {
    const char *name;
    uint64_t bits;
} dtypes[] = {{NULL, 0},
#define DTYPE_ENTRY(name, bits) {#name, bits},
              HR_DTYPE_LIST(DTYPE_ENTRY)
#undef DTYPE_ENTRY
};

uint64_t test_tensor_bytes(const struct test_tensor *tensor)
{
    uint64_t bits = dtypes[tensor->dtype].bits;
    for (uint32_t i = 0; i < tensor->rank; i++)
        bits *= tensor->shape[i];
    return bits / 8;
}

static int has_hole(const struct test_tensor *tensor)
{
    return tensor->sparse && test_tensor_bytes(tensor) > 2 * TEST_SPARSE_EDGE;
}

/* Length of the stretch from `position` on that is all content or, with *ret_hole, all hole. */
static size_t stretch(const struct test_tensor *tensor, uint64_t position, size_t size, int *ret_hole)
{
    uint64_t bytes = test_tensor_bytes(tensor);
    uint64_t hole_begin = has_hole(tensor) ? TEST_SPARSE_EDGE : bytes;
    uint64_t hole_end = has_hole(tensor) ? bytes - TEST_SPARSE_EDGE : bytes;
    *ret_hole = position >= hole_begin && position < hole_end;
    uint64_t end = position < hole_begin ? hole_begin : *ret_hole ? hole_end : bytes;
    return end - position < size ? end - position : size;
}

size_t test_tensor_mismatch(const struct test_tensor *tensor, const void *memory, uint64_t position, size_t size)
{
    const uint8_t *bytes = memory;
    size_t done = 0;
    assert_true(position + size <= test_tensor_bytes(tensor));
    while (done < size) {
        int hole;
        size_t part = stretch(tensor, position + done, size - done, &hole);
        if (hole) {
            for (size_t i = 0; i < part; i++)
                if (bytes[done + i])
                    return done + i;
        } else {
            size_t same = test_mismatch(bytes + done, tensor->seed, position + done, part);
            if (same < part)
                return done + same;
        }
        done += part;
    }
    return size;
}

static FILE *file_create(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        fail_msg("cannot write %s: %s", path, strerror(errno));
    return file;
}

static void file_finish(FILE *file, const char *path)
{
    int failed = ferror(file);
    if (fclose(file) || failed)
        fail_msg("cannot write %s", path);
}

static void write_content(FILE *file, uint64_t seed, uint64_t position, uint64_t size)
{
    static uint8_t buffer[1 << 16];
    for (uint64_t done = 0, part; done < size; done += part) {
        part = size - done < sizeof buffer ? size - done : sizeof buffer;
        test_fill(buffer, seed, position + done, part);
        fwrite(buffer, 1, part, file);
    }
}

static void write_tensor(FILE *file, const struct test_tensor *tensor)
{
    uint64_t bytes = test_tensor_bytes(tensor);
    if (!has_hole(tensor)) {
        write_content(file, tensor->seed, 0, bytes);
        return;
    }
    write_content(file, tensor->seed, 0, TEST_SPARSE_EDGE);
    fseeko(file, (off_t)(bytes - 2 * TEST_SPARSE_EDGE), SEEK_CUR);
    write_content(file, tensor->seed, bytes - TEST_SPARSE_EDGE, TEST_SPARSE_EDGE);
}

static void write_json_name(FILE *json, const char *name)
{
    putc('"', json);
    for (; *name; name++) {
        if (*name == '"' || *name == '\\')
            putc('\\', json);
        if ((unsigned char)*name < 0x20)
            fprintf(json, "\\u%04x", *name);
        else
            putc(*name, json);
    }
    putc('"', json);
}

static void write_json_tensor(FILE *json, const struct test_tensor *tensor, uint64_t begin)
{
    write_json_name(json, tensor->name);
    fprintf(json, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[tensor->dtype].name);
    for (uint32_t i = 0; i < tensor->rank; i++)
        fprintf(json, "%s%llu", i ? "," : "", (unsigned long long)tensor->shape[i]);
    fprintf(json, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
            (unsigned long long)(begin + test_tensor_bytes(tensor)));
}

static uint64_t write_header(FILE *file, const char *json, uint64_t json_size)
{
    for (int i = 0; i < 8; i++)
        putc((int)(json_size >> (8 * i) & 0xff), file);
    fwrite(json, 1, json_size, file);
    return 8 + json_size;
}

uint64_t test_file_write(const char *path, const struct test_tensor *tensors, size_t tensor_count, size_t padding)
{
    char *text = NULL;
    size_t text_size = 0;
    uint64_t begin = 0;
    FILE *json = open_memstream(&text, &text_size);
    putc('{', json);
    for (size_t i = 0; i < tensor_count; i++) {
        if (i)
            putc(',', json);
        write_json_tensor(json, &tensors[i], begin);
        begin += test_tensor_bytes(&tensors[i]);
    }
    fprintf(json, "}%*s", (int)padding, "");
    fclose(json);

    FILE *file = file_create(path);
    uint64_t data_offset = write_header(file, text, text_size);
    for (size_t i = 0; i < tensor_count; i++)
        write_tensor(file, &tensors[i]);
    file_finish(file, path);
    free(text);
    return data_offset;
}

void test_raw_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = file_create(path);
    fwrite(bytes, 1, size, file);
    file_finish(file, path);
}

uint64_t test_json_write(const char *path, const char *json, uint64_t data_size, uint64_t seed)
{
    FILE *file = file_create(path);
    uint64_t data_offset = write_header(file, json, strlen(json));
    write_content(file, seed, 0, data_size);
    file_finish(file, path);
    return data_offset;
}
