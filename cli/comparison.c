/*
 * comparison.c: pairs tensors by their names and compares their bytes. Those of the same dtype and shape are loaded from
 * both sides in batches, half a window each, so that the memory is bounded whatever the order of the files.
 */
#include "comparison.h"

#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "output.h"

/* -------------------------------------------------------------------------------------------- pairing */

static enum verdict compare_headers(const struct hr_tensor *a, const struct hr_tensor *b)
{
    if (!b)
        return VERDICT_ONLY_IN_A;
    if (a->dtype != b->dtype)
        return VERDICT_DTYPE;
    if (a->rank != b->rank || (a->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) != 0))
        return VERDICT_SHAPE;
    return VERDICT_SAME;
}

static const struct hr_tensor *first_tensor(const struct comparison *comparison, int side)
{
    return side == SIDE_A && comparison->tensors ? comparison->tensors
                                                 : hr_checkpoint_at(comparison->checkpoints[side], 0);
}

/* A's tensors in A's order, which is the order of its files, then what only B has. */
static void make_pairs(struct comparison *comparison)
{
    const struct hr_checkpoint *b = comparison->checkpoints[SIDE_B];
    const struct hr_tensor *tensors_a = first_tensor(comparison, SIDE_A), *tensors_b = first_tensor(comparison, SIDE_B);
    size_t count_a =
               comparison->tensors ? comparison->tensor_count : hr_checkpoint_count(comparison->checkpoints[SIDE_A]),
           count_b = hr_checkpoint_count(b);
    unsigned char *is_paired = allocate(count_b, 1);
    comparison->found.pairs = allocate(count_a + count_b, sizeof *comparison->found.pairs);
    for (size_t i = 0; i < count_a; i++) {
        const struct hr_tensor *other = hr_checkpoint_find(b, tensors_a[i].name, tensors_a[i].name_size);
        struct pair *pair = &comparison->found.pairs[comparison->found.pair_count++];
        *pair = (struct pair){{&tensors_a[i], other}, .verdict = compare_headers(&tensors_a[i], other)};
        if (other)
            is_paired[other - tensors_b] = 1;
        if (pair->verdict == VERDICT_SAME)
            comparison->state.bytes_total += 2 * pair->tensors[SIDE_A]->size;
    }
    for (size_t i = 0; i < count_b; i++)
        if (!is_paired[i])
            comparison->found.pairs[comparison->found.pair_count++] =
                (struct pair){.tensors[SIDE_B] = &tensors_b[i], .verdict = VERDICT_ONLY_IN_B};
    free(is_paired);
}

/* ------------------------------------------------------------------------------------------ comparing */

/* The first bit that differs in this byte, the lowest first: as sub-byte elements are packed. */
static uint64_t first_bit(unsigned char a, unsigned char b)
{
    return (uint64_t)__builtin_ctz((unsigned)(a ^ b));
}

/* A piece that begins at byte `offset` of both tensors. */
static void compare_bytes(struct pair *pair, const unsigned char *a, const unsigned char *b, uint64_t offset,
                          uint64_t size)
{
    enum { BLOCK_BYTES = 4096 };
    uint32_t bits = hr_dtype_bits(pair->tensors[SIDE_A]->dtype);
    for (uint64_t begin = 0; begin < size; begin += BLOCK_BYTES) {
        uint64_t end = size - begin < BLOCK_BYTES ? size : begin + BLOCK_BYTES;
        if (memcmp(a + begin, b + begin, end - begin) == 0)
            continue;
        for (uint64_t i = begin; i < end; i++) {
            if (a[i] == b[i])
                continue;
            if (pair->different_bytes++ == 0)
                pair->element_index = (uint64_t)(((unsigned __int128)(offset + i) * 8 + first_bit(a[i], b[i])) / bits);
            pair->verdict = VERDICT_BYTES;
        }
    }
}

/* Pieces of both sides are of the same size, since the device is the same. */
static int compare_items(struct comparison *comparison, struct pair *pair, struct hr_load *const *loads, size_t item,
                         uint64_t bytes, struct hr_error *err)
{
    struct byte_piece pieces[SIDE_COUNT];
    for (uint64_t offset = 0; offset < bytes; offset += pieces[SIDE_A].size) {
        for (int side = SIDE_A; side < SIDE_COUNT; side++) {
            int code = read_back_piece(&comparison->read_backs[side], loads[side], item, offset, bytes - offset,
                                       &pieces[side], err);
            if (code < 0)
                return code;
        }
        compare_bytes(pair, pieces[SIDE_A].bytes, pieces[SIDE_B].bytes, offset, pieces[SIDE_A].size);
    }
    return 0;
}

