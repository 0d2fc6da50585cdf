/*
 * test_spread_plan.c: what a process group reads once. Random requests over small files are played by all ranks of
 * worlds of 2 to 8: every byte of the stream is read by one rank, and what ranks get out of parts and of segments, with
 * what they read alone, is what a load without a group gives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/describe.h"
#include "plan/spread.h"
#include "support/plan_model.h"

enum { TENSOR_MAX = 10, ITEM_MAX = 12, WORLD_MAX = 8, FILE_BYTES = 1 << 19, TARGET_BYTES = 1 << 19 };

#define CHECK(condition)                                           \
    do {                                                           \
        if (!(condition))                                          \
            fail_msg("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* A request that all ranks make, and their plans. */
struct scene {
    struct hr_tensor tensors[TENSOR_MAX];
    uint64_t shapes[TENSOR_MAX][3];
    struct hr_item items[ITEM_MAX];
    struct hr_range ranges[ITEM_MAX][3];
    size_t tensor_count, item_count, file_count;
    struct hr_plan_options options;
    uint32_t world;
    struct hr_plan plans[WORLD_MAX], alone[WORLD_MAX];
};

static unsigned char file_byte(size_t file, uint64_t offset)
{
    return (unsigned char)((offset * 2654435761u + file * 97) >> 7);
}

/* ---------------------------------------------------------------------------------------- requests */

static void random_tensors(struct scene *s, uint64_t *seed)
{
    static const uint32_t dtypes[] = {HR_DTYPE_U8, HR_DTYPE_BF16, HR_DTYPE_F64, HR_DTYPE_F4};
    uint64_t offset = model_random(seed, 40);
    size_t file = 0;
    s->tensor_count = 1 + model_random(seed, TENSOR_MAX);
    for (size_t t = 0; t < s->tensor_count; t++) {
        uint32_t rank = (uint32_t)model_random(seed, 4);
        uint32_t dtype = dtypes[model_random(seed, rank ? 4 : 3)];
        uint64_t wide = model_random(seed, 4) == 0 ? 12 : 6;
        for (uint32_t d = 0; d < rank; d++)
            s->shapes[t][d] = model_random(seed, d == rank - 1 ? wide * 2 : wide) + (model_random(seed, 8) != 0);
        if (dtype == HR_DTYPE_F4)
            s->shapes[t][rank - 1] += s->shapes[t][rank - 1] % 2;
        if (model_random(seed, 4) == 0) {
            file++;
            offset = model_random(seed, 40);
        }
        offset = model_tensor(&s->tensors[t], dtype, rank, s->shapes[t], file, offset);
        offset += model_random(seed, 5) == 0 ? model_random(seed, 300) : 0;
        CHECK(offset < FILE_BYTES);
    }
    s->file_count = file + 1;
}

static void random_item(struct scene *s, size_t i, uint64_t *seed)
{
    struct hr_item *item = &s->items[i];
    *item = (struct hr_item){.size = sizeof *item, .tensor_index = model_random(seed, s->tensor_count)};
    const struct hr_tensor *tensor = &s->tensors[item->tensor_index];
    if (tensor->rank && model_random(seed, 3)) {
        item->shard_world = model_random(seed, 10) ? s->world : s->world + 1;
        item->shard_dim = (uint32_t)model_random(seed, tensor->rank);
    }
    if (model_random(seed, 3))
        return;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint64_t a = model_random(seed, tensor->shape[d] + 1), b = model_random(seed, tensor->shape[d] + 1);
        uint64_t step = model_random(seed, 3) == 0 ? model_random(seed, 4) : 1;
        if (tensor->dtype == HR_DTYPE_F4) {
            a = a / 2 * 2;
            b = b / 2 * 2;
            step = 1;
        }
        s->ranges[i][d] = (struct hr_range){a < b ? a : b, a < b ? b : a, step};
    }
    item->ranges = s->ranges[i];
}

