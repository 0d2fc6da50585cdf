/*
 * bench_host.c: host memory, headrace against bare preadv doing the same, interleaved in one run.
 *
 * usage: bench_host [--pairs N] [--json FILE] CHECKPOINT
 *
 * Two cases: into memory that was touched before (HR_ROUTE_PREAD and `into`), and into fresh memory (an arena, made
 * and freed in each trial). The ruler is the best of a small sweep of bare programs: a thread for each core and for every
 * second, blocks of 1 and 4 MiB, and for fresh memory with and without huge pages. The page cache must be hot: the
 * first, uncounted round sees to that. Prints the median ratio ruler time / headrace time with its spread.
 */
#include <fcntl.h>
#include <headrace/headrace.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "measure.h"

#define PAIRS_MAX 101
#define THREADS_MAX 64

/* ------------------------------------------------------------------------------------- the bare program */

struct ruler {
    const struct hr_checkpoint *checkpoint;
    char *memory; /* all data sections, one after another */
    uint64_t bytes, block_bytes;
    atomic_uint_fast64_t position; /* in the data sections joined */
    int *fds;
    uint64_t *starts; /* of each data section in `memory` */
};

static uint64_t data_bytes(const struct hr_file *file)
{
    return file->size - file->data_offset;
}

static void *ruler_thread(void *argument)
{
    struct ruler *ruler = argument;
    size_t file_count = hr_checkpoint_file_count(ruler->checkpoint);
    for (;;) {
        uint64_t from = atomic_fetch_add(&ruler->position, ruler->block_bytes);
        uint64_t end = from + ruler->block_bytes < ruler->bytes ? from + ruler->block_bytes : ruler->bytes;
        if (from >= ruler->bytes)
            return NULL;
        for (size_t i = 0; i < file_count; i++) {
            const struct hr_file *file = hr_checkpoint_file(ruler->checkpoint, i);
            uint64_t begin = from > ruler->starts[i] ? from : ruler->starts[i];
            uint64_t stop = ruler->starts[i] + data_bytes(file);
            stop = end < stop ? end : stop;
            while (begin < stop) {
                ssize_t got = pread(ruler->fds[i], ruler->memory + begin, stop - begin,
                                    (off_t)(file->data_offset + begin - ruler->starts[i]));
                if (got <= 0)
                    die("pread", file->path);
                begin += (uint64_t)got;
            }
        }
    }
}

static double ruler_run(struct ruler *ruler, unsigned thread_count, uint64_t block_bytes)
{
    pthread_t threads[THREADS_MAX];
    ruler->block_bytes = block_bytes;
    ruler->position = 0;
    double from = now_seconds();
    for (unsigned i = 0; i < thread_count; i++)
        pthread_create(&threads[i], NULL, ruler_thread, ruler);
    for (unsigned i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    return now_seconds() - from;
}

static char *map_fresh(uint64_t bytes, int huge)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap", "out of memory");
    madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return memory;
}

struct setting {
    unsigned threads;
    uint64_t block_bytes;
    int huge;
};

/* One bare trial: into `touched`, or with NULL into memory that is made and unmade within the time. */
static double ruler_trial(struct ruler *ruler, const struct setting *setting, char *touched)
{
    double from = now_seconds();
    ruler->memory = touched ? touched : map_fresh(ruler->bytes, setting->huge);
    ruler_run(ruler, setting->threads, setting->block_bytes);
    if (!touched)
        munmap(ruler->memory, ruler->bytes);
    return now_seconds() - from;
}

/* The fastest of the sweep, each setting tried twice. */
static struct setting ruler_sweep(struct ruler *ruler, unsigned cores, char *touched)
{
    struct setting best = {0};
    double best_seconds = 1e9;
    for (unsigned threads = (cores + 1) / 2; threads <= cores; threads += cores > 1 ? cores / 2 : 1)
        for (uint64_t block = 1 << 20; block <= 4 << 20; block *= 4)
            for (int huge = 0; huge <= (touched ? 0 : 1); huge++)
                for (int trial = 0; trial < 2; trial++) {
                    struct setting setting = {threads, block, huge};
                    double seconds = ruler_trial(ruler, &setting, touched);
                    if (seconds < best_seconds) {
                        best_seconds = seconds;
                        best = setting;
                    }
                }
    return best;
}

/* ------------------------------------------------------------------------------------------- headrace */

static double headrace_trial(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, struct hr_item *items)
{
    struct hr_error err;
    struct hr_load *load;
    double from = now_seconds();
    if (hr_load_start(loader, checkpoint, items, hr_checkpoint_count(checkpoint), NULL, &load, &err) < 0 ||
        hr_load_wait_all(load, &err) < 0)
        die("load", err.message);
    hr_load_free(load);
    return now_seconds() - from;
}

/* Items for all tensors; with `memory` each goes to where the bare program puts its bytes. */
static struct hr_item *make_items(const struct ruler *ruler, char *memory)
{
    size_t count = hr_checkpoint_count(ruler->checkpoint);
    struct hr_item *items = calloc(count + 1, sizeof *items);
    for (size_t i = 0; i < count; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(ruler->checkpoint, i);
        const struct hr_file *file = hr_checkpoint_file(ruler->checkpoint, tensor->file_index);
        items[i].size = sizeof items[i];
        items[i].tensor_index = i;
        if (memory)
            items[i].into = memory + ruler->starts[tensor->file_index] + (tensor->offset - file->data_offset);
    }
    return items;
}

/* --------------------------------------------------------------------------------------------- report */

struct result {
    struct setting setting;
    double ruler[PAIRS_MAX], headrace[PAIRS_MAX], ratio[PAIRS_MAX];
};

