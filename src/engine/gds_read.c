/*
 * gds_read.c: a window of the file slides over the chunk. Within it, what lies at file offset x comes to x - base of the
 * slot; base is a multiple of the alignment. Needed ranges are read in whole pages of the alignment, neighbours
 * together, gaps left out. When a run does not fit any more, what is there is spread, and the next window begins.
 *
 * Invariant: [pending_begin, pending_end) is needed, lies in the window and was not read yet.
 */
#include "engine/gds_read.h"

#include "base/error.h"
#include "base/sys.h"
#include "engine/chunks.h"
#include "engine/gds_files.h"
#include "engine/send.h"
#include "engine/trace.h"

struct gds_job {
    struct hr_load *load;
    const struct hr_plan_chunk *chunk;
    const struct hr_staging_slot *slot;
    struct hr_gds_file *file;
    struct hr_lane *lane;
    struct hr_fence *fence;
    uint32_t reader_index;
    struct gds_counts *counts;
    struct hr_place_counts *placed;
    uint64_t slot_bytes, run_bytes_max; /* that fit wherever the run begins in its page */
    uint64_t base;
    uint64_t pending_begin, pending_end;
    size_t move_count;                  /* 0: no window is open */
    const struct load_item *item;       /* of the last move */
    const struct hr_plan_item *planned; /* that is at hand, */
    uint64_t cast;                      /*   and how it is converted: hr_move.cast */
};

static uint64_t page_of(uint64_t offset)
{
    return offset / HR_GDS_ALIGNMENT * HR_GDS_ALIGNMENT;
}

static int read_pending(struct gds_job *job, struct hr_error *err)
{
    uint64_t offset = job->pending_begin, bytes = job->pending_end - offset, before = job->counts->bytes_read;
    uint64_t from = hr_sys->clock_ns();
    if (bytes == 0)
        return 0;
    int64_t result = hr_gds_read(job->slot->gds, job->file, job->slot->gds_index, offset - job->base, offset, bytes,
                                 &job->counts->bytes_read, &job->counts->read_count, err);
    job->counts->read_ns += hr_trace_span(job->load, HR_TRACE_READ, job->reader_index, from, job->chunk->file_index,
                                          offset, job->counts->bytes_read - before);
    job->placed->bytes_sent += job->counts->bytes_read - before;
    job->pending_begin = job->pending_end = 0;
    if (result >= 0 && (uint64_t)result == bytes)
        return 0;
    if (result >= 0) {
        offset += (uint64_t)result;
        result =
            hr_fail(err, HR_ESHORT_READ,
                    "the file ends at byte %llu where %llu more were to be read; it was cut short after it was opened",
                    (unsigned long long)offset, (unsigned long long)(bytes - (uint64_t)result));
    }
    hr_chunk_locate(job->load, job->chunk, offset, err);
    return (int)result;
}

/* Has a range of the file read, now or together with the next one. */
static int want(struct gds_job *job, uint64_t begin, uint64_t end, struct hr_error *err)
{
    uint64_t page = page_of(begin);
    if (job->pending_end && page >= job->pending_begin && page <= page_of(job->pending_end + HR_GDS_ALIGNMENT - 1)) {
        job->pending_end = end > job->pending_end ? end : job->pending_end;
        return 0;
    }
    int code = read_pending(job, err);
    job->pending_begin = page;
    job->pending_end = end;
    return code;
}

/* Reads and spreads what the window holds, and closes it. */
static int flush(struct gds_job *job, struct hr_error *err)
{
    int code = read_pending(job, err);
    if (code == 0)
        code = hr_lane_spread(job->lane, job->slot->block, job->slot->moves, job->move_count, job->placed, err);
    job->move_count = 0;
    return code < 0 ? code : hr_fence_put(job->fence, job->lane, err);
}

/* How many of the rows the window takes; opens one when there is none. */
static uint64_t rows_that_fit(struct gds_job *job, const struct hr_run_rows *rows)
{
    uint64_t begin = rows->run.source_offset;
    if (job->move_count == 0)
        job->base = page_of(begin);
    uint64_t end = job->base + job->slot_bytes;
    if (job->move_count == job->slot->move_capacity || begin < job->base || begin + rows->run.bytes > end)
        return 0;
    uint64_t more = rows->count > 1 ? (end - begin - rows->run.bytes) / rows->source_stride : 0;
    return more < rows->count - 1 ? more + 1 : rows->count;
}

