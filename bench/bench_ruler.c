/*
 * bench_ruler.c: the ruler of bench_gpu (ruler.h) as a process that is told when to run, so that those of several GPUs
 * run at once.
 *
 * usage: bench_ruler GPU THREADS CHECKPOINT     (THREADS: a list for the sweep, "4,8,16")
 *
 * Writes the device's name as a line. For each line that it reads: "sweep" looks for the fastest setting and writes it,
 * "trial" writes the bytes and the seconds of one trial. Ends with its input. Exit status 77: there is no device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_bare.h"
#include "measure.h"
#include "report.h"
#include "ruler.h"

enum { THREAD_COUNTS_MAX = 32, NO_DEVICE = 77 };

static void serve(struct ruler *ruler, const unsigned *threads, size_t thread_count)
{
    struct ruler_setting setting = {.threads = threads[0], .depth = 2, .block_bytes = 2u << 20};
    char line[16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "sweep\n") == 0) {
            setting = ruler_sweep(ruler, threads, thread_count);
            printf("%u %u %llu\n", setting.threads, setting.depth, (unsigned long long)setting.block_bytes);
        } else if (strcmp(line, "trial\n") == 0) {
            double seconds = ruler_trial(ruler, &setting);
            printf("%llu %.6f\n", (unsigned long long)ruler_bytes(ruler), seconds);
        } else
            die("not a command", line);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    unsigned threads[THREAD_COUNTS_MAX];
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    char name[128];
    const char *reason;
    if (argc != 4)
        die("usage", "bench_ruler GPU THREADS CHECKPOINT");
    size_t thread_count = parse_list(argv[2], threads, THREAD_COUNTS_MAX);
    if (cuda_open(atoi(argv[1]), &reason) < 0) {
        fprintf(stderr, "bench_ruler: no device: %s\n", reason);
        return NO_DEVICE;
    }
    const char *paths[] = {argv[3]};
    if (hr_checkpoint_open(paths, 1, NULL, &checkpoint, &err) != 0)
        die(argv[3], err.message);
    cuda_name(atoi(argv[1]), name, sizeof name);
    puts(name);
    fflush(stdout);
    serve(ruler_new(checkpoint), threads, thread_count);
    hr_checkpoint_close(checkpoint);
    return 0;
}
