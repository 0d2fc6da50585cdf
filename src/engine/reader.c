/*
 * reader.c: takes chunks, turns them into read operations, and puts what they bring in its place.
 *
 * A slot carries one chunk through its operations. A direct chunk is read run by run into its destinations: runs
 * that follow each other in the file share a vectored read. A staged chunk is read whole into the slot's bounce
 * buffer and copied out from there. After a chunk's last byte the file's identity is compared once more, and only
 * then do its items count the bytes: so an item is ready only when a comparison has followed each of its bytes.
 *
 * A reader allocates nothing once it runs.
 */
#include "engine/reader.h"

#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "device/host.h"

struct slot {
    struct hr_io_op op;
    const struct hr_plan_chunk *chunk; /* NULL: free */
    size_t piece_index;                /* the next piece to walk */
    struct hr_run_walk walk;
    int walking, has_run;
    struct hr_run run;       /* taken from the walk and not yet part of an operation */
    char *run_data;          /* where the run goes */
    uint64_t bytes_expected; /* of the operation in flight */
    int vector_first, vector_count;
    struct iovec vectors[HR_IOV_MAX];
    char *bounce; /* staged chunks only */
    uint64_t bounce_done;
    int fd;
};

/* As the load's of these names. Readers add to those once a chunk: runs can be short, and the load's are shared. */
struct counters {
    uint64_t bytes_read, read_count, read_ns, place_ns;
};

struct hr_reader {
    struct hr_load *load;
    struct hr_io *io;
    uint32_t depth, in_flight;
    const struct hr_plan_chunk *waiting; /* taken, but there was no descriptor for it yet */
    uint64_t bounce_bytes;               /* of each slot */
    struct counters counters;            /* not yet added to the load's */
    struct slot slots[];
};

int hr_reader_new(struct hr_load *load, uint32_t depth, struct hr_reader **ret_reader, struct hr_error *err)
{
    struct hr_reader *reader = hr_alloc(sizeof *reader + depth * sizeof reader->slots[0]);
    if (!reader)
        return hr_fail_memory(err, sizeof *reader + depth * sizeof reader->slots[0], "a reader");
    reader->load = load;
    reader->depth = depth;
    reader->bounce_bytes = load->plan.staged_bytes_max;
    int code = load->backend->open(depth, &reader->io, err);
    for (uint32_t i = 0; code == 0 && reader->bounce_bytes && i < depth; i++) {
        void *bounce;
        if (hr_host_alloc(reader->bounce_bytes, &bounce) < 0)
            code = hr_fail_memory(err, reader->bounce_bytes, "a bounce buffer");
        else
            reader->slots[i].bounce = bounce;
    }
    if (code < 0) {
        hr_reader_free(reader);
        return code;
    }
    *ret_reader = reader;
    return 0;
}

void hr_reader_free(struct hr_reader *reader)
{
    if (!reader)
        return;
    for (uint32_t i = 0; i < reader->depth; i++)
        if (reader->slots[i].bounce)
            hr_host_free(reader->slots[i].bounce, reader->bounce_bytes);
    reader->load->backend->close(reader->io);
    hr_free(reader);
}

/* ---------------------------------------------------------------------------------- taking chunks */

/* The next chunk that nobody took, of the first entry of a queue of items or groups, or SIZE_MAX. The lock is held. */
static size_t queue_chunk(struct hr_load *load, struct index_queue *queue, size_t *chunk_next)
{
    for (; queue->count; hr_queue_pop(queue), *chunk_next = 0) {
        size_t index = queue->indices[queue->first];
        int items = queue == &load->urgent;
        size_t first = items ? load->plan.items[index].chunk_first : load->plan.groups[index].chunk_first;
        size_t count = items ? load->plan.items[index].chunk_count : load->plan.groups[index].chunk_count;
        while (*chunk_next < count) {
            size_t chunk_index = first + (*chunk_next)++;
            if (load->chunk_taken[chunk_index])
                continue;
            load->chunk_taken[chunk_index] = 1;
            return chunk_index;
        }
    }
    return SIZE_MAX;
}

/* NULL when there is none; with `block`, only once the load is stopping. */
static const struct hr_plan_chunk *take_chunk(struct hr_load *load, int block)
{
    size_t chunk_index = SIZE_MAX;
    pthread_mutex_lock(&load->lock);
    for (;;) {
        if (load->stopping)
            break;
        chunk_index = queue_chunk(load, &load->urgent, &load->urgent_chunk);
        if (chunk_index == SIZE_MAX)
            chunk_index = queue_chunk(load, &load->queued, &load->queued_chunk);
        if (chunk_index != SIZE_MAX || !block)
            break;
        uint64_t idle_from = hr_sys->clock_ns();
        pthread_cond_wait(&load->work, &load->lock);
        load->idle_ns += hr_sys->clock_ns() - idle_from;
    }
    pthread_mutex_unlock(&load->lock);
    return chunk_index == SIZE_MAX ? NULL : &load->plan.chunks[chunk_index];
}

