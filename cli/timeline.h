/*
 * timeline.h: the spans of a load as a file in Chrome's trace format, which Perfetto and chrome://tracing show. Spans are
 * kept in memory until the load has ended. Threads may add at once.
 */
#ifndef CLI_TIMELINE_H
#define CLI_TIMELINE_H

#include <headrace/headrace.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "options.h"

struct trace {
    const char *path; /* borrowed; NULL: there is no trace */
    FILE *file;
    int is_regular, is_new; /* new: trace_open() made it */
    pthread_mutex_t lock;   /* guards the rest */
    struct hr_trace_event *events;
    size_t event_count, event_capacity, event_max;
    uint64_t dropped_count;
};

/*
 * Opens the file, so that one that cannot be written is known before the load; what is in it stays until trace_write().
 * A file of the checkpoint (NULL: none) or one of `paths` is refused. Without a path there is nothing to do.
 */
int trace_open(struct trace *trace, const char *path, const struct hr_checkpoint *checkpoint,
               const struct text_list *paths, struct hr_error *err);
/* Forgets what was added: a new load begins. */
void trace_reset(struct trace *trace);
/* Fits hr_load_options.trace; `context` is the struct trace. More than event_max spans are counted only. */
void trace_add(void *context, const struct hr_trace_event *event);
/* Writes what was added in place of what the file held; file names are the checkpoint's. */
int trace_write(struct trace *trace, const struct hr_checkpoint *checkpoint, struct hr_error *err);
/* Closes the file and frees. Nothing when trace_open() failed or had no path. */
void trace_close(struct trace *trace);

#endif
