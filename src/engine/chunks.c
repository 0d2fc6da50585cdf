/*
 * chunks.c: the queues of a load, read by chunks; items counted down by chunks.
 */
#include "engine/chunks.h"

#include "base/error.h"
#include "base/sys.h"
#include "engine/gate.h"
#include "engine/heat.h"
#include "engine/trace.h"

static int is_kind(const struct hr_load *load, size_t chunk_index, uint8_t kind)
{
    return load->heat && load->heat->kinds[chunk_index] == kind;
}

static int is_early(const struct hr_load *load, size_t chunk_index)
{
    return hr_gate_is_early(load, &load->plan.chunks[chunk_index]);
}

/* Puts off a chunk whose reading would give the drive more to do, while it is busy. The lock is held. */
static int put_off(struct hr_load *load, size_t chunk_index)
{
    if (!is_kind(load, chunk_index, CHUNK_EDGE) || !load->heat->cold_busy || is_early(load, chunk_index))
        return 0;
    hr_queue_push(&load->heat->edges, chunk_index);
    return 1;
}

/* The next chunk that nobody took, of the first entry of a queue of items or groups, or SIZE_MAX. The lock is held. */
static size_t queue_chunk(struct hr_load *load, struct index_queue *queue, size_t *chunk_next)
{
    for (; queue->count; hr_queue_pop(queue), *chunk_next = 0) {
        size_t index = queue->indices[queue->first];
        int items = queue == &load->urgent;
        size_t first = items ? load->plan.items[index].chunk_first : load->plan.groups[index].chunk_first;
        size_t count = items ? load->plan.items[index].chunk_count : load->plan.groups[index].chunk_count;
        for (; *chunk_next < count; (*chunk_next)++) {
            size_t chunk_index = first + *chunk_next;
            if (load->chunk_taken[chunk_index] || (!items && put_off(load, chunk_index)))
                continue;
            if (!items && load->heat && load->heat->edges.count && is_early(load, chunk_index))
                return SIZE_MAX; /* its turn comes behind what was put off */
            load->chunk_taken[chunk_index] = CHUNK_TAKEN;
            return chunk_index;
        }
    }
    return SIZE_MAX;
}

/* The next chunk of the groups: the devices take turns, so that all links are busy at once. The lock is held. */
static size_t turn_chunk(struct hr_load *load)
{
    size_t chunk_index = SIZE_MAX;
    uint32_t count = load->loader->device_count;
    for (uint32_t i = 0; i < count && chunk_index == SIZE_MAX; i++) {
        struct device_queue *queue = &load->queued[load->device_turn];
        load->device_turn = (load->device_turn + 1) % count;
        chunk_index = queue_chunk(load, &queue->groups, &queue->chunk_next);
    }
    return chunk_index;
}

/* One that was put off, once the drive is idle and if nobody took it as urgent; or SIZE_MAX. The lock is held. */
static size_t edge_chunk(struct hr_load *load)
{
    while (load->heat && load->heat->edges.count && !load->heat->cold_busy) {
        size_t chunk_index = hr_queue_pop(&load->heat->edges);
        if (load->chunk_taken[chunk_index])
            continue;
        load->chunk_taken[chunk_index] = CHUNK_TAKEN;
        return chunk_index;
    }
    return SIZE_MAX;
}

/* The next chunk of one kind in the order of the plan, or SIZE_MAX. The lock is held. */
static size_t kind_chunk(struct hr_load *load, uint8_t kind)
{
    size_t *next = &load->heat->next[kind];
    for (; *next < load->plan.chunk_count; (*next)++) {
        if (load->chunk_taken[*next] || load->heat->kinds[*next] != kind)
            continue;
        if (load->groups[load->plan.chunks[*next].group_index].status != GROUP_ADMITTED || is_early(load, *next))
            return SIZE_MAX;
        load->chunk_taken[*next] = CHUNK_TAKEN;
        return (*next)++;
    }
    return SIZE_MAX;
}

/*
 * Where a file is cached in part, every other reader begins with what storage must deliver, the others with what is
 * there, so that both go on side by side. What neither finds comes in its turn.
 */
static size_t mixed_chunk(struct hr_load *load, uint32_t reader_index)
{
    uint8_t first = reader_index % 2 ? CHUNK_HOT : CHUNK_COLD;
    size_t chunk_index = kind_chunk(load, first);
    return chunk_index != SIZE_MAX ? chunk_index : kind_chunk(load, first == CHUNK_HOT ? CHUNK_COLD : CHUNK_HOT);
}

