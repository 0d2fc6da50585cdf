/*
 * describe.c: prints what a plan holds and nothing that it would have to find out. Extents are the ranges of a file
 * that pieces span, merged where they touch; they come out of the pieces, so that they are what happens.
 */
#include "plan/describe.h"

#include <string.h>

#include "base/error.h"
#include "base/sys.h"
#include "base/text.h"

/* What one file gives. Its chunks, and so its pieces, lie together in the plan. */
struct file_sum {
    size_t chunk_first, chunk_count, piece_count;
    uint64_t bytes, read_bytes;
};

static uint64_t chunk_read_bytes(const struct hr_plan_chunk *chunk)
{
    return chunk->way == HR_WAY_STAGED ? chunk->file_end - chunk->file_begin : chunk->bytes;
}

static const char *way_name(const struct hr_plan *plan, const struct hr_plan_chunk *chunk)
{
    if (chunk->way == HR_WAY_STAGED)
        return "staged";
    int is_packed = chunk->has_cast || hr_plan_is_remote(plan, plan->groups[chunk->group_index].device_index);
    return is_packed ? "packed" : "direct";
}

static struct file_sum *files_sum(const struct hr_plan *plan)
{
    struct file_sum *sums = hr_alloc_array(plan->file_count, sizeof *sums);
    for (size_t c = 0; sums && c < plan->chunk_count; c++) {
        const struct hr_plan_chunk *chunk = &plan->chunks[c];
        struct file_sum *sum = &sums[chunk->file_index];
        if (sum->chunk_count++ == 0)
            sum->chunk_first = c;
        sum->piece_count += chunk->piece_count;
        sum->bytes += chunk->bytes;
        sum->read_bytes += chunk_read_bytes(chunk);
    }
    return sums;
}

static size_t files_used(const struct hr_plan *plan, const struct file_sum *sums)
{
    size_t count = 0;
    for (size_t f = 0; f < plan->file_count; f++)
        count += sums[f].chunk_count != 0;
    return count;
}

static void json_range(struct hr_text *text, uint64_t begin, uint64_t end)
{
    hr_json_open(text, NULL, '{');
    hr_json_u64(text, "begin", begin);
    hr_json_u64(text, "end", end);
    hr_json_close(text, '}');
}

/* Where a byte of an item's stream lies in the file. */
static uint64_t source_of(const struct hr_plan_item *item, uint64_t position)
{
    struct hr_plan_piece byte = {.begin = position, .end = position + 1};
    struct hr_run_walk walk;
    hr_run_walk_init(&walk, item, &byte);
    return walk.source_offset;
}

static void json_extents(struct hr_text *text, const struct hr_plan *plan, const struct file_sum *sum)
{
    size_t first = sum->chunk_count ? plan->chunks[sum->chunk_first].piece_first : 0;
    uint64_t begin = 0, end = 0;
    hr_json_open(text, "extents", '[');
    for (size_t p = first; p < first + sum->piece_count; p++) {
        const struct hr_plan_piece *piece = &plan->pieces[p];
        const struct hr_plan_item *item = &plan->items[piece->item_index];
        uint64_t piece_begin = source_of(item, piece->begin);
        uint64_t piece_end = source_of(item, piece->end - 1) + 1;
        if (p > first && piece_begin >= begin && piece_begin <= end) {
            end = piece_end > end ? piece_end : end;
            continue;
        }
        if (p > first)
            json_range(text, begin, end);
        begin = piece_begin;
        end = piece_end;
    }
    if (sum->piece_count)
        json_range(text, begin, end);
    hr_json_close(text, ']');
}

static void json_files(struct hr_text *text, const struct hr_plan *plan, const struct hr_file *files,
                       const struct file_sum *sums)
{
    hr_json_open(text, "files", '[');
    for (size_t f = 0; f < plan->file_count; f++) {
        hr_json_open(text, NULL, '{');
        hr_json_string(text, "path", files[f].path, strlen(files[f].path));
        hr_json_u64(text, "size", files[f].size);
        hr_json_u64(text, "bytes", sums[f].bytes);
        hr_json_u64(text, "read_bytes", sums[f].read_bytes);
        hr_json_u64(text, "chunks", sums[f].chunk_count);
        json_extents(text, plan, &sums[f]);
        hr_json_close(text, '}');
    }
    hr_json_close(text, ']');
}

static void json_piece(struct hr_text *text, const struct hr_plan *plan, const struct hr_tensor *tensors,
                       const struct hr_plan_piece *piece)
{
    const struct hr_plan_item *item = &plan->items[piece->item_index];
    const struct hr_tensor *tensor = &tensors[item->tensor_index];
    const char *target = item->into ? "into" : plan->options.ownership == HR_OWN_ARENA ? "arena" : "own";
    hr_json_open(text, NULL, '{');
    hr_json_u64(text, "item", piece->item_index);
    hr_json_string(text, "tensor", tensor->name, tensor->name_size);
    hr_json_u64(text, "begin", piece->begin);
    hr_json_u64(text, "end", piece->end);
    hr_json_u64(text, "source_offset", source_of(item, piece->begin));
    hr_json_u64(text, "target_offset", item->target_offset);
    if (hr_plan_is_cast(item)) {
        hr_json_string(text, "from", hr_dtype_name(item->source_dtype), strlen(hr_dtype_name(item->source_dtype)));
        hr_json_string(text, "to", hr_dtype_name(item->dtype), strlen(hr_dtype_name(item->dtype)));
    }
    hr_json_string(text, "target", target, strlen(target));
    hr_json_u64(text, "runs", (piece->end - 1) / item->run_bytes - piece->begin / item->run_bytes + 1);
    hr_json_close(text, '}');
}

