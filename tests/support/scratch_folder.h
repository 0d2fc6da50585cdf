/*
 * scratch_folder.h: a folder for the files of one test, removed with all it holds; and safetensors files made from
 * a header's text. Failures end the test.
 */
#ifndef TESTS_SCRATCH_FOLDER_H
#define TESTS_SCRATCH_FOLDER_H

#include <stddef.h>
#include <stdint.h>

struct scratch {
    char path[64];
};

void scratch_init(struct scratch *scratch);
void scratch_release(struct scratch *scratch);
/* The folder's path with `name` joined, in one of a few buffers that are used in turn. */
const char *scratch_path(const struct scratch *scratch, const char *name);
/* Writes a file of exactly these bytes and returns its path, as scratch_path. */
const char *scratch_write(const struct scratch *scratch, const char *name, const void *bytes, size_t size);
/* Writes length, `json` and `data_size` zero bytes (a hole where that is possible). */
const char *scratch_tensors(const struct scratch *scratch, const char *name, const char *json, uint64_t data_size);
void scratch_folder(const struct scratch *scratch, const char *name);
void scratch_link(const struct scratch *scratch, const char *name, const char *target);

#endif
