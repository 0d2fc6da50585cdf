/*
 * test_plan.c: whole requests. Random ones against the naive model, ways, groups and cuts by their exact figures,
 * refusals, a million items, and every allocation failing in turn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <malloc.h>

#include "base/sys.h"
#include "support/plan_model.h"

#define INTO ((void *)(uintptr_t)4096)
#define MIB ((uint64_t)1 << 20)

/* ---------------------------------------------------------------------------------- memory, counted */

static size_t live_count, live_bytes, peak_bytes, call_count, fail_at;
static struct hr_sys counted;

static void note(void *memory)
{
    live_count++;
    live_bytes += malloc_usable_size(memory);
    peak_bytes = live_bytes > peak_bytes ? live_bytes : peak_bytes;
}

static void *counted_alloc(size_t bytes)
{
    if (++call_count == fail_at)
        return NULL;
    void *memory = malloc(bytes);
    note(memory);
    return memory;
}

static void counted_free(void *memory)
{
    if (!memory)
        return;
    live_count--;
    live_bytes -= malloc_usable_size(memory);
    free(memory);
}

static void *counted_resize(void *memory, size_t bytes)
{
    if (++call_count == fail_at)
        return NULL;
    if (memory) {
        live_count--;
        live_bytes -= malloc_usable_size(memory);
    }
    memory = realloc(memory, bytes);
    note(memory);
    return memory;
}

static void count_from(size_t n)
{
    counted = hr_sys_real;
    counted.alloc = counted_alloc;
    counted.resize = counted_resize;
    counted.free = counted_free;
    live_count = live_bytes = peak_bytes = call_count = 0;
    fail_at = n;
    hr_sys = &counted;
}

/* -------------------------------------------------------------------------------------- random requests */

enum { TENSOR_MAX = 12, ITEM_MAX = 16 };

/* A random table and request with all that they point to. */
struct random_case {
    struct plan_case tested;
    struct hr_tensor tensors[TENSOR_MAX];
    struct hr_item items[ITEM_MAX];
    uint64_t shapes[TENSOR_MAX][3];
    struct hr_range ranges[ITEM_MAX][3];
    int64_t strides[ITEM_MAX][3];
};

static void random_tensors(struct random_case *c, uint64_t *seed, const uint64_t *extents)
{
    static const uint32_t dtypes[] = {HR_DTYPE_U8, HR_DTYPE_BF16, HR_DTYPE_F32, HR_DTYPE_F4, HR_DTYPE_F64};
    uint64_t offset = model_random(seed, 40);
    size_t file = 0;
    for (size_t t = 0; t < c->tested.tensor_count; t++) {
        for (int d = 0; d < 3; d++)
            c->shapes[t][d] = model_random(seed, extents[d] + 1) + (model_random(seed, 4) != 0);
        c->shapes[t][2] += c->shapes[t][2] % 2; /* F4 in whole bytes */
        if (model_random(seed, 4) == 0) {
            file++;
            offset = model_random(seed, 40);
        }
        offset = model_tensor(&c->tensors[t], dtypes[model_random(seed, 5)], 3, c->shapes[t], file, offset);
    }
    c->tested.file_count = file + 1;
}

/* Another dtype, narrower, wider or as wide, of every other item. */
static uint32_t random_dtype(const struct hr_tensor *tensor, uint64_t *seed)
{
    static const uint32_t dtypes[] = {HR_DTYPE_U8, HR_DTYPE_F16, HR_DTYPE_F32, HR_DTYPE_I64};
    uint32_t dtype = dtypes[model_random(seed, 4)];
    return tensor->dtype != HR_DTYPE_F4 && model_random(seed, 2) ? dtype : HR_DTYPE_NONE;
}

