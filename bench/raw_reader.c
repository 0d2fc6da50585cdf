/*
 * raw_reader.c: see raw_reader.h. Threads take blocks in the order of the files; a block never spans two.
 */
#include "raw_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "measure.h"

enum { ALIGNMENT = 4096, THREADS_MAX = 8 };

const struct raw_setting raw_settings[RAW_SETTINGS] = {{1, 4 << 20}, {4, 4 << 20}, {8, 8 << 20}};

struct run {
    const struct raw_files *files;
    uint64_t block_bytes, limit;
    char *memory;
    atomic_uint_fast64_t next_block, bytes;
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int raw_open(struct raw_files *files, const char *path)
{
    struct stat status;
    size_t i = files->count;
    if (i == RAW_FILES_MAX) {
        errno = E2BIG;
        return -1;
    }
    files->paths[i] = path;
    files->direct[i] = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    files->cached[i] = open(path, O_RDONLY | O_CLOEXEC);
    if (files->direct[i] < 0 || files->cached[i] < 0 || fstat(files->cached[i], &status) < 0)
        return -1;
    files->sizes[i] = (uint64_t)status.st_size;
    files->bytes += files->sizes[i];
    files->count++;
    return 0;
}

uint64_t raw_memory_bytes(const struct raw_files *files)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < files->count; i++)
        bytes += aligned(files->sizes[i]);
    return bytes;
}

static void read_block(struct run *run, size_t file, uint64_t offset, char *to)
{
    uint64_t left = run->files->sizes[file] - offset;
    uint64_t wanted = left < run->block_bytes ? left : run->block_bytes;
    for (uint64_t done = 0; done < wanted;) {
        ssize_t got = pread(run->files->direct[file], to + done, aligned(wanted - done), (off_t)(offset + done));
        if (got <= 0 || (done + (uint64_t)got < wanted && got % ALIGNMENT))
            die(got < 0 ? strerror(errno) : "short read", run->files->paths[file]);
        done += (uint64_t)got;
    }
    run->bytes += wanted;
}

static void *reader(void *argument)
{
    struct run *run = argument;
    for (;;) {
        uint64_t block = run->next_block++, before = 0, start = 0;
        size_t file = 0;
        for (; file < run->files->count; file++) {
            uint64_t blocks = (run->files->sizes[file] + run->block_bytes - 1) / run->block_bytes;
            if (block < blocks)
                break;
            block -= blocks;
            before += run->files->sizes[file];
            start += aligned(run->files->sizes[file]);
        }
        uint64_t offset = block * run->block_bytes;
        if (file == run->files->count || before + offset >= run->limit)
            return NULL;
        read_block(run, file, offset, run->memory + start + offset);
    }
}

double raw_read(const struct raw_files *files, const struct raw_setting *setting, uint64_t limit, char *memory,
                uint64_t *ret_bytes)
{
    struct run run = {.files = files, .block_bytes = setting->block_bytes, .limit = limit, .memory = memory};
    pthread_t threads[THREADS_MAX];
    double from = now_seconds();
    for (unsigned i = 0; i < setting->threads; i++)
        if (pthread_create(&threads[i], NULL, reader, &run))
            die("pthread_create", "no thread");
    for (unsigned i = 0; i < setting->threads; i++)
        pthread_join(threads[i], NULL);
    *ret_bytes = run.bytes;
    return now_seconds() - from;
}
