/*
 * plan_model.c: elements one by one, without runs, dims and chunks. Slow and plain on purpose.
 */
#include "support/plan_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sys.h"
#include "plan/chunk.h"

/*
 * One item's stored bytes in row-major order. Where it is converted, the target of each is that of its element, which
 * takes `unit_there` bytes for the `unit` stored ones; else both units are 1.
 */
struct stream {
    uint64_t bytes, bytes_there;
    uint32_t unit, unit_there;
    uint64_t *source;
    int64_t *target;
    unsigned char *seen;
};

/* assert_true() costs too much for each byte of millions of plans. */
#define CHECK(condition)                                           \
    do {                                                           \
        if (!(condition))                                          \
            fail_msg("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

uint64_t model_random(uint64_t *state, uint64_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % below;
}

uint64_t model_tensor(struct hr_tensor *tensor, uint32_t dtype, uint32_t rank, const uint64_t *shape, size_t file_index,
                      uint64_t offset)
{
    uint64_t bits = hr_dtype_bits(dtype);
    for (uint32_t d = 0; d < rank; d++)
        bits *= shape[d];
    *tensor = (struct hr_tensor){.name = "t",
                                 .name_size = 1,
                                 .dtype = dtype,
                                 .rank = rank,
                                 .shape = shape,
                                 .file_index = file_index,
                                 .offset = offset,
                                 .size = bits / 8};
    return offset + tensor->size;
}

static uint64_t slice_count(const struct hr_tensor *tensor, const struct hr_item *item, uint32_t d)
{
    if (!item->ranges)
        return tensor->shape[d];
    uint64_t step = item->ranges[d].step ? item->ranges[d].step : 1;
    uint64_t count = 0;
    for (uint64_t i = item->ranges[d].start; i < item->ranges[d].stop; i += step)
        count++;
    return count;
}

/* Bit number in the tensor and, with strides, byte offset in the destination of one element of the slice. */
static void element_place(const struct hr_tensor *tensor, const struct hr_item *item, const uint64_t *index,
                          uint64_t *ret_bit, int64_t *ret_target)
{
    uint64_t element = 0;
    int64_t target = 0;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint64_t start = item->ranges ? item->ranges[d].start : 0;
        uint64_t step = item->ranges && item->ranges[d].step ? item->ranges[d].step : 1;
        element = element * tensor->shape[d] + start + index[d] * step;
        if (item->into_strides)
            target += (int64_t)index[d] * item->into_strides[d];
    }
    *ret_bit = element * hr_dtype_bits(tensor->dtype);
    *ret_target = target;
}

static int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int has_twins(const int64_t *values, uint64_t count)
{
    int found = 0;
    int64_t *sorted = malloc((count + 1) * sizeof *sorted);
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_i64);
    for (uint64_t i = 1; i < count; i++)
        found |= sorted[i] == sorted[i - 1];
    free(sorted);
    return found;
}

/* Elements smaller than a byte: bit by bit, where a byte of the stream must be one whole byte of the file. */
static int stream_bits(struct stream *stream, uint64_t at, uint64_t bit, uint32_t bits)
{
    for (uint32_t i = 0; i < bits; i++, at++, bit++) {
        if (at / 8 >= stream->bytes || at % 8 != bit % 8)
            return HR_EUNSUPPORTED;
        if (at % 8 == 0) {
            stream->source[at / 8] = bit / 8;
            stream->target[at / 8] = (int64_t)(at / 8);
        } else if (stream->source[at / 8] != bit / 8) {
            return HR_EUNSUPPORTED;
        }
    }
    return 0;
}

static uint32_t dtype_there(const struct hr_tensor *tensor, const struct hr_item *item)
{
    return item->dtype == HR_DTYPE_NONE ? tensor->dtype : item->dtype;
}

/* Whether two elements of the destination share a byte. */
static int shares_bytes(const struct stream *stream)
{
    uint64_t count = stream->bytes / stream->unit;
    int64_t *bytes = malloc((count * stream->unit_there + 1) * sizeof *bytes);
    for (uint64_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < stream->unit_there; i++)
            bytes[n * stream->unit_there + i] = stream->target[n * stream->unit] + i;
    int found = has_twins(bytes, count * stream->unit_there);
    free(bytes);
    return found;
}

/* Where the bytes of element `n` come from and go to; `target`: with strides. */
static void stream_element(struct stream *stream, uint64_t n, uint32_t bytes, uint64_t source, const int64_t *target)
{
    int is_converted = stream->unit > 1 || stream->unit_there > 1;
    int64_t compact = (int64_t)(n * (is_converted ? stream->unit_there : bytes));
    for (uint32_t i = 0; i < bytes; i++) {
        stream->source[n * bytes + i] = source + i;
        stream->target[n * bytes + i] = (target ? *target : compact) + (is_converted ? 0 : i);
    }
}