static int compare_loaded(struct comparison *comparison, struct pair *pair, struct hr_load *const *loads, size_t item,
                          struct hr_error *err)
{
    int code = 0;
    for (int side = SIDE_A; side < SIDE_COUNT && code == 0; side++)
        code = hr_load_wait(loads[side], item, err);
    if (code == 0)
        code = compare_items(comparison, pair, loads, item, pair->tensors[SIDE_A]->size, err);
    for (int side = SIDE_A; side < SIDE_COUNT && code == 0; side++)
        code = hr_load_drop(loads[side], item, err);
    return code;
}

/* A batch is the pairs first .. end that are still taken for the same. */
static size_t make_items(const struct comparison *comparison, size_t first, size_t end, struct hr_item **items)
{
    size_t count = 0;
    for (int side = SIDE_A; side < SIDE_COUNT; side++) {
        items[side] = allocate(end - first, sizeof *items[side]);
        count = 0;
        for (size_t i = first; i < end; i++) {
            if (comparison->found.pairs[i].verdict != VERDICT_SAME)
                continue;
            size_t index = (size_t)(comparison->found.pairs[i].tensors[side] - first_tensor(comparison, side));
            items[side][count++] = side == SIDE_A && comparison->items
                                       ? comparison->items[index]
                                       : (struct hr_item){.size = sizeof **items, .tensor_index = index};
        }
    }
    return count;
}

static void draw_progress(struct comparison *comparison, const struct pair *pair)
{
    comparison->state.bytes_done += 2 * pair->tensors[SIDE_A]->size;
    if (progress_is_due(&comparison->progress, &comparison->state.elapsed_ns))
        progress_draw(&comparison->progress, &comparison->state);
}

static int compare_pairs(struct comparison *comparison, size_t first, size_t end, struct hr_load *const *loads,
                         struct hr_error *err)
{
    size_t item = 0;
    for (size_t i = first; i < end; i++) {
        struct pair *pair = &comparison->found.pairs[i];
        if (pair->verdict != VERDICT_SAME)
            continue;
        int code = compare_loaded(comparison, pair, loads, item++, err);
        if (code < 0)
            return code;
        draw_progress(comparison, pair);
    }
    return 0;
}

static int compare_batch(struct comparison *comparison, size_t first, size_t end, struct hr_error *err)
{
    struct hr_load *loads[SIDE_COUNT] = {NULL, NULL};
    struct hr_item *items[SIDE_COUNT];
    size_t count = make_items(comparison, first, end, items);
    int code = 0;
    for (int side = SIDE_A; side < SIDE_COUNT && code == 0 && count > 0; side++)
        code = hr_load_start(comparison->loader, comparison->checkpoints[side], items[side], count, NULL, &loads[side],
                             err);
    if (code == 0 && count > 0) {
        interrupt_watch(loads[SIDE_A], loads[SIDE_B]);
        code = compare_pairs(comparison, first, end, loads, err);
        interrupt_watch(NULL, NULL);
        if (code == 0)
            code = interrupt_check(err);
    }
    for (int side = SIDE_A; side < SIDE_COUNT; side++) {
        hr_load_free(loads[side]);
        free(items[side]);
    }
    return code;
}

/* The end of the batch that begins at `first`: at least one pair, and as many as half a window holds. */
static size_t batch_end(const struct comparison *comparison, size_t first)
{
    uint64_t limit = comparison->window_bytes ? comparison->window_bytes / 2 : UINT64_MAX;
    uint64_t bytes = 0;
    size_t end = first;
    for (; end < comparison->found.pair_count; end++) {
        const struct pair *pair = &comparison->found.pairs[end];
        bytes += pair->verdict == VERDICT_SAME ? pair->tensors[SIDE_A]->size : 0;
        if (end > first && bytes > limit)
            break;
    }
    return end;
}

int compare_checkpoints(struct comparison *comparison, struct hr_error *err)
{
    int code = 0;
    make_pairs(comparison);
    progress_init(&comparison->progress);
    for (size_t first = 0, end; first < comparison->found.pair_count && code == 0; first = end) {
        end = batch_end(comparison, first);
        code = compare_batch(comparison, first, end, err);
    }
    progress_erase(&comparison->progress);
    if (code == 0)
        diff_sort(&comparison->found);
    return code;
}

void comparison_release(struct comparison *comparison)
{
    free(comparison->found.pairs);
    read_back_release(&comparison->read_backs[SIDE_A]);
    read_back_release(&comparison->read_backs[SIDE_B]);
}
