/*
 * cold_subject.c: see cold_subject.h.
 */
#include "cold_subject.h"

#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "measure.h"
#include "cache_state.h"

static uint64_t spaced(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256; /* as in the library's arenas */
}

uint64_t cold_memory_bytes(const struct hr_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < hr_checkpoint_count(checkpoint); i++)
        bytes += spaced(hr_checkpoint_at(checkpoint, i)->size);
    return bytes;
}

int cold_subject_open(struct cold_subject *subject, char *memory, struct hr_error *err)
{
    struct hr_loader_options options = {.size = sizeof options, .devices = &subject->device, .device_count = 1};
    size_t count = hr_checkpoint_count(subject->checkpoint);
    int host = strcmp(subject->device, "cpu") == 0;
    options.route = subject->route;
    subject->items = calloc(count + 1, sizeof *subject->items);
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = hr_checkpoint_at(subject->checkpoint, i)->size;
        subject->items[i].size = sizeof subject->items[i];
        subject->items[i].tensor_index = i;
        if (host)
            subject->items[i].into = memory;
        memory += spaced(bytes);
        subject->bytes += bytes;
    }
    return hr_loader_new(&options, &subject->loader, err);
}

void cold_subject_close(struct cold_subject *subject)
{
    hr_loader_free(subject->loader);
    free(subject->items);
}

uint64_t cold_resident(const struct raw_files *files)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < files->count; i++)
        bytes += page_cache_resident(files->cached[i], files->sizes[i]);
    return bytes;
}

void cold_subject_trial(const struct cold_subject *subject, struct series *series, int compare)
{
    struct hr_error err;
    struct hr_load *load;
    size_t at = series->count++;
    double resident = (double)cold_resident(subject->files);
    double cpu = cpu_seconds(), from = now_seconds();
    if (hr_load_start(subject->loader, subject->checkpoint, subject->items, hr_checkpoint_count(subject->checkpoint),
                      NULL, &load, &err) < 0 ||
        hr_load_wait_all(load, &err) < 0)
        die("load", err.message);
    series->seconds[at] = now_seconds() - from;
    series->cpu[at] = cpu_seconds() - cpu;
    series->gained[at] = (double)cold_resident(subject->files) - resident;
    series->bytes = subject->bytes;
    series->stats.size = sizeof series->stats;
    hr_load_stats(load, &series->stats);
    series->direct[at] = (double)series->stats.bytes_direct;
    if (compare)
        series->compared_bytes = compare_load(load, subject->checkpoint, 0).bytes;
    hr_load_free(load);
}