static void json_chunks(struct hr_text *text, const struct hr_plan *plan, const struct hr_tensor *tensors)
{
    hr_json_open(text, "chunks", '[');
    for (size_t c = 0; c < plan->chunk_count; c++) {
        const struct hr_plan_chunk *chunk = &plan->chunks[c];
        const char *way = way_name(plan, chunk);
        hr_json_open(text, NULL, '{');
        hr_json_u64(text, "file", chunk->file_index);
        hr_json_u64(text, "begin", chunk->file_begin);
        hr_json_u64(text, "end", chunk->file_end);
        hr_json_u64(text, "bytes", chunk->bytes);
        hr_json_string(text, "way", way, strlen(way));
        hr_json_u64(text, "group", chunk->group_index);
        hr_json_open(text, "pieces", '[');
        for (size_t p = 0; p < chunk->piece_count; p++)
            json_piece(text, plan, tensors, &plan->pieces[chunk->piece_first + p]);
        hr_json_close(text, ']');
        hr_json_close(text, '}');
    }
    hr_json_close(text, ']');
}

static void json_groups(struct hr_text *text, const struct hr_plan *plan)
{
    hr_json_open(text, "groups", '[');
    for (size_t g = 0; g < plan->group_count; g++) {
        const struct hr_plan_group *group = &plan->groups[g];
        hr_json_open(text, NULL, '{');
        hr_json_u64(text, "items", group->item_count);
        hr_json_u64(text, "chunks", group->chunk_count);
        hr_json_u64(text, "arena_bytes", group->arena_bytes);
        hr_json_u64(text, "window_bytes", group->window_bytes);
        hr_json_u64(text, "device", group->device_index);
        hr_json_close(text, '}');
    }
    hr_json_close(text, ']');
}

static void json_totals(struct hr_text *text, const struct hr_plan *plan, size_t file_count)
{
    hr_json_open(text, "totals", '{');
    hr_json_u64(text, "items", plan->item_count);
    hr_json_u64(text, "files", file_count);
    hr_json_u64(text, "bytes", plan->bytes);
    hr_json_u64(text, "read_bytes", plan->read_bytes);
    hr_json_u64(text, "over_read_bytes", plan->read_bytes > plan->bytes ? plan->read_bytes - plan->bytes : 0);
    hr_json_u64(text, "groups", plan->group_count);
    hr_json_u64(text, "chunks", plan->chunk_count);
    hr_json_u64(text, "pieces", plan->piece_count);
    hr_json_u64(text, "target_bytes", plan->target_bytes);
    hr_json_u64(text, "converted_bytes", plan->cast_bytes);
    hr_json_close(text, '}');
}

static void json_options(struct hr_text *text, const struct hr_plan *plan, const struct hr_plan_facts *facts)
{
    const char *ownership = plan->options.ownership == HR_OWN_ARENA ? "arena" : "each";
    hr_json_open(text, "options", '{');
    hr_json_u64(text, "chunk_bytes", plan->options.chunk_bytes);
    hr_json_u64(text, "arena_bytes", plan->options.arena_bytes);
    hr_json_u64(text, "window_bytes", plan->options.window_bytes);
    hr_json_string(text, "ownership", ownership, strlen(ownership));
    hr_json_u64(text, "threads", facts->thread_count);
    hr_json_u64(text, "queue_depth", facts->queue_depth);
    hr_json_close(text, '}');
    hr_json_open(text, "route", '{');
    hr_json_string(text, "name", facts->route, strlen(facts->route));
    hr_json_string(text, "reason", facts->route_reason, strlen(facts->route_reason));
    hr_json_close(text, '}');
    hr_json_open(text, "staging", '{');
    hr_json_u64(text, "bytes", facts->staging_bytes);
    hr_json_u64(text, "chunk_bytes_max", plan->staged_bytes_max);
    if (facts->placement)
        hr_json_string(text, "placement", facts->placement, strlen(facts->placement));
    hr_json_close(text, '}');
}

static void describe_json(struct hr_text *text, const struct hr_plan *plan, const struct hr_tensor *tensors,
                          const struct hr_file *files, const struct hr_plan_facts *facts, const struct file_sum *sums)
{
    hr_json_open(text, NULL, '{');
    hr_json_string(text, "version", hr_version(), strlen(hr_version()));
    json_totals(text, plan, files_used(plan, sums));
    json_options(text, plan, facts);
    json_files(text, plan, files, sums);
    json_groups(text, plan);
    json_chunks(text, plan, tensors);
    hr_json_close(text, '}');
    hr_text_add(text, "\n", 1);
}