static void random_item(struct random_case *c, size_t i, uint64_t *seed)
{
    struct hr_item *item = &c->items[i];
    *item = (struct hr_item){.size = sizeof *item, .tensor_index = model_random(seed, c->tested.tensor_count)};
    const struct hr_tensor *tensor = &c->tensors[item->tensor_index];
    item->device_index = model_random(seed, 8) == 0;
    item->into = model_random(seed, 4) == 0 ? INTO : NULL;
    item->dtype = random_dtype(tensor, seed);
    if (model_random(seed, 2) == 0)
        return;
    for (int d = 0; d < 3; d++) {
        uint64_t a = model_random(seed, tensor->shape[d] + 1), b = model_random(seed, tensor->shape[d] + 1);
        uint64_t step = model_random(seed, 3) == 0 ? model_random(seed, 4) : 1;
        if (tensor->dtype == HR_DTYPE_F4 && d == 2) {
            a = a / 2 * 2;
            b = b / 2 * 2;
            step = 1;
        }
        c->ranges[i][d] = (struct hr_range){a < b ? a : b, a < b ? b : a, step};
        if (model_random(seed, 3) == 0)
            c->ranges[i][d] = (struct hr_range){0, tensor->shape[d], 1};
    }
    item->ranges = c->ranges[i];
    if (item->into && tensor->dtype != HR_DTYPE_F4 && model_random(seed, 2)) {
        int64_t element = hr_dtype_bits(item->dtype ? item->dtype : tensor->dtype) / 8;
        c->strides[i][0] = element; /* transposed, with a gap */
        c->strides[i][1] = -element * ((int64_t)tensor->shape[0] + 1);
        c->strides[i][2] = element * ((int64_t)tensor->shape[0] + 1) * ((int64_t)tensor->shape[1] + 1);
        item->into_strides = c->strides[i];
    }
}

static void run_random(uint64_t seed, const uint64_t *extents, const uint64_t *chunks, size_t chunk_choice_count)
{
    static struct random_case c;
    c.tested = (struct plan_case){.tensors = c.tensors, .items = c.items};
    c.tested.tensor_count = 1 + model_random(&seed, TENSOR_MAX);
    c.tested.item_count = model_random(&seed, ITEM_MAX + 1);
    random_tensors(&c, &seed, extents);
    for (size_t i = 0; i < c.tested.item_count; i++)
        random_item(&c, i, &seed);
    c.tested.options = (struct hr_plan_options){
        .chunk_bytes = chunks[model_random(&seed, chunk_choice_count)],
        .arena_bytes = (uint64_t)1 << model_random(&seed, 24),
        .ownership = (uint32_t)model_random(&seed, 2),
        .device_count = 2,
        .remote_devices = model_random(&seed, 4) == 0,
        .has_no_grid = (int)model_random(&seed, 2),
    };
    for (size_t i = 0; i < c.tested.item_count; i++) /* a chunk holds an element */
        if (c.items[i].dtype && c.tested.options.chunk_bytes < 8)
            c.tested.options.chunk_bytes = 8;
    if (model_random(&seed, 2))
        c.tested.options.window_bytes = 1 + (model_random(&seed, 1 << 20) >> model_random(&seed, 20));
    model_check(&c.tested);
}

static void test_random_small(void **state)
{
    static const uint64_t extents[3] = {3, 4, 5};
    static const uint64_t chunks[] = {1, 3, 7, 64, 100, 5000};
    (void)state;
    for (uint64_t n = 1; n <= 30000; n++)
        run_random(n * 0x9e3779b97f4a7c15u, extents, chunks, 6);
}

/* Large enough for every threshold: runs over 4 KiB, gaps over 64 KiB, thousands of runs. */
static void test_random_large(void **state)
{
    static const uint64_t wide[3] = {6, 6, 9000}, narrow[3] = {200, 30, 8}, square[3] = {1, 300, 300};
    static const uint64_t chunks[] = {700, 4096, 10000, 65536, 1 << 20};
    (void)state;
    for (uint64_t n = 1; n <= 25; n++) {
        run_random(n * 0xd1342543de82ef95u, wide, chunks, 5);
        run_random(n * 0xd1342543de82ef95u + 1, narrow, chunks, 5);
        run_random(n * 0xd1342543de82ef95u + 2, square, chunks, 5);
    }
}

/* ------------------------------------------------------------------------------------------ known plans */

static const struct hr_plan_options plain = {.chunk_bytes = 4 << 20, .arena_bytes = 256 << 20, .device_count = 1};

static struct hr_plan plan_of(const struct plan_case *tested)
{
    struct hr_plan plan;
    struct hr_error err;
    if (hr_plan_make(tested->tensors, tested->tensor_count, tested->file_count, tested->items, tested->item_count,
                     &tested->options, &plan, &err))
        fail_msg("%s", err.message);
    return plan;
}

struct way_case {
    uint64_t rows, columns, begin, end, step;
    uint32_t way;
};

