/*
 * page_cache.h: what the page cache holds of a file, and how it is made to hold a part of it or nothing. Knows nothing of
 * headrace.
 */
#ifndef BENCH_PAGE_CACHE_H
#define BENCH_PAGE_CACHE_H

#include <stdint.h>

/* Bytes of whole pages of the file that are resident. All of them where the system does not tell. */
uint64_t page_cache_resident(int fd, uint64_t size);

/* Writes the file back and drops its pages. 0, or -1 where some stay. */
int page_cache_drop(int fd, uint64_t size);

/* Reads the file's first `bytes` through the page cache, and drops what it holds beyond them. */
void page_cache_fill(int fd, uint64_t bytes);

#endif
