/*
 * cached.c: looks at pages of each file with mincore(), at regular distances, so that it takes little time however large
 * the checkpoint is. Where the kernel does not tell (files of others that may not be written), it says that all is there.
 */
#include "cached.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SAMPLES_MAX = 4096, WINDOW_PAGES = 16 };

struct sample {
    size_t pages, resident;
};

/* Adds `window_count` windows of a mapped file. */
static int sample_mapping(char *memory, uint64_t bytes, size_t window_count, size_t page_bytes, struct sample *sample)
{
    unsigned char states[WINDOW_PAGES];
    uint64_t page_count = (bytes + page_bytes - 1) / page_bytes;
    for (size_t i = 0; i < window_count; i++) {
        uint64_t first = (uint64_t)((unsigned __int128)page_count * i / window_count);
        size_t pages = page_count - first < WINDOW_PAGES ? (size_t)(page_count - first) : WINDOW_PAGES;
        if (mincore(memory + first * page_bytes, pages * page_bytes, states) != 0)
            return 0;
        sample->pages += pages;
        for (size_t page = 0; page < pages; page++)
            sample->resident += states[page] & 1;
    }
    return 1;
}

static int sample_file(const struct hr_file *file, size_t window_count, size_t page_bytes, struct sample *sample)
{
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, file->size, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (memory == MAP_FAILED)
        return 0;
    int is_known = sample_mapping(memory, file->size, window_count, page_bytes, sample);
    munmap(memory, file->size);
    return is_known;
}

double cached_share(const struct hr_checkpoint *checkpoint)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    struct sample sample = {0};
    uint64_t bytes = 0;
    for (size_t i = 0; i < hr_checkpoint_file_count(checkpoint); i++)
        bytes += hr_checkpoint_file(checkpoint, i)->size;
    for (size_t i = 0; i < hr_checkpoint_file_count(checkpoint); i++) {
        const struct hr_file *file = hr_checkpoint_file(checkpoint, i);
        size_t windows = 1 + (size_t)((double)file->size / (double)bytes * SAMPLES_MAX);
        if (!sample_file(file, windows, page_bytes, &sample))
            return -1;
    }
    return sample.pages ? (double)sample.resident / (double)sample.pages : -1;
}