/* "3.2 MiB"; exact below 1 KiB. */
static void text_bytes(struct hr_text *text, uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint64_t scale = 1024;
    size_t unit = 0;
    if (bytes < 1024) {
        hr_text_printf(text, "%llu B", (unsigned long long)bytes);
        return;
    }
    while (unit < 5 && bytes / scale >= 1024) {
        scale *= 1024;
        unit++;
    }
    uint64_t tenths = bytes / scale * 10 + bytes % scale / (scale / 10 + 1);
    hr_text_printf(text, "%llu.%llu %s", (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10),
                   units[unit]);
}

/* Ways, and the smallest and largest chunk. */
static void text_chunks(struct hr_text *text, const struct hr_plan *plan)
{
    uint64_t least = UINT64_MAX, most = 0, staged_bytes = 0;
    size_t staged_count = 0;
    for (size_t c = 0; c < plan->chunk_count; c++) {
        const struct hr_plan_chunk *chunk = &plan->chunks[c];
        least = chunk->bytes < least ? chunk->bytes : least;
        most = chunk->bytes > most ? chunk->bytes : most;
        staged_count += chunk->way == HR_WAY_STAGED;
        staged_bytes += chunk->way == HR_WAY_STAGED ? chunk->bytes : 0;
    }
    hr_text_printf(text, "chunks    %zu with %zu pieces", plan->chunk_count, plan->piece_count);
    if (plan->chunk_count) {
        hr_text_printf(text, ", ");
        text_bytes(text, least);
        hr_text_printf(text, " to ");
        text_bytes(text, most);
    }
    hr_text_printf(text, "\nways      %zu direct, ", plan->chunk_count - staged_count);
    text_bytes(text, plan->bytes - staged_bytes);
    hr_text_printf(text, "; %zu staged, ", staged_count);
    text_bytes(text, staged_bytes);
    hr_text_printf(text, "\n");
}

static void text_files(struct hr_text *text, const struct hr_plan *plan, const struct hr_file *files,
                       const struct file_sum *sums)
{
    for (size_t f = 0; f < plan->file_count; f++) {
        char path[1024];
        hr_text_printf(text, "file      %s: ", hr_escape(path, sizeof path, files[f].path, strlen(files[f].path)));
        text_bytes(text, sums[f].bytes);
        hr_text_printf(text, " of ");
        text_bytes(text, files[f].size);
        hr_text_printf(text, " in %zu chunks\n", sums[f].chunk_count);
    }
}

static void describe_text(struct hr_text *text, const struct hr_plan *plan, const struct hr_file *files,
                          const struct hr_plan_facts *facts, const struct file_sum *sums)
{
    hr_text_printf(text, "items     %zu from %zu of %zu files, ", plan->item_count, files_used(plan, sums),
                   plan->file_count);
    text_bytes(text, plan->bytes);
    hr_text_printf(text, "; reads ");
    text_bytes(text, plan->read_bytes);
    if (plan->cast_bytes) {
        hr_text_printf(text, "\nconverts  ");
        text_bytes(text, plan->cast_bytes);
        hr_text_printf(text, " on the way; destinations take ");
        text_bytes(text, plan->target_bytes);
    }
    hr_text_printf(text, "\nroute     %s: %s\n", facts->route, facts->route_reason);
    hr_text_printf(text, "threads   %u, queue depth %u\nstaging   ", facts->thread_count, facts->queue_depth);
    text_bytes(text, facts->staging_bytes);
    if (facts->placement)
        hr_text_printf(text, "\nnuma      %s", facts->placement);
    hr_text_printf(text, "\ngroups    %zu, %s\n", plan->group_count,
                   plan->options.ownership == HR_OWN_ARENA ? "an arena for each" : "an allocation for each item");
    text_chunks(text, plan);
    text_files(text, plan, files, sums);
}

int hr_plan_to_text(const struct hr_plan *plan, const struct hr_tensor *tensors, const struct hr_file *files,
                    const struct hr_plan_facts *facts, uint32_t format, char **ret_text, struct hr_error *err)
{
    struct hr_text text = {0};
    if (format != HR_PLAN_JSON && format != HR_PLAN_TEXT)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "the plan format is %u; allowed are 0 (JSON) and 1 (text)", format);
    struct file_sum *sums = files_sum(plan);
    if (!sums)
        return hr_fail_memory(err, (uint64_t)plan->file_count * sizeof *sums, "the description of a plan");
    if (format == HR_PLAN_JSON)
        describe_json(&text, plan, tensors, files, facts, sums);
    else
        describe_text(&text, plan, files, facts, sums);
    hr_free(sums);
    size_t bytes = text.size;
    char *taken = hr_text_take(&text);
    if (!taken)
        return hr_fail_memory(err, bytes, "the description of a plan");
    *ret_text = taken;
    return 0;
}