/* Matrices that are all sharded by columns: what scatters are for. */
static void column_shards(struct scene *s, uint64_t *seed)
{
    uint64_t offset = model_random(seed, 40);
    s->tensor_count = s->item_count = 1 + model_random(seed, 6);
    s->file_count = 1;
    for (size_t t = 0; t < s->tensor_count; t++) {
        s->shapes[t][0] = 10 + model_random(seed, 50);
        s->shapes[t][1] = 16 + model_random(seed, 80);
        offset = model_tensor(&s->tensors[t], HR_DTYPE_F64, 2, s->shapes[t], 0, offset);
        s->items[t] =
            (struct hr_item){.size = sizeof s->items[t], .tensor_index = t, .shard_dim = 1, .shard_world = s->world};
    }
}

/* Whether every rank can make its items; F4 may be cut inside a byte. */
static int plan_all(struct scene *s)
{
    struct hr_error err;
    int code = 0;
    for (uint32_t r = 0; r < s->world; r++) {
        for (size_t i = 0; i < s->item_count; i++)
            s->items[i].shard_rank = s->items[i].shard_world ? r : 0;
        struct hr_plan_options options = s->options;
        code |= hr_plan_make(s->tensors, s->tensor_count, s->file_count, s->items, s->item_count, &options,
                             &s->alone[r], &err);
        options.group_world = s->world;
        options.group_rank = r;
        code |= hr_plan_make(s->tensors, s->tensor_count, s->file_count, s->items, s->item_count, &options,
                             &s->plans[r], &err);
        CHECK(code == 0 || code == HR_EUNSUPPORTED);
    }
    return code == 0;
}

static void release_all(struct scene *s)
{
    for (uint32_t r = 0; r < s->world; r++) {
        hr_plan_release(&s->plans[r]);
        hr_plan_release(&s->alone[r]);
    }
}

/* ------------------------------------------------------------------------------------------- checks */

/* All that follows from the request is alike. */
static void check_alike(const struct scene *s)
{
    const struct hr_spread *a = s->plans[0].spread;
    for (uint32_t r = 0; r < s->world; r++) {
        const struct hr_spread *b = s->plans[r].spread;
        CHECK(b && b->rank == r && a->digest_items == b->digest_items && a->digest_windows == b->digest_windows);
        CHECK(a->window_count == b->window_count && a->part_bytes == b->part_bytes && a->slot_count == b->slot_count);
        CHECK(memcmp(a->segment_bytes, b->segment_bytes, a->window_count * sizeof *a->segment_bytes) == 0);
        uint64_t slots = (b->slot_count + b->spare_slots) * b->slot_bytes, buffers = b->buffer_count * b->buffer_bytes;
        CHECK(b->slot_count >= 2 && b->depth <= b->slot_count && b->buffer_count <= b->depth);
        CHECK(slots + buffers + b->depth * b->world * HR_SPREAD_STATUS_BYTES == hr_spread_memory(b));
        CHECK(hr_spread_memory(b) <= s->options.group_bytes);
    }
}

/* What the ranks read, by places of the stream; each once, on 256 where a range begins anew. */
static void read_stream(const struct scene *s, unsigned char *stream, unsigned char *seen)
{
    for (size_t w = 0; w < s->plans[0].spread->window_count; w++)
        for (uint32_t r = 0; r < s->world; r++) {
            const struct hr_spread *spread = s->plans[r].spread;
            struct hr_spread_window window = hr_spread_window_at(spread, w);
            struct hr_range part = hr_spread_part(&window, r);
            struct hr_spread_range range;
            uint64_t last = part.start;
            for (size_t next = 0; hr_spread_range_next(spread, part.start, part.stop, &next, &range);) {
                uint64_t place = (last - part.start + 255) / 256 * 256; /* as an arena lays it */
                CHECK(range.begin - part.start == place && range.file_begin < range.file_end);
                last = range.begin + (range.file_end - range.file_begin);
                CHECK(last <= part.stop && part.stop - part.start <= window.part_bytes);
                for (uint64_t o = range.file_begin; o < range.file_end; o++) {
                    CHECK(!seen[range.begin + (o - range.file_begin)]++);
                    stream[range.begin + (o - range.file_begin)] = file_byte(range.file_index, o);
                }
            }
        }
}

/* Items behind each other. */
static uint64_t target_base(const struct hr_plan *plan, size_t item_index)
{
    uint64_t base = 0;
    for (size_t i = 0; i < item_index; i++)
        base += plan->items[i].bytes;
    CHECK(base < TARGET_BYTES);
    return base;
}