static int add_move(struct gds_job *job, const struct hr_run_rows *rows, uint64_t count, const struct load_item *item,
                    struct hr_error *err)
{
    const struct hr_move move = {
        .source = (uintptr_t)job->slot->memory + (rows->run.source_offset - job->base),
        .target = (uintptr_t)(item->data + rows->run.target_offset),
        .bytes = rows->run.bytes,
        .rows = count,
        .source_pitch = (long long)rows->source_stride,
        .target_pitch = rows->target_stride,
        .cast = job->cast,
    };
    int code = 0;
    if (!hr_move_join(job->slot->moves, job->move_count, job->item, &move, item))
        job->slot->moves[job->move_count++] = move;
    job->item = item;
    for (uint64_t i = 0; i < count && code == 0; i++) {
        uint64_t begin = rows->run.source_offset + i * rows->source_stride;
        code = want(job, begin, begin + rows->run.bytes, err);
    }
    return code;
}

/* Rows that fit into a window. */
static int add_rows(struct gds_job *job, struct hr_run_rows rows, const struct load_item *item, struct hr_error *err)
{
    int code = 0;
    while (rows.count && code == 0) {
        uint64_t count = rows_that_fit(job, &rows);
        if (count == 0) {
            code = flush(job, err);
            if (code == 0) {
                uint64_t from = hr_sys->clock_ns();
                code = hr_fence_wait(job->fence, err);
                job->counts->copy_wait_ns += hr_sys->clock_ns() - from;
            }
            continue;
        }
        code = add_move(job, &rows, count, item, err);
        rows.count -= count;
        rows.run.source_offset += count * rows.source_stride;
        rows.run.target_offset += (int64_t)count * rows.target_stride;
    }
    return code;
}

/* A run of any length, in parts that fit. */
static int add_run(struct gds_job *job, struct hr_run run, const struct load_item *item, struct hr_error *err)
{
    int code = 0;
    while (run.bytes && code == 0) {
        struct hr_run_rows part = {.run = run, .count = 1};
        if (part.run.bytes > job->run_bytes_max)
            part.run.bytes = job->run_bytes_max;
        code = add_rows(job, part, item, err);
        run.source_offset += part.run.bytes;
        run.target_offset += (int64_t)hr_plan_target_bytes(job->planned, part.run.bytes);
        run.bytes -= part.run.bytes;
    }
    return code;
}

static int add_piece(struct gds_job *job, const struct hr_plan_piece *piece, struct hr_error *err)
{
    const struct load_item *item = &job->load->items[piece->item_index];
    struct hr_run_walk walk;
    struct hr_run_rows rows;
    int code = 0;
    job->planned = &job->load->plan.items[piece->item_index];
    job->cast = hr_item_cast(job->planned);
    hr_run_walk_init(&walk, job->planned, piece);
    while (code == 0 && hr_run_walk_rows(&walk, &rows)) {
        if (rows.run.bytes <= job->run_bytes_max) {
            code = add_rows(job, rows, item, err);
            continue;
        }
        for (; rows.count && code == 0; rows.count--) {
            code = add_run(job, rows.run, item, err);
            rows.run.source_offset += rows.source_stride;
            rows.run.target_offset += rows.target_stride;
        }
    }
    return code;
}

int hr_gds_read_chunk(struct hr_load *load, const struct hr_plan_chunk *chunk, int fd,
                      const struct hr_staging_slot *slot, struct hr_lane *lane, struct hr_fence *fence,
                      uint32_t reader_index, struct gds_counts *counts, struct hr_place_counts *placed,
                      struct hr_error *err)
{
    struct gds_job job = {.load = load,
                          .chunk = chunk,
                          .slot = slot,
                          .lane = lane,
                          .fence = fence,
                          .reader_index = reader_index,
                          .counts = counts,
                          .placed = placed,
                          .slot_bytes = hr_gds_slot_bytes(slot->gds)};
    job.run_bytes_max = job.slot_bytes - HR_GDS_ALIGNMENT; /* multiples of pages: whole elements */
    int code = hr_gds_files_acquire(load->gds_files, chunk->file_index, fd, &job.file, err);
    if (code < 0)
        return code;
    for (size_t i = 0; code == 0 && i < chunk->piece_count; i++)
        code = add_piece(&job, &load->plan.pieces[chunk->piece_first + i], err);
    if (code == 0)
        code = flush(&job, err);
    if (code < 0 && hr_fence_put(fence, lane, NULL) == 0)
        hr_fence_wait(fence, NULL); /* some of it may be under way */
    hr_gds_files_release(load->gds_files, chunk->file_index);
    return code;
}