/* Bytes of columns [begin, end) of each row. */
static void test_ways(void **state)
{
    static const struct way_case cases[] = {
        {1000, 64, 0, 64, 1, HR_WAY_DIRECT},      /* whole: one run */
        {1000, 64, 0, 32, 1, HR_WAY_STAGED},      /* short runs, small gaps */
        {1000, 64, 0, 64, 2, HR_WAY_STAGED},      /* single bytes */
        {1000, 1025, 0, 1, 1, HR_WAY_STAGED},     /* a gap of 1024 */
        {1000, 1026, 0, 1, 1, HR_WAY_DIRECT},     /* a gap of 1025: only what is needed is read */
        {1000, 1024, 0, 600, 1, HR_WAY_STAGED},   /* over-read below what is needed */
        {1000, 1600, 0, 600, 1, HR_WAY_DIRECT},   /* over-read above what is needed, and runs not short */
        {1000, 9000, 0, 8191, 1, HR_WAY_STAGED},  /* runs that are not long */
        {1000, 9000, 0, 8192, 1, HR_WAY_DIRECT},  /* long runs */
        {1000, 16384, 0, 8192, 2, HR_WAY_STAGED}, /* blocks of 8191 bytes, 8193 apart */
        {1000, 16384, 0, 2000, 2, HR_WAY_DIRECT}, /* small blocks far apart */
        {10, 1 << 20, 0, 2000, 2, HR_WAY_DIRECT}, /* the same, very far apart */
        {1, 1 << 20, 0, 2000, 2, HR_WAY_STAGED},  /* one small block */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct way_case *way = &cases[i];
        uint64_t shape[2] = {way->rows, way->columns};
        struct hr_range ranges[2] = {{0, way->rows, 1}, {way->begin, way->end, way->step}};
        struct hr_tensor tensor;
        struct hr_item item = {.size = sizeof item, .ranges = ranges};
        model_tensor(&tensor, HR_DTYPE_U8, 2, shape, 0, 0);
        struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
        struct hr_plan plan = plan_of(&tested);
        if (plan.items[0].way != way->way)
            fail_msg("case %zu: way %u", i, plan.items[0].way);
        if (way->way == HR_WAY_DIRECT)
            assert_int_equal(plan.read_bytes, plan.bytes);
        hr_plan_release(&plan);
    }
}

/* Columns that are read run by run where the page cache has them: chunks span what storage may deliver whole. */
static void test_rows(void **state)
{
    static const struct {
        uint64_t rows, columns, begin, end;
        int in_rows;
    } cases[] = {
        {1024, 8192, 2048, 4096, 1},      /* a quarter of each row */
        {1024, 8192, 0, 512, 1},          /* 16 times the need */
        {1024, 8192 + 512, 0, 512, 0},    /* more */
        {64, 32768 + 65536, 0, 32768, 1}, /* the widest gap */
        {64, 32768 + 65537, 0, 32768, 0}, /* wider */
        {1024, 8192, 0, 8192, 0},         /* whole rows are one run */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t shape[2] = {cases[i].rows, cases[i].columns};
        struct hr_range ranges[2] = {{0, shape[0], 1}, {cases[i].begin, cases[i].end, 1}};
        struct hr_tensor tensors[2];
        struct hr_item items[2] = {{.size = sizeof *items, .ranges = ranges},
                                   {.size = sizeof *items, .tensor_index = 1}};
        uint64_t end = model_tensor(&tensors[0], HR_DTYPE_U8, 2, shape, 0, 100);
        model_tensor(&tensors[1], HR_DTYPE_U8, 2, shape, 0, end);
        struct plan_case tested = {tensors, 2, 1, items, 2, plain};
        tested.options.chunk_bytes = 256 << 10;
        struct hr_plan plan = plan_of(&tested);
        uint64_t most = 0;
        for (size_t c = 0; c < plan.items[0].chunk_count; c++) {
            const struct hr_plan_chunk *chunk = &plan.chunks[plan.items[0].chunk_first + c];
            uint64_t span = chunk->file_end - chunk->file_begin;
            most = span > most ? span : most;
        }
        assert_int_equal(plan.items[0].way, HR_WAY_DIRECT);
        assert_int_equal(plan.read_bytes, plan.bytes);
        if (cases[i].in_rows)
            assert_in_range(plan.read_bytes_cold, plan.bytes + 1,
                            HR_ROWS_OVER_READ_MAX * plan.items[0].bytes + plan.items[1].bytes);
        if (cases[i].in_rows == (most > tested.options.chunk_bytes) && cases[i].begin + cases[i].end != shape[1])
            fail_msg("case %zu: a chunk spans %llu bytes", i, (unsigned long long)most);
        hr_plan_release(&plan);
    }
}