/* Sleeps until there may be something to read. The lock is held before and after, but not while the caller is told. */
static void sleep_idle(struct hr_load *load, uint32_t reader_index)
{
    uint64_t from = hr_sys->clock_ns();
    pthread_cond_wait(&load->work, &load->lock);
    pthread_mutex_unlock(&load->lock);
    load->idle_ns += hr_trace_span(load, HR_TRACE_IDLE, reader_index, from, SIZE_MAX, 0, 0);
    pthread_mutex_lock(&load->lock);
}

/* The lock is held. */
static size_t next_chunk(struct hr_load *load, uint32_t reader_index)
{
    size_t chunk_index = queue_chunk(load, &load->urgent, &load->urgent_chunk);
    if (chunk_index == SIZE_MAX && load->heat && load->heat->is_mixed)
        chunk_index = mixed_chunk(load, reader_index);
    if (chunk_index == SIZE_MAX)
        chunk_index = turn_chunk(load);
    return chunk_index == SIZE_MAX ? edge_chunk(load) : chunk_index;
}

/* The first of those that were left, or SIZE_MAX. The lock is held. */
static size_t left_chunk(struct hr_load *load)
{
    size_t first = 0;
    if (!load->left_count)
        return SIZE_MAX;
    for (size_t i = 1; i < load->left_count; i++)
        if (load->left_chunks[i] < load->left_chunks[first])
            first = i;
    size_t chunk_index = load->left_chunks[first];
    load->left_chunks[first] = load->left_chunks[--load->left_count];
    return chunk_index;
}

void hr_chunk_leave(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    pthread_mutex_lock(&load->lock);
    load->left_chunks[load->left_count++] = (size_t)(chunk - load->plan.chunks);
    pthread_mutex_unlock(&load->lock);
}

/* Counts a cold chunk as one that the drive is busy with, once. The lock is held. */
static void note_cold(struct hr_load *load, size_t chunk_index)
{
    if (chunk_index == SIZE_MAX || !is_kind(load, chunk_index, CHUNK_COLD))
        return;
    load->heat->cold_busy += load->chunk_taken[chunk_index] != CHUNK_TAKEN_COLD;
    load->chunk_taken[chunk_index] = CHUNK_TAKEN_COLD;
}

const struct hr_plan_chunk *hr_chunk_take(struct hr_load *load, uint32_t reader_index, int block,
                                          struct held_chunk *ret_held)
{
    size_t chunk_index = SIZE_MAX;
    ret_held->chunk = NULL;
    pthread_mutex_lock(&load->lock);
    for (;;) {
        if (load->stopping || (!load->unmet && reader_index >= load->reader_limit))
            break;
        if (hr_gate_pass(load, ret_held))
            break;
        if (!load->unmet && (chunk_index = left_chunk(load)) == SIZE_MAX)
            chunk_index = next_chunk(load, reader_index);
        if (chunk_index != SIZE_MAX || !block)
            break;
        sleep_idle(load, reader_index);
    }
    note_cold(load, chunk_index);
    pthread_mutex_unlock(&load->lock);
    return chunk_index == SIZE_MAX ? NULL : &load->plan.chunks[chunk_index];
}

void hr_chunk_end(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    if (load->chunk_taken[chunk - load->plan.chunks] != CHUNK_TAKEN_COLD) /* ours since it was taken */
        return;
    pthread_mutex_lock(&load->lock);
    if (--load->heat->cold_busy == 0)
        pthread_cond_broadcast(&load->work);
    pthread_mutex_unlock(&load->lock);
}

struct loader_device *hr_chunk_device(const struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    return &load->loader->devices[load->plan.groups[chunk->group_index].device_index];
}

void hr_load_pieces_landed(struct hr_load *load, const struct hr_plan_piece *pieces, size_t piece_count)
{
    int any = 0;
    uint64_t landed = 0;
    for (size_t i = 0; i < piece_count; i++) {
        const struct hr_plan_piece *piece = &pieces[i];
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

void hr_chunk_landed(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    hr_load_pieces_landed(load, &load->plan.pieces[chunk->piece_first], chunk->piece_count);
}

void hr_chunk_locate(const struct hr_load *load, const struct hr_plan_chunk *chunk, uint64_t offset,
                     struct hr_error *err)
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
