/*
 * fuzz_plan.c: requests over tables of tensors. What is refused must have a reason; a plan that is made is held byte by
 * byte against the naive model of the planner's tests, and printed as JSON that jansson reads.
 *
 * Slices stay small, so that the model can list every byte; extents, steps, strides and offsets may be huge.
 */
#include "fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/describe.h"
#include "plan/plan.h"
#include "support/plan_model.h"

enum { TENSOR_MAX = 5, ITEM_MAX = 8, RANK_TOP = 5, FILE_MAX = 3 };

/* Elements of an item's slice: usually, in long runs, and with tiny chunks, as each element becomes many of them. */
#define ELEMENTS_MAX 512
#define ELEMENTS_MAX_LONG 8192
#define ELEMENTS_MAX_TINY 64
#define DESCRIBED_CHUNKS_MAX 200
#define TENSOR_BITS_MAX ((uint64_t)1 << 61) /* so that positions fit 63 bits wherever the tensor lies */

/* Of an element: a chunk holds one at least where dtypes are converted. */
#define WIDEST_BYTES 8u
/* An item of a caller whose struct is longer than the one that the library knows. */
struct long_item {
    struct hr_item item;
    uint64_t tail;
};

struct request {
    struct plan_case tested;
    uint64_t elements_max;
    struct hr_tensor tensors[TENSOR_MAX];
    struct hr_item items[ITEM_MAX];
    uint64_t shapes[TENSOR_MAX][RANK_TOP];
    struct hr_range ranges[ITEM_MAX][RANK_TOP];
    int64_t strides[ITEM_MAX][RANK_TOP];
};

/* A shape whose product fits, in whole bytes. An extent of 0 allows any others behind it, as the format does. */
static void make_tensor(struct request *request, size_t t, struct fuzz_feed *feed)
{
    struct hr_tensor *tensor = &request->tensors[t];
    uint64_t *shape = request->shapes[t];
    uint32_t dtype = 1 + fuzz_byte(feed) % (HR_DTYPE_COUNT - 1), rank = fuzz_byte(feed) % (RANK_TOP + 1);
    uint64_t bits = hr_dtype_bits(dtype);
    int is_sub_byte = bits < 8;
    bits = is_sub_byte ? 8 * bits : bits;
    for (uint32_t d = 0; d < rank; d++) {
        shape[d] = fuzz_number(feed);
        if (shape[d] > TENSOR_BITS_MAX / (bits ? bits : 1))
            shape[d] = TENSOR_BITS_MAX / (bits ? bits : 1);
        bits *= shape[d];
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < rank; d++)
        elements *= shape[d];
    if (is_sub_byte && !rank)
        dtype = HR_DTYPE_U8;
    else if (elements * hr_dtype_bits(dtype) % 8) {
        shape[rank - 1] *= 8;
        elements *= 8;
    }
    size_t file = fuzz_byte(feed) % FILE_MAX;
    uint64_t offset = t && request->tensors[t - 1].file_index == file
                          ? request->tensors[t - 1].offset + request->tensors[t - 1].size
                          : fuzz_number(feed) % ((uint64_t)1 << 40);
    *tensor = (struct hr_tensor){.name = "t", .name_size = 1, .dtype = dtype, .rank = rank, .shape = shape};
    tensor->file_index = file;
    tensor->offset = offset;
    tensor->size = elements * hr_dtype_bits(dtype) / 8;
}

/* Bounds anywhere, mostly in range; huge slices are cut to what the model can list. */
static void make_ranges(struct hr_range *ranges, const struct hr_tensor *tensor, struct fuzz_feed *feed)
{
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint8_t how = fuzz_byte(feed);
        struct hr_range *range = &ranges[d];
        *range = (struct hr_range){0, tensor->shape[d], 1};
        if (how & 1) {
            range->start = fuzz_number(feed);
            range->stop = how & 2 ? tensor->shape[d] - fuzz_number(feed) : range->start + fuzz_number(feed);
        }
        if (how & 4)
            range->step = fuzz_number(feed) >> 2;
    }
}