/* Bytes of a piece into `target`, from the stream, or from the file where that is NULL; each once. */
static void deliver(const struct hr_plan *plan, const struct hr_plan_piece *piece, const struct hr_spread_item *item,
                    const unsigned char *stream, unsigned char *target, unsigned char *written)
{
    const struct hr_plan_item *planned = &plan->items[piece->item_index];
    struct hr_run_walk walk;
    struct hr_run run;
    uint64_t base = target_base(plan, piece->item_index);
    hr_run_walk_init(&walk, planned, piece);
    while (hr_run_walk_next(&walk, &run))
        for (uint64_t b = 0; b < run.bytes; b++) {
            uint64_t at = base + (uint64_t)run.target_offset + b;
            CHECK(at < TARGET_BYTES && !written[at]++);
            target[at] = stream ? stream[item->begin + (run.source_offset + b - item->source)]
                                : file_byte(planned->file_index, run.source_offset + b);
        }
}

/* What rank `to` gets of rank `from`'s part in a scatter is what it takes it for. */
static void check_segment(const struct scene *s, const struct hr_spread_window *window, uint32_t from, uint32_t to)
{
    const struct hr_spread *spread = s->plans[from].spread;
    struct hr_range part = hr_spread_part(window, from);
    uint64_t *scratch = calloc(spread->scratch_words, sizeof *scratch), bytes = 0;
    for (size_t i = 0; i < spread->item_count; i++) {
        const struct hr_spread_item *item = &spread->items[i];
        struct hr_plan_item geometry;
        struct hr_plan_piece sent, taken;
        hr_spread_geometry(item, to, scratch, &geometry);
        int is_sent = hr_spread_piece(item, &geometry, part.start, part.stop, &sent);
        CHECK(is_sent == hr_spread_piece(item, &s->plans[to].items[item->item_index], part.start, part.stop, &taken));
        if (!is_sent)
            continue;
        CHECK(sent.begin == taken.begin && sent.end == taken.end);
        bytes += sent.end - sent.begin;
        struct hr_run_walk a, b;
        hr_run_walk_init(&a, &geometry, &sent);
        hr_run_walk_init(&b, &s->plans[to].items[item->item_index], &taken);
        CHECK(a.source_offset == b.source_offset);
    }
    CHECK(window->segment_bytes == 0 || bytes <= window->segment_bytes);
    free(scratch);
}

static void check_rank(const struct scene *s, uint32_t rank, const unsigned char *stream)
{
    static unsigned char target[TARGET_BYTES], written[TARGET_BYTES], expected[TARGET_BYTES], wanted[TARGET_BYTES];
    const struct hr_plan *plan = &s->plans[rank], *alone = &s->alone[rank];
    const struct hr_spread *spread = plan->spread;
    size_t size = (size_t)plan->bytes;
    memset(written, 0, size);
    memset(wanted, 0, size);
    memset(target, 0, size);
    memset(expected, 0, size);
    for (size_t p = 0; p < alone->piece_count; p++)
        deliver(alone, &alone->pieces[p], NULL, NULL, expected, wanted);
    for (size_t p = 0; p < plan->piece_count; p++) {
        CHECK(!plan->items[plan->pieces[p].item_index].is_spread);
        deliver(plan, &plan->pieces[p], NULL, NULL, target, written);
    }
    size_t first = 0;
    for (size_t w = 0; w < spread->window_count; w++) {
        struct hr_spread_window window = hr_spread_window_at(spread, w);
        first = hr_spread_first(spread, first, window.begin);
        for (size_t i = first; i < spread->item_count && spread->items[i].begin < window.end; i++)
            for (uint32_t r = 0; r < s->world; r++) {
                struct hr_range part = hr_spread_part(&window, r);
                struct hr_plan_piece piece;
                if (hr_spread_piece(&spread->items[i], &plan->items[spread->items[i].item_index], part.start, part.stop,
                                    &piece))
                    deliver(plan, &piece, &spread->items[i], stream, target, written);
            }
        for (uint32_t r = 0; r < s->world; r++)
            check_segment(s, &window, r, rank);
    }
    CHECK(memcmp(written, wanted, size) == 0 && memcmp(target, expected, size) == 0);
}

