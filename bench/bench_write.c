/*
 * bench_write.c: host memory to a file on a disk, hr_write against bare threads that call pwrite, interleaved in one run.
 *
 * usage: bench_write [--gib N] [--pairs N] [--threads N] [--tensors N] [--json FILE] FOLDER
 *
 * Both write the same bytes into a new file in FOLDER, by as many threads, wait until it is on the storage (fsync) and
 * give it its name (rename). The bare program writes blocks of 4 MiB; whether the disk space is allocated before is tried
 * both ways, and the faster one is the ruler. Before each trial nothing is left for the disk to do, and what was written
 * is removed outside of the time. Prints the median of the ratio ruler time / headrace time with its spread.
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
#include "report.h"

#define BLOCK_BYTES (4u << 20)
#define THREADS_MAX 64
#define THREADS_DEFAULT_MAX 8

struct bench {
    double gib;
    unsigned long pairs, threads, tensor_count;
    const char *json_path, *folder;
    char *memory;
    uint64_t bytes;
    char path[4096], bare_path[4096];
    int allocates; /* the bare program */
};

/* ------------------------------------------------------------------------------------- the bare program */

struct bare {
    const struct bench *bench;
    int fd;
    atomic_uint_fast64_t position;
};

static void *bare_thread(void *argument)
{
    struct bare *bare = argument;
    for (;;) {
        uint64_t at = atomic_fetch_add(&bare->position, BLOCK_BYTES), bytes = bare->bench->bytes;
        uint64_t end = at + BLOCK_BYTES < bytes ? at + BLOCK_BYTES : bytes;
        if (at >= bytes)
            return NULL;
        while (at < end) {
            ssize_t written = pwrite(bare->fd, bare->bench->memory + at, end - at, (off_t)at);
            if (written <= 0)
                die("pwrite", bare->bench->bare_path);
            at += (uint64_t)written;
        }
    }
}

static double bare_trial(const struct bench *bench)
{
    pthread_t threads[THREADS_MAX];
    char temporary[4200];
    sync();
    snprintf(temporary, sizeof temporary, "%s.tmp", bench->bare_path);
    double from = now_seconds();
    struct bare bare = {bench, open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), 0};
    if (bare.fd < 0)
        die("open", temporary);
    if (bench->allocates && fallocate(bare.fd, 0, 0, (off_t)bench->bytes))
        die("fallocate", temporary);
    for (unsigned i = 0; i < bench->threads; i++)
        pthread_create(&threads[i], NULL, bare_thread, &bare);
    for (unsigned i = 0; i < bench->threads; i++)
        pthread_join(threads[i], NULL);
    if (fsync(bare.fd) || close(bare.fd) || rename(temporary, bench->bare_path))
        die("fsync, close or rename", temporary);
    double seconds = now_seconds() - from;
    unlink(bench->bare_path);
    return seconds;
}

/* ------------------------------------------------------------------------------------------- headrace */

/* Equal tensors but the last, which has what is left. */
static void describe(const struct bench *bench, struct hr_tensor *tensors, struct hr_source *sources, uint64_t *shapes,
                     char (*names)[32])
{
    uint64_t each = bench->bytes / bench->tensor_count;
    for (size_t i = 0; i < bench->tensor_count; i++) {
        shapes[i] = i + 1 < bench->tensor_count ? each : bench->bytes - i * each;
        snprintf(names[i], sizeof names[i], "tensor.%08zu", i);
        tensors[i] = (struct hr_tensor){
            .name = names[i], .name_size = strlen(names[i]), .dtype = HR_DTYPE_U8, .rank = 1, .shape = &shapes[i]};
        sources[i] = (struct hr_source){.size = sizeof sources[i], .data = bench->memory + i * each};
    }
}

static double headrace_trial(const struct bench *bench, const struct hr_tensor *tensors,
                             const struct hr_source *sources)
{
    struct hr_write_options options = {.size = sizeof options, .thread_count = (uint32_t)bench->threads};
    struct hr_error err;
    sync();
    double from = now_seconds();
    if (hr_write(bench->path, tensors, sources, bench->tensor_count, &options, &err))
        die("hr_write", err.message);
    double seconds = now_seconds() - from;
    unlink(bench->path);
    return seconds;
}

/* ---------------------------------------------------------------------------------------------- report */

