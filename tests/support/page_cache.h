/*
 * page_cache.h: files with a known part in the page cache. Whatever fails here ends the running cmocka test.
 */
#ifndef TESTS_SUPPORT_PAGE_CACHE_H
#define TESTS_SUPPORT_PAGE_CACHE_H

#include <stdint.h>

/* Writes `size` bytes that follow `seed`, all of them on storage and in the page cache. Returns a read-only descriptor. */
int page_cache_file(const char *path, uint64_t seed, uint64_t size);
/* Empties the page cache of the file; skips the test where that does not work (tmpfs) or cannot be seen. */
void page_cache_empty(int fd, uint64_t size);
/* Puts a file on the disk, and out of the page cache where that can be had. */
void page_cache_drop(const char *path);
/* Bytes of a file that the page cache holds; negative where nobody tells. */
int64_t page_cache_held(const char *path);
/* Reads the range and nothing beside it into the page cache. */
void page_cache_fill(int fd, uint64_t offset, uint64_t size);

/* A hole of `size` bytes, whole MiB, that was read: in the page cache, and no disk needs its bytes. Its path. */
const char *page_cache_hole(const char *name, uint64_t size);

#endif
