/*
 * progress.h: one line on stderr that says how far a load is, on a terminal only. It is drawn over itself and erased
 * at the end, so that nothing of it stays among the results. Threads may draw at once.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <headrace/headrace.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    int is_enabled;
    uint64_t start_ns;
    pthread_mutex_t lock; /* guards the rest */
    uint64_t drawn_ns;    /* since the start */
    size_t drawn_columns;
};

void progress_init(struct progress *progress);
/* Fits hr_load_options.progress; `context` is the struct progress. */
int progress_draw(void *context, const struct hr_progress *state);
/* Nanoseconds since progress_init(). */
uint64_t progress_elapsed(const struct progress *progress);
/* 1 at most ten times a second, and then the time since progress_init(). */
int progress_is_due(struct progress *progress, uint64_t *ret_elapsed_ns);
void progress_erase(struct progress *progress);

/*
 * " 43% [#####      ] 12.30 GB/s, 0:04 left" in at most `columns` characters: what does not fit is left out, the
 * bar first. Returns the length.
 */
size_t progress_format(char *out, size_t capacity, size_t columns, const struct hr_progress *state);

#endif
