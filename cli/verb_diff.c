/*
 * verb_diff.c: compares two checkpoints, tensor by tensor of the same name. Tensors of the same dtype and shape are
 * loaded from both sides in batches, half a window each, so that the memory is bounded whatever the order of the files.
 * Differences are printed in the order of names.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "diff_report.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "request.h"

static const uint64_t window_bytes_default = 1ull << 30;

struct comparison {
    struct hr_checkpoint *checkpoints[SIDE_COUNT];
    struct hr_loader *loader;
    struct hr_device_info device;
    struct read_back read_backs[SIDE_COUNT];
    uint64_t window_bytes;
    struct differences found;
    struct progress progress;
    struct hr_progress state; /* over all batches */
};

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

/* A's tensors in A's order, which is the order of its files, then what only B has. */
static void make_pairs(struct comparison *comparison)
{
    const struct hr_checkpoint *a = comparison->checkpoints[SIDE_A], *b = comparison->checkpoints[SIDE_B];
    comparison->found.pairs =
        allocate(hr_checkpoint_count(a) + hr_checkpoint_count(b), sizeof *comparison->found.pairs);
    for (size_t i = 0; i < hr_checkpoint_count(a); i++) {
        struct pair *pair = &comparison->found.pairs[comparison->found.pair_count++];
        pair->tensors[SIDE_A] = hr_checkpoint_at(a, i);
        pair->tensors[SIDE_B] = hr_checkpoint_find(b, pair->tensors[SIDE_A]->name, pair->tensors[SIDE_A]->name_size);
        pair->verdict = compare_headers(pair->tensors[SIDE_A], pair->tensors[SIDE_B]);
        if (pair->verdict == VERDICT_SAME)
            comparison->state.bytes_total += 2 * pair->tensors[SIDE_A]->size;
    }
    for (size_t i = 0; i < hr_checkpoint_count(b); i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(b, i);
        if (!hr_checkpoint_find(a, tensor->name, tensor->name_size))
            comparison->found.pairs[comparison->found.pair_count++] =
                (struct pair){.tensors[SIDE_B] = tensor, .verdict = VERDICT_ONLY_IN_B};
    }
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
            const struct hr_tensor *first_tensor = hr_checkpoint_at(comparison->checkpoints[side], 0);
            items[side][count].size = sizeof *items[side];
            items[side][count++].tensor_index = (size_t)(comparison->found.pairs[i].tensors[side] - first_tensor);
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

static int compare_all(struct comparison *comparison, struct hr_error *err)
{
    int code = 0;
    progress_init(&comparison->progress);
    for (size_t first = 0, end; first < comparison->found.pair_count && code == 0; first = end) {
        end = batch_end(comparison, first);
        code = compare_batch(comparison, first, end, err);
    }
    progress_erase(&comparison->progress);
    return code;
}

static int compare_open(struct comparison *comparison, int as_json, struct hr_error *err)
{
    make_pairs(comparison);
    int code = compare_all(comparison, err);
    if (code < 0)
        return code;
    diff_sort(&comparison->found);
    if (as_json)
        diff_print_json(&comparison->found, &comparison->device);
    else
        diff_print_text(&comparison->found, &comparison->device);
    return 0;
}

/* On success *ret_exit_code is the answer. */
static int diff(const struct request_options *options, const char *const *paths, int as_json, int *ret_exit_code,
                struct hr_error *err)
{
    struct comparison comparison = {.window_bytes = options->tuning.window_bytes};
    struct device_list devices = {&comparison.device, 1};
    int code = request_device(&options->tuning, options->device, &comparison.device, err);
    if (code == 0)
        code = request_loader(&options->tuning, &devices, &comparison.loader, err);
    for (int side = SIDE_A; side < SIDE_COUNT && code == 0; side++)
        code = checkpoint_open(&paths[side], 1, &options->open, &comparison.checkpoints[side], err);
    if (code == 0)
        code = compare_open(&comparison, as_json, err);
    if (code == 0)
        *ret_exit_code = comparison.found.different_count ? EXIT_NO : EXIT_YES;
    free(comparison.found.pairs);
    read_back_release(&comparison.read_backs[SIDE_A]);
    read_back_release(&comparison.read_backs[SIDE_B]);
    hr_checkpoint_close(comparison.checkpoints[SIDE_A]);
    hr_checkpoint_close(comparison.checkpoints[SIDE_B]);
    hr_loader_free(comparison.loader);
    return code;
}

int diff_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct request_options request = {.tuning.window_bytes = window_bytes_default};
    struct text_list paths;
    struct hr_error err;
    int as_json = 0, code;
    const struct option options[] = {DEVICE_OPTION(request.device),
                                     TUNING_OPTIONS(request.tuning),
                                     OPEN_OPTIONS(request.open),
                                     JSON_OPTION(as_json),
                                     {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){2, 2}, &paths, &code))
        return code;
    interrupt_start();
    if (diff(&request, paths.texts, as_json, &code, &err) < 0)
        code = load_error_report(verb->name, as_json, &err);
    text_list_release(&paths);
    return code;
}
