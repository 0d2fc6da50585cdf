/*
 * cache_state.h: what the page cache holds of a file, and how it is made to hold a part of it or nothing. Knows nothing of
 * headrace.
 */
#ifndef BENCH_CACHE_STATE_H
#define BENCH_CACHE_STATE_H

#include <stdint.h>

/* Bytes of whole pages of the file that are resident. All of them where the system does not tell. */
uint64_t page_cache_resident(int fd, uint64_t size);

/* Writes the file back and drops its pages. 0, or -1 where some stay. */
int page_cache_drop(int fd, uint64_t size);

/* Reads the first `bytes` of the file's `size`, and no more, through the page cache. */
void page_cache_fill(int fd, uint64_t bytes, uint64_t size);

#endif
