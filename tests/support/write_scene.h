/*
 * write_scene.h: a table of tensors with content of their own, to be written, and files held against it. Whatever fails
 * here ends the running cmocka test.
 */
#ifndef TESTS_SUPPORT_WRITE_SCENE_H
#define TESTS_SUPPORT_WRITE_SCENE_H

#include <headrace/headrace.h>
#include <stddef.h>

#define WRITE_TENSOR_MAX 64

struct write_scene {
    struct hr_tensor tensors[WRITE_TENSOR_MAX];
    struct hr_source sources[WRITE_TENSOR_MAX]; /* host memory that the scene owns */
    size_t count;
};

/* Adds a tensor; `name` and `shape` must live as long as the scene. Its bytes follow its position. */
void write_scene_add(struct write_scene *scene, const char *name, uint32_t dtype, uint32_t rank, const uint64_t *shape);
/* Of many dtypes and sizes, from none to a few blocks of what is written at once. */
void write_scene_fill(struct write_scene *scene);
void write_scene_release(struct write_scene *scene);

/* The checkpoint at `path` is what the scene says, no more and no less. */
void write_scene_check(const struct write_scene *scene, const char *path);

/* Names in a folder, "." and ".." apart. */
size_t folder_entry_count(const char *folder);
/* The whole file; the caller frees it. */
char *file_content(const char *path, size_t *ret_size);

#endif
