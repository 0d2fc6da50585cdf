/*
 * raw_reader.h: files read past the page cache by plain threads, O_DIRECT and pread, into host memory that was touched
 * before: what a drive gives to whoever asks in the simplest way. Knows nothing of headrace.
 */
#ifndef BENCH_RAW_READER_H
#define BENCH_RAW_READER_H

#include <stddef.h>
#include <stdint.h>

enum { RAW_FILES_MAX = 256, RAW_SETTINGS = 3 };

struct raw_setting {
    unsigned threads;
    uint64_t block_bytes;
};

/* 4, 16 and 64 MiB in flight: what one drive, a fast one, and several of them want. */
extern const struct raw_setting raw_settings[RAW_SETTINGS];

struct raw_files {
    size_t count;
    uint64_t bytes;
    const char *paths[RAW_FILES_MAX];
    uint64_t sizes[RAW_FILES_MAX];
    int direct[RAW_FILES_MAX]; /* descriptors: with O_DIRECT, */
    int cached[RAW_FILES_MAX]; /*   without */
};

/* `path` must live as long. 0, or -1 with errno where the file cannot be opened so. */
int raw_open(struct raw_files *files, const char *path);

/* Bytes of memory that raw_read() wants: every file begins on a page. */
uint64_t raw_memory_bytes(const struct raw_files *files);

/* Reads the files up to about the first `limit` bytes of them all. Returns seconds; `ret_bytes`: how many were read. */
double raw_read(const struct raw_files *files, const struct raw_setting *setting, uint64_t limit, char *memory,
                uint64_t *ret_bytes);

#endif
