/*
 * shards.c: one speculative read per file brings the length and, mostly, the whole header. Workers take files by
 * a counter; each keeps one descriptor open at a time. A worker that fails lowers `stop_before`, so that no later
 * file is begun but every earlier one is finished: the error reported is the first in the order of files.
 *
 * A worker that finds no descriptor leaves its file undone and ends, so that those who have one go on; what is then
 * left is done by one thread, and only for that is no descriptor an error.
 */
#include "catalog/shards.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "catalog/file_open.h"
#include "format/sniff.h"

#define SPECULATIVE_BYTES ((size_t)256 << 10) /* the header of a shard with 2,000 tensors; costs what 4 KiB cost */

struct shared {
    const struct hr_json_string *files;
    size_t count;
    const struct hr_open_options *options;
    struct hr_shard *shards;
    atomic_size_t next;        /* the next file to take; claims only, publishes nothing */
    atomic_size_t stop_before; /* no file from here on matters; pairs with itself */
};

struct worker {
    struct shared *shared;
    pthread_t thread;
    int is_started;
    int is_alone; /* there is nobody else who holds descriptors */
    int code;
    size_t failed_index;
    struct hr_error err;
};

/* Reads up to `size` bytes at `offset`; fewer than the file was said to have is an error. */
static int part_read(int fd, char *buffer, size_t size, uint64_t offset, struct hr_error *err)
{
    ssize_t got = hr_read_full(fd, buffer, size, offset);
    if (got < 0)
        return hr_fail_sys(err, HR_EIO_ERROR, (int)-got, "the header cannot be read");
    unsigned long long end = offset + (uint64_t)got;
    if ((size_t)got < size)
        return hr_fail_at(err, HR_ESHORT_READ, end,
                          "the file ended at byte %llu while its header was read; is it being written?", end);
    return 0;
}

/* From the file's first `known` bytes in *buffer to its JSON alone there. */
static int json_complete(int fd, char **buffer, size_t known, size_t json_size, struct hr_error *err)
{
    size_t kept = known - HR_HEADER_PREFIX_BYTES < json_size ? known - HR_HEADER_PREFIX_BYTES : json_size;
    memmove(*buffer, *buffer + HR_HEADER_PREFIX_BYTES, kept);
    char *resized = hr_sys->resize(*buffer, json_size + 1);
    if (!resized)
        return hr_fail_memory(err, json_size + 1, "a header");
    *buffer = resized;
    return part_read(fd, resized + kept, json_size - kept, HR_HEADER_PREFIX_BYTES + kept, err);
}

static int header_read(int fd, uint64_t file_size, const struct hr_open_options *options, struct hr_header *ret_header,
                       struct hr_error *err)
{
    unsigned char start[HR_SNIFF_BYTES];
    size_t known = file_size < SPECULATIVE_BYTES ? (size_t)file_size : SPECULATIVE_BYTES, json_size = 0;
    char *buffer = hr_sys->alloc(known + 1);
    if (!buffer)
        return hr_fail_memory(err, known + 1, "a header");
    size_t start_size = known < sizeof start ? known : sizeof start;
    int result = part_read(fd, buffer, known, 0, err);
    if (result) {
        hr_free(buffer);
        return result;
    }
    memcpy(start, buffer, start_size);
    result = hr_header_length(start, start_size, file_size, &json_size, err);
    if (!result)
        result = json_complete(fd, &buffer, known, json_size, err);
    if (result)
        hr_free(buffer);
    else
        result = hr_header_parse(buffer, json_size, file_size, options, ret_header, err);
    return result ? hr_sniff_refine(result, start, start_size, options->mode == HR_OPEN_STRICT, err) : 0;
}

static int shard_read(const char *path, const struct hr_open_options *options, struct hr_shard *shard,
                      struct hr_error *err)
{
    struct stat stat;
    int fd;
    int result = hr_file_open(path, &fd, &stat, err);
    if (result)
        return result;
    hr_identity_of(&stat, &shard->identity);
    result = header_read(fd, shard->identity.size, options, &shard->header, err);
    hr_sys->close(fd);
    if (result)
        hr_error_in_file(err, path);
    return result;
}

static void lower(atomic_size_t *value, size_t bound)
{
    size_t current = atomic_load(value);
    while (current > bound && !atomic_compare_exchange_weak(value, &current, bound))
        continue;
}

static int lacks_descriptor(const struct worker *worker)
{
    return worker->code && (worker->err.sys_errno == EMFILE || worker->err.sys_errno == ENFILE);
}

/* Reads one file. 0 when the worker is to end. */
static int file_do(struct worker *worker, size_t index)
{
    struct shared *shared = worker->shared;
    worker->code = shard_read(shared->files[index].bytes, shared->options, &shared->shards[index], &worker->err);
    if (!worker->code)
        return 1;
    worker->failed_index = index;
    if (worker->is_alone || !lacks_descriptor(worker))
        lower(&shared->stop_before, index);
    return 0;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct shared *shared = worker->shared;
    size_t index;
    while ((index = atomic_fetch_add(&shared->next, 1)) < atomic_load(&shared->stop_before))
        if (!file_do(worker, index))
            break;
    return NULL;
}

/* What workers left for want of a descriptor, and, where all of them did, the rest. */
static void undone_do(struct shared *shared, struct worker *workers, size_t count)
{
    int is_any = 0;
    for (size_t i = 0; i < count; i++) {
        if (!lacks_descriptor(&workers[i]))
            continue;
        is_any = 1;
        workers[i].is_alone = 1;
        workers[i].code = 0;
        if (workers[i].failed_index < atomic_load(&shared->stop_before))
            file_do(&workers[i], workers[i].failed_index);
    }
    if (is_any && !workers[0].code) {
        workers[0].is_alone = 1;
        worker_main(&workers[0]);
    }
}

static size_t worker_count(const struct hr_open_options *options, size_t file_count)
{
    size_t count = options->thread_count ? options->thread_count : HR_OPEN_THREAD_DEFAULT;
    return count < file_count ? count : file_count;
}

/* The calling thread is worker 0; where a thread cannot be started, the others do its part. */
static int workers_run(struct shared *shared, struct worker *workers, size_t count, struct hr_error *err)
{
    const struct worker *first = NULL;
    for (size_t i = 0; i < count; i++)
        workers[i].shared = shared;
    for (size_t i = 1; i < count; i++)
        workers[i].is_started = hr_sys->thread_start(&workers[i].thread, worker_main, &workers[i]) == 0;
    worker_main(&workers[0]);
    for (size_t i = 0; i < count; i++)
        if (workers[i].is_started)
            pthread_join(workers[i].thread, NULL);
    undone_do(shared, workers, count);
    for (size_t i = 0; i < count; i++) {
        if (workers[i].code && (!first || workers[i].failed_index < first->failed_index))
            first = &workers[i];
    }
    if (first && err)
        *err = first->err;
    return first ? first->code : 0;
}

int hr_shards_read(const struct hr_json_string *files, size_t count, const struct hr_open_options *options,
                   struct hr_shard *shards, struct hr_error *err)
{
    struct shared shared = {.files = files, .count = count, .options = options, .shards = shards};
    size_t thread_count = worker_count(options, count);
    struct worker *workers = hr_alloc_array(thread_count, sizeof *workers);
    if (!workers)
        return hr_fail_memory(err, thread_count * sizeof *workers, "threads that read headers");
    atomic_init(&shared.next, 0);
    atomic_init(&shared.stop_before, count);
    int result = workers_run(&shared, workers, thread_count, err);
    hr_free(workers);
    return result;
}
