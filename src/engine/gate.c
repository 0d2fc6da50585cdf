/*
 * gate.c: one number of the load, set under its lock, and a list of those who wait for it to grow.
 */
#include "engine/gate.h"

#include "base/cond.h"
#include "base/sys.h"
#include "engine/trace.h"

/* On the stack of who waits, in the list while it does. */
struct gate_waiter {
    pthread_cond_t opened;
    size_t group_index;
    struct gate_waiter *next;
};

int hr_gate_is_shut(const struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    return chunk->group_index >= load->gate;
}

/* The lock is held. */
static void unlist(struct hr_load *load, const struct gate_waiter *waiter)
{
    struct gate_waiter **at = &load->gate_waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
}

void hr_gate_wait(struct hr_load *load, const struct hr_plan_chunk *chunk, uint64_t wait_ns, uint32_t reader_index)
{
    struct gate_waiter waiter = {.group_index = chunk->group_index};
    uint64_t from = hr_sys->clock_ns();
    if (!hr_gate_is_shut(load, chunk))
        return;
    hr_cond_init(&waiter.opened);
    pthread_mutex_lock(&load->lock);
    waiter.next = load->gate_waiters;
    load->gate_waiters = &waiter;
    int is_over = 0;
    while (hr_gate_is_shut(load, chunk) && !load->stopping && !is_over)
        is_over = hr_cond_wait_until(&waiter.opened, &load->lock, wait_ns ? from + wait_ns : UINT64_MAX);
    unlist(load, &waiter);
    pthread_mutex_unlock(&load->lock);
    pthread_cond_destroy(&waiter.opened);
    load->idle_ns += hr_trace_span(load, HR_TRACE_IDLE, reader_index, from, SIZE_MAX, 0, 0);
}

void hr_gate_open(struct hr_load *load, size_t end)
{
    pthread_mutex_lock(&load->lock);
    load->gate = end;
    for (struct gate_waiter *waiter = load->gate_waiters; waiter; waiter = waiter->next)
        if (waiter->group_index < end)
            pthread_cond_signal(&waiter->opened);
    pthread_mutex_unlock(&load->lock);
}

void hr_gate_wake(struct hr_load *load)
{
    for (struct gate_waiter *waiter = load->gate_waiters; waiter; waiter = waiter->next)
        pthread_cond_signal(&waiter->opened);
}
