/*
 * spread.c: which items a process group spreads, and where they lie in its stream. What is done with windows of it:
 * spread_window.c.
 */
#include "plan/spread.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/sys.h"
#include "plan/geometry.h"
#include "plan/spread_window.h"

const char *hr_spread_reason(uint32_t choice)
{
    static const char *const reasons[] = {
        [HR_LOCAL_EMPTY] = "it has no bytes",
        [HR_LOCAL_CONTIGUOUS] = "each rank's block lies in one piece",
        [HR_LOCAL_SPARSE] = "the ranks need less than half of the range that covers it",
        [HR_LOCAL_OTHER] = "it is sharded otherwise than by the ranks of the group",
        [HR_LOCAL_BITS] = "a block ends inside a byte",
        [HR_SPREAD_REPLICATED] = "every rank needs it",
        [HR_SPREAD_SHARDED] = "the blocks of the ranks lie between each other",
    };
    return reasons[choice];
}

void hr_spread_free(struct hr_spread *spread)
{
    if (!spread)
        return;
    hr_free(spread->items);
    hr_free(spread->choices);
    hr_free(spread->segment_bytes);
    hr_free(spread->ranges);
    hr_free(spread);
}

/* What the making of a spread needs besides it. */
struct maker {
    struct hr_plan *plan;
    struct hr_spread *spread;
    const struct hr_request *request;
    uint64_t *scratch;
    size_t range_count;
};

/* The slice without what is this rank's alone: where it goes to, and which block is its own. */
static struct hr_item whole_slice(const struct hr_item *item)
{
    return (struct hr_item){.size = sizeof(struct hr_item),
                            .tensor_index = item->tensor_index,
                            .ranges = item->ranges,
                            .shard_dim = item->shard_dim};
}

static int geometry_of(const struct hr_tensor *tensor, struct hr_item item, uint32_t rank, uint32_t world,
                       uint64_t *scratch, struct hr_plan_item *ret_geometry)
{
    item.shard_rank = rank;
    item.shard_world = world;
    *ret_geometry = (struct hr_plan_item){0};
    return hr_geometry_make(tensor, &item, item.tensor_index, &scratch, ret_geometry, NULL);
}

/* Blocks of elements that are smaller than a byte are looked at one by one. */
static int ends_inside_byte(const struct maker *maker, const struct hr_tensor *tensor, const struct hr_item *whole)
{
    struct hr_plan_item block;
    for (uint32_t r = 0; hr_dtype_bits(tensor->dtype) < 8 && r < maker->spread->world; r++)
        if (geometry_of(tensor, *whole, r, maker->spread->world, maker->scratch, &block))
            return 1;
    return 0;
}

/* The first rank's block is the largest: where that lies in one piece, all do. */
static uint32_t choose_sharded(const struct maker *maker, const struct hr_tensor *tensor, const struct hr_item *whole)
{
    struct hr_plan_item block;
    if (ends_inside_byte(maker, tensor, whole) ||
        geometry_of(tensor, *whole, 0, maker->spread->world, maker->scratch, &block))
        return HR_LOCAL_BITS;
    return block.dim_count == 0 ? HR_LOCAL_CONTIGUOUS : HR_SPREAD_SHARDED;
}

static uint32_t choose(const struct maker *maker, const struct hr_item *item, struct hr_plan_item *ret_whole)
{
    const struct hr_spread *spread = maker->spread;
    const struct hr_tensor *tensor = &maker->request->tensors[item->tensor_index];
    struct hr_item whole = whole_slice(item);
    uint32_t choice = HR_SPREAD_REPLICATED;
    if (item->shard_world && (item->shard_world != spread->world || item->shard_rank != spread->rank))
        return HR_LOCAL_OTHER;
    if (geometry_of(tensor, whole, 0, 0, maker->scratch, ret_whole))
        return HR_LOCAL_BITS;
    if (ret_whole->bytes == 0)
        return HR_LOCAL_EMPTY;
    if (item->shard_world)
        choice = choose_sharded(maker, tensor, &whole);
    if (choice < HR_SPREAD_REPLICATED)
        return choice;
    uint64_t span = ret_whole->source_end - ret_whole->source_offset;
    return ret_whole->bytes < span - ret_whole->bytes ? HR_LOCAL_SPARSE : choice;
}