static void report(const struct bench *bench, const double *bare, const double *headrace, const double *ratios)
{
    struct spread ruler = spread_of(bare, bench->pairs), own = spread_of(headrace, bench->pairs);
    struct spread ratio = spread_of(ratios, bench->pairs);
    printf(
        "write %.2f GB, %lu tensors, %lu threads: bare %.3f GB/s%s, headrace %.3f GB/s, ratio %.3f (%.3f to %.3f, %lu "
        "pairs)\n",
        (double)bench->bytes / 1e9, bench->tensor_count, bench->threads, gb_s(bench->bytes, ruler.median),
        bench->allocates ? " (allocated before)" : "", gb_s(bench->bytes, own.median), ratio.median, ratio.least,
        ratio.most, bench->pairs);
    FILE *json = bench->json_path ? fopen(bench->json_path, "w") : NULL;
    if (!json)
        return;
    fprintf(json, "{\"benchmark\": \"write\", \"bytes\": %llu, \"tensors\": %lu, \"threads\": %lu, \"cores\": %u, ",
            (unsigned long long)bench->bytes, bench->tensor_count, bench->threads, core_count());
    fprintf(json, "\"ruler_allocates\": %d, \"ruler_gb_s\": %.4f, \"headrace_gb_s\": %.4f, ", bench->allocates,
            gb_s(bench->bytes, ruler.median), gb_s(bench->bytes, own.median));
    json_values(json, "ruler_seconds", bare, bench->pairs);
    json_values(json, "headrace_seconds", headrace, bench->pairs);
    json_ratios(json, ratios, bench->pairs);
    fprintf(json, "\"pairs\": %lu}\n", bench->pairs);
    fclose(json);
}

static void read_arguments(struct bench *bench, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (argv[i][0] != '-')
            bench->folder = argv[i];
        else if (strcmp(argv[i++], "--gib") == 0)
            bench->gib = atof(value);
        else if (strcmp(argv[i - 1], "--pairs") == 0)
            bench->pairs = strtoul(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--threads") == 0)
            bench->threads = strtoul(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--tensors") == 0)
            bench->tensor_count = strtoul(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--json") == 0)
            bench->json_path = value;
    }
    bench->bytes = (uint64_t)(bench->gib * (1 << 30));
    if (!bench->folder || bench->pairs < 1 || bench->pairs > TRIALS_MAX || bench->threads < 1 ||
        bench->threads > THREADS_MAX || bench->tensor_count < 1 || bench->bytes < bench->tensor_count)
        die("usage", "bench_write [--gib N] [--pairs N] [--threads N] [--tensors N] [--json FILE] FOLDER");
    snprintf(bench->path, sizeof bench->path, "%s/headrace.safetensors", bench->folder);
    snprintf(bench->bare_path, sizeof bench->bare_path, "%s/bare", bench->folder);
}

static void make_memory(struct bench *bench)
{
    bench->memory = mmap(NULL, bench->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench->memory == MAP_FAILED)
        die("mmap", "out of memory");
    uint64_t random = 88172645463325252u; /* what no disk can compress */
    for (uint64_t i = 0; i + 8 <= bench->bytes; i += 8) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memcpy(bench->memory + i, &random, 8);
    }
}

/* Whether it is faster where disk space is allocated before; a filesystem that cannot do that is not asked. */
static int choose_allocation(struct bench *bench)
{
    double best[2] = {1e9, 1e9};
    char path[4200];
    snprintf(path, sizeof path, "%s/allocates", bench->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    int can = fd >= 0 && fallocate(fd, 0, 0, 4096) == 0;
    close(fd);
    unlink(path);
    for (int trial = 0; trial < 4; trial++) {
        bench->allocates = can && trial % 2;
        double seconds = bare_trial(bench);
        best[trial % 2] = seconds < best[trial % 2] ? seconds : best[trial % 2];
    }
    return can && best[1] < best[0];
}

int main(int argc, char **argv)
{
    static struct bench bench = {.gib = 8, .pairs = 5, .tensor_count = 320};
    double bare[TRIALS_MAX], headrace[TRIALS_MAX], ratios[TRIALS_MAX];
    bench.threads = core_count() < THREADS_DEFAULT_MAX ? core_count() : THREADS_DEFAULT_MAX;
    read_arguments(&bench, argc, argv);
    make_memory(&bench);
    struct hr_tensor *tensors = calloc(bench.tensor_count, sizeof *tensors);
    struct hr_source *sources = calloc(bench.tensor_count, sizeof *sources);
    uint64_t *shapes = calloc(bench.tensor_count, sizeof *shapes);
    char(*names)[32] = calloc(bench.tensor_count, sizeof *names);
    describe(&bench, tensors, sources, shapes, names);
    bench.allocates = choose_allocation(&bench);
    headrace_trial(&bench, tensors, sources);
    for (unsigned long i = 0; i < bench.pairs; i++) { /* who comes first alternates */
        if (i % 2)
            headrace[i] = headrace_trial(&bench, tensors, sources);
        bare[i] = bare_trial(&bench);
        if (i % 2 == 0)
            headrace[i] = headrace_trial(&bench, tensors, sources);
        ratios[i] = bare[i] / headrace[i];
    }
    report(&bench, bare, headrace, ratios);
    free(tensors);
    free(sources);
    free(shapes);
    free(names);
    return 0;
}
