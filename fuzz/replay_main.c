/*
 * replay_main.c: runs a target on files and folders without libFuzzer, for any compiler. Each input gets memory of
 * just its size, so that AddressSanitizer sees every byte too far. No input at all is a failure.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static int fail(const char *path)
{
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return -1;
}

static int replay_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(path);
    uint8_t *bytes = malloc(size ? size : 1);
    int complete = bytes && fread(bytes, 1, size, file) == size;
    fclose(file);
    if (complete) {
        fprintf(stderr, "%s\n", path); /* the last line says which one broke it */
        LLVMFuzzerTestOneInput(bytes, size);
    }
    free(bytes);
    return complete ? 1 : fail(path);
}

/* How many files were run, or -1. */
static int replay(const char *path)
{
    struct stat stat_of;
    if (stat(path, &stat_of))
        return fail(path);
    if (!S_ISDIR(stat_of.st_mode))
        return replay_file(path, (size_t)stat_of.st_size);
    DIR *folder = opendir(path);
    if (!folder)
        return fail(path);
    int count = 0;
    for (const struct dirent *entry; count >= 0 && (entry = readdir(folder));) {
        char *inner;
        if (entry->d_name[0] == '.')
            continue;
        if (asprintf(&inner, "%s/%s", path, entry->d_name) < 0)
            abort();
        int found = replay(inner);
        count = found < 0 ? -1 : count + found;
        free(inner);
    }
    closedir(folder);
    return count;
}

int main(int argument_count, char **arguments)
{
    int count = 0;
    for (int i = 1; i < argument_count; i++) {
        int found = replay(arguments[i]);
        if (found < 0)
            return 1;
        count += found;
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
