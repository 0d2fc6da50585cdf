/*
 * ahead.h: what of a checkpoint's files was read ahead into the page cache and belongs to no load yet. Who reads ahead
 * claims a file and announces each range before asking for it; a load that starts takes all, which ends claims. No lock:
 * any thread may do either at any time, in a child of fork() too, and is never held up.
 */
#ifndef HR_CATALOG_AHEAD_H
#define HR_CATALOG_AHEAD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct hr_ahead {
    _Atomic uint64_t load_count; /* that took what there was; who reads ahead remembers how many there were */
    struct hr_ahead_file {
        _Atomic uint64_t begin, end; /* end: 0: nobody's; UINT64_MAX: claimed, and nothing announced yet */
    } files[];                       /* all zero at first */
};

/* NULL without memory. The caller frees it with hr_free(). */
struct hr_ahead *hr_ahead_new(size_t file_count);

/* 1: the file is the caller's to read ahead. 0: somebody's, or a load was started since there were `load_count`. */
int hr_ahead_claim(struct hr_ahead *ahead, size_t file_index, uint64_t load_count);
/* Announces [from, to), not empty: the first range or the one behind the last. 0: a load took the file. */
int hr_ahead_announce(struct hr_ahead *ahead, size_t file_index, uint64_t from, uint64_t to);
/* The end of a claim: what was announced stays until a load takes it. */
void hr_ahead_finish(struct hr_ahead *ahead, size_t file_index);

/* A load starts. Comes before hr_ahead_take(). */
void hr_ahead_end(struct hr_ahead *ahead);
/* What was announced of a file, once; *ret_begin == *ret_end: nothing. */
void hr_ahead_take(struct hr_ahead *ahead, size_t file_index, uint64_t *ret_begin, uint64_t *ret_end);

#endif
