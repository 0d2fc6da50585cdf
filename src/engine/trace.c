/*
 * trace.c: tells the caller's callback what took how long.
 */
#include "engine/trace.h"

#include "base/sys.h"

uint64_t hr_trace_span(const struct hr_load *load, uint32_t kind, uint32_t reader, uint64_t from_ns, size_t file_index,
                       uint64_t offset, uint64_t bytes)
{
    uint64_t now = hr_sys->clock_ns();
    if (load->options.trace) {
        struct hr_trace_event event = {
            .size = sizeof event,
            .kind = kind,
            .reader = reader,
            .begin_ns = from_ns - load->start_ns,
            .end_ns = now - load->start_ns,
            .file_index = file_index,
            .offset = offset,
            .bytes = bytes,
        };
        load->options.trace(load->options.trace_context, &event);
    }
    return now - from_ns;
}