static void add_item(struct maker *maker, size_t index, const struct hr_item *item, const struct hr_plan_item *whole)
{
    const struct hr_tensor *tensor = &maker->request->tensors[item->tensor_index];
    struct hr_spread_item *added = &maker->spread->items[maker->spread->item_count++];
    *added = (struct hr_spread_item){.item_index = index,
                                     .file_index = tensor->file_index,
                                     .end = whole->source_end - whole->source_offset,
                                     .source = whole->source_offset,
                                     .tensor = tensor,
                                     .whole = whole_slice(item)};
    added->whole.shard_world = item->shard_world;
    maker->range_count += item->ranges ? tensor->rank : 0;
    maker->plan->items[index].is_spread = 1;
}

static int choose_all(struct maker *maker, struct hr_error *err)
{
    const struct hr_request *request = maker->request;
    for (size_t i = 0; i < request->item_count; i++) {
        const struct hr_item *item = hr_request_item(request, i);
        struct hr_plan_item whole;
        if (item->device_index != hr_request_item(request, 0)->device_index)
            return hr_fail(err, HR_EUNSUPPORTED,
                           "item %zu is for device %u, item 0 for device %u: a load of a process group has one device",
                           i, item->device_index, hr_request_item(request, 0)->device_index);
        uint32_t choice = choose(maker, item, &whole);
        maker->spread->choices[i] = (uint8_t)choice;
        if (choice >= HR_SPREAD_REPLICATED)
            add_item(maker, i, item, &whole);
    }
    return 0;
}

/* The ranges of a request are the caller's, and only for the time of its call. */
static int copy_ranges(struct maker *maker, struct hr_error *err)
{
    struct hr_spread *spread = maker->spread;
    struct hr_range *next = spread->ranges = hr_alloc_array(maker->range_count, sizeof *next);
    if (!next)
        return hr_fail_memory(err, maker->range_count * sizeof *next, "the ranges of a process group");
    for (size_t i = 0; i < spread->item_count; i++) {
        struct hr_spread_item *item = &spread->items[i];
        if (!item->whole.ranges)
            continue;
        memcpy(next, item->whole.ranges, item->tensor->rank * sizeof *next);
        item->whole.ranges = next;
        next += item->tensor->rank;
    }
    return 0;
}

static int sort_items(struct hr_spread *spread, struct hr_error *err)
{
    size_t count = spread->item_count;
    struct hr_spread_item *sorted = hr_alloc_array(count, sizeof *sorted);
    struct hr_sort_key *keys = hr_alloc_array(count, 2 * sizeof *keys);
    int code = 0;
    if (!sorted || !keys) {
        code = hr_fail_memory(err, count * (sizeof *sorted + 2 * sizeof *keys), "the order of a process group");
        hr_free(sorted);
    } else {
        for (size_t i = 0; i < count; i++)
            keys[i] = (struct hr_sort_key){spread->items[i].file_index, spread->items[i].source, i};
        const struct hr_sort_key *order = hr_sort_keys(keys, count);
        for (size_t i = 0; i < count; i++)
            sorted[i] = spread->items[order[i].index];
        hr_free(spread->items);
        spread->items = sorted;
    }
    hr_free(keys);
    return code;
}

/*
 * Whether the item's range may go on in the extent of `last`: parts end on multiples of HR_TENSOR_ALIGNMENT, and elements
 * that are converted must not be cut there.
 */
