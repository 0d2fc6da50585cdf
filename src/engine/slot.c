/*
 * slot.c: from a chunk's runs to vectored reads. Runs that follow each other in the file share an operation.
 */
#include "engine/slot.h"

#include "base/copy.h"
#include "convert/convert.h"
#include "engine/in_place.h"

static uint64_t page_of(uint64_t offset)
{
    return offset / HR_CUT_ALIGNMENT * HR_CUT_ALIGNMENT;
}

void hr_slot_begin(struct slot *slot, const struct hr_plan_chunk *chunk, uint32_t mode, int fd, char *memory)
{
    slot->chunk = chunk;
    slot->has_left = slot->has_landed = 0;
    /* pages of the page cache too are copied fastest to where they begin at the same place of a page */
    slot->buffer = memory ? memory + chunk->file_begin % HR_CUT_ALIGNMENT : NULL;
    hr_slot_restart(slot, mode, fd);
}

static void rewind_runs(struct slot *slot)
{
    slot->piece_index = slot->chunk->piece_first;
    slot->walking = slot->has_run = 0;
    slot->packed = 0;
}

void hr_slot_restart(struct slot *slot, uint32_t mode, int fd)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    int is_direct = mode == HR_READ_DIRECT;
    slot->mode = mode;
    slot->fd = fd;
    slot->op.flags = mode == HR_READ_DONTCACHE ? HR_RWF_DONTCACHE : 0;
    slot->is_span = chunk->way == HR_WAY_STAGED || is_direct;
    slot->span_begin = is_direct ? page_of(chunk->file_begin) : chunk->file_begin;
    slot->span_end = is_direct ? page_of(chunk->file_end + HR_CUT_ALIGNMENT - 1) : chunk->file_end;
    int may_have_places = is_direct && slot->memory_alignment && chunk->way == HR_WAY_DIRECT && !chunk->has_cast;
    slot->place_count = may_have_places ? -1 : 0;
    slot->bytes_expected = slot->bytes_done = 0;
    slot->stall_count = 0;
    rewind_runs(slot);
}

/* Moves the slot to its chunk's next run; 0 at the end. Items whose file is mapped need no reading. */
static int next_run(const struct hr_load *load, struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    for (;;) {
        if (slot->walking && hr_run_walk_next(&slot->walk, &slot->run)) {
            size_t item_index = load->plan.pieces[slot->piece_index - 1].item_index;
            slot->run_data = load->items[item_index].data + slot->run.target_offset;
            if (slot->buffer && !slot->is_span) {
                slot->run_data = slot->buffer + slot->packed;
                slot->packed += slot->run.bytes;
            }
            return slot->has_run = 1;
        }
        slot->walking = 0;
        if (slot->piece_index == chunk->piece_first + chunk->piece_count)
            return 0;
        const struct hr_plan_piece *piece = &load->plan.pieces[slot->piece_index++];
        if (load->items[piece->item_index].mapped)
            continue;
        hr_run_walk_init(&slot->walk, &load->plan.items[piece->item_index], piece);
        slot->walking = 1;
    }
}

/* Appends the run at hand to the operation's vectors; runs that also continue in memory become one vector. */
static void add_vector(struct slot *slot)
{
    struct iovec *last = slot->vector_count ? &slot->vectors[slot->vector_count - 1] : NULL;
    if (last && (char *)last->iov_base + last->iov_len == slot->run_data) {
        last->iov_len += slot->run.bytes;
    } else {
        slot->vectors[slot->vector_count].iov_base = slot->run_data;
        slot->vectors[slot->vector_count++].iov_len = slot->run.bytes;
    }
    slot->bytes_expected += slot->run.bytes;
    slot->has_run = 0;
}

/* Collects runs that follow each other in the file into one operation; 0 when the chunk has no more. */
static int fill_direct(const struct hr_load *load, struct slot *slot)
{
    slot->vector_first = slot->vector_count = slot->has_places = 0;
    slot->bytes_expected = 0;
    if (!slot->has_run && !next_run(load, slot))
        return 0;
    slot->op.offset = slot->run.source_offset;
    while (slot->run.source_offset == slot->op.offset + slot->bytes_expected && slot->vector_count < HR_IOV_MAX) {
        add_vector(slot);
        if (!next_run(load, slot))
            break;
    }
    return 1;
}

/* Drops them from the front of the vectors. */
static void advance_vectors(struct slot *slot, uint64_t bytes)
{
    slot->op.offset += bytes;
    slot->bytes_expected -= bytes;
    while (bytes) {
        struct iovec *first = &slot->vectors[slot->vector_first];
        if (bytes < first->iov_len) {
            first->iov_base = (char *)first->iov_base + bytes;
            first->iov_len -= bytes;
            return;
        }
        bytes -= first->iov_len;
        slot->vector_first++;
    }
}

/* Appends [begin, end) of the file to the operation, to `memory`. */
static void add_range(struct slot *slot, uint64_t begin, uint64_t end, char *memory)
{
    if (begin < end)
        slot->vectors[slot->vector_count++] = (struct iovec){memory, end - begin};
}

/* Where the buffer has this byte of the file. */
static char *in_buffer(const struct slot *slot, uint64_t offset)
{
    return slot->buffer + (ptrdiff_t)(offset - slot->chunk->file_begin);
}

