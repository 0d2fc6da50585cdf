/*
 * test_cli_comparison.c: what `convert --check` compares: items that convert on one side, and a checkpoint as it is on
 * the other, of which a value differs, one is missing, and one is too many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comparison.h"
#include "support/make_files.h"

enum { COUNT = 4 };
static const uint64_t shape[] = {2, 3};
static const char *const names[] = {"changed", "missing", "same", "extra"};

/* Writes those of the tensors whose letter is in `which`, and opens the file. */
static struct hr_checkpoint *make(const char *name, uint32_t dtype, const void *data, const char *which)
{
    struct hr_tensor tensors[COUNT] = {0};
    struct hr_source sources[COUNT] = {0};
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    const char *path = test_path(name);
    size_t count = 0;
    for (size_t i = 0; i < COUNT; i++)
        if (strchr(which, names[i][0])) {
            tensors[count] = (struct hr_tensor){names[i], strlen(names[i]), dtype, 2, shape, 0, 0, 0};
            sources[count++] = (struct hr_source){.size = sizeof *sources, .data = data};
        }
    assert_int_equal(hr_write(path, tensors, sources, count, NULL, &err), 0);
    assert_int_equal(hr_checkpoint_open(&path, 1, NULL, &checkpoint, &err), 0);
    return checkpoint;
}

static const struct pair *find(const struct differences *found, const char *name)
{
    for (size_t i = 0; i < found->pair_count; i++) {
        const struct hr_tensor *const *tensors = found->pairs[i].tensors;
        if (strcmp((tensors[SIDE_A] ? tensors[SIDE_A] : tensors[SIDE_B])->name, name) == 0)
            return &found->pairs[i];
    }
    fail_msg("no pair is named %s", name);
    return NULL;
}

/* A's tensors but "extra", as BF16. */
static void choose(const struct hr_checkpoint *checkpoint, struct hr_item *items, struct hr_tensor *tensors)
{
    for (size_t i = 0; i < COUNT - 1; i++) {
        const struct hr_tensor *stored = hr_checkpoint_find(checkpoint, names[i], strlen(names[i]));
        items[i] = (struct hr_item){.size = sizeof *items, .dtype = HR_DTYPE_BF16};
        items[i].tensor_index = (size_t)(stored - hr_checkpoint_at(checkpoint, 0));
        tensors[i] = *stored;
        tensors[i].dtype = HR_DTYPE_BF16;
        tensors[i].size /= 2;
    }
}

static void test_converted(void **state)
{
    const float stored[] = {0, 1, -2, 0.5f, 1.00390625f, 4}; /* the fifth is halfway between 3f80 and 3f81 */
    uint16_t written[] = {0, 0x3f80, 0xc000, 0x3f00, 0x3f80, 0x4080};
    struct hr_item items[COUNT];
    struct hr_tensor tensors[COUNT];
    struct hr_error err;
    (void)state;
    for (int is_changed = 0; is_changed <= 1; is_changed++) {
        struct comparison comparison = {.items = items, .tensors = tensors, .tensor_count = COUNT - 1};
        written[4] = is_changed ? 0x3f81 : 0x3f80;
        comparison.window_bytes = 20; /* less than two tensors of both sides */
        comparison.checkpoints[SIDE_A] = make("a.safetensors", HR_DTYPE_F32, stored, "cmse");
        comparison.checkpoints[SIDE_B] = make("b.safetensors", HR_DTYPE_BF16, written, is_changed ? "ce" : "cms");
        choose(comparison.checkpoints[SIDE_A], items, tensors);
        assert_int_equal(hr_loader_new(NULL, &comparison.loader, &err), 0);
        assert_int_equal(compare_checkpoints(&comparison, &err), 0);
        const struct differences *found = &comparison.found;
        if (is_changed) {
            assert_int_equal(found->different_count, found->pair_count);
            assert_int_equal(find(found, "changed")->verdict, VERDICT_BYTES);
            assert_int_equal(find(found, "changed")->element_index, 4);
            assert_int_equal(find(found, "changed")->different_bytes, 1);
            assert_int_equal(find(found, "missing")->verdict, VERDICT_ONLY_IN_A);
            assert_int_equal(find(found, "extra")->verdict, VERDICT_ONLY_IN_B);
        }
        assert_int_equal(found->pair_count, is_changed ? COUNT : COUNT - 1);
        assert_int_equal(found->different_count, is_changed ? COUNT : 0);
        comparison_release(&comparison);
        hr_loader_free(comparison.loader);
        hr_checkpoint_close(comparison.checkpoints[SIDE_A]);
        hr_checkpoint_close(comparison.checkpoints[SIDE_B]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_converted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
