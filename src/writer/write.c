/*
 * write.c: a whole checkpoint at once. Threads take blocks of the files in turn, so the files are written from their
 * beginnings on, however large or small tensors are; the calling thread is one of them.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sys.h"
#include "writer/writer.h"

#define PROGRESS_NS 100000000u

struct write_team {
    struct hr_writer *writer;
    struct hr_source *sources;    /* checked */
    uint64_t *first_blocks;       /* of each file, and at the end how many there are */
    atomic_uint_fast64_t next;    /* the next block that nobody took */
    atomic_uint_fast64_t written; /* bytes */
    atomic_int code;              /* of the first error: everybody stops */
    struct hr_error first_error;  /* written by who set `code`, read after the threads were joined */
};

/* Blocks lie on a grid of the file, so that no page is written by two threads. */
static uint64_t block_count(const struct hr_layout_file *file)
{
    uint64_t end = (file->size + HR_WRITE_BLOCK_BYTES - 1) / HR_WRITE_BLOCK_BYTES;
    return file->size > file->data_offset ? end - file->data_offset / HR_WRITE_BLOCK_BYTES : 0;
}

static struct write_block block_at(const struct write_team *team, uint64_t number)
{
    const struct hr_layout *layout = &team->writer->layout;
    size_t low = 0, high = layout->file_count - 1; /* the last file that begins at or before `number` */
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        if (team->first_blocks[middle] <= number)
            low = middle;
        else
            high = middle - 1;
    }
    const struct hr_layout_file *file = &layout->files[low];
    uint64_t begin =
        (file->data_offset / HR_WRITE_BLOCK_BYTES + number - team->first_blocks[low]) * HR_WRITE_BLOCK_BYTES;
    uint64_t end = begin + HR_WRITE_BLOCK_BYTES;
    return (struct write_block){low, begin > file->data_offset ? begin : file->data_offset,
                                end < file->size ? end : file->size, team->sources, NULL};
}

static void stop_with(struct write_team *team, int code, const struct hr_error *err)
{
    int expected = 0;
    if (atomic_compare_exchange_strong(&team->code, &expected, code))
        team->first_error = *err;
}

/* Takes and writes one block; 0 when there is none any more. */
static int write_next(struct write_team *team)
{
    struct hr_error err;
    uint64_t number = atomic_fetch_add(&team->next, 1);
    if (atomic_load(&team->code) || number >= team->first_blocks[team->writer->layout.file_count])
        return 0;
    struct write_block block = block_at(team, number);
    int code = hr_writer_sealers_check(team->writer, &err);
    if (!code)
        code = hr_writer_open_file(team->writer, block.file_index, &err);
    if (!code)
        code = hr_writer_write_block(team->writer, &block, &err);
    if (!code) {
        atomic_fetch_add(&team->written, block.end - block.begin);
        code = hr_writer_count_bytes(team->writer, block.file_index, block.end - block.begin, &err);
    }
    if (code)
        stop_with(team, code, &err);
    return !code;
}

static void *team_main(void *argument)
{
    while (write_next(argument))
        ;
    return NULL;
}

/* ---------------------------------------------------------------------------------------- progress */

struct progress_clock {
    const struct hr_write_options *options;
    uint64_t begin_ns, told_ns;
};

static void tell(struct write_team *team, struct progress_clock *clock)
{
    const struct hr_layout *layout = &team->writer->layout;
    uint64_t number = atomic_load(&team->next), now = hr_sys->clock_ns();
    if (!clock->options->progress || now - clock->told_ns < PROGRESS_NS)
        return;
    clock->told_ns = now;
    struct hr_progress progress = {.bytes_done = atomic_load(&team->written),
                                   .bytes_total = layout->data_bytes,
                                   .item_done = layout->tensor_count,
                                   .item_count = layout->tensor_count,
                                   .elapsed_ns = now - clock->begin_ns};
    if (number < team->first_blocks[layout->file_count]) {
        struct write_block block = block_at(team, number);
        progress.item_done = hr_writer_position(team->writer, block.file_index, block.begin);
    }
    if (clock->options->progress(clock->options->progress_context, &progress)) {
        struct hr_error err;
        stop_with(team, hr_fail(&err, HR_ECANCELLED, "the write was cancelled by its progress callback"), &err);
    }
}

/* ------------------------------------------------------------------------------------------- write */

static uint32_t thread_count(const struct hr_write_options *options, uint64_t blocks)
{
    uint32_t count = options->thread_count;
    if (!count) {
        count = hr_sys->core_count();
        count = count < HR_WRITE_THREAD_DEFAULT_MAX ? count : HR_WRITE_THREAD_DEFAULT_MAX;
    }
    return blocks < count ? (uint32_t)blocks : count;
}

/* A thread that cannot be started is done without. */
static void run(struct write_team *team, const struct hr_write_options *options)
{
    pthread_t threads[HR_READER_MAX];
    uint32_t started = 0, wanted = thread_count(options, team->first_blocks[team->writer->layout.file_count]);
    uint64_t now = hr_sys->clock_ns();
    struct progress_clock clock = {options, now, now};
    while (started + 1 < wanted && hr_sys->thread_start(&threads[started], team_main, team) == 0)
        started++;
    while (write_next(team))
        tell(team, &clock);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

/* Of an array whose elements may be longer than ours. */
static int copy_sources(struct write_team *team, const struct hr_source *sources, struct hr_error *err)
{
    const struct hr_layout *layout = &team->writer->layout;
    if (layout->tensor_count && !sources)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "sources is NULL, but there are %zu tensors", layout->tensor_count);
    for (size_t i = 0; i < layout->tensor_count; i++) {
        const struct hr_source *source = (const struct hr_source *)((const char *)sources + i * sources->size);
        int code = hr_content_check(&team->writer->devices, &layout->tensors[i], source, &team->sources[i], err);
        if (code)
            return code;
    }
    return 0;
}

static int prepare(struct write_team *team, const struct hr_source *sources, struct hr_error *err)
{
    const struct hr_layout *layout = &team->writer->layout;
    size_t bytes = (layout->tensor_count + 1) * sizeof *team->sources;
    team->sources = hr_alloc(bytes);
    team->first_blocks = hr_alloc_array(layout->file_count + 1, sizeof *team->first_blocks);
    if (!team->sources || !team->first_blocks)
        return hr_fail_memory(err, bytes, "the sources of tensors");
    for (size_t i = 0; i < layout->file_count; i++)
        team->first_blocks[i + 1] = team->first_blocks[i] + block_count(&layout->files[i]);
    return copy_sources(team, sources, err);
}

int hr_write(const char *path, const struct hr_tensor *tensors, const struct hr_source *sources, size_t tensor_count,
             const struct hr_write_options *options, struct hr_error *err)
{
    struct write_team team = {0};
    struct hr_write_options ours;
    int code = hr_options_copy(&ours, sizeof ours, options, "hr_write_options", err);
    if (!code)
        code = hr_writer_new(path, tensors, tensor_count, options, &team.writer, err);
    if (code)
        return code;
    code = prepare(&team, sources, err);
    if (!code) {
        run(&team, &ours);
        code = atomic_load(&team.code);
        if (code && err)
            *err = team.first_error;
    }
    if (!code) {
        memset(team.writer->put_states, PUT_DONE, tensor_count);
        code = hr_writer_finish(team.writer, err);
    }
    hr_free(team.sources);
    hr_free(team.first_blocks);
    hr_writer_free(team.writer);
    return code;
}