static void find_place(struct slot *slot)
{
    struct in_place_range range = hr_in_place(&slot->run, slot->run_data, slot->memory_alignment);
    char *memory = slot->run_data + (range.begin - slot->run.source_offset);
    if (range.begin < range.end && slot->place_count < HR_SLOT_PLACES_MAX &&
        hr_in_large_pages(memory, range.end - range.begin))
        slot->places[slot->place_count++] = (struct place){range.begin, range.end, memory};
}

/* Runs that share bytes of the file need these in the buffer: then there are no places. */
static void find_places(const struct hr_load *load, struct slot *slot)
{
    uint64_t runs_end = 0;
    slot->place_count = 0;
    while (next_run(load, slot)) {
        if (slot->run.source_offset < runs_end) {
            slot->place_count = 0;
            break;
        }
        runs_end = slot->run.source_offset + slot->run.bytes;
        find_place(slot);
    }
    rewind_runs(slot);
}

/* The vectors of all the span, as if nothing of it had arrived. */
static void add_span(struct slot *slot)
{
    uint64_t at = slot->span_begin;
    slot->vector_first = slot->vector_count = 0;
    for (int i = 0; i < slot->place_count; i++) {
        const struct place *place = &slot->places[i];
        add_range(slot, at, place->begin, in_buffer(slot, at));
        add_range(slot, place->begin, place->end, place->memory);
        at = place->end;
    }
    add_range(slot, at, slot->span_end, in_buffer(slot, at));
    slot->has_places = slot->place_count > 0;
}

/* Goes on at what has arrived, with O_DIRECT at the page that it ends in. */
static int fill_span(const struct hr_load *load, struct slot *slot)
{
    uint64_t needed = slot->chunk->file_end - slot->span_begin;
    uint64_t from = slot->mode == HR_READ_DIRECT ? page_of(slot->bytes_done) : slot->bytes_done;
    if (slot->bytes_done >= needed)
        return 0;
    if (slot->place_count < 0)
        find_places(load, slot);
    add_span(slot);
    slot->op.offset = slot->span_begin;
    slot->bytes_expected = needed;
    advance_vectors(slot, from);
    return 1;
}

int hr_slot_fill(const struct hr_load *load, struct slot *slot)
{
    return slot->is_span ? fill_span(load, slot) : fill_direct(load, slot);
}

/*
 * A short count is right only at the end of the file, behind what is needed; there it comes again and again, since with
 * O_DIRECT reading goes on at a page. Elsewhere it may be shorter than before, too.
 */
static int advance_span(struct slot *slot, uint64_t bytes)
{
    uint64_t done = slot->op.offset - slot->span_begin + bytes;
    slot->stall_count = done > slot->bytes_done ? 0 : slot->stall_count + 1;
    if (done > slot->bytes_done)
        slot->bytes_done = done;
    if (slot->stall_count == HR_SLOT_STALLS_MAX) {
        slot->op.offset = slot->span_begin + slot->bytes_done;
        slot->bytes_expected = slot->chunk->file_end - slot->op.offset;
        return 0;
    }
    slot->bytes_expected = 0;
    return 1;
}

int hr_slot_advance(struct slot *slot, uint64_t bytes)
{
    if (slot->is_span)
        return advance_span(slot, bytes);
    advance_vectors(slot, bytes);
    return 1;
}

/*
 * From the buffer, where it lies at `bytes`, to its place; but for what came to that by itself (`place`; NULL: nothing),
 * whose bytes are returned.
 */
static uint64_t move_run(const struct hr_plan_item *item, const struct hr_run *run, char *target, const char *bytes,
                         const struct place *place)
{
    uint64_t left = run->bytes, bytes_there = 0;
    if (hr_plan_is_cast(item)) {
        hr_convert(item->source_dtype, item->dtype, target, bytes, left / item->source_unit);
        return 0;
    }
    if (place) {
        uint64_t skipped = place->end - run->source_offset;
        hr_copy_past_caches(target, bytes, place->begin - run->source_offset);
        bytes_there = place->end - place->begin;
        target += skipped;
        bytes += skipped;
        left -= skipped;
    }
    hr_copy_past_caches(target, bytes, left);
    return bytes_there;
}

/* The next place, if it lies in the run. */
static const struct place *place_in(const struct slot *slot, int index, const struct hr_run *run)
{
    int is_in = index < slot->place_count && slot->places[index].begin < run->source_offset + run->bytes;
    return is_in ? &slot->places[index] : NULL;
}

uint64_t hr_slot_scatter(const struct hr_load *load, const struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    uint64_t packed = 0, bytes_there = 0;
    int place_index = 0;
    for (size_t i = 0; i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        const struct hr_plan_item *item = &load->plan.items[piece->item_index];
        const struct load_item *loaded = &load->items[piece->item_index];
        struct hr_run_walk walk;
        struct hr_run run;
        if (loaded->mapped)
            continue;
        hr_run_walk_init(&walk, item, piece);
        while (hr_run_walk_next(&walk, &run)) {
            uint64_t at = slot->is_span ? run.source_offset - chunk->file_begin : packed;
            const struct place *place = place_in(slot, place_index, &run);
            bytes_there += move_run(item, &run, loaded->data + run.target_offset, slot->buffer + at, place);
            place_index += place != NULL;
            packed += run.bytes;
        }
    }
    return bytes_there;
}