static int stream_make(const struct hr_tensor *tensor, const struct hr_item *item, struct stream *ret_stream)
{
    uint64_t count = 1;
    uint64_t index[HR_RANK_MAX + 1] = {0}, extents[HR_RANK_MAX + 1];
    uint32_t bits = hr_dtype_bits(tensor->dtype);
    int code = 0;
    for (uint32_t d = 0; d < tensor->rank; d++)
        count *= extents[d] = slice_count(tensor, item, d);
    uint32_t there = dtype_there(tensor, item), bits_there = hr_dtype_bits(there);
    struct stream stream = {.bytes = count * bits / 8, .bytes_there = count * bits_there / 8};
    stream.unit = there == tensor->dtype ? 1 : bits / 8;
    stream.unit_there = there == tensor->dtype ? 1 : bits_there / 8;
    stream.source = malloc(stream.bytes * 8 + 1);
    stream.target = malloc(stream.bytes * 8 + 1);
    stream.seen = calloc(stream.bytes + 1, 1);
    for (uint64_t n = 0; n < count && !code; n++) {
        uint64_t bit;
        int64_t target;
        element_place(tensor, item, index, &bit, &target);
        if (bits < 8)
            code = stream_bits(&stream, n * bits, bit, bits);
        else
            stream_element(&stream, n, bits / 8, bit / 8, item->into_strides ? &target : NULL);
        for (uint32_t d = tensor->rank; d-- > 0;) {
            if (++index[d] < extents[d])
                break;
            index[d] = 0;
        }
    }
    if (!code && count * bits % 8)
        code = HR_EUNSUPPORTED;
    if (!code && item->into_strides && shares_bytes(&stream))
        code = HR_EINVALID_ARGUMENT;
    for (uint64_t i = 0; i < stream.bytes && !code; i++)
        stream.source[i] += tensor->offset;
    *ret_stream = stream;
    return code;
}

static void stream_release(struct stream *stream)
{
    free(stream->source);
    free(stream->target);
    free(stream->seen);
}

int model_item(const struct hr_tensor *tensor, const struct hr_item *item)
{
    struct stream stream;
    int code = stream_make(tensor, item, &stream);
    stream_release(&stream);
    return code;
}

/* The order, the groups, and where groups put their items. */
static void check_groups(const struct plan_case *tested, const struct hr_plan *plan)
{
    const struct hr_plan_options *options = &tested->options;
    uint64_t limit = options->arena_bytes;
    size_t order_at = 0, chunk_at = 0;
    if (options->window_bytes && (options->window_bytes / 4 ? options->window_bytes / 4 : 1) < limit)
        limit = options->window_bytes / 4 ? options->window_bytes / 4 : 1;
    for (size_t i = 1; i < plan->item_count; i++) {
        const struct hr_plan_item *a = &plan->items[plan->order[i - 1]], *b = &plan->items[plan->order[i]];
        CHECK(a->file_index <= b->file_index);
        CHECK(a->file_index < b->file_index || a->source_offset <= b->source_offset);
        CHECK(a->file_index < b->file_index || a->source_offset < b->source_offset || a < b);
    }
    for (size_t g = 0; g < plan->group_count; g++) {
        const struct hr_plan_group *group = &plan->groups[g];
        uint64_t end = 0;
        size_t own_count = 0;
        CHECK(group->order_first == order_at && group->item_count > 0 && group->chunk_first == chunk_at);
        order_at += group->item_count;
        chunk_at += group->chunk_count;
        for (size_t i = group->order_first; i < order_at; i++) {
            const struct hr_plan_item *item = &plan->items[plan->order[i]];
            CHECK(item->group_index == g && item->device_index == group->device_index);
            if (item->into || item->bytes == 0 || options->ownership == HR_OWN_EACH)
                CHECK(item->target_offset == 0);
            if (item->into || item->bytes == 0)
                continue;
            if (options->ownership == HR_OWN_ARENA) {
                CHECK(item->target_offset % HR_TENSOR_ALIGNMENT == 0 && item->target_offset >= end);
                CHECK(item->target_offset - end < HR_TENSOR_ALIGNMENT);
                end = item->target_offset;
            }
            end += item->target_bytes;
            own_count++;
        }
        CHECK(group->arena_bytes == (options->ownership == HR_OWN_ARENA ? end : 0) && group->window_bytes == end);
        CHECK(own_count <= 1 || end <= limit);
    }
    CHECK(order_at == plan->item_count && chunk_at == plan->chunk_count);
}

