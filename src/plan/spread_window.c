/*
 * spread_window.c: windows, parts, segments: their sizes, and walks over them.
 */
#include "plan/spread_window.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/sys.h"
#include "plan/chunk.h"

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + HR_TENSOR_ALIGNMENT - 1) / HR_TENSOR_ALIGNMENT * HR_TENSOR_ALIGNMENT;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ------------------------------------------------------------------------------------------- walks */

struct hr_spread_window hr_spread_window_at(const struct hr_spread *spread, size_t index)
{
    uint64_t full = spread->part_bytes * spread->world;
    struct hr_spread_window window = {index, index * full, least((index + 1) * full, spread->stream_bytes), 0, 0};
    window.part_bytes = round_up((window.end - window.begin + spread->world - 1) / spread->world);
    window.segment_bytes = spread->segment_bytes[index];
    return window;
}

struct hr_range hr_spread_part(const struct hr_spread_window *window, uint32_t rank)
{
    uint64_t begin = least(window->begin + rank * window->part_bytes, window->end);
    return (struct hr_range){begin, least(begin + window->part_bytes, window->end), 1};
}

size_t hr_spread_first(const struct hr_spread *spread, size_t first, uint64_t begin)
{
    while (first < spread->item_count && spread->items[first].end <= begin)
        first++;
    return first;
}

int hr_spread_piece(const struct hr_spread_item *item, const struct hr_plan_item *geometry, uint64_t begin,
                    uint64_t end, struct hr_plan_piece *ret_piece)
{
    begin = most(begin, item->begin);
    end = least(end, item->end);
    if (begin >= end || geometry->bytes == 0)
        return 0;
    ret_piece->item_index = item->item_index;
    ret_piece->begin = hr_stream_before(geometry, item->source + (begin - item->begin));
    ret_piece->end = hr_stream_before(geometry, item->source + (end - item->begin));
    return ret_piece->begin < ret_piece->end;
}

int hr_spread_range_next(const struct hr_spread *spread, uint64_t begin, uint64_t end, size_t *item_next,
                         struct hr_spread_range *ret_range)
{
    size_t i = hr_spread_first(spread, *item_next, begin);
    if (i == spread->item_count || spread->items[i].begin >= end)
        return 0;
    const struct hr_spread_item *first = &spread->items[i];
    uint64_t from = most(first->begin, begin), to = least(first->end, end);
    for (*item_next = i + 1; *item_next < spread->item_count; ++*item_next) {
        const struct hr_spread_item *next = &spread->items[*item_next];
        if (next->extent != first->extent || next->begin >= end)
            break;
        to = most(to, least(next->end, end));
    }
    uint64_t source = first->source + (from - first->begin);
    *ret_range = (struct hr_spread_range){first->file_index, source, source + (to - from), from, i};
    return 1;
}

/* ------------------------------------------------------------------------------------------- sizes */

/*
 * Without pinned memory that parts are read to before, windows take a fifth of the memory each: the slots beside it are
 * what readers read ahead to. With it they are as large as they can be with so many slots, for copies over the link while
 * one is sent and one is being opened.
 */
#define WINDOW_FRACTION 5
#define SLOT_COUNT_REMOTE 4
#define SLOT_COUNT_MAX 64

/* A buffer: for an all-gather, or what is packed for a scatter and what comes of it. */
static uint64_t buffer_memory(const struct hr_spread *spread, uint64_t part_bytes)
{
    return round_up((part_bytes + HR_SPREAD_STATUS_BYTES) * spread->world * 9 / 8);
}

/* All that is needed with so many slots, besides the spare ones. */
static uint64_t memory(const struct hr_spread *spread, uint64_t part_bytes, uint64_t slot_count)
{
    return (slot_count + spread->spare_slots) * (part_bytes + HR_SPREAD_STATUS_BYTES) +
           spread->buffer_count * buffer_memory(spread, part_bytes) +
           (uint64_t)spread->depth * spread->world * HR_SPREAD_STATUS_BYTES;
}

uint64_t hr_spread_memory(const struct hr_spread *spread)
{
    return memory(spread, spread->part_bytes, spread->slot_count);
}

static uint64_t slots_that_fit(const struct hr_spread *spread, uint64_t part_bytes, uint64_t group_bytes)
{
    uint64_t others = memory(spread, part_bytes, 0);
    return others > group_bytes ? 0 : (group_bytes - others) / (part_bytes + HR_SPREAD_STATUS_BYTES);
}

static uint64_t part_wanted(const struct hr_spread *spread, uint64_t group_bytes)
{
    if (spread->depth == 1)
        return group_bytes / WINDOW_FRACTION / spread->world;
    return group_bytes / (SLOT_COUNT_REMOTE * 8 + (uint64_t)spread->buffer_count * spread->world * 9) * 8;
}

