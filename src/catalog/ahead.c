/*
 * ahead.c: see ahead.h. `end` alone says whose a file is, so each step is one exchange; `begin` is written by who holds
 * the claim, before the first range is announced.
 */
#include "catalog/ahead.h"

#include "base/sys.h"

#define FREE 0
#define CLAIMED UINT64_MAX

struct hr_ahead *hr_ahead_new(size_t file_count)
{
    return hr_alloc(sizeof(struct hr_ahead) + file_count * sizeof(struct hr_ahead_file));
}

int hr_ahead_claim(struct hr_ahead *ahead, size_t file_index, uint64_t load_count)
{
    uint64_t expected = FREE;
    if (!atomic_compare_exchange_strong(&ahead->files[file_index].end, &expected, CLAIMED))
        return 0;
    if (atomic_load(&ahead->load_count) == load_count) /* a load that starts from here on takes the claim */
        return 1;
    hr_ahead_finish(ahead, file_index);
    return 0;
}

int hr_ahead_announce(struct hr_ahead *ahead, size_t file_index, uint64_t from, uint64_t to)
{
    struct hr_ahead_file *file = &ahead->files[file_index];
    uint64_t end = atomic_load(&file->end);
    if (end == CLAIMED)
        atomic_store(&file->begin, from);
    else if (end != from)
        return 0;
    return atomic_compare_exchange_strong(&file->end, &end, to);
}

void hr_ahead_finish(struct hr_ahead *ahead, size_t file_index)
{
    uint64_t expected = CLAIMED;
    atomic_compare_exchange_strong(&ahead->files[file_index].end, &expected, FREE);
}

void hr_ahead_end(struct hr_ahead *ahead)
{
    atomic_fetch_add(&ahead->load_count, 1);
}

void hr_ahead_take(struct hr_ahead *ahead, size_t file_index, uint64_t *ret_begin, uint64_t *ret_end)
{
    struct hr_ahead_file *file = &ahead->files[file_index];
    uint64_t end = atomic_exchange(&file->end, FREE);
    int is_nothing = end == FREE || end == CLAIMED;
    *ret_begin = is_nothing ? 0 : atomic_load(&file->begin);
    *ret_end = is_nothing ? 0 : end;
}