/* The walk in larger steps gives the same runs. */
static void check_rows(const struct hr_plan_item *item, const struct hr_plan_piece *piece)
{
    struct hr_run_walk walk, larger;
    struct hr_run run;
    struct hr_run_rows rows;
    hr_run_walk_init(&walk, item, piece);
    hr_run_walk_init(&larger, item, piece);
    while (hr_run_walk_rows(&larger, &rows)) {
        CHECK(rows.count > 0);
        for (uint64_t r = 0; r < rows.count; r++) {
            CHECK(hr_run_walk_next(&walk, &run) && run.bytes == rows.run.bytes);
            CHECK(run.source_offset == rows.run.source_offset + r * rows.source_stride);
            CHECK(run.target_offset == rows.run.target_offset + (int64_t)r * rows.target_stride);
        }
    }
    CHECK(!hr_run_walk_next(&walk, &run));
}

/* One piece: its runs against the model. Returns the bounds of what it touches in the file. */
static uint64_t check_piece(const struct hr_plan *plan, const struct hr_plan_piece *piece, struct stream *stream,
                            uint64_t *ret_end)
{
    const struct hr_plan_item *item = &plan->items[piece->item_index];
    struct hr_run_walk walk;
    struct hr_run run;
    uint64_t at = piece->begin;
    CHECK(piece->begin < piece->end && piece->end <= stream->bytes);
    hr_run_walk_init(&walk, item, piece);
    while (hr_run_walk_next(&walk, &run)) {
        CHECK(run.bytes > 0 && run.bytes <= piece->end - at);
        CHECK(at % stream->unit == 0 && run.bytes % stream->unit == 0); /* no element is torn */
        for (uint64_t i = 0; i < run.bytes; i++, at++) {
            int64_t there = (int64_t)(i / stream->unit * stream->unit_there);
            CHECK(run.source_offset + i == stream->source[at] && run.target_offset + there == stream->target[at]);
            CHECK(stream->seen[at]++ == 0);
        }
    }
    CHECK(at == piece->end);
    check_rows(item, piece);
    *ret_end = stream->source[at - 1] + 1;
    return stream->source[piece->begin];
}

static uint64_t check_chunk(const struct hr_plan *plan, const struct hr_plan_chunk *chunk, struct stream *streams)
{
    uint64_t bytes = 0, file_end = 0, source_before = 0, runs = 0;
    uint32_t has_cast = 0;
    for (size_t p = chunk->piece_first; p < chunk->piece_first + chunk->piece_count; p++) {
        const struct hr_plan_piece *piece = &plan->pieces[p];
        const struct hr_plan_item *item = &plan->items[piece->item_index];
        uint64_t end;
        uint64_t source = check_piece(plan, piece, &streams[piece->item_index], &end);
        CHECK(item->file_index == chunk->file_index && item->group_index == chunk->group_index);
        CHECK(item->way == chunk->way && source >= source_before);
        CHECK(p > chunk->piece_first || source == chunk->file_begin);
        CHECK(p == chunk->piece_first || piece->item_index != piece[-1].item_index);
        if (item->dim_count && item->run_bytes <= plan->options.chunk_bytes) /* no run is torn without need */
            CHECK(piece->begin % item->run_bytes == 0 && piece->end % item->run_bytes == 0);
        source_before = source;
        has_cast |= item->dtype != item->source_dtype;
        bytes += piece->end - piece->begin;
        file_end = end > file_end ? end : file_end;
        runs +=
            chunk->way == HR_WAY_STAGED ? 1 : (piece->end - 1) / item->run_bytes - piece->begin / item->run_bytes + 1;
    }
    CHECK(chunk->piece_count > 0 && chunk->bytes == bytes && chunk->file_end == file_end);
    CHECK(bytes <= plan->options.chunk_bytes && runs <= HR_CHUNK_RUNS_MAX && chunk->has_cast == has_cast);
    int is_remote = hr_plan_is_remote(plan, plan->groups[chunk->group_index].device_index);
    if (chunk->way != HR_WAY_STAGED) {
        CHECK(is_remote || !has_cast || bytes <= plan->staged_bytes_max);
        return bytes;
    }
    CHECK(chunk->file_end - chunk->file_begin <= plan->options.chunk_bytes);
    CHECK(is_remote || chunk->file_end - chunk->file_begin <= plan->staged_bytes_max);
    return chunk->file_end - chunk->file_begin;
}