/* Blocks of a staged slice that lie far apart: the space between them is not read. */
static void test_staged_blocks(void **state)
{
    (void)state;
    uint64_t shape[2] = {100, 1 << 20};
    struct hr_range ranges[2] = {{0, 100, 1}, {0, 16384, 2}};
    struct hr_tensor tensor;
    struct hr_item item = {.size = sizeof item, .ranges = ranges};
    model_tensor(&tensor, HR_DTYPE_U8, 2, shape, 0, 0);
    struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
    struct hr_plan plan = plan_of(&tested);
    assert_int_equal(plan.chunk_count, 100);
    assert_int_equal(plan.bytes, 100 * 8192);
    assert_int_equal(plan.read_bytes, 100 * 16383);
    hr_plan_release(&plan);
    ranges[1].stop = 2; /* single bytes, 1 MiB apart: a chunk each rather than 100 MiB read */
    plan = plan_of(&tested);
    assert_int_equal(plan.read_bytes, 100);
    hr_plan_release(&plan);
}

/* Two tensors of 10 MiB and then 1000 of 1 KiB, in one file, starting at 1000. */
static void test_cuts(void **state)
{
    (void)state;
    uint64_t large[1] = {10 * MIB}, small[1] = {1024};
    struct hr_tensor tensors[1002];
    struct hr_item items[1002];
    uint64_t offset = 1000;
    for (size_t t = 0; t < 1002; t++) {
        offset = model_tensor(&tensors[t], HR_DTYPE_U8, 1, t < 2 ? large : small, 0, offset);
        items[t] = (struct hr_item){.size = sizeof items[0], .tensor_index = 1001 - t};
    }
    struct plan_case tested = {tensors, 1002, 1, items, 1002, plain};
    struct hr_plan plan = plan_of(&tested);
    assert_int_equal(plan.chunk_count, 6); /* cut at 4, 8, 12, 16, 20 MiB of the arena */
    for (size_t c = 0; c < 5; c++)
        assert_int_equal(plan.chunks[c].file_end, 1000 + (c + 1) * 4 * MIB);
    assert_int_equal(plan.chunks[5].piece_count, 1000);
    assert_int_equal(plan.order[0], 1001);
    assert_int_equal(plan.group_count, 1);
    assert_int_equal(plan.items[1000].target_offset, 10 * MIB);
    assert_int_equal(plan.groups[0].arena_bytes, 20 * MIB + 1000 * 1024);
    hr_plan_release(&plan);

    struct hr_item ends[2] = {items[0], items[1001]}; /* what lies between is not read */
    tested.items = ends;
    tested.item_count = 2;
    plan = plan_of(&tested);
    assert_int_equal(plan.read_bytes, 10 * MIB + 1024);
    assert_int_equal(plan.chunks[plan.chunk_count - 1].bytes, 1024); /* 10 MiB away: a chunk of its own */
    hr_plan_release(&plan);

    tested.items = items; /* a new arena where the next tensor would not fit */
    tested.item_count = 1002;
    tested.options.arena_bytes = 10 * MIB;
    plan = plan_of(&tested);
    assert_int_equal(plan.group_count, 3);
    assert_int_equal(plan.groups[2].arena_bytes, 1000 * 1024);
    hr_plan_release(&plan);
    tested.options.window_bytes = 1; /* each tensor a group */
    plan = plan_of(&tested);
    assert_int_equal(plan.group_count, 1002);
    hr_plan_release(&plan);
}

