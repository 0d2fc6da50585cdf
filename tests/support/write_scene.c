/*
 * write_scene.c: see write_scene.h. Files are read back with pread, at the offsets that the library's own reader tells.
 */
#include "support/write_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/make_files.h"

static uint64_t bytes_of(const struct hr_tensor *tensor)
{
    uint64_t bits = hr_dtype_bits(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++)
        bits *= tensor->shape[i];
    return bits / 8;
}

void write_scene_add(struct write_scene *scene, const char *name, uint32_t dtype, uint32_t rank, const uint64_t *shape)
{
    assert_true(scene->count < WRITE_TENSOR_MAX);
    struct hr_tensor *tensor = &scene->tensors[scene->count];
    *tensor = (struct hr_tensor){.name = name, .name_size = strlen(name), .dtype = dtype, .rank = rank, .shape = shape};
    uint64_t bytes = bytes_of(tensor);
    void *memory = malloc(bytes + 1);
    assert_non_null(memory);
    test_fill(memory, scene->count + 1, 0, bytes);
    scene->sources[scene->count++] = (struct hr_source){.size = sizeof(struct hr_source), .data = memory};
}

void write_scene_fill(struct write_scene *scene)
{
    static const uint64_t none[] = {3, 0}, odd[] = {7, 11, 13}, even[] = {16, 64}, pages[] = {3, 4096};
    static const uint64_t large[] = {5, 1, 300007};
    memset(scene, 0, sizeof *scene);
    write_scene_add(scene, "layers.1.weight", HR_DTYPE_BF16, 3, odd);
    write_scene_add(scene, "a\"quoted\\name\n\xc3\xa9\x01", HR_DTYPE_F32, 2, even);
    write_scene_add(scene, "scalar", HR_DTYPE_F64, 0, NULL);
    write_scene_add(scene, "empty", HR_DTYPE_I64, 2, none);
    write_scene_add(scene, "large", HR_DTYPE_F32, 3, large);
    write_scene_add(scene, "packed", HR_DTYPE_F4, 2, even);
    write_scene_add(scene, "six", HR_DTYPE_F6_E2M3, 2, even);
    write_scene_add(scene, "pages", HR_DTYPE_U8, 2, pages);
    write_scene_add(scene, "flags", HR_DTYPE_BOOL, 3, odd);
    write_scene_add(scene, "", HR_DTYPE_F8_E8M0, 1, odd);
    write_scene_add(scene, "layers.0.weight", HR_DTYPE_BF16, 3, odd);
    write_scene_add(scene, "half", HR_DTYPE_F16, 3, large);
}

void write_scene_release(struct write_scene *scene)
{
    for (size_t i = 0; i < scene->count; i++)
        free((void *)scene->sources[i].data);
    scene->count = 0;
}

static int is_tensor(const struct hr_checkpoint *checkpoint, const struct hr_tensor *expected, uint64_t seed)
{
    const struct hr_tensor *found = hr_checkpoint_find(checkpoint, expected->name, expected->name_size);
    uint64_t bytes = bytes_of(expected);
    if (!found || found->dtype != expected->dtype || found->rank != expected->rank || found->size != bytes ||
        (found->rank && memcmp(found->shape, expected->shape, found->rank * sizeof *found->shape)))
        return 0;
    char *content = malloc(bytes + 1);
    int fd = open(hr_checkpoint_file(checkpoint, found->file_index)->path, O_RDONLY | O_CLOEXEC);
    int is_same = fd >= 0 && pread(fd, content, bytes, (off_t)found->offset) == (ssize_t)bytes &&
                  test_mismatch(content, seed, 0, bytes) == bytes;
    close(fd);
    free(content);
    return is_same;
}

void write_scene_check(const struct write_scene *scene, const char *path)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    if (hr_checkpoint_open(&path, 1, NULL, &checkpoint, &err))
        fail_msg("%s: %s", path, err.message);
    assert_int_equal(hr_checkpoint_count(checkpoint), scene->count);
    for (size_t i = 0; i < scene->count; i++)
        if (!is_tensor(checkpoint, &scene->tensors[i], i + 1))
            fail_msg("%s: tensor %zu, '%s', is not what was written", path, i, scene->tensors[i].name);
    hr_checkpoint_close(checkpoint);
}

size_t folder_entry_count(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(dir);
    return count;
}

char *file_content(const char *path, size_t *ret_size)
{
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &facts) == 0);
    char *content = malloc((size_t)facts.st_size + 1);
    assert_int_equal(read(fd, content, (size_t)facts.st_size), facts.st_size);
    content[facts.st_size] = '\0';
    close(fd);
    *ret_size = (size_t)facts.st_size;
    return content;
}