static int size_windows(struct hr_spread *spread, uint64_t group_bytes, struct hr_error *err)
{
    uint64_t world = spread->world, wanted = spread->depth == 1 ? 2 : SLOT_COUNT_REMOTE;
    uint64_t part = part_wanted(spread, group_bytes) / HR_TENSOR_ALIGNMENT * HR_TENSOR_ALIGNMENT;
    part = most(HR_TENSOR_ALIGNMENT, least(part, round_up((spread->stream_bytes + world - 1) / world)));
    while (part > HR_TENSOR_ALIGNMENT && slots_that_fit(spread, part, group_bytes) < wanted)
        part -= HR_TENSOR_ALIGNMENT;
    uint64_t slots = slots_that_fit(spread, part, group_bytes);
    if (slots < 2)
        return hr_fail(
            err, HR_EINVALID_ARGUMENT, "group_bytes is %llu, which is too little for %u ranks; give at least %llu",
            (unsigned long long)group_bytes, spread->world, (unsigned long long)memory(spread, HR_TENSOR_ALIGNMENT, 2));
    spread->part_bytes = part;
    spread->window_count = (size_t)((spread->stream_bytes + part * world - 1) / (part * world));
    spread->slot_bytes = part + HR_SPREAD_STATUS_BYTES;
    spread->slot_count = (size_t)most(2, least(least(slots, SLOT_COUNT_MAX), spread->window_count));
    spread->depth = (uint32_t)least(spread->depth, spread->slot_count);
    spread->buffer_bytes = buffer_memory(spread, part);
    return 0;
}

/* ------------------------------------------------------------------------------------------- kinds */

/* The longest segment: of all ranks' parts, what rank j needs, for every j. `sums` has an entry for each rank. */
static uint64_t longest_segment(const struct hr_spread *spread, const struct hr_spread_window *window, size_t first,
                                uint64_t *scratch, uint64_t *sums)
{
    uint64_t longest = 0;
    for (uint32_t j = 0; j < spread->world; j++) {
        for (uint32_t r = 0; r < spread->world; r++)
            sums[r] = 0;
        for (size_t i = first; i < spread->item_count && spread->items[i].begin < window->end; i++) {
            struct hr_plan_item geometry;
            struct hr_plan_piece piece;
            hr_spread_geometry(&spread->items[i], j, scratch, &geometry);
            for (uint32_t r = 0; r < spread->world; r++) {
                struct hr_range part = hr_spread_part(window, r);
                if (hr_spread_piece(&spread->items[i], &geometry, part.start, part.stop, &piece))
                    sums[r] += piece.end - piece.begin;
            }
        }
        for (uint32_t r = 0; r < spread->world; r++)
            longest = most(longest, sums[r]);
    }
    return round_up(longest);
}

static int has_shards(const struct hr_spread *spread, const struct hr_spread_window *window, size_t first)
{
    for (size_t i = first; i < spread->item_count && spread->items[i].begin < window->end; i++)
        if (spread->items[i].whole.shard_world)
            return 1;
    return 0;
}

/* A scatter where all that is packed, and all that comes, fit beside each other: then it also sends less. */
static void choose_kinds(struct hr_spread *spread, uint64_t *scratch, uint64_t *sums)
{
    size_t first = 0;
    for (size_t w = 0; w < spread->window_count; w++) {
        struct hr_spread_window window = hr_spread_window_at(spread, w);
        first = hr_spread_first(spread, first, window.begin);
        if (!has_shards(spread, &window, first))
            continue;
        uint64_t segment = longest_segment(spread, &window, first, scratch, sums);
        if ((segment + HR_SPREAD_STATUS_BYTES) * spread->world * 2 <= buffer_memory(spread, window.part_bytes))
            spread->segment_bytes[w] = segment;
    }
}

int hr_spread_cut(struct hr_spread *spread, uint64_t group_bytes, uint64_t *scratch, struct hr_error *err)
{
    int code = size_windows(spread, group_bytes, err);
    if (code)
        return code;
    uint64_t *sums = hr_alloc_array(spread->world, sizeof *sums);
    spread->segment_bytes = hr_alloc_array(spread->window_count, sizeof *spread->segment_bytes);
    if (sums && spread->segment_bytes)
        choose_kinds(spread, scratch, sums);
    else
        code = hr_fail_memory(err, spread->window_count * sizeof *sums, "the windows of a process group");
    hr_free(sums);
    return code;
}

/* ----------------------------------------------------------------------------------------- digests */

static uint64_t mix(uint64_t digest, const void *bytes, size_t size)
{
    return XXH3_64bits_withSeed(bytes, size, digest);
}

/* Ranges as they count: a step of 0 is 1, and no ranges are whole dimensions. */
static uint64_t mix_ranges(uint64_t digest, const struct hr_item *item, const struct hr_tensor *tensor)
{
    for (uint32_t d = 0; d < tensor->rank; d++) {
        struct hr_range range = item->ranges ? item->ranges[d] : (struct hr_range){0, tensor->shape[d], 1};
        range.step += range.step == 0;
        digest = mix(digest, &range, sizeof range);
    }
    return digest;
}

void hr_spread_digest(struct hr_spread *spread, const struct hr_request *request)
{
    uint64_t digest = request->item_count;
    for (size_t i = 0; i < request->item_count; i++) {
        const struct hr_item *item = hr_request_item(request, i);
        const struct hr_tensor *tensor = &request->tensors[item->tensor_index];
        uint64_t fields[] = {item->tensor_index, item->dtype == HR_DTYPE_NONE ? tensor->dtype : item->dtype,
                             item->shard_world ? item->shard_dim : 0, item->shard_world, spread->choices[i]};
        digest = mix_ranges(mix(digest, fields, sizeof fields), item, tensor);
    }
    spread->digest_items = digest;
    uint64_t sizes[] = {spread->depth, spread->stream_bytes, spread->part_bytes, spread->window_count};
    digest = mix(spread->item_count, sizes, sizeof sizes);
    spread->digest_windows = mix(digest, spread->segment_bytes, spread->window_count * sizeof *spread->segment_bytes);
}