static struct result run_case(struct ruler *ruler, struct hr_loader *loader, unsigned cores, int pairs, char *touched)
{
    struct result result;
    struct hr_item *items = make_items(ruler, touched);
    result.setting = ruler_sweep(ruler, cores, touched);
    headrace_trial(loader, ruler->checkpoint, items);
    for (int i = 0; i < pairs; i++) {
        /* which of the two comes first alternates, so that neither always inherits the other's state */
        if (i % 2)
            result.headrace[i] = headrace_trial(loader, ruler->checkpoint, items);
        result.ruler[i] = ruler_trial(ruler, &result.setting, touched);
        if (i % 2 == 0)
            result.headrace[i] = headrace_trial(loader, ruler->checkpoint, items);
        result.ratio[i] = result.ruler[i] / result.headrace[i];
    }
    median_of(result.ruler, (size_t)pairs);
    median_of(result.headrace, (size_t)pairs);
    median_of(result.ratio, (size_t)pairs);
    free(items);
    return result;
}

static void print_case(FILE *json, const char *name, const struct result *result, double bytes, int pairs, int last)
{
    int m = pairs / 2;
    printf("%-8s ruler %6.2f GB/s (%u threads, %llu MiB%s), headrace %6.2f GB/s, ratio %.3f (%.3f to %.3f, %d pairs)\n",
           name, bytes / result->ruler[m] / 1e9, result->setting.threads,
           (unsigned long long)(result->setting.block_bytes >> 20), result->setting.huge ? ", huge pages" : "",
           bytes / result->headrace[m] / 1e9, result->ratio[m], result->ratio[0], result->ratio[pairs - 1], pairs);
    if (json)
        fprintf(
            json,
            "  \"%s\": {\"ruler_gb_s\": %.3f, \"ruler_threads\": %u, \"ruler_block_bytes\": %llu, \"ruler_huge\": %d, "
            "\"headrace_gb_s\": %.3f, \"ratio_median\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f}%s\n",
            name, bytes / result->ruler[m] / 1e9, result->setting.threads,
            (unsigned long long)result->setting.block_bytes, result->setting.huge, bytes / result->headrace[m] / 1e9,
            result->ratio[m], result->ratio[0], result->ratio[pairs - 1], last ? "" : ",");
}

static void open_files(struct ruler *ruler)
{
    size_t count = hr_checkpoint_file_count(ruler->checkpoint);
    ruler->fds = calloc(count, sizeof *ruler->fds);
    ruler->starts = calloc(count, sizeof *ruler->starts);
    for (size_t i = 0; i < count; i++) {
        const struct hr_file *file = hr_checkpoint_file(ruler->checkpoint, i);
        ruler->fds[i] = open(file->path, O_RDONLY | O_CLOEXEC);
        if (ruler->fds[i] < 0)
            die("open", file->path);
        ruler->starts[i] = ruler->bytes;
        ruler->bytes += data_bytes(file);
    }
}

struct arguments {
    int pairs;
    const char *json_path, *path;
};

static struct arguments read_arguments(int argc, char **argv)
{
    struct arguments arguments = {.pairs = 11};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--pairs") == 0 && i + 1 < argc)
            arguments.pairs = atoi(argv[++i]);
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            arguments.json_path = argv[++i];
        else
            arguments.path = argv[i];
    }
    if (!arguments.path || arguments.pairs < 5 || arguments.pairs > PAIRS_MAX)
        die("usage", "bench_host [--pairs N] [--json FILE] CHECKPOINT (5 pairs at least)");
    return arguments;
}

static void report(const struct arguments *arguments, const struct ruler *ruler, unsigned cores,
                   const struct result *touched, const struct result *fresh)
{
    FILE *json = arguments->json_path ? fopen(arguments->json_path, "w") : NULL;
    if (json)
        fprintf(json,
                "{\n  \"benchmark\": \"host\", \"cores\": %u, \"bytes\": %llu, \"tensors\": %zu, \"files\": %zu, "
                "\"pairs\": %d,\n",
                cores, (unsigned long long)ruler->bytes, hr_checkpoint_count(ruler->checkpoint),
                hr_checkpoint_file_count(ruler->checkpoint), arguments->pairs);
    print_case(json, "touched", touched, (double)ruler->bytes, arguments->pairs, 0);
    print_case(json, "fresh", fresh, (double)ruler->bytes, arguments->pairs, 1);
    if (json) {
        fprintf(json, "}\n");
        fclose(json);
    }
}

int main(int argc, char **argv)
{
    struct arguments arguments = read_arguments(argc, argv);
    struct hr_error err;
    struct hr_checkpoint *checkpoint;
    struct hr_loader *loader;
    struct hr_loader_options options = {.size = sizeof options, .route = HR_ROUTE_PREAD};
    if (hr_checkpoint_open(&arguments.path, 1, NULL, &checkpoint, &err) < 0 ||
        hr_loader_new(&options, &loader, &err) < 0)
        die(arguments.path, err.message);
    struct ruler ruler = {.checkpoint = checkpoint};
    open_files(&ruler);
    unsigned cores = core_count() < THREADS_MAX ? core_count() : THREADS_MAX;
    char *memory = map_fresh(ruler.bytes, 1);
    memset(memory, 1, ruler.bytes);
    struct result touched = run_case(&ruler, loader, cores, arguments.pairs, memory);
    munmap(memory, ruler.bytes);
    struct result fresh = run_case(&ruler, loader, cores, arguments.pairs, NULL);
    report(&arguments, &ruler, cores, &touched, &fresh);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return 0;
}
