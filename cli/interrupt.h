/*
 * interrupt.h: SIGINT, SIGTERM and SIGHUP during a load. A thread of its own waits for them, since cancelling is nothing
 * that a signal handler may do. While no load is watched, and at the second signal, the process ends at once.
 */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <headrace/headrace.h>

/* Before any other thread exists, so that all inherit the blocked signals. */
void interrupt_start(void);
/* From here on a signal cancels these loads (the second may be NULL); two NULL end that, and then they may be freed. */
void interrupt_watch(struct hr_load *first, struct hr_load *second);
/* Where a signal ends the process at once, this file is removed (NULL: none). The path is borrowed until the next call. */
void interrupt_unfinished(const char *path);
/*
 * 0, or HR_ECANCELLED with `err` filled once a signal has come: it may have come when a load was just complete. For
 * verbs that go on with another load.
 */
int interrupt_check(struct hr_error *err);
/* error_report(), or where a signal cancelled the load, one line that says so and 128 + the signal. */
int load_error_report(const char *verb, int as_json, const struct hr_error *err);

#endif
