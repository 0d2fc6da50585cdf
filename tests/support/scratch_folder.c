/*
 * scratch_folder.c: see scratch_folder.h.
 */
#include "support/scratch_folder.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void require(int is_true, const char *what, const char *path)
{
    if (is_true)
        return;
    fprintf(stderr, "scratch folder: cannot %s %s\n", what, path);
    abort();
}

void scratch_init(struct scratch *scratch)
{
    strcpy(scratch->path, "/tmp/headrace-test-XXXXXX");
    require(mkdtemp(scratch->path) != NULL, "make", scratch->path);
}

static int entry_remove(const char *path, const struct stat *stat, int type, struct FTW *position)
{
    (void)stat;
    (void)type;
    (void)position;
    return remove(path);
}

void scratch_release(struct scratch *scratch)
{
    require(nftw(scratch->path, entry_remove, 16, FTW_DEPTH | FTW_PHYS) == 0, "remove", scratch->path);
}

const char *scratch_path(const struct scratch *scratch, const char *name)
{
    static char buffers[8][512];
    static unsigned next;
    char *buffer = buffers[next++ % 8];
    snprintf(buffer, sizeof buffers[0], "%s/%s", scratch->path, name);
    return buffer;
}

const char *scratch_write(const struct scratch *scratch, const char *name, const void *bytes, size_t size)
{
    const char *path = scratch_path(scratch, name);
    FILE *file = fopen(path, "wb");
    require(file != NULL, "create", path);
    require(fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "write", path);
    return path;
}

const char *scratch_tensors(const struct scratch *scratch, const char *name, const char *json, uint64_t data_size)
{
    const char *path = scratch_path(scratch, name);
    size_t size = strlen(json);
    unsigned char prefix[8];
    for (unsigned i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)size >> (8 * i));
    FILE *file = fopen(path, "wb");
    require(file != NULL, "create", path);
    require(fwrite(prefix, 1, 8, file) == 8 && fwrite(json, 1, size, file) == size, "write", path);
    require(fflush(file) == 0 && ftruncate(fileno(file), (off_t)(8 + size + data_size)) == 0, "write", path);
    require(fclose(file) == 0, "write", path);
    return path;
}

void scratch_folder(const struct scratch *scratch, const char *name)
{
    require(mkdir(scratch_path(scratch, name), 0700) == 0, "make", name);
}

void scratch_link(const struct scratch *scratch, const char *name, const char *target)
{
    require(symlink(target, scratch_path(scratch, name)) == 0, "link", name);
}