/* Cuts the longest ranges until the slice has few elements. */
static void limit_ranges(struct hr_range *ranges, const struct hr_tensor *tensor, uint64_t room)
{
    for (uint32_t d = tensor->rank; d-- > 0;) {
        struct hr_range *range = &ranges[d];
        uint64_t step = range->step ? range->step : 1;
        if (range->stop <= range->start)
            continue;
        uint64_t count = (range->stop - range->start - 1) / step + 1;
        if (count > room) {
            uint64_t most = hr_dtype_bits(tensor->dtype) < 8 && room >= 8 ? room / 8 * 8 : room;
            range->stop = range->start + (most - 1) * step + 1;
            count = most;
        }
        room = room / count ? room / count : 1;
    }
}

/* Strides of a view: any order of dimensions, with gaps, some of them backwards; or any numbers at all. */
static void make_strides(int64_t *strides, const struct hr_tensor *tensor, struct fuzz_feed *feed)
{
    uint8_t how = fuzz_byte(feed);
    uint64_t stride = hr_dtype_bits(tensor->dtype) / 8;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        uint32_t d = how & 1 ? i : tensor->rank - 1 - i;
        if (how & 2) {
            strides[d] = (int64_t)fuzz_number(feed);
        } else {
            stride += how & 4 ? (uint64_t)(int8_t)fuzz_byte(feed) : 0; /* a gap, or less than it takes */
            strides[d] = how >> (3 + i % 5) & 1 ? (int64_t)(0 - stride) : (int64_t)stride;
            if (__builtin_mul_overflow(stride, tensor->shape[d] ? tensor->shape[d] : 1, &stride))
                stride = 1;
        }
    }
}

static void make_item(struct request *request, size_t i, struct fuzz_feed *feed)
{
    struct hr_item *item = &request->items[i];
    uint8_t how = fuzz_byte(feed), place = fuzz_byte(feed);
    *item = (struct hr_item){.size = sizeof *item, .tensor_index = place % 64 % (request->tested.tensor_count + 1)};
    item->tensor_index -= item->tensor_index == request->tested.tensor_count && how & 128;
    item->device_index = place >> 6;
    item->into = how & 1 ? (void *)(uintptr_t)4096 : NULL;
    if (item->tensor_index >= request->tested.tensor_count)
        return;
    const struct hr_tensor *tensor = &request->tensors[item->tensor_index];
    uint64_t room = request->elements_max;
    item->dtype = (how & 6) == 6 ? fuzz_byte(feed) % (HR_DTYPE_COUNT + 1) : how & 2 ? tensor->dtype : 0;
    if (how & 8 || tensor->size > room) {
        make_ranges(request->ranges[i], tensor, feed);
        limit_ranges(request->ranges[i], tensor, room);
        item->ranges = request->ranges[i];
    }
    if (how & 16) {
        make_strides(request->strides[i], tensor, feed);
        item->into_strides = request->strides[i];
    }
}

static void make_request(struct request *request, struct fuzz_feed *feed)
{
    struct plan_case *tested = &request->tested;
    uint8_t how = fuzz_byte(feed);
    *tested = (struct plan_case){.tensors = request->tensors, .items = request->items, .file_count = FILE_MAX};
    tested->options = (struct hr_plan_options){
        .chunk_bytes = 1 + fuzz_number(feed) % HR_CHUNK_BYTES_MAX,
        .arena_bytes = 1 + fuzz_number(feed),
        .window_bytes = fuzz_number(feed),
        .ownership = how & 1,
        .device_count = 1 + (how >> 1 & 3),
        .remote_devices = how >> 3 & 1,
        .has_no_grid = how >> 5 & 1,
    };
    request->elements_max = tested->options.chunk_bytes < 64 ? ELEMENTS_MAX_TINY
                            : how & 16                       ? ELEMENTS_MAX_LONG
                                                             : ELEMENTS_MAX;
    tested->tensor_count = 1 + fuzz_byte(feed) % TENSOR_MAX;
    tested->item_count = fuzz_byte(feed) % (ITEM_MAX + 1);
    for (size_t t = 0; t < tested->tensor_count; t++)
        make_tensor(request, t, feed);
    for (size_t i = 0; i < tested->item_count; i++) {
        make_item(request, i, feed);
        if (tested->items[i].dtype && tested->options.chunk_bytes < WIDEST_BYTES)
            request->tested.options.chunk_bytes = WIDEST_BYTES;
    }
}

