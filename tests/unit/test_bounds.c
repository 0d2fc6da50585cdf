/*
 * test_bounds.c: the largest and most awkward headers, opened as files: the time and the memory that each may take,
 * as limits.h states them. Time is that of the processor, memory the most that was resident; each is opened in a
 * process of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/make_files.h"

/* Sanitizers make everything slower and larger, and keep what was freed. */
#if defined(HEADRACE_SANITIZE) || defined(HEADRACE_TSAN)
#define IS_BOUNDED 0
#else
#define IS_BOUNDED 1
#endif

#define MIB 1048576.0

struct header {
    const char *name;
    void (*write)(FILE *file);
    uint64_t data_size;
    uint32_t mode;
    int code;
    double seconds_max, mib_max;
};

static void repeat(FILE *file, const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fputs(text, file);
}

static void write_blanks(FILE *file)
{
    fputs("{}", file);
    repeat(file, "          ", 9999999);
    fputs("        ", file);
}

static void write_metadata(FILE *file)
{
    fputs("{\"__metadata__\":{\"a\":\"", file);
    repeat(file, "\\u00e9\\n", 12000000);
    fputs("\"}}", file);
}

/* Last first, so that they have to be sorted. */
static void write_tensors(FILE *file)
{
    for (size_t i = 1000000; i-- > 0;)
        fprintf(file, "%c\"model.layers.%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                i == 999999 ? '{' : ',', i, i, i + 1);
    fputs("}", file);
}

static void write_name(FILE *file)
{
    fputs("{\"", file);
    repeat(file, "aaaaaaaaaa", 100000);
    fputs("\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", file);
}

static void write_rank(FILE *file)
{
    fputs("{\"t\":{\"dtype\":\"U8\",\"shape\":[1", file);
    repeat(file, ",1", 99999);
    fputs("],\"data_offsets\":[0,1]}}", file);
}

static void write_nesting(FILE *file)
{
    fputs("{\"t\":{\"x\":", file);
    repeat(file, "[", 99000000);
}

static const struct header headers[] = {
    {"100 MB of blanks", write_blanks, 0, HR_OPEN_STRICT, 0, 1, 120},
    {"96 MB of escapes", write_metadata, 0, HR_OPEN_STRICT, 0, 1.5, 120},
    {"a million tensors", write_tensors, 1000000, HR_OPEN_STRICT, 0, 2, 300},
    {"a name of 1 MB", write_name, 1, HR_OPEN_STRICT, 0, 0.1, 4},
    {"100,000 dimensions", write_rank, 1, HR_OPEN_COMPAT, 0, 0.1, 4},
    {"100,000 dimensions", write_rank, 1, HR_OPEN_STRICT, HR_ERANK_TOO_LARGE, 0.1, 4},
    {"99 million brackets", write_nesting, 0, HR_OPEN_STRICT, HR_EINVALID_HEADER_DESERIALIZATION, 1, 120},
};

static const char *header_write(const struct header *header)
{
    const char *path = test_path("bound.safetensors");
    FILE *file = fopen(path, "w+");
    assert_non_null(file);
    fseek(file, 8, SEEK_SET);
    header->write(file);
    uint64_t size = (uint64_t)ftell(file) - 8;
    rewind(file);
    fwrite(&size, sizeof size, 1, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, (off_t)(8 + size + header->data_size)), 0);
    return path;
}

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024 / MIB;
}

/* In the child: 0 when the code and both bounds hold. */
static int open_bounded(const struct header *header, const char *path)
{
    struct hr_open_options options = {.size = sizeof options, .mode = header->mode};
    struct hr_checkpoint *checkpoint = NULL;
    double began = processor_seconds(), before = peak_mib();
    int code = hr_checkpoint_open(&path, 1, &options, &checkpoint, NULL);
    double seconds = processor_seconds() - began, mib = peak_mib() - before;
    hr_checkpoint_close(checkpoint);
    fprintf(stderr, "%s: %s, %.3f s of at most %.1f, %.0f MiB of at most %.0f\n", header->name, hr_error_kind(code),
            seconds, header->seconds_max, mib, header->mib_max);
    return code != header->code || (IS_BOUNDED && (seconds > header->seconds_max || mib > header->mib_max));
}

static void test_bounds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        int status = -1;
        const char *path = header_write(&headers[i]);
        pid_t child = fork();
        if (child == 0)
            _exit(open_bounded(&headers[i], path));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