static int goes_on(const struct hr_spread_item *last, const struct hr_spread_item *item,
                   const struct hr_plan_item *planned)
{
    return last && last->file_index == item->file_index && item->source <= last->source + (last->end - last->begin) &&
           (last->begin + (item->source - last->source)) % planned->source_unit == 0;
}

/* Gives every item its place in the stream. `end` holds the length of its range until then. */
static void lay_out(struct hr_spread *spread, const struct hr_plan *plan)
{
    const struct hr_spread_item *last = NULL; /* whose range reaches furthest in the extent */
    size_t extent = 0;
    for (size_t i = 0; i < spread->item_count; i++) {
        struct hr_spread_item *item = &spread->items[i];
        uint64_t length = item->end;
        if (goes_on(last, item, &plan->items[item->item_index])) {
            item->begin = last->begin + (item->source - last->source);
        } else {
            extent += last != NULL;
            item->begin = (spread->stream_bytes + HR_TENSOR_ALIGNMENT - 1) / HR_TENSOR_ALIGNMENT * HR_TENSOR_ALIGNMENT;
            last = NULL;
        }
        item->extent = extent;
        item->end = item->begin + length;
        if (!last || item->end > last->end)
            last = item;
        if (item->end > spread->stream_bytes)
            spread->stream_bytes = item->end;
    }
}

static size_t scratch_words(const struct hr_request *request)
{
    size_t most = 1;
    for (size_t i = 0; i < request->item_count; i++) {
        const struct hr_item *item = hr_request_item(request, i);
        struct hr_item sharded = {.ranges = item->ranges, .shard_world = 1};
        size_t words = hr_geometry_words(&request->tensors[item->tensor_index], &sharded);
        most = words > most ? words : most;
    }
    return most;
}

static int make(struct maker *maker, struct hr_error *err)
{
    struct hr_spread *spread = maker->spread;
    size_t count = maker->request->item_count;
    spread->scratch_words = scratch_words(maker->request);
    spread->items = hr_alloc_array(count, sizeof *spread->items);
    spread->choices = hr_alloc_array(count, 1);
    maker->scratch = hr_alloc_array(spread->scratch_words, sizeof *maker->scratch);
    if (!spread->items || !spread->choices || !maker->scratch)
        return hr_fail_memory(err, count * sizeof *spread->items, "the plan of a process group");
    int code = choose_all(maker, err);
    if (!code)
        code = copy_ranges(maker, err);
    if (!code)
        code = sort_items(spread, err);
    if (code)
        return code;
    lay_out(spread, maker->plan);
    code = hr_spread_cut(spread, maker->plan->options.group_bytes, maker->scratch, err);
    if (!code)
        hr_spread_digest(spread, maker->request);
    return code;
}

int hr_spread_make(struct hr_plan *plan, const struct hr_request *request, struct hr_error *err)
{
    struct hr_spread *spread = plan->spread = hr_alloc(sizeof *spread);
    if (!spread)
        return hr_fail_memory(err, sizeof *spread, "the plan of a process group");
    spread->rank = plan->options.group_rank;
    spread->world = plan->options.group_world;
    int is_remote = request->item_count && hr_plan_is_remote(plan, plan->items[0].device_index);
    spread->depth = is_remote ? HR_SPREAD_DEPTH_REMOTE : 1;
    spread->buffer_count = is_remote ? HR_SPREAD_BUFFERS_REMOTE : 1;
    spread->spare_slots = !is_remote;
    struct maker maker = {.plan = plan, .spread = spread, .request = request};
    int code = make(&maker, err);
    hr_free(maker.scratch);
    return code;
}

void hr_spread_geometry(const struct hr_spread_item *item, uint32_t rank, uint64_t *scratch,
                        struct hr_plan_item *ret_geometry)
{
    int code = geometry_of(item->tensor, item->whole, rank, item->whole.shard_world, scratch, ret_geometry);
    assert(code == 0); /* it was made before, or its elements are whole bytes */
    (void)code;
}