static void random_request(struct scene *s, uint64_t *seed)
{
    if (model_random(seed, 5) == 0) {
        column_shards(s, seed);
        return;
    }
    random_tensors(s, seed);
    s->item_count = model_random(seed, ITEM_MAX + 1);
    for (size_t i = 0; i < s->item_count; i++)
        random_item(s, i, seed);
}

static void check_scene(const struct scene *s)
{
    uint64_t bytes = s->plans[0].spread->stream_bytes;
    unsigned char *stream = calloc(bytes + 1, 1), *seen = calloc(bytes + 1, 1);
    check_alike(s);
    read_stream(s, stream, seen);
    for (uint32_t r = 0; r < s->world; r++)
        check_rank(s, r, stream);
    free(stream);
    free(seen);
}

static void test_random(void **state)
{
    static struct scene s;
    size_t spread_count = 0, scatter_count = 0, local_count = 0;
    (void)state;
    for (uint64_t n = 1; n <= 4000; n++) {
        uint64_t seed = n * 0x9e3779b97f4a7c15u;
        s.world = 2 + (uint32_t)model_random(&seed, WORLD_MAX - 1);
        random_request(&s, &seed);
        s.options = (struct hr_plan_options){.chunk_bytes = 100,
                                             .arena_bytes = 2048,
                                             .device_count = 1,
                                             .remote_devices = model_random(&seed, 2),
                                             .ownership = HR_OWN_ARENA};
        s.options.group_bytes =
            512 * (2 + 2 * (2 * s.world + 1)) + (model_random(&seed, 2) ? 0 : model_random(&seed, 60000));
        if (plan_all(&s)) {
            check_scene(&s);
            spread_count += s.plans[0].spread->item_count;
            local_count += s.item_count - s.plans[0].spread->item_count;
            for (size_t w = 0; w < s.plans[0].spread->window_count; w++)
                scatter_count += s.plans[0].spread->segment_bytes[w] != 0;
        }
        release_all(&s);
    }
    assert_true(spread_count > 1000 && local_count > 1000 && scatter_count > 100);
}

/* ------------------------------------------------------------------------------------- known choices */

struct choice_case {
    uint32_t dtype;
    uint64_t rows, columns, step; /* of the columns; 0: no ranges */
    uint32_t shard_dim, shard_world, shard_rank;
    uint32_t choice;
};

static int plan_one(const struct choice_case *c, struct hr_plan *ret_plan, uint64_t group_bytes, struct hr_error *err)
{
    static struct hr_tensor tensor;
    static uint64_t shape[2];
    struct hr_range ranges[2] = {{0, c->rows, 1}, {0, c->columns, c->step}};
    shape[0] = c->rows;
    shape[1] = c->columns;
    model_tensor(&tensor, c->dtype, 2, shape, 0, 8);
    struct hr_item item = {.size = sizeof item,
                           .ranges = c->step ? ranges : NULL,
                           .shard_dim = c->shard_dim,
                           .shard_rank = c->shard_rank,
                           .shard_world = c->shard_world};
    struct hr_plan_options options = {.chunk_bytes = 1 << 20,
                                      .arena_bytes = 1 << 20,
                                      .device_count = 1,
                                      .group_world = 2,
                                      .group_rank = 1,
                                      .group_bytes = group_bytes};
    return hr_plan_make(&tensor, 1, 1, &item, 1, &options, ret_plan, err);
}

