/*
 * chunk.c: where chunks begin and end. Walks the items of each group in plan order and keeps one chunk open; an
 * item gives it a piece, up to the place where the chunk is full, and goes on in the next one.
 *
 * Invariants: a chunk's pieces begin at rising places in the file; [file_begin, file_end) is at most chunk_bytes for
 * staged chunks and for those that begin with rows (is_in_rows), as are the needed bytes of any chunk; an item has at
 * most one piece in a chunk.
 */
#include "plan/chunk.h"

#include "base/error.h"
#include "base/grow.h"

struct builder {
    struct hr_plan *plan;
    size_t chunk_capacity, piece_capacity;
    int is_open;           /* the last chunk takes more pieces */
    uint64_t piece_source; /* where its last piece begins in the file */
    uint64_t weight;       /* reads that it needs: runs, or pieces of a staged chunk */
    int has_rows;          /* it has pieces of items whose rows can be read whole */
};

/* Whether a staged range of `span` bytes ends before a gap, or reads on over it. */
static int gap_splits(uint64_t span, uint64_t gap)
{
    return gap > HR_SIEVE_GAP_BYTES_MAX && (span >= HR_SIEVE_SPAN_BYTES_MIN || gap > HR_STAGED_GAP_BYTES_MAX);
}

/* The part of an item that is staged without a split: its needed bytes, its span, the widest gap inside. */
struct block {
    uint64_t bytes, span, gap_max;
};

static struct block item_block(const struct hr_plan_item *item)
{
    struct block block = {item->run_bytes, item->run_bytes, 0};
    for (uint32_t d = item->dim_count; d-- > 0;) {
        const struct hr_plan_dim *dim = &item->dims[d];
        uint64_t gap = dim->source_stride - block.span;
        if (gap_splits(block.span, gap))
            break;
        if (gap > block.gap_max)
            block.gap_max = gap;
        block.bytes *= dim->count;
        block.span += dim->source_stride * (dim->count - 1);
    }
    return block;
}

/*
 * Staging costs a copy of every byte and the bytes of the gaps; it saves one read, or one vector where runs touch
 * each other in the file, for every run. So short runs with small gaps are staged, long ones are not, and short
 * ones that lie far apart are read one by one, because only what is needed should be read.
 */
uint32_t hr_way_choose(const struct hr_plan_item *item)
{
    if (item->dim_count == 0)
        return HR_WAY_DIRECT;
    uint64_t run = item->run_bytes;
    uint64_t gap = item->dims[item->dim_count - 1].source_stride - run;
    if (gap > HR_SIEVE_GAP_BYTES_MAX)
        return HR_WAY_DIRECT;
    if (run >= HR_DIRECT_RUN_BYTES_MIN && (gap == 0 || gap >= run || run >= HR_SIEVE_RUN_BYTES_MAX))
        return HR_WAY_DIRECT;
    struct block block = item_block(item);
    if (block.gap_max > HR_SIEVE_GAP_BYTES_MAX)
        return HR_WAY_DIRECT;
    if (block.bytes < item->bytes && block.span < HR_SIEVE_SPAN_BYTES_MIN)
        return HR_WAY_DIRECT;
    return HR_WAY_STAGED;
}

/* Whether storage may deliver what lies between a direct item's runs with them. */
static int is_in_rows(const struct hr_plan_item *item)
{
    if (item->way != HR_WAY_DIRECT || item->dim_count == 0)
        return 0;
    uint64_t gap = item->dims[item->dim_count - 1].source_stride - item->run_bytes;
    return gap > 0 && gap <= HR_STAGED_GAP_BYTES_MAX &&
           (item->source_end - item->source_offset) / HR_ROWS_OVER_READ_MAX <= item->bytes;
}

/* Where a byte of the stream lies in the file. */
static uint64_t stream_source(const struct hr_plan_item *item, uint64_t position)
{
    uint64_t run = position / item->run_bytes;
    uint64_t source = item->source_offset + position % item->run_bytes;
    for (uint32_t d = item->dim_count; d-- > 0;) {
        source += run % item->dims[d].count * item->dims[d].source_stride;
        run /= item->dims[d].count;
    }
    return source;
}

uint64_t hr_stream_before(const struct hr_plan_item *item, uint64_t offset)
{
    if (offset >= item->source_end)
        return item->bytes;
    if (offset <= item->source_offset)
        return 0;
    uint64_t rest = offset - item->source_offset;
    uint64_t inner = item->bytes;
    uint64_t before = 0;
    for (uint32_t d = 0; d < item->dim_count; d++) {
        const struct hr_plan_dim *dim = &item->dims[d];
        uint64_t index = rest / dim->source_stride;
        inner /= dim->count;
        if (index >= dim->count)
            return before + inner * dim->count;
        before += inner * index;
        rest -= index * dim->source_stride;
    }
    return before + (rest < item->run_bytes ? rest : item->run_bytes);
}

