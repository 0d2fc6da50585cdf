/*
 * test_cli_timeline.c: spans of a timeline: rows without overlap, the bound on their number, threads that add at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "support/make_files.h"
#include "timeline.h"

static struct hr_trace_event span(uint32_t reader, uint64_t begin_ns, uint64_t end_ns)
{
    return (struct hr_trace_event){.size = sizeof(struct hr_trace_event),
                                   .kind = HR_TRACE_READ,
                                   .reader = reader,
                                   .begin_ns = begin_ns,
                                   .end_ns = end_ns,
                                   .file_index = SIZE_MAX};
}

/* The whole file as text, for free(). */
static char *read_text(const char *path)
{
    char *text = calloc(1, 1 << 16);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, (1 << 16) - 1, file) < (1 << 16) - 1);
    fclose(file);
    return text;
}

/* Nothing is loaded here that a trace could overwrite. */
static const struct text_list no_paths;

static void spans_that_overlap_stand_in_rows(void **state)
{
    static const struct {
        uint32_t reader;
        uint64_t begin_ns, end_ns;
        const char *place; /* in the file */
    } spans[] = {{1, 0, 10000, "\"pid\":2,\"tid\":0,\"ts\":0.000,\"dur\":10.000"},
                 {1, 5000, 7000, "\"pid\":2,\"tid\":1,\"ts\":5.000,\"dur\":2.000"},
                 {1, 6000, 20000, "\"pid\":2,\"tid\":2,\"ts\":6.000,\"dur\":14.000"},
                 {1, 7000, 8000, "\"pid\":2,\"tid\":1,\"ts\":7.000,\"dur\":1.000"},
                 {1, 10000, 10001, "\"pid\":2,\"tid\":0,\"ts\":10.000,\"dur\":0.001"},
                 {UINT32_MAX, 6000, 6001, "\"pid\":0,\"tid\":0,\"ts\":6.000,\"dur\":0.001"}};
    const char *path = test_path("rows.json");
    struct trace trace;
    struct hr_error err;
    (void)state;
    assert_int_equal(trace_open(&trace, path, NULL, &no_paths, &err), 0);
    for (size_t i = sizeof spans / sizeof spans[0]; i-- > 0;) { /* in any order */
        struct hr_trace_event event = span(spans[i].reader, spans[i].begin_ns, spans[i].end_ns);
        trace_add(&trace, &event);
    }
    assert_int_equal(trace_write(&trace, NULL, &err), 0);
    trace_close(&trace);
    char *text = read_text(path);
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++)
        assert_non_null(strstr(text, spans[i].place));
    assert_non_null(strstr(text, "\"pid\":0,\"args\":{\"name\":\"waiting threads\"}"));
    assert_non_null(strstr(text, "\"pid\":2,\"args\":{\"name\":\"reader 1\"}"));
    free(text);
}

enum { THREADS = 4, SPANS = 3000 };

static void *add_spans(void *context)
{
    for (uint32_t i = 0; i < SPANS; i++) {
        struct hr_trace_event event = span(0, i, i + 1);
        trace_add(context, &event);
    }
    return NULL;
}

/* 1024 is where the array grows for the first time. */
static void what_is_too_much_is_counted(void **state)
{
    static const size_t bounds[] = {0, 1, 1000, 1024, 1025, 5000, THREADS * SPANS, THREADS * SPANS + 1};
    pthread_t threads[THREADS];
    struct trace trace;
    struct hr_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        assert_int_equal(trace_open(&trace, test_path("bound.json"), NULL, &no_paths, &err), 0);
        trace.event_max = bounds[i];
        for (int thread = 0; thread < THREADS; thread++)
            assert_int_equal(pthread_create(&threads[thread], NULL, add_spans, &trace), 0);
        for (int thread = 0; thread < THREADS; thread++)
            pthread_join(threads[thread], NULL);
        size_t kept = bounds[i] < THREADS * SPANS ? bounds[i] : THREADS * SPANS;
        assert_int_equal(trace.event_count, kept);
        assert_int_equal(trace.dropped_count, THREADS * SPANS - kept);
        trace_reset(&trace);
        assert_int_equal(trace.event_count + trace.dropped_count, 0);
        trace_close(&trace);
    }
}

static void without_a_path_there_is_no_trace(void **state)
{
    struct trace trace;
    struct hr_error err;
    (void)state;
    assert_int_equal(trace_open(&trace, NULL, NULL, &no_paths, &err), 0);
    assert_null(trace.file);
    trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(spans_that_overlap_stand_in_rows),
                                       cmocka_unit_test(what_is_too_much_is_counted),
                                       cmocka_unit_test(without_a_path_there_is_no_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