static void test_choices(void **state)
{
    static const struct choice_case cases[] = {
        {HR_DTYPE_BF16, 10, 10, 0, 0, 0, 0, HR_SPREAD_REPLICATED},
        {HR_DTYPE_BF16, 10, 10, 2, 0, 0, 0, HR_SPREAD_REPLICATED},
        {HR_DTYPE_BF16, 10, 30, 3, 0, 0, 0, HR_LOCAL_SPARSE},
        {HR_DTYPE_BF16, 10, 10, 0, 0, 2, 1, HR_LOCAL_CONTIGUOUS},
        {HR_DTYPE_BF16, 10, 10, 0, 1, 2, 1, HR_SPREAD_SHARDED},
        {HR_DTYPE_BF16, 10, 30, 3, 1, 2, 1, HR_LOCAL_SPARSE},
        {HR_DTYPE_BF16, 1, 10, 0, 1, 2, 1, HR_LOCAL_CONTIGUOUS},
        {HR_DTYPE_BF16, 10, 10, 0, 1, 4, 1, HR_LOCAL_OTHER},
        {HR_DTYPE_BF16, 10, 10, 0, 1, 2, 0, HR_LOCAL_OTHER},
        {HR_DTYPE_BF16, 0, 10, 0, 1, 2, 1, HR_LOCAL_EMPTY},
        {HR_DTYPE_F4, 4, 8, 0, 1, 2, 1, HR_SPREAD_SHARDED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_plan plan;
        struct hr_error err;
        int code = plan_one(&cases[i], &plan, 1 << 20, &err);
        assert_int_equal(code, 0);
        if (plan.spread->choices[0] != cases[i].choice)
            fail_msg("case %zu: %s", i, hr_spread_reason(plan.spread->choices[0]));
        assert_int_equal(plan.items[0].is_spread, cases[i].choice >= HR_SPREAD_REPLICATED);
        assert_int_equal(plan.chunk_count == 0, plan.items[0].is_spread || plan.items[0].bytes == 0);
        hr_plan_release(&plan);
    }
}

/* Columns of two ranks: half of each part to each, so what is sent is half of what an all-gather sends. */
static void test_scatter(void **state)
{
    static const struct choice_case columns = {HR_DTYPE_BF16, 4096, 4096, 0, 1, 2, 1, 0},
                                    whole = {HR_DTYPE_BF16, 4096, 4096, 0, 0, 0, 0, 0};
    struct hr_plan plan;
    struct hr_error err;
    (void)state;
    assert_int_equal(plan_one(&columns, &plan, 56 << 20, &err), 0);
    for (size_t w = 0; w < plan.spread->window_count; w++) {
        struct hr_spread_window window = hr_spread_window_at(plan.spread, w);
        assert_true(window.segment_bytes >= window.part_bytes / 2);
        assert_true(window.segment_bytes <= window.part_bytes / 2 + 8192);
    }
    hr_plan_release(&plan);
    assert_int_equal(plan_one(&whole, &plan, 56 << 20, &err), 0);
    assert_int_equal(plan.spread->window_count, 3); /* 32 MiB by windows of a fifth of 56 MiB */
    assert_int_equal(plan.spread->segment_bytes[0], 0);
    hr_plan_release(&plan);
    assert_int_equal(plan_one(&whole, &plan, 2000, &err), HR_EINVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "group_bytes is 2000"));
}

static void test_described(void **state)
{
    static const struct choice_case columns = {HR_DTYPE_BF16, 64, 64, 0, 1, 2, 1, 0};
    const struct hr_file file = {.path = "f", .size = 8200};
    const struct hr_plan_facts facts = {.route = "pread", .route_reason = "asked for", .thread_count = 1};
    struct hr_tensor tensor = {.name = "weight", .name_size = 6};
    struct hr_plan plan;
    struct hr_error err;
    char *text;
    (void)state;
    assert_int_equal(plan_one(&columns, &plan, 1 << 20, &err), 0);
    assert_int_equal(hr_plan_to_text(&plan, &tensor, &file, &facts, HR_PLAN_JSON, &text, &err), 0);
    assert_non_null(strstr(text, "\"spread_bytes\":8192,\"read_bytes\":4096"));
    assert_non_null(strstr(text, "\"tensor\":\"weight\",\"spread\":true"));
    hr_string_free(text);
    assert_int_equal(hr_plan_to_text(&plan, &tensor, &file, &facts, HR_PLAN_TEXT, &text, &err), 0);
    assert_non_null(strstr(text, "group     rank 1 of 2: 8.0 KiB are spread, this rank reads 4.0 KiB\n"));
    assert_non_null(strstr(text, "windows   0 all-gathers, 1 scatters"));
    assert_non_null(strstr(text, "spread    1 items: the blocks of the ranks lie between each other\n"));
    hr_string_free(text);
    hr_plan_release(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
