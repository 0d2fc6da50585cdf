/*
 * gate.c: two numbers of the load and a list of chunks, under its lock.
 */
#include "engine/gate.h"

#include <assert.h>

#include "base/error.h"
#include "base/sys.h"
#include "engine/trace.h"

int hr_gate_make(struct hr_load *load, size_t chunk_count, struct hr_error *err)
{
    load->held_chunks = hr_alloc_array(chunk_count, sizeof load->held_chunks[0]);
    if (!load->held_chunks)
        return hr_fail_memory(err, chunk_count * sizeof load->held_chunks[0], "chunks that are read ahead");
    load->gate = load->gate_clear = 0;
    load->gate_ahead = chunk_count;
    return 0;
}

void hr_gate_release(struct hr_load *load)
{
    for (size_t i = 0; i < load->held_count; i++)
        hr_staging_give(load->held_chunks[i].ring, load->held_chunks[i].staging);
    load->held_count = 0;
}

int hr_gate_is_shut(const struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    return chunk->group_index >= load->gate;
}

int hr_gate_is_early(const struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    return chunk->group_index >= load->gate_clear;
}

int hr_gate_has_room(const struct hr_load *load, size_t group_index)
{
    const struct hr_plan_group *groups = load->plan.groups, *group = &groups[group_index];
    if (group_index < load->gate_clear)
        return 1;
    return group->chunk_first + group->chunk_count <= groups[load->gate_clear].chunk_first + load->gate_ahead;
}

/* How many that are held may go on. The lock is held. */
static size_t open_count(const struct hr_load *load)
{
    size_t count = 0;
    for (size_t i = 0; i < load->held_count; i++)
        count += !hr_gate_is_shut(load, load->held_chunks[i].chunk);
    return count;
}

void hr_gate_open(struct hr_load *load, size_t end)
{
    pthread_mutex_lock(&load->lock);
    load->gate = end;
    hr_load_wake_readers(load, open_count(load));
    pthread_mutex_unlock(&load->lock);
}

void hr_gate_clear(struct hr_load *load, size_t end)
{
    pthread_mutex_lock(&load->lock);
    load->gate_clear = end;
    hr_load_wake_readers(load, 0);
    pthread_mutex_unlock(&load->lock);
}

void hr_gate_hold(struct hr_load *load, const struct held_chunk *held)
{
    pthread_mutex_lock(&load->lock);
    assert(load->held_count < load->gate_ahead); /* it was taken early, or its slot will not be opened again */
    load->held_chunks[load->held_count++] = *held;
    if (!hr_gate_is_shut(load, held->chunk))
        hr_load_wake_readers(load, 1);
    pthread_mutex_unlock(&load->lock);
}

int hr_gate_pass(struct hr_load *load, struct held_chunk *ret_held)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < load->held_count; i++)
        if (first == SIZE_MAX || load->held_chunks[i].chunk < load->held_chunks[first].chunk)
            first = i;
    if (first == SIZE_MAX || hr_gate_is_shut(load, load->held_chunks[first].chunk))
        return 0;
    *ret_held = load->held_chunks[first];
    load->held_chunks[first] = load->held_chunks[--load->held_count];
    return 1;
}

void hr_gate_wait(struct hr_load *load, const struct hr_plan_chunk *chunk, uint32_t reader_index)
{
    uint64_t from = hr_sys->clock_ns();
    pthread_mutex_lock(&load->lock);
    load->gate_waiter_count++;
    while (hr_gate_is_early(load, chunk) && !load->stopping && !open_count(load))
        pthread_cond_wait(&load->work, &load->lock);
    load->gate_waiter_count--;
    pthread_mutex_unlock(&load->lock);
    load->idle_ns += hr_trace_span(load, HR_TRACE_IDLE, reader_index, from, SIZE_MAX, 0, 0);
}