static void check_item(const struct plan_case *tested, const struct hr_plan *plan, size_t i,
                       const struct stream *stream)
{
    const struct hr_plan_item *made = &plan->items[i];
    const struct hr_tensor *tensor = &tested->tensors[tested->items[i].tensor_index];
    CHECK(made->bytes == stream->bytes && made->rank == tensor->rank && made->source_dtype == tensor->dtype);
    CHECK(made->target_bytes == stream->bytes_there && made->dtype == dtype_there(tensor, &tested->items[i]));
    CHECK(made->source_unit == stream->unit && made->target_unit == stream->unit_there);
    CHECK(made->tensor_index == tested->items[i].tensor_index && made->into == tested->items[i].into);
    for (uint32_t d = 0; d < made->rank; d++) {
        CHECK(made->shape[d] == slice_count(tensor, &tested->items[i], d));
        CHECK(!tested->items[i].into_strides || !made->bytes || made->strides[d] == tested->items[i].into_strides[d]);
    }
    for (uint64_t k = 0; k < stream->bytes; k++)
        CHECK(stream->seen[k] == 1);
    if (stream->bytes == 0)
        return;
    CHECK(made->source_offset == stream->source[0] && made->source_end == stream->source[stream->bytes - 1] + 1);
    uint64_t runs = 1;
    for (uint32_t d = 0; d < made->dim_count; d++) { /* no dim could be merged into what lies inside it */
        const struct hr_plan_dim *dim = &made->dims[d], *inner = d + 1 < made->dim_count ? dim + 1 : NULL;
        uint64_t source = inner ? inner->source_stride * inner->count : made->run_bytes;
        uint64_t run_there = made->run_bytes / made->source_unit * made->target_unit;
        int64_t target = inner ? inner->target_stride * (int64_t)inner->count : (int64_t)run_there;
        CHECK(dim->count > 1 && (dim->source_stride != source || dim->target_stride != target));
        runs *= dim->count;
    }
    CHECK(runs * made->run_bytes == made->bytes);
}

void model_check_plan(const struct plan_case *tested, const struct hr_plan *plan)
{
    struct stream *streams = calloc(tested->item_count + 1, sizeof *streams);
    uint64_t bytes = 0, bytes_there = 0, read_bytes = 0;
    size_t piece_at = 0;
    for (size_t i = 0; i < tested->item_count; i++)
        CHECK(stream_make(&tested->tensors[tested->items[i].tensor_index], &tested->items[i], &streams[i]) == 0);
    check_groups(tested, plan);
    for (size_t c = 0; c < plan->chunk_count; c++) {
        CHECK(plan->chunks[c].piece_first == piece_at);
        piece_at += plan->chunks[c].piece_count;
        read_bytes += check_chunk(plan, &plan->chunks[c], streams);
        const struct hr_plan_group *group = &plan->groups[plan->chunks[c].group_index];
        CHECK(c >= group->chunk_first && c < group->chunk_first + group->chunk_count);
    }
    CHECK(piece_at == plan->piece_count && read_bytes == plan->read_bytes);
    for (size_t i = 0; i < tested->item_count; i++) {
        check_item(tested, plan, i, &streams[i]);
        bytes += streams[i].bytes;
        bytes_there += streams[i].bytes_there;
        stream_release(&streams[i]);
    }
    CHECK(bytes == plan->bytes && bytes_there == plan->target_bytes);
    free(streams);
}

/* The same items, groups and order, all in one way. */
static void rechunk(struct hr_plan *plan, enum hr_way way)
{
    hr_free(plan->chunks);
    hr_free(plan->pieces);
    plan->chunks = NULL;
    plan->pieces = NULL;
    plan->chunk_count = plan->piece_count = 0;
    plan->read_bytes = plan->staged_bytes_max = 0;
    for (size_t i = 0; i < plan->item_count; i++)
        plan->items[i].way = way;
    CHECK(hr_chunks_make(plan, NULL) == 0);
    CHECK(way == HR_WAY_STAGED || plan->read_bytes == plan->bytes);
}

void model_check(const struct plan_case *tested)
{
    struct hr_plan plan;
    int expected = 0;
    for (size_t i = 0; i < tested->item_count && !expected; i++)
        expected = model_item(&tested->tensors[tested->items[i].tensor_index], &tested->items[i]);
    int code = hr_plan_make(tested->tensors, tested->tensor_count, tested->file_count, tested->items,
                            tested->item_count, &tested->options, &plan, NULL);
    CHECK(code == expected);
    if (code)
        return;
    model_check_plan(tested, &plan);
    rechunk(&plan, HR_WAY_DIRECT);
    model_check_plan(tested, &plan);
    rechunk(&plan, HR_WAY_STAGED);
    model_check_plan(tested, &plan);
    hr_plan_release(&plan);
}