/* Many small tensors share a chunk up to its bounds of pieces and bytes; a long one is cut at pages off the grid. */
static void test_small_tensors(void **state)
{
    enum { SMALL_COUNT = 5500 };
    (void)state;
    uint64_t small[1] = {700}, large[1] = {10 * MIB};
    struct hr_tensor tensors[SMALL_COUNT + 1];
    struct hr_item items[SMALL_COUNT + 1];
    uint64_t offset = 3 * MIB + 100;
    for (size_t t = 0; t <= SMALL_COUNT; t++) {
        offset = model_tensor(&tensors[t], HR_DTYPE_U8, 1, t < SMALL_COUNT ? small : large, 0, offset);
        items[t] = (struct hr_item){.size = sizeof items[0], .tensor_index = t};
    }
    struct plan_case tested = {tensors, SMALL_COUNT + 1, 1, items, SMALL_COUNT + 1, plain};
    for (tested.options.remote_devices = 0; tested.options.remote_devices < 2; tested.options.remote_devices++) {
        struct hr_plan plan = plan_of(&tested);
        assert_int_equal(plan.chunks[0].piece_count, HR_CHUNK_RUNS_MAX);
        hr_plan_release(&plan);
    }
    tested.options.remote_devices = 0;
    /* The second chunk has passed 4 MiB of the arena before the long one, and is full before 8 MiB. */
    struct hr_plan plan = plan_of(&tested);
    uint64_t few = SMALL_COUNT - HR_CHUNK_RUNS_MAX, place = SMALL_COUNT * 768;
    uint64_t cut = (place + 4 * MIB - few * 700) / 4096 * 4096;
    assert_int_equal(plan.items[SMALL_COUNT].target_offset, place);
    assert_int_equal(plan.chunks[1].bytes, few * 700 + cut - place);
    assert_int_equal(plan.chunks[2].bytes, 8 * MIB - cut);
    hr_plan_release(&plan);
}

/* Long runs with wide gaps are cut between runs, or on the grid inside them. */
static void test_strided_cuts(void **state)
{
    (void)state;
    uint64_t shape[2] = {8, 8 * MIB};
    struct hr_range ranges[2] = {{0, 8, 1}, {0, 3 * MIB, 1}};
    struct hr_tensor tensor;
    struct hr_item item = {.size = sizeof item, .ranges = ranges};
    model_tensor(&tensor, HR_DTYPE_U8, 2, shape, 0, 512);
    struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
    struct hr_plan plan = plan_of(&tested);
    assert_int_equal(plan.chunk_count, 8);
    for (size_t p = 0; p < 8; p++)
        assert_int_equal(plan.pieces[p].end, (p + 1) * 3 * MIB);
    hr_plan_release(&plan);
    ranges[1].stop = 6 * MIB;
    plan = plan_of(&tested);
    assert_int_equal(plan.pieces[0].end, 4 * MIB);
    assert_int_equal(plan.pieces[1].end, 6 * MIB);
    hr_plan_release(&plan);
    ranges[1] = (struct hr_range){0, 8 * MIB, 2000}; /* single bytes: a chunk needs a bounded number of reads */
    plan = plan_of(&tested);
    assert_int_equal(plan.items[0].way, HR_WAY_DIRECT);
    assert_int_equal(plan.chunks[0].bytes, HR_CHUNK_RUNS_MAX);
    hr_plan_release(&plan);
}

/* ------------------------------------------------------------------------------------------- refusals */

static void expect_refusal(const struct hr_item *items, size_t item_count, int code, const char *part)
{
    static const uint64_t shape[1] = {4};
    struct hr_tensor tensors[2];
    struct hr_plan plan, before;
    struct hr_error err;
    memset(&plan, 0x5a, sizeof plan);
    memcpy(&before, &plan, sizeof plan);
    model_tensor(&tensors[0], HR_DTYPE_F32, 1, shape, 0, 0);
    model_tensor(&tensors[1], HR_DTYPE_F32, 1, shape, 0, 16);
    assert_int_equal(hr_plan_make(tensors, 2, 1, items, item_count, &plain, &plan, NULL), code);
    assert_int_equal(hr_plan_make(tensors, 2, 1, items, item_count, &plain, &plan, &err), code);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, part))
        fail_msg("'%s' is not in '%s'", part, err.message);
    assert_memory_equal(&plan, &before, sizeof plan);
}

/* An item of a later version. */
struct longer_item {
    struct hr_item item;
    uint64_t more;
};

