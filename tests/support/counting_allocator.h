/*
 * counting_allocator.h: an allocation hook that counts what is alive, fills memory with a pattern that no test's
 * content has by accident, checks that what is freed is what was allocated, and can fail the n-th call. Thread-safe.
 */
#ifndef TESTS_SUPPORT_COUNTING_ALLOCATOR_H
#define TESTS_SUPPORT_COUNTING_ALLOCATOR_H

#include <headrace/headrace.h>
#include <stdatomic.h>

struct counting_allocator {
    atomic_long live_bytes, peak_bytes, live_count, alloc_count;
    long fail_at; /* this call (from 1) and all later ones return NULL; 0: none */
};

/* The hook for loader options; `counting` must outlive all memory. */
struct hr_allocator counting_hook(struct counting_allocator *counting);

#endif
