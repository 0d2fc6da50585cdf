/*
 * bench_header.c: opens one safetensors file once for each line of standard input and answers with the nanoseconds
 * it took: reading, checking, parsing, the table of names, and one look at each name. bench_header.py drives it, so
 * that it can take turns with another reader.
 */
#include <headrace/headrace.h>
#include <stdio.h>
#include <time.h>

static unsigned long long clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

int main(int argument_count, char **arguments)
{
    struct hr_error err;
    char line[16];
    if (argument_count != 2)
        return fprintf(stderr, "usage: bench_header FILE\n"), 2;
    const char *path = arguments[1];
    while (fgets(line, sizeof line, stdin)) {
        struct hr_checkpoint *checkpoint;
        size_t name_bytes = 0;
        unsigned long long start = clock_ns();
        if (hr_checkpoint_open(&path, 1, NULL, &checkpoint, &err))
            return fprintf(stderr, "%s: %s\n", hr_error_kind(err.code), err.message), 1;
        size_t count = hr_checkpoint_count(checkpoint);
        for (size_t i = 0; i < count; i++)
            name_bytes += hr_checkpoint_at(checkpoint, i)->name_size;
        unsigned long long end = clock_ns();
        printf("%llu %zu %zu\n", end - start, count, name_bytes);
        fflush(stdout);
        hr_checkpoint_close(checkpoint);
    }
    return 0;
}