static void test_refusals(void **state)
{
    (void)state;
    struct hr_item items[2] = {{.size = sizeof items[0]}, {.size = sizeof items[0]}};
    struct hr_plan plan;
    expect_refusal(NULL, 2, HR_EINVALID_ARGUMENT, "NULL");
    items[1].tensor_index = 2;
    expect_refusal(items, 2, HR_EINVALID_ARGUMENT, "item 1: its tensor index is 2, but there are 2");
    items[1] = (struct hr_item){.size = sizeof items[0], .device_index = 1};
    expect_refusal(items, 2, HR_EINVALID_ARGUMENT, "item 1: its device index is 1");
    items[1] = (struct hr_item){.size = sizeof items[0], .dtype = HR_DTYPE_C64};
    expect_refusal(items, 2, HR_EUNSUPPORTED,
                   "is stored as F32 and cannot be converted to C64; load it as it is stored, or as BOOL, ");
    items[1] = (struct hr_item){.size = sizeof items[0], .dtype = 99};
    expect_refusal(items, 2, HR_EUNSUPPORTED, "dtype 99, which is none");
    items[1] = (struct hr_item){.size = sizeof items[0] + 8};
    expect_refusal(items, 2, HR_EINVALID_ARGUMENT, "item 1: its size is");
    items[0].size = 0;
    expect_refusal(items, 2, HR_EINVALID_ARGUMENT, "item 0: its size is 0");
    struct longer_item longer[2] = {{.item = {.size = sizeof longer[0]}}, {.item = {.size = sizeof longer[0]}}};
    longer[1].item.tensor_index = 1;
    struct hr_tensor tensors[2];
    static const uint64_t shape[1] = {4};
    model_tensor(&tensors[0], HR_DTYPE_F32, 1, shape, 0, 0);
    model_tensor(&tensors[1], HR_DTYPE_F32, 1, shape, 0, 16);
    assert_int_equal(hr_plan_make(tensors, 2, 1, &longer[0].item, 2, &plain, &plan, NULL), 0);
    assert_int_equal(plan.items[1].tensor_index, 1);
    hr_plan_release(&plan);
    longer[1].more = 1;
    expect_refusal(&longer[0].item, 2, HR_EINVALID_ARGUMENT, "item 1: byte");
}

/* --------------------------------------------------------------------------------- size and failures */

/* A terabyte in a million tensors over 250 files, asked for backwards. */
static void test_million(void **state)
{
    enum { COUNT = 1000000 };
    (void)state;
    uint64_t shape[2] = {512, 1024};
    struct hr_tensor *tensors = calloc(COUNT, sizeof *tensors);
    struct hr_item *items = calloc(COUNT, sizeof *items);
    uint64_t offset = 0;
    for (size_t t = 0; t < COUNT; t++) {
        offset = model_tensor(&tensors[t], HR_DTYPE_BF16, 2, shape, t / 4000, t % 4000 ? offset : 4096);
        items[t] = (struct hr_item){.size = sizeof items[0], .tensor_index = COUNT - 1 - t};
    }
    struct plan_case tested = {tensors, COUNT, 250, items, COUNT, plain};
    struct timespec a, b;
    count_from(0);
    clock_gettime(CLOCK_MONOTONIC, &a);
    struct hr_plan plan = plan_of(&tested);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
    print_message("1000000 items, %zu chunks, %zu pieces: %.3f s, %zu bytes at most\n", plan.chunk_count,
                  plan.piece_count, seconds, peak_bytes);
    assert_int_equal(plan.bytes, (uint64_t)COUNT * MIB);
    assert_true(plan.piece_count <= 2 * COUNT && plan.chunk_count <= COUNT / 2);
    assert_true(peak_bytes < (size_t)400 * COUNT);
    assert_true(seconds < 10); /* a bound for slow machines and sanitizers: a square would take hours */
    hr_plan_release(&plan);
    assert_int_equal(live_count, 0);
    hr_sys = &hr_sys_real;
    free(tensors);
    free(items);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    uint64_t shape[2] = {100, 1000};
    struct hr_range ranges[2] = {{0, 100, 1}, {0, 500, 2}};
    struct hr_tensor tensors[3];
    struct hr_item items[3];
    uint64_t offset = 0;
    for (size_t t = 0; t < 3; t++) {
        offset = model_tensor(&tensors[t], HR_DTYPE_F32, 2, shape, 0, offset);
        items[t] = (struct hr_item){.size = sizeof items[0], .tensor_index = 2 - t, .ranges = t == 1 ? ranges : NULL};
    }
    struct hr_plan_options options = plain;
    options.chunk_bytes = 1000; /* so that chunks and pieces grow more than once */
    for (size_t n = 1;; n++) {
        struct hr_plan plan, before;
        struct hr_error err = {0};
        memset(&plan, 0x5a, sizeof plan);
        memcpy(&before, &plan, sizeof plan);
        count_from(n);
        int code = hr_plan_make(tensors, 3, 1, items, 3, &options, &plan, &err);
        if (code == 0) {
            hr_plan_release(&plan);
            assert_int_equal(live_count, 0);
            assert_true(n > 10);
            break;
        }
        assert_int_equal(code, HR_EOUT_OF_MEMORY);
        assert_non_null(strstr(err.message, "out of memory"));
        assert_memory_equal(&plan, &before, sizeof plan);
        assert_int_equal(live_count, 0);
    }
    hr_sys = &hr_sys_real;
}

