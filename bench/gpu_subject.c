/*
 * gpu_subject.c: see gpu_subject.h. A trial's time runs from hr_load_start(), with a new loader from hr_loader_new(),
 * until all items are ready; what frees them is timed apart.
 */
#include "gpu_subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "cuda_bare.h"
#include "measure.h"

#define ROUNDED 512 /* bytes; what frameworks' allocators round to */

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + ROUNDED - 1) / ROUNDED * ROUNDED;
}

void target_open(struct target *target, const char *path)
{
    struct hr_error err;
    target->path = path;
    if (hr_checkpoint_open(&path, 1, NULL, &target->checkpoint, &err) < 0)
        die(path, err.message);
    for (size_t i = 0; i < hr_checkpoint_count(target->checkpoint); i++) {
        target->bytes += hr_checkpoint_at(target->checkpoint, i)->size;
        target->region_bytes += rounded(hr_checkpoint_at(target->checkpoint, i)->size);
    }
}

static const char *const memory_names[] = {"arena", "each", "into"};

const char *subject_memory_name(enum subject_memory memory)
{
    return memory_names[memory];
}

void subject_parse(struct subject *subject, const char *text)
{
    char memory[8], loader[8], dtype[16] = "";
    int fields = sscanf(text, "%7[a-z],%7[a-z],%u,%15s", memory, loader, &subject->threads, dtype);
    subject->dtype = hr_dtype_find(dtype, strlen(dtype));
    if (*dtype && (subject->dtype == HR_DTYPE_NONE || strcmp(memory, "arena") != 0))
        die("no dtype, or not with arena", text);
    for (int i = MEMORY_ARENA; fields >= 2 && i <= MEMORY_INTO; i++)
        if (strcmp(memory, memory_names[i]) == 0) {
            subject->memory = i;
            subject->new_loader = strcmp(loader, "new") == 0;
            if (subject->new_loader || strcmp(loader, "kept") == 0)
                return;
        }
    die("not a subject (arena|each|into,kept|new[,threads[,dtype]])", text);
}

/* ---------------------------------------------------------------------------------------- memory and items */

static void *bump_alloc(void *context, const struct hr_allocation *allocation)
{
    struct subject *subject = context;
    uint64_t at = subject->target->region + subject->region_used;
    subject->region_used += rounded(allocation->bytes);
    return subject->region_used <= subject->target->region_bytes ? (void *)(uintptr_t)at : NULL;
}

static void make_items(struct subject *subject)
{
    size_t count = hr_checkpoint_count(subject->target->checkpoint);
    uint64_t at = subject->target->region;
    subject->items = calloc(count + 1, sizeof *subject->items);
    for (size_t i = 0; i < count; i++) {
        subject->items[i].size = sizeof subject->items[i];
        subject->items[i].tensor_index = i;
        if (hr_dtype_converts(hr_checkpoint_at(subject->target->checkpoint, i)->dtype, subject->dtype))
            subject->items[i].dtype = subject->dtype;
        if (subject->memory == MEMORY_INTO)
            subject->items[i].into = (void *)(uintptr_t)at;
        at += rounded(hr_checkpoint_at(subject->target->checkpoint, i)->size);
    }
}

static struct hr_loader *make_loader(struct subject *subject)
{
    struct hr_error err;
    struct hr_loader *loader;
    struct hr_loader_options options = {.size = sizeof options, .devices = &subject->device, .device_count = 1};
    options.thread_count = subject->threads;
    if (subject->memory == MEMORY_EACH)
        options.allocator = (struct hr_allocator){.context = subject, .alloc = bump_alloc};
    if (hr_loader_new(&options, &loader, &err) < 0)
        die("hr_loader_new", err.message);
    return loader;
}

/* ---------------------------------------------------------------------------------------------- loading */

static struct hr_load *load_all(struct subject *subject)
{
    struct hr_error err;
    struct hr_load *load;
    struct hr_load_options options = {.size = sizeof options};
    const struct hr_checkpoint *checkpoint = subject->target->checkpoint;
    options.ownership = subject->memory == MEMORY_EACH ? HR_OWN_EACH : HR_OWN_ARENA;
    subject->region_used = 0;
    if (subject->new_loader || !subject->loader)
        subject->loader = make_loader(subject);
    if (hr_load_start(subject->loader, checkpoint, subject->items, hr_checkpoint_count(checkpoint), &options, &load,
                      &err) < 0 ||
        hr_load_wait_all(load, &err) < 0)
        die("load", err.message);
    return load;
}

/* Looks at what the load holds, then frees it. */
static void finish(struct subject *subject, struct hr_load *load)
{
    int64_t used = (int64_t)(subject->free_before - cuda_free_bytes());
    subject->used_most = used > subject->used_most ? used : subject->used_most;
    subject->stats.size = sizeof subject->stats;
    hr_load_stats(load, &subject->stats);
    double from = now_seconds();
    hr_load_free(load);
    if (subject->new_loader) {
        hr_loader_free(subject->loader);
        subject->loader = NULL;
    }
    subject->free_seconds = now_seconds() - from;
}

void subject_begin(struct subject *subject)
{
    if (subject->memory != MEMORY_ARENA && !subject->target->region)
        subject->target->region = cuda_alloc(subject->target->region_bytes + ROUNDED);
    make_items(subject);
    subject->free_before = cuda_settle();
    double from = now_seconds();
    struct hr_load *load = load_all(subject);
    subject->first_seconds = now_seconds() - from;
    finish(subject, load);
}

double subject_trial(struct subject *subject)
{
    subject->free_before = cuda_settle();
    double cpu = cpu_seconds(), from = now_seconds();
    struct hr_load *load = load_all(subject);
    double seconds = now_seconds() - from;
    subject->cpu[subject->trial_count] = cpu_seconds() - cpu;
    subject->seconds[subject->trial_count++] = seconds;
    finish(subject, load);
    return seconds;
}

void subject_end(struct subject *subject)
{
    hr_loader_free(subject->loader);
    free(subject->items);
}

int64_t subject_device_above(const struct subject *subject)
{
    return subject->used_most - (subject->memory == MEMORY_ARENA ? (int64_t)subject->stats.bytes_allocated : 0);
}

void subject_verify(struct subject *subject)
{
    subject->free_before = cuda_settle();
    struct hr_load *load = load_all(subject);
    struct compared compared = compare_load(load, subject->target->checkpoint, subject->verify_all);
    subject->verified_items += compared.items;
    subject->verified_bytes += compared.bytes;
    finish(subject, load);
}
