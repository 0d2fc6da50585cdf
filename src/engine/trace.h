/*
 * trace.h: one span of a load's timeline, for the caller's callback. On whichever thread it happened, without the lock.
 */
#ifndef HR_ENGINE_TRACE_H
#define HR_ENGINE_TRACE_H

#include "engine/load.h"

#define HR_TRACE_WAITER UINT32_MAX /* as `reader`: a waiting thread */

/* A span from `from_ns` until now; returns its nanoseconds, whether somebody listens or not. */
uint64_t hr_trace_span(const struct hr_load *load, uint32_t kind, uint32_t reader, uint64_t from_ns, size_t file_index,
                       uint64_t offset, uint64_t bytes);

#endif