/* Few chunks for each reader: they are smaller, but never where the caller chose them. */
static void test_short_loads(void **state)
{
    static const struct {
        uint64_t bytes, chunk_bytes;
        uint32_t reader_count;
        uint64_t expected;
    } cases[] = {
        {480 * MIB, 4 * MIB, 16, 2 * MIB}, {767 * MIB, 4 * MIB, 16, 2 * MIB}, {768 * MIB, 4 * MIB, 16, 4 * MIB},
        {480 * MIB, 4 * MIB, 0, 4 * MIB},  {480 * MIB, 4 * MIB, 4, 4 * MIB},  {10 * MIB, 1 * MIB, 16, 1 * MIB},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t shape[1] = {cases[i].bytes};
        struct hr_tensor tensor;
        struct hr_item item = {.size = sizeof item};
        model_tensor(&tensor, HR_DTYPE_U8, 1, shape, 0, 1000);
        struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
        tested.options.chunk_bytes = cases[i].chunk_bytes;
        tested.options.reader_count = cases[i].reader_count;
        struct hr_plan plan = plan_of(&tested);
        assert_int_equal(plan.options.chunk_bytes, cases[i].expected);
        assert_int_equal(plan.chunks[0].bytes, cases[i].expected);
        hr_plan_release(&plan);
    }
}

/* A tensor that begins anywhere is cut where the grid of the file is, or into as few chunks as hold it. */
static void test_grid(void **state)
{
    static const struct {
        int has_no_grid;
        size_t chunk_count;
        uint64_t first_bytes;
    } cases[] = {{0, 3, 4 * MIB - 1000}, {1, 2, 4 * MIB}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t shape[1] = {8 * MIB};
        struct hr_tensor tensor;
        struct hr_item item = {.size = sizeof item};
        model_tensor(&tensor, HR_DTYPE_U8, 1, shape, 0, 1000);
        struct plan_case tested = {&tensor, 1, 1, &item, 1, plain};
        tested.options.remote_devices = 1;
        tested.options.has_no_grid = cases[i].has_no_grid;
        struct hr_plan plan = plan_of(&tested);
        assert_int_equal(plan.chunk_count, cases[i].chunk_count);
        assert_int_equal(plan.chunks[0].bytes, cases[i].first_bytes);
        hr_plan_release(&plan);
    }
}

/* Groups come in the order of their keys, whatever the order of the files. */
static void test_keys(void **state)
{
    static const size_t keys[] = {2, 0, 1, 0};
    static const size_t expected[] = {1, 3, 2, 0};
    uint64_t shape[1] = {100};
    struct hr_tensor tensors[4];
    struct hr_item items[4];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        model_tensor(&tensors[i], HR_DTYPE_U8, 1, shape, 0, 100 * i);
        items[i] = (struct hr_item){.size = sizeof items[i], .tensor_index = i};
    }
    struct plan_case tested = {tensors, 4, 1, items, 4, plain};
    tested.options.group_keys = keys;
    struct hr_plan plan = plan_of(&tested);
    assert_int_equal(plan.group_count, 3);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(plan.order[i], expected[i]);
    for (size_t g = 0; g < 3; g++)
        assert_int_equal(plan.groups[g].key, g);
    hr_plan_release(&plan);
}

static void test_release_twice(void **state)
{
    (void)state;
    struct hr_plan plan;
    assert_int_equal(hr_plan_make(NULL, 0, 0, NULL, 0, &plain, &plan, NULL), 0);
    assert_int_equal(plan.group_count + plan.chunk_count + plan.bytes, 0);
    hr_plan_release(&plan);
    hr_plan_release(&plan);
    hr_plan_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_small),
        cmocka_unit_test(test_random_large),
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_staged_blocks),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_small_tensors),
        cmocka_unit_test(test_strided_cuts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_million),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_short_loads),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_release_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