/* ------------------------------------------------------------------------------------- operations */

/* Moves the slot to its chunk's next run; 0 at the end. Items whose file is mapped need no reading. */
static int next_run(struct hr_load *load, struct slot *slot)
{
    const struct hr_plan_chunk *chunk = slot->chunk;
    for (;;) {
        if (slot->walking && hr_run_walk_next(&slot->walk, &slot->run)) {
            size_t item_index = load->plan.pieces[slot->piece_index - 1].item_index;
            slot->run_data = load->items[item_index].data + slot->run.target_offset;
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
static int fill_direct(struct hr_load *load, struct slot *slot)
{
    slot->vector_first = slot->vector_count = 0;
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

static int fill_staged(struct slot *slot)
{
    uint64_t bytes = slot->chunk->file_end - slot->chunk->file_begin;
    if (slot->bounce_done == bytes)
        return 0;
    slot->op.offset = slot->chunk->file_begin;
    slot->vectors[0].iov_base = slot->bounce;
    slot->vectors[0].iov_len = bytes;
    slot->vector_first = 0;
    slot->vector_count = 1;
    slot->bytes_expected = bytes;
    return 1;
}

static int fill(struct hr_load *load, struct slot *slot)
{
    return slot->chunk->way == HR_WAY_STAGED ? fill_staged(slot) : fill_direct(load, slot);
}

/* Drops `bytes` that have arrived from the front of the vectors. */
static void advance_vectors(struct slot *slot, uint64_t bytes)
{
    slot->op.offset += bytes;
    slot->bytes_expected -= bytes;
    slot->bounce_done += bytes;
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

static void scatter(struct hr_reader *reader, struct slot *slot)
{
    uint64_t from = hr_sys->clock_ns();
    while (next_run(reader->load, slot))
        memcpy(slot->run_data, slot->bounce + (slot->run.source_offset - slot->chunk->file_begin), slot->run.bytes);
    slot->has_run = 0;
    reader->counters.place_ns += hr_sys->clock_ns() - from;
}

/* ----------------------------------------------------------------------------------------- errors */

/* Adds where it happened: the file, the offset, and the tensor whose bytes lie there or are the next ones. */
static void locate_error(struct hr_load *load, const struct hr_plan_chunk *chunk, uint64_t offset, struct hr_error *err)
{
    hr_error_in_file(err, load->checkpoint->files[chunk->file_index].path);
    if (err->offset == HR_NO_OFFSET)
        err->offset = offset;
    for (size_t i = 0; i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        const struct hr_plan_item *item = &load->plan.items[piece->item_index];
        if (offset >= item->source_end)
            continue;
        const struct hr_tensor *tensor = &load->checkpoint->tensors[item->tensor_index];
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
        return;
    }
}

static void fail_read(struct hr_load *load, struct slot *slot)
{
    struct hr_error error;
    uint64_t offset = slot->op.offset;
    if (slot->op.result == 0)
        hr_fail(&error, HR_ESHORT_READ,
                "the file ends at byte %llu where %llu more were to be read; it was cut short after it was opened",
                (unsigned long long)offset, (unsigned long long)slot->bytes_expected);
    else
        hr_fail_sys(&error, HR_EIO_ERROR, (int)-slot->op.result, "reading %llu bytes at byte %llu failed",
                    (unsigned long long)slot->bytes_expected, (unsigned long long)offset);
    locate_error(load, slot->chunk, offset, &error);
    hr_load_fail(load, &error);
}

/* ------------------------------------------------------------------------------------- completion */

/* Counts the chunk's bytes for its items; those that are complete become ready. */
static void count_bytes(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    int any = 0;
    uint64_t landed = 0;
    for (size_t i = 0; i < chunk->piece_count; i++) {
        const struct hr_plan_piece *piece = &load->plan.pieces[chunk->piece_first + i];
        struct load_item *item = &load->items[piece->item_index];
        uint64_t bytes = piece->end - piece->begin;
        if (item->mapped)
            continue;
        landed += bytes;
        /* acquire and release: who sees 0 sees what all readers of this item wrote */
        if (atomic_fetch_sub_explicit(&item->bytes_left, bytes, memory_order_acq_rel) != bytes)
            continue;
        if (!any)
            pthread_mutex_lock(&load->lock);
        any = 1;
        hr_load_item_ready(load, piece->item_index);
    }
    load->bytes_landed += landed;
    if (any) {
        pthread_cond_broadcast(&load->done);
        pthread_mutex_unlock(&load->lock);
    }
}

static void add_counters(struct hr_reader *reader)
{
    struct hr_load *load = reader->load;
    load->bytes_read += reader->counters.bytes_read;
    load->read_count += reader->counters.read_count;
    load->read_ns += reader->counters.read_ns;
    load->place_ns += reader->counters.place_ns;
    reader->counters = (struct counters){0};
}

static void finish_chunk(struct hr_reader *reader, struct slot *slot, int succeeded)
{
    struct hr_load *load = reader->load;
    const struct hr_plan_chunk *chunk = slot->chunk;
    struct hr_error error;
    if (succeeded && chunk->way == HR_WAY_STAGED)
        scatter(reader, slot);
    add_counters(reader); /* before its items are ready: who has seen all of them sees all reads */
    int code = succeeded ? hr_files_check(load->files, chunk->file_index, &error) : 0;
    hr_files_release(load->files, chunk->file_index);
    slot->chunk = NULL;
    if (code < 0) {
        locate_error(load, chunk, chunk->file_begin, &error);
        hr_load_fail(load, &error);
    } else if (succeeded) {
        count_bytes(load, chunk);
    }
}

/* Submits the slot's vectors from vector_first on. */
static int submit(struct hr_reader *reader, struct slot *slot)
{
    slot->op.fd = slot->fd;
    slot->op.vectors = slot->vectors + slot->vector_first;
    slot->op.vector_count = slot->vector_count - slot->vector_first;
    uint64_t from = hr_sys->clock_ns();
    int code = reader->load->backend->submit(reader->io, &slot->op);
    reader->counters.read_ns += hr_sys->clock_ns() - from;
    if (code < 0) {
        slot->op.result = code;
        fail_read(reader->load, slot);
        return code;
    }
    reader->counters.read_count++;
    reader->in_flight++;
    return 0;
}

/* Starts the chunk's next operation, or finishes the chunk. */
static void advance(struct hr_reader *reader, struct slot *slot)
{
    int succeeded = !reader->load->stopping;
    if (succeeded && (slot->bytes_expected || fill(reader->load, slot))) {
        if (submit(reader, slot) == 0)
            return;
        succeeded = 0;
    }
    finish_chunk(reader, slot, succeeded);
}

/* Waits for one operation and goes on with its chunk. */
static void complete_one(struct hr_reader *reader)
{
    struct hr_load *load = reader->load;
    uint64_t from = hr_sys->clock_ns();
    struct hr_io_op *op = load->backend->wait(reader->io);
    reader->counters.read_ns += hr_sys->clock_ns() - from;
    struct slot *slot = (struct slot *)((char *)op - offsetof(struct slot, op));
    reader->in_flight--;
    if (op->result <= 0) {
        fail_read(load, slot);
        finish_chunk(reader, slot, 0);
        return;
    }
    reader->counters.bytes_read += (uint64_t)op->result;
    advance_vectors(slot, (uint64_t)op->result);
    advance(reader, slot);
}

static struct slot *free_slot(struct hr_reader *reader)
{
    for (uint32_t i = 0; i < reader->depth; i++)
        if (!reader->slots[i].chunk)
            return &reader->slots[i];
    return NULL;
}

/* Begins `chunk` in a free slot; 0 when it has to wait for a descriptor. */
static int begin_chunk(struct hr_reader *reader, const struct hr_plan_chunk *chunk)
{
    struct slot *slot = free_slot(reader);
    struct hr_error error;
    int code = hr_files_acquire(reader->load->files, chunk->file_index, &slot->fd, &error);
    if (code > 0)
        return 0;
    if (code < 0) {
        locate_error(reader->load, chunk, chunk->file_begin, &error);
        hr_load_fail(reader->load, &error);
        return 1;
    }
    slot->chunk = chunk;
    slot->piece_index = chunk->piece_first;
    slot->walking = slot->has_run = 0;
    slot->bytes_expected = 0;
    slot->bounce_done = 0;
    advance(reader, slot);
    return 1;
}

/* Takes and begins chunks until all slots are busy or there is nothing to do now. */
static int begin_chunks(struct hr_reader *reader)
{
    int begun = 0;
    while (reader->in_flight < reader->depth) {
        const struct hr_plan_chunk *chunk = reader->waiting;
        if (!chunk)
            chunk = take_chunk(reader->load, reader->in_flight == 0 && !reader->load->options.sequential);
        if (!chunk)
            break;
        reader->waiting = NULL;
        if (!begin_chunk(reader, chunk)) {
            reader->waiting = chunk;
            break;
        }
        begun++;
    }
    return begun;
}

void *hr_reader_main(void *argument)
{
    struct hr_reader *reader = argument;
    for (;;) {
        begin_chunks(reader);
        if (reader->in_flight)
            complete_one(reader);
        else if (reader->waiting)
            hr_files_wait(reader->load->files);
        else
            break;
    }
    hr_reader_free(reader);
    return NULL;
}

int hr_reader_step(struct hr_reader *reader)
{
    int begun = begin_chunks(reader);
    while (reader->in_flight || reader->waiting) { /* nobody else can move a chunk that is taken */
        if (reader->in_flight)
            complete_one(reader);
        else
            hr_files_wait(reader->load->files);
        if (reader->waiting)
            begun += begin_chunks(reader);
    }
    return begun;
}
