/*
 * flow.c: the process's budget of bytes in flight: a lock and a queue around flow_control.c.
 *
 * The budget is static, since there is nothing smaller than the process that it could belong to. It is made anew when
 * its first loader joins, and in the child of a fork, where a thread that does not exist may hold the lock.
 *
 * Invariants: while somebody waits, nobody passes by; who waits and is granted was counted by the one that granted it.
 * Whenever something has been taken off or the maximum has changed, the queue's head is looked at. With nothing in
 * flight every operation is allowed, so a queue never outlives what is in flight. No other lock and no
 * system call but the lock's own happens under it.
 */
#include "engine/flow.h"

#include <pthread.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/sys.h"
#include "engine/flow_control.h"

struct hr_flow {
    uint64_t bytes_max;
    int fork_generation;
    struct hr_flow *next; /* of those who have joined */
};

/* On the stack of the thread that waits. */
struct waiter {
    uint64_t bytes;
    int is_granted;
    pthread_cond_t changed;
    struct waiter *next;
};

static struct {
    pthread_mutex_t lock;
    struct hr_flow *joined;
    struct waiter *first, **last;
    struct hr_flow_control control;
} budget = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &budget.first};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void child_begin(void)
{
    pthread_mutex_init(&budget.lock, NULL);
    budget.joined = NULL;
    budget.first = NULL;
    budget.last = &budget.first;
}

static void handler_install(void)
{
    pthread_atfork(NULL, NULL, child_begin); /* fails without memory only; then children must not load */
}

/* Grants what there is room for, in order of arrival; the lock is held. */
static void grant(uint64_t now_ns)
{
    while (budget.first && hr_flow_control_begin(&budget.control, budget.first->bytes, now_ns)) {
        struct waiter *granted = budget.first;
        budget.first = granted->next;
        if (!budget.first)
            budget.last = &budget.first;
        granted->is_granted = 1;
        pthread_cond_signal(&granted->changed);
    }
}

/* ------------------------------------------------------------------------------- joining, leaving */

/* The lock is held; somebody has joined. */
static uint64_t largest_share(void)
{
    uint64_t bytes = 0;
    for (const struct hr_flow *it = budget.joined; it; it = it->next)
        if (it->bytes_max > bytes)
            bytes = it->bytes_max;
    return bytes;
}

int hr_flow_new(uint64_t bytes_max, struct hr_flow **ret_flow, struct hr_error *err)
{
    struct hr_flow *flow = hr_alloc(sizeof *flow);
    if (!flow)
        return hr_fail_memory(err, sizeof *flow, "a share of the budget of bytes in flight");
    pthread_once(&once, handler_install);
    flow->bytes_max = bytes_max ? bytes_max : HR_FLOW_BYTES_MAX;
    flow->fork_generation = hr_fork_generation();
    uint64_t now_ns = hr_sys->clock_ns();
    pthread_mutex_lock(&budget.lock);
    int is_first = !budget.joined;
    flow->next = budget.joined;
    budget.joined = flow;
    if (is_first)
        hr_flow_control_init(&budget.control, flow->bytes_max, now_ns);
    else
        hr_flow_control_bound(&budget.control, largest_share(), now_ns);
    grant(now_ns);
    pthread_mutex_unlock(&budget.lock);
    *ret_flow = flow;
    return 0;
}

void hr_flow_free(struct hr_flow *flow)
{
    if (!flow)
        return;
    if (flow->fork_generation == hr_fork_generation()) {
        uint64_t now_ns = hr_sys->clock_ns();
        pthread_mutex_lock(&budget.lock);
        struct hr_flow **at = &budget.joined;
        while (*at != flow)
            at = &(*at)->next;
        *at = flow->next;
        if (budget.joined)
            hr_flow_control_bound(&budget.control, largest_share(), now_ns);
        grant(now_ns);
        pthread_mutex_unlock(&budget.lock);
    }
    hr_free(flow);
}

/* -------------------------------------------------------------------------------------- operations */

int hr_flow_begin(struct hr_flow *flow, uint64_t bytes)
{
    (void)flow;
    uint64_t now_ns = hr_sys->clock_ns();
    pthread_mutex_lock(&budget.lock);
    int is_counted = !budget.first && hr_flow_control_begin(&budget.control, bytes, now_ns);
    pthread_mutex_unlock(&budget.lock);
    return is_counted;
}

/* The lock is held. */
static void unlist(struct waiter *waiter)
{
    struct waiter **at = &budget.first;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    if (!*at)
        budget.last = at;
}

int hr_flow_wait(struct hr_flow *flow, uint64_t bytes, const atomic_int *stopping)
{
    (void)flow;
    struct waiter waiter = {.bytes = bytes};
    uint64_t now_ns = hr_sys->clock_ns();
    pthread_cond_init(&waiter.changed, NULL);
    pthread_mutex_lock(&budget.lock);
    *budget.last = &waiter;
    budget.last = &waiter.next;
    grant(now_ns);
    while (!waiter.is_granted && !(stopping && *stopping))
        pthread_cond_wait(&waiter.changed, &budget.lock);
    if (!waiter.is_granted) {
        unlist(&waiter);
        grant(now_ns);
    }
    pthread_mutex_unlock(&budget.lock);
    pthread_cond_destroy(&waiter.changed);
    return waiter.is_granted;
}

void hr_flow_wake(struct hr_flow *flow)
{
    (void)flow;
    pthread_mutex_lock(&budget.lock);
    for (struct waiter *it = budget.first; it; it = it->next)
        pthread_cond_signal(&it->changed);
    pthread_mutex_unlock(&budget.lock);
}

void hr_flow_end(struct hr_flow *flow, uint64_t bytes, uint64_t started_ns, int succeeded)
{
    (void)flow;
    uint64_t now_ns = hr_sys->clock_ns();
    pthread_mutex_lock(&budget.lock);
    hr_flow_control_end(&budget.control, bytes, started_ns, now_ns, succeeded);
    grant(now_ns);
    pthread_mutex_unlock(&budget.lock);
}

uint64_t hr_flow_limit(struct hr_flow *flow, uint64_t *ret_in_flight)
{
    (void)flow;
    pthread_mutex_lock(&budget.lock);
    uint64_t limit = hr_flow_control_limit(&budget.control);
    *ret_in_flight = budget.control.in_flight;
    pthread_mutex_unlock(&budget.lock);
    return limit;
}
