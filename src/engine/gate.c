/*
 * gate.c: one number of the load, set under its lock.
 */
#include "engine/gate.h"

#include "base/sys.h"
#include "engine/trace.h"

int hr_gate_is_shut(const struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    return chunk->group_index >= load->gate;
}

void hr_gate_wait(struct hr_load *load, const struct hr_plan_chunk *chunk, uint32_t reader_index)
{
    uint64_t from = hr_sys->clock_ns();
    if (!hr_gate_is_shut(load, chunk))
        return;
    pthread_mutex_lock(&load->lock);
    while (hr_gate_is_shut(load, chunk) && !load->stopping)
        pthread_cond_wait(&load->work, &load->lock);
    pthread_mutex_unlock(&load->lock);
    load->idle_ns += hr_trace_span(load, HR_TRACE_IDLE, reader_index, from, SIZE_MAX, 0, 0);
}

void hr_gate_open(struct hr_load *load, size_t end)
{
    pthread_mutex_lock(&load->lock);
    load->gate = end;
    pthread_cond_broadcast(&load->work);
    pthread_mutex_unlock(&load->lock);
}