/* ------------------------------------------------------------------------------------ reasons to refuse */

static uint64_t slice_count(const struct hr_tensor *tensor, const struct hr_item *item, uint32_t d)
{
    if (!item->ranges)
        return tensor->shape[d];
    const struct hr_range *range = &item->ranges[d];
    return range->start == range->stop ? 0 : (range->stop - range->start - 1) / (range->step ? range->step : 1) + 1;
}

static int is_empty(const struct hr_tensor *tensor, const struct hr_item *item)
{
    for (uint32_t d = 0; d < tensor->rank; d++)
        if (slice_count(tensor, item, d) == 0)
            return 1;
    return 0;
}

static unsigned __int128 magnitude(int64_t value)
{
    return value < 0 ? -(unsigned __int128)value : (unsigned __int128)value;
}

/* What the elements become. */
static uint32_t target_dtype(const struct hr_tensor *tensor, const struct hr_item *item)
{
    return item->dtype ? item->dtype : tensor->dtype;
}

/* Sub-byte elements are only placed compact: each stride is that of a compact destination, in whole bytes. */
static int strides_are_compact(const struct hr_tensor *tensor, const struct hr_item *item)
{
    uint64_t bits = hr_dtype_bits(tensor->dtype);
    for (uint32_t d = tensor->rank; d-- > 0;) {
        uint64_t count = slice_count(tensor, item, d);
        if (count > 1 && item->into_strides[d] != (int64_t)(bits / 8))
            return 0;
        bits *= count;
    }
    return 1;
}

/* From the smallest stride to the largest, each steps over all that lies inside, within 63 bits. */
static int strides_nest(const struct hr_tensor *tensor, const struct hr_item *item)
{
    unsigned __int128 span = hr_dtype_bits(target_dtype(tensor, item)) / 8;
    uint32_t taken = 0, wanted = 0;
    for (uint32_t d = 0; d < tensor->rank; d++)
        wanted |= slice_count(tensor, item, d) > 1 ? 1u << d : 0;
    while (taken != wanted) {
        uint32_t least = RANK_TOP;
        for (uint32_t d = 0; d < tensor->rank; d++)
            if ((wanted & ~taken) >> d & 1 &&
                (least == RANK_TOP || magnitude(item->into_strides[d]) < magnitude(item->into_strides[least])))
                least = d;
        unsigned __int128 stride = magnitude(item->into_strides[least]);
        if (stride < span)
            return 0;
        span += stride * (slice_count(tensor, item, least) - 1);
        if (span > INT64_MAX)
            return 0;
        taken |= 1u << least;
    }
    return 1;
}

/* What one item deserves by itself. */
static int item_code(const struct plan_case *tested, const struct hr_item *item)
{
    if (item->tensor_index >= tested->tensor_count || item->device_index >= tested->options.device_count)
        return HR_EINVALID_ARGUMENT;
    const struct hr_tensor *tensor = &tested->tensors[item->tensor_index];
    uint32_t target = target_dtype(tensor, item);
    return target == tensor->dtype || hr_dtype_converts(tensor->dtype, target) ? 0 : HR_EUNSUPPORTED;
}

static int slice_code(const struct plan_case *tested, const struct hr_item *item)
{
    const struct hr_tensor *tensor = &tested->tensors[item->tensor_index];
    for (uint32_t d = 0; item->ranges && d < tensor->rank; d++)
        if (item->ranges[d].start > item->ranges[d].stop || item->ranges[d].stop > tensor->shape[d])
            return HR_EINVALID_ARGUMENT;
    if (is_empty(tensor, item))
        return 0;
    if (item->into_strides && !item->into)
        return HR_EINVALID_ARGUMENT;
    if (item->into_strides && hr_dtype_bits(tensor->dtype) < 8 && !strides_are_compact(tensor, item))
        return HR_EUNSUPPORTED;
    if (item->into_strides && hr_dtype_bits(tensor->dtype) >= 8 && !strides_nest(tensor, item))
        return HR_EINVALID_ARGUMENT;
    return model_item(tensor, item);
}

