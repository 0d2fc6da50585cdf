/*
 * flow.h: how many bytes the loads of this process keep in flight towards storage. There is one budget per process: a
 * drive does not know which of our loads asks. Its size follows what the drive delivers (flow_control.h).
 *
 * Each loader that reads from storage joins the budget; every read operation of its loads is counted when it is
 * submitted and taken off when it has ended. Whoever holds a part of the budget must see its operation end without
 * waiting for anything else; so take it last, after the buffer and the descriptor. Then it may be waited for while
 * holding anything that users of the budget do not wait for.
 *
 * Never starves: who waits is served in order of arrival, before anybody who merely tries, and one operation is always
 * allowed, however large it is. Thread-safe. In a child of fork() a loader's share is dead, like the loader; the
 * child's own loaders find a fresh budget.
 */
#ifndef HR_ENGINE_FLOW_H
#define HR_ENGINE_FLOW_H

#include <stdatomic.h>
#include <stdint.h>

struct hr_error;
struct hr_flow;

/*
 * Joins the process's budget. `bytes_max`: the most that this loader can or may have in flight, such as its staging
 * ring, or 0 for HR_FLOW_BYTES_MAX; the budget is never larger than the largest of those who have joined.
 */
int hr_flow_new(uint64_t bytes_max, struct hr_flow **ret_flow, struct hr_error *err);
/* Nothing of this loader's is in flight or waiting. NULL is allowed, and so is a parent's in a forked child. */
void hr_flow_free(struct hr_flow *flow);

/* 1: the bytes are counted as in flight; 0: not now, enough is in flight or others wait. Never blocks. */
int hr_flow_begin(struct hr_flow *flow, uint64_t bytes);
/*
 * As hr_flow_begin, but blocks until the bytes are counted, and then returns 1; the caller has nothing in flight.
 * 0, and nothing is counted: *stopping was found set; who sets it calls hr_flow_wake() afterwards. NULL: never.
 */
int hr_flow_wait(struct hr_flow *flow, uint64_t bytes, const atomic_int *stopping);
void hr_flow_wake(struct hr_flow *flow);
/*
 * The operation has ended; `bytes` as when it was counted, `started_ns` of hr_sys->clock_ns() when it was submitted.
 * With succeeded == 0 it says nothing about the drive. Never blocks.
 */
void hr_flow_end(struct hr_flow *flow, uint64_t bytes, uint64_t started_ns, int succeeded);

/* The budget now, and what is in flight of it: for statistics. */
uint64_t hr_flow_limit(struct hr_flow *flow, uint64_t *ret_in_flight);

#endif
