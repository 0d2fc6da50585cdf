/*
 * timeline.c: collects spans and writes them. A process of the format is a reader; its threads are rows, since what a
 * reader has in flight overlaps, and spans of a row must not.
 */
#include "timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "output.h"

enum { EVENT_MAX = 2000000, ROW_MAX = 1024 };
static const char *const kind_names[HR_TRACE_KIND_COUNT] = {"read", "copy", "staging", "idle", "allocate"};

static int fail_file(const struct trace *trace, const char *what, struct hr_error *err)
{
    int number = errno;
    int code =
        error_set(err, HR_EIO_ERROR, "the trace %s%s%s", what, number ? ": " : "", number ? strerror(number) : "");
    snprintf(err->file, sizeof err->file, "%s", trace->path);
    return code; /* without sys_errno: that a folder is not there is no answer to what was asked */
}

static int is_at(const struct stat *status, const char *path)
{
    struct stat other;
    return stat(path, &other) == 0 && other.st_dev == status->st_dev && other.st_ino == status->st_ino;
}

/* Whether the open file is one that is to be loaded, or an operand (an index), by whatever name or link. */
static int is_loaded(const struct stat *status, const struct hr_checkpoint *checkpoint, const struct text_list *paths)
{
    for (size_t i = 0; checkpoint && i < hr_checkpoint_file_count(checkpoint); i++)
        if (is_at(status, hr_checkpoint_file(checkpoint, i)->path))
            return 1;
    for (size_t i = 0; i < paths->count; i++)
        if (is_at(status, paths->texts[i]))
            return 1;
    return 0;
}

/* Not truncated: it may turn out to be one that is loaded. */
static int open_untouched(struct trace *trace)
{
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
    int fd = open(trace->path, flags | O_EXCL, 0666);
    trace->is_new = fd >= 0;
    return fd < 0 && errno == EEXIST ? open(trace->path, flags, 0666) : fd;
}

int trace_open(struct trace *trace, const char *path, const struct hr_checkpoint *checkpoint,
               const struct text_list *paths, struct hr_error *err)
{
    struct stat status;
    *trace = (struct trace){.path = path, .event_max = EVENT_MAX};
    if (!path)
        return 0;
    int fd = open_untouched(trace);
    if (fd < 0 || fstat(fd, &status) != 0)
        return fail_file(trace, "cannot be written", err);
    if (is_loaded(&status, checkpoint, paths)) {
        close(fd);
        error_set(err, HR_EINVALID_ARGUMENT, "--trace: this file is part of the checkpoint; name another one");
        snprintf(err->file, sizeof err->file, "%s", path);
        return err->code;
    }
    trace->is_regular = S_ISREG(status.st_mode);
    trace->file = fdopen(fd, "w");
    if (!trace->file) {
        close(fd);
        return fail_file(trace, "cannot be written", err);
    }
    pthread_mutex_init(&trace->lock, NULL);
    return 0;
}

void trace_reset(struct trace *trace)
{
    trace->event_count = 0;
    trace->dropped_count = 0;
}

/* On the library's threads, so no memory is no end: spans are dropped. */
static int has_room(struct trace *trace)
{
    if (trace->event_count < trace->event_capacity)
        return 1;
    size_t capacity = trace->event_capacity ? trace->event_capacity * 2 : 1024;
    if (capacity > trace->event_max)
        capacity = trace->event_max;
    if (capacity == trace->event_capacity)
        return 0;
    struct hr_trace_event *events = realloc(trace->events, capacity * sizeof *events);
    if (!events)
        return 0;
    trace->events = events;
    trace->event_capacity = capacity;
    return 1;
}

void trace_add(void *context, const struct hr_trace_event *event)
{
    struct trace *trace = context;
    pthread_mutex_lock(&trace->lock);
    if (has_room(trace))
        trace->events[trace->event_count++] = *event;
    else
        trace->dropped_count++;
    pthread_mutex_unlock(&trace->lock);
}

/* ----------------------------------------------------------------------------------------------- writing */

/* By reader, then by time; the waiting threads (UINT32_MAX) become process 0 and stand first. */
static uint32_t process_of(const struct hr_trace_event *event)
{
    return event->reader + 1;
}

static int compare_events(const void *a, const void *b)
{
    const struct hr_trace_event *x = a, *y = b;
    uint32_t p = process_of(x), q = process_of(y);
    if (p != q)
        return (p > q) - (p < q);
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

static void print_process(struct json *json, uint32_t process)
{
    char name[32] = "waiting threads";
    if (process > 0)
        snprintf(name, sizeof name, "reader %u", process - 1);
    json_open(json, NULL, '{');
    json_text(json, "name", "process_name");
    json_text(json, "ph", "M");
    json_u64(json, "pid", process);
    json_open(json, "args", '{');
    json_text(json, "name", name);
    json_close(json, '}');
    json_close(json, '}');
}

static void print_event(struct json *json, const struct hr_trace_event *event, size_t row,
                        const struct hr_checkpoint *checkpoint)
{
    const struct hr_file *file =
        event->file_index == SIZE_MAX ? NULL : hr_checkpoint_file(checkpoint, event->file_index);
    json_open(json, NULL, '{');
    json_text(json, "name", event->kind < HR_TRACE_KIND_COUNT ? kind_names[event->kind] : "other");
    json_text(json, "ph", "X");
    json_u64(json, "pid", process_of(event));
    json_u64(json, "tid", row);
    json_real(json, "ts", (double)event->begin_ns / 1e3, 3);
    json_real(json, "dur", (double)(event->end_ns - event->begin_ns) / 1e3, 3);
    json_open(json, "args", '{');
    if (file) {
        json_string(json, "file", file->path, strlen(file->path));
        json_u64(json, "offset", event->offset);
    }
    json_u64(json, "bytes", event->bytes);
    json_close(json, '}');
    json_close(json, '}');
    fputc('\n', json->file);
}

/* The first row that is free when the span begins, else the last one. */
static size_t take_row(uint64_t *row_ends, const struct hr_trace_event *event)
{
    size_t row = 0;
    while (row + 1 < ROW_MAX && row_ends[row] > event->begin_ns)
        row++;
    row_ends[row] = event->end_ns;
    return row;
}

static void print_events(struct trace *trace, const struct hr_checkpoint *checkpoint)
{
    struct json json = {.file = trace->file};
    uint64_t *row_ends = allocate(ROW_MAX, sizeof *row_ends);
    if (trace->event_count)
        qsort(trace->events, trace->event_count, sizeof *trace->events, compare_events);
    json_open(&json, NULL, '[');
    for (size_t i = 0; i < trace->event_count; i++) {
        const struct hr_trace_event *event = &trace->events[i];
        if (i == 0 || process_of(event) != process_of(event - 1)) {
            memset(row_ends, 0, ROW_MAX * sizeof *row_ends);
            print_process(&json, process_of(event));
        }
        print_event(&json, event, take_row(row_ends, event), checkpoint);
    }
    json_close(&json, ']');
    json_end(&json);
    free(row_ends);
}

int trace_write(struct trace *trace, const struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    if (trace->is_regular && ftruncate(fileno(trace->file), 0) != 0)
        return fail_file(trace, "could not be written", err);
    print_events(trace, checkpoint);
    errno = 0;
    if (fflush(trace->file) != 0 || ferror(trace->file))
        return fail_file(trace, "could not be written", err);
    return 0;
}

void trace_close(struct trace *trace)
{
    if (!trace->file)
        return;
    fclose(trace->file);
    pthread_mutex_destroy(&trace->lock);
    free(trace->events);
    *trace = (struct trace){0};
}