/* First all items are looked at by themselves, then their slices. */
static int request_code(const struct plan_case *tested)
{
    int code = 0;
    for (size_t i = 0; !code && i < tested->item_count; i++)
        code = item_code(tested, &tested->items[i]);
    for (size_t i = 0; !code && i < tested->item_count; i++)
        code = slice_code(tested, &tested->items[i]);
    return code;
}

/* ------------------------------------------------------------------------------------------------- plans */

/* A plan as text must be JSON without a key twice. */
static void check_described(const struct plan_case *tested, const struct hr_plan *plan)
{
    struct hr_file files[FILE_MAX] = {{.path = "a"}, {.path = "b\n\xff"}, {.path = "\"c\\"}};
    const struct hr_plan_facts facts = {.route = "pread", .route_reason = "why", .thread_count = 1, .queue_depth = 1};
    struct hr_error err;
    char *text;
    for (size_t i = 0; i < FILE_MAX; i++)
        files[i].size = UINT64_MAX >> 1;
    FUZZ_CHECK(hr_plan_to_text(plan, tested->tensors, files, &facts, HR_PLAN_JSON, &text, &err) == 0);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
    FUZZ_CHECK(json_is_object(json));
    json_decref(json);
    hr_string_free(text);
    FUZZ_CHECK(hr_plan_to_text(plan, tested->tensors, files, &facts, HR_PLAN_TEXT, &text, &err) == 0);
    FUZZ_CHECK(text[0] != '\0');
    hr_string_free(text);
}

/* The same request in longer structs: taken as it is when their tails are 0. */
static void check_long_items(const struct plan_case *tested, const struct hr_plan *plan, size_t dirty_index)
{
    struct long_item items[ITEM_MAX];
    struct hr_plan again;
    for (size_t i = 0; i < tested->item_count; i++) {
        items[i] = (struct long_item){.item = tested->items[i], .tail = i == dirty_index};
        items[i].item.size = sizeof items[i];
    }
    int code = hr_plan_make(tested->tensors, tested->tensor_count, tested->file_count, &items->item, tested->item_count,
                            &tested->options, &again, NULL);
    FUZZ_CHECK(code == (dirty_index < tested->item_count ? HR_EINVALID_ARGUMENT : 0));
    if (code)
        return;
    FUZZ_CHECK(again.piece_count == plan->piece_count && again.chunk_count == plan->chunk_count);
    for (size_t p = 0; p < plan->piece_count; p++)
        FUZZ_CHECK(again.pieces[p].item_index == plan->pieces[p].item_index &&
                   again.pieces[p].begin == plan->pieces[p].begin && again.pieces[p].end == plan->pieces[p].end);
    hr_plan_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_feed feed = {data, size};
    static struct request request;
    struct hr_plan plan;
    struct hr_error err;
    make_request(&request, &feed);
    const struct plan_case *tested = &request.tested;
    fuzz_mark(&plan, sizeof plan);
    int expected = request_code(tested);
    int code = hr_plan_make(tested->tensors, tested->tensor_count, tested->file_count, tested->items,
                            tested->item_count, &tested->options, &plan, &err);
    FUZZ_CHECK(code == expected);
    if (code) {
        fuzz_check_marked(&plan, sizeof plan);
        fuzz_check_error(&err, code, 0);
        return 0;
    }
    model_check_plan(tested, &plan);
    if (plan.chunk_count <= DESCRIBED_CHUNKS_MAX)
        check_described(tested, &plan);
    check_long_items(tested, &plan, fuzz_byte(&feed));
    hr_plan_release(&plan);
    return 0;
}