/*
 * Where cuts inside a run are aligned: in the file for what goes through a buffer, in memory for what is read straight into host
 * memory. There two readers that meet within a huge page of fresh memory would both fill it with zeros; arenas begin on
 * huge pages.
 */
static uint64_t cut_place(const struct builder *b, const struct hr_plan_item *item, uint64_t begin, uint64_t source)
{
    if (item->way == HR_WAY_STAGED || hr_plan_is_cast(item) || hr_plan_is_remote(b->plan, item->device_index))
        return source;
    return item->target_offset + (uintptr_t)item->into + begin;
}

/* A place to cut inside a run that lies at [begin, end]: the grid, else pages, else `otherwise`. */
static uint64_t cut_in_run(uint64_t begin, uint64_t end, uint64_t chunk_bytes, uint64_t otherwise)
{
    if (end - end % chunk_bytes > begin)
        return end - end % chunk_bytes;
    if (end - end % HR_CUT_ALIGNMENT > begin)
        return end - end % HR_CUT_ALIGNMENT;
    return otherwise;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The last border between elements that is not behind `position` of the stream. */
static uint64_t element_border(const struct hr_plan_item *item, uint64_t position)
{
    return position - position % item->source_unit;
}

/* The furthest end that the bounds of a chunk allow for a piece from `begin` on, wherever that lies in a run. */
static uint64_t piece_bound(const struct builder *b, const struct hr_plan_item *item, uint64_t begin, uint64_t source)
{
    const struct hr_plan_chunk *chunk = b->is_open ? &b->plan->chunks[b->plan->chunk_count - 1] : NULL;
    uint64_t chunk_bytes = b->plan->options.chunk_bytes;
    uint64_t used = chunk ? chunk->bytes : 0;
    uint64_t weight = chunk ? b->weight : 0;
    if (used >= chunk_bytes || weight >= HR_CHUNK_RUNS_MAX)
        return begin;
    uint64_t end = element_border(item, begin + least(item->bytes - begin, chunk_bytes - used));
    if (end == begin)
        return begin;
    if (item->way == HR_WAY_DIRECT) {
        uint64_t run_end = begin / item->run_bytes + (HR_CHUNK_RUNS_MAX - weight); /* index of the first too many */
        end = (end - 1) / item->run_bytes < run_end ? end : run_end * item->run_bytes;
        if (!is_in_rows(item) && !(chunk && b->has_rows))
            return end;
    } else {
        uint64_t block_bytes = item_block(item).bytes;
        end = least(end, (begin / block_bytes + 1) * block_bytes);
    }
    end = element_border(item, least(end, hr_stream_before(item, (chunk ? chunk->file_begin : source) + chunk_bytes)));
    return end > begin ? end : begin;
}

/* Where the open chunk's, or else a new chunk's, piece of this item ends; `begin` when the open one is full. */
static uint64_t piece_end(const struct builder *b, const struct hr_plan_item *item, uint64_t begin)
{
    uint64_t source = stream_source(item, begin);
    uint64_t end = piece_bound(b, item, begin, source);
    uint64_t boundary = end - end % item->run_bytes;
    if (end == begin || boundary > begin)
        return boundary > begin ? boundary : begin;
    uint64_t chunk_bytes = b->plan->options.chunk_bytes;
    if (b->is_open && item->dim_count && item->run_bytes <= chunk_bytes)
        return begin; /* the run fits whole into the next one */
    if (b->plan->options.has_no_grid)
        return end;
    uint64_t place = cut_place(b, item, begin, source);
    uint64_t place_end = place + (end - begin);
    uint64_t cut = begin + cut_in_run(place, place_end, chunk_bytes, b->is_open ? place : place_end) - place;
    cut = element_border(item, cut);
    return cut > begin || b->is_open ? cut : end;
}

/* Closes the open chunk, if there is one, and adds what it reads to the plan's sums. */
static void chunk_close(struct builder *b)
{
    struct hr_plan *plan = b->plan;
    if (!b->is_open)
        return;
    const struct hr_plan_chunk *chunk = &plan->chunks[plan->chunk_count - 1];
    uint64_t span = chunk->file_end - chunk->file_begin;
    uint64_t buffered = chunk->way == HR_WAY_STAGED ? span : chunk->bytes;
    plan->read_bytes += buffered;
    plan->read_bytes_cold += span <= plan->options.chunk_bytes ? span : chunk->bytes;
    int is_remote = hr_plan_is_remote(plan, plan->groups[chunk->group_index].device_index);
    if ((chunk->way == HR_WAY_STAGED || chunk->has_cast) && !is_remote && buffered > plan->staged_bytes_max)
        plan->staged_bytes_max = buffered;
    b->is_open = 0;
}

static int chunk_open(struct builder *b, const struct hr_plan_item *item, uint64_t source, struct hr_error *err)
{
    struct hr_plan *plan = b->plan;
    void *chunks = plan->chunks;
    int code = hr_grow(&chunks, &b->chunk_capacity, plan->chunk_count, sizeof *plan->chunks, "chunks", err);
    plan->chunks = chunks;
    if (code)
        return code;
    plan->chunks[plan->chunk_count++] = (struct hr_plan_chunk){
        .file_index = item->file_index,
        .group_index = item->group_index,
        .file_begin = source,
        .file_end = source,
        .piece_first = plan->piece_count,
        .way = item->way,
    };
    b->is_open = 1;
    b->weight = 0;
    b->has_rows = 0;
    return 0;
}

/* Adds [begin, end) of an item to the open chunk, or to a new one. */
static int piece_add(struct builder *b, size_t item_index, uint64_t begin, uint64_t end, struct hr_error *err)
{
    struct hr_plan *plan = b->plan;
    struct hr_plan_item *item = &plan->items[item_index];
    uint64_t source = stream_source(item, begin);
    void *pieces = plan->pieces;
    int code = hr_grow(&pieces, &b->piece_capacity, plan->piece_count, sizeof *plan->pieces, "pieces", err);
    plan->pieces = pieces;
    if (!code && !b->is_open)
        code = chunk_open(b, item, source, err);
    if (code)
        return code;
    struct hr_plan_chunk *chunk = &plan->chunks[plan->chunk_count - 1];
    uint64_t source_end = stream_source(item, end - 1) + 1;
    if (source_end > chunk->file_end)
        chunk->file_end = source_end;
    chunk->bytes += end - begin;
    chunk->has_cast |= (uint32_t)hr_plan_is_cast(item);
    chunk->piece_count++;
    b->weight += item->way == HR_WAY_DIRECT ? (end - 1) / item->run_bytes - begin / item->run_bytes + 1 : 1;
    b->piece_source = source;
    b->has_rows |= is_in_rows(item);
    if (item->chunk_count++ == 0)
        item->chunk_first = plan->chunk_count - 1;
    plan->pieces[plan->piece_count++] = (struct hr_plan_piece){item_index, begin, end};
    return 0;
}

/* Whether the open chunk may go on with this item. */
static int chunk_takes(const struct builder *b, const struct hr_plan_item *item)
{
    const struct hr_plan_chunk *chunk = &b->plan->chunks[b->plan->chunk_count - 1];
    if (chunk->file_index != item->file_index || chunk->way != item->way || item->source_offset < b->piece_source)
        return 0;
    uint64_t gap = item->source_offset > chunk->file_end ? item->source_offset - chunk->file_end : 0;
    if (chunk->way == HR_WAY_DIRECT)
        return gap <= b->plan->options.chunk_bytes;
    return !gap_splits(chunk->file_end - chunk->file_begin, gap);
}

static int item_cut(struct builder *b, size_t item_index, struct hr_error *err)
{
    const struct hr_plan_item *item = &b->plan->items[item_index];
    if (b->is_open && item->bytes && !chunk_takes(b, item))
        chunk_close(b);
    for (uint64_t begin = 0; begin < item->bytes;) {
        uint64_t end = piece_end(b, item, begin);
        if (end > begin) {
            int code = piece_add(b, item_index, begin, end, err);
            if (code)
                return code;
        }
        if (end < item->bytes)
            chunk_close(b);
        begin = end;
    }
    return 0;
}

int hr_chunks_make(struct hr_plan *plan, struct hr_error *err)
{
    struct builder b = {.plan = plan};
    for (size_t g = 0; g < plan->group_count; g++) {
        struct hr_plan_group *group = &plan->groups[g];
        group->chunk_first = plan->chunk_count;
        for (size_t i = 0; i < group->item_count; i++) {
            size_t item_index = plan->order[group->order_first + i];
            int code = plan->items[item_index].is_spread ? 0 : item_cut(&b, item_index, err);
            if (code)
                return code;
        }
        chunk_close(&b);
        group->chunk_count = plan->chunk_count - group->chunk_first;
    }
    return 0;
}
