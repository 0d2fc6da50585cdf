/*
 * describe_spread.c: items by what happens to them and why, windows by their kind, and what of them this rank reads.
 */
#include "plan/describe_spread.h"

#include <string.h>

#include "plan/spread.h"

struct sums {
    uint64_t bytes;      /* that the group reads */
    uint64_t read_bytes; /* of them by this rank */
    uint64_t sent_bytes; /* by all ranks to one, over all windows: what that rank receives */
    size_t gather_count, scatter_count;
    size_t item_count, local_count;
};

static uint64_t range_bytes(const struct hr_spread *spread, uint64_t begin, uint64_t end, size_t first)
{
    struct hr_spread_range range;
    uint64_t bytes = 0;
    while (hr_spread_range_next(spread, begin, end, &first, &range))
        bytes += range.file_end - range.file_begin;
    return bytes;
}

static struct sums sum_up(const struct hr_plan *plan)
{
    const struct hr_spread *spread = plan->spread;
    struct sums sums = {.item_count = spread->item_count, .local_count = plan->item_count - spread->item_count};
    size_t first = 0;
    sums.bytes = range_bytes(spread, 0, spread->stream_bytes, 0);
    for (size_t w = 0; w < spread->window_count; w++) {
        struct hr_spread_window window = hr_spread_window_at(spread, w);
        struct hr_range part = hr_spread_part(&window, spread->rank);
        first = hr_spread_first(spread, first, window.begin);
        sums.read_bytes += range_bytes(spread, part.start, part.stop, first);
        sums.sent_bytes += spread->world * (window.segment_bytes ? window.segment_bytes : window.part_bytes);
        sums.scatter_count += window.segment_bytes != 0;
    }
    sums.gather_count = spread->window_count - sums.scatter_count;
    return sums;
}

static uint64_t buffer_bytes(const struct hr_spread *spread)
{
    return spread->window_count ? hr_spread_memory(spread) : 0;
}

static void json_items(struct hr_text *text, const struct hr_plan *plan, const struct hr_tensor *tensors)
{
    hr_json_open(text, "items", '[');
    for (size_t i = 0; i < plan->item_count; i++) {
        const struct hr_tensor *tensor = &tensors[plan->items[i].tensor_index];
        const char *reason = hr_spread_reason(plan->spread->choices[i]);
        hr_json_open(text, NULL, '{');
        hr_json_u64(text, "item", i);
        hr_json_string(text, "tensor", tensor->name, tensor->name_size);
        hr_json_bool(text, "spread", (int)plan->items[i].is_spread);
        hr_json_string(text, "reason", reason, strlen(reason));
        hr_json_close(text, '}');
    }
    hr_json_close(text, ']');
}

void hr_json_spread(struct hr_text *text, const struct hr_plan *plan, const struct hr_tensor *tensors)
{
    const struct hr_spread *spread = plan->spread;
    if (!spread)
        return;
    struct sums sums = sum_up(plan);
    hr_json_open(text, "group", '{');
    hr_json_u64(text, "rank", spread->rank);
    hr_json_u64(text, "world", spread->world);
    hr_json_u64(text, "spread_items", sums.item_count);
    hr_json_u64(text, "local_items", sums.local_count);
    hr_json_u64(text, "spread_bytes", sums.bytes);
    hr_json_u64(text, "read_bytes", sums.read_bytes);
    hr_json_u64(text, "received_bytes", sums.sent_bytes);
    hr_json_u64(text, "part_bytes", spread->part_bytes);
    hr_json_u64(text, "windows", spread->window_count);
    hr_json_u64(text, "all_gathers", sums.gather_count);
    hr_json_u64(text, "scatters", sums.scatter_count);
    hr_json_u64(text, "buffer_bytes", buffer_bytes(spread));
    hr_json_u64(text, "slots", spread->slot_count);
    json_items(text, plan, tensors);
    hr_json_close(text, '}');
}

/* How many items there are of each kind, and why. */
static void text_choices(struct hr_text *text, const struct hr_plan *plan)
{
    for (uint32_t choice = 0; choice <= HR_SPREAD_SHARDED; choice++) {
        size_t count = 0;
        for (size_t i = 0; i < plan->item_count; i++)
            count += plan->spread->choices[i] == choice;
        if (count)
            hr_text_printf(text, "%-9s %zu items: %s\n", choice < HR_SPREAD_REPLICATED ? "local" : "spread", count,
                           hr_spread_reason(choice));
    }
}

void hr_text_spread(struct hr_text *text, const struct hr_plan *plan)
{
    const struct hr_spread *spread = plan->spread;
    if (!spread)
        return;
    struct sums sums = sum_up(plan);
    hr_text_printf(text, "group     rank %u of %u: ", spread->rank, spread->world);
    hr_text_bytes(text, sums.bytes);
    hr_text_printf(text, " are spread, this rank reads ");
    hr_text_bytes(text, sums.read_bytes);
    hr_text_printf(text, "\nwindows   %zu all-gathers, %zu scatters, parts of ", sums.gather_count, sums.scatter_count);
    hr_text_bytes(text, spread->part_bytes);
    hr_text_printf(text, ", buffers of ");
    hr_text_bytes(text, buffer_bytes(spread));
    hr_text_printf(text, "\n");
    text_choices(text, plan);
}
