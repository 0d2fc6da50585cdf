/*
 * test_model.h: checkpoints for tests of loads, with the tensors that they were made of, and checks of what a load
 * delivered against them. The checks know the content from make_files.h alone; they take neither plans nor the
 * library's geometry for granted. Whatever fails here ends the running cmocka test.
 */
#ifndef TESTS_SUPPORT_TEST_MODEL_H
#define TESTS_SUPPORT_TEST_MODEL_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "support/make_files.h"

struct test_model {
    struct test_tensor *tensors; /* in the order of the checkpoint */
    size_t count;
    const char **paths;
    size_t path_count;
    struct hr_checkpoint *checkpoint; /* NULL until model_open */
};

/* Writes files of `per_file` tensors each, "NAME-N.safetensors". `tensors` is copied, their names are borrowed. */
void model_write(struct test_model *model, const char *name, const struct test_tensor *tensors, size_t count,
                 size_t per_file, size_t padding);
void model_open(struct test_model *model);
/* Closes and forgets; the files stay until exit. */
void model_close(struct test_model *model);

/* Every dtype, scalars, tensors without elements, odd sizes, and some that span chunks; the data starts unaligned. */
void model_mixed(struct test_model *model, const char *name, size_t per_file);
/* `count` vectors of U8, of `size` bytes each. */
void model_equal(struct test_model *model, const char *name, size_t count, uint64_t size, size_t per_file);

/* The file that tensor `index` lies in, and where. */
const char *model_path(const struct test_model *model, size_t index);

/* Items of whole tensors, one for each; freed with free(). */
struct hr_item *model_items(const struct test_model *model);

/* Checks every byte and the description of a tensor's slice (`ranges` NULL: all of it). */
void check_view(const struct test_tensor *tensor, const struct hr_range *ranges, const struct hr_view *view);
/* Checks ready items, on whichever device they are; item i is the whole tensor i. */
void check_item(struct hr_load *load, size_t item_index, const struct test_model *model);
void check_all_items(struct hr_load *load, const struct test_model *model);

/* As the library's calls, where failure is not expected. */
struct hr_loader *loader_make(const struct hr_loader_options *options);
struct hr_load *load_make(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                          size_t item_count, const struct hr_load_options *options);
/* All items of the model. */
struct hr_load *load_model(struct hr_loader *loader, const struct test_model *model,
                           const struct hr_load_options *options);
/* Loads all of it and checks every item. */
struct hr_stats load_whole_model(struct hr_loader *loader, const struct test_model *model);
#define assert_ok(code, err) assert_ok_at(code, &(err), #code, __FILE__, __LINE__)
void assert_ok_at(int code, const struct hr_error *err, const char *what, const char *file, int line);
/* The kind of error, in words that a failed test can show. */
#define assert_code(code, expected) assert_string_equal(hr_error_kind(code), hr_error_kind(expected))

/* Whether io_uring can be used here; says so once where it cannot. */
int uring_usable(void);

#endif
