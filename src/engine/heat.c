/*
 * heat.c: looks at files and at ranges of them. Whole files are asked for once: most checkpoints are all in the page
 * cache, or not at all.
 */
#include "engine/heat.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/fixed.h"
#include "io/residency.h"

int hr_heat_new(size_t file_count, size_t chunk_count, struct hr_heat **ret_heat, struct hr_error *err)
{
    size_t bytes = sizeof(struct hr_heat) + file_count * sizeof(struct heat_of_file);
    struct hr_heat *heat = hr_alloc(bytes);
    if (!heat)
        return hr_fail_memory(err, bytes, "what is known of the files");
    heat->kinds = hr_alloc_array(chunk_count, sizeof heat->kinds[0]);
    heat->edges.indices = hr_alloc_array(chunk_count, sizeof heat->edges.indices[0]);
    heat->edges.capacity = chunk_count;
    if (!heat->kinds || !heat->edges.indices) {
        hr_heat_free(heat);
        return hr_fail_memory(err, chunk_count * sizeof heat->edges.indices[0], "what is known of the chunks");
    }
    pthread_mutex_init(&heat->lock, NULL);
    *ret_heat = heat;
    return 0;
}

void hr_heat_free(struct hr_heat *heat)
{
    if (heat) {
        hr_free(heat->kinds);
        hr_free(heat->edges.indices);
    }
    hr_free(heat);
}

/* Storage of another file of the same filesystem that was asked already; the lock is held. */
static const struct hr_storage *known_storage(const struct hr_load *load, size_t file_index)
{
    const struct hr_checkpoint *checkpoint = load->checkpoint;
    for (size_t i = 0; i < checkpoint->file_count; i++)
        if (load->heat->files[i].heat > HEAT_HOT &&
            checkpoint->identities[i].device == checkpoint->identities[file_index].device)
            return &load->heat->files[i].storage;
    return NULL;
}

/*
 * Asks about some places of a file, since asking about all of it costs 20 ns a page. What they say is taken for the
 * whole: where it is wrong, pages that are cached are read past the cache, or others through it, and the bytes are
 * the same. 0 or -errno.
 */
static int sample_file(int fd, uint64_t size, uint64_t *ret_asked, uint64_t *ret_resident)
{
    uint64_t step = size / HR_HEAT_PLACES;
    uint64_t window = step < HR_HEAT_PLACE_BYTES ? size : HR_HEAT_PLACE_BYTES;
    for (uint64_t offset = 0; offset < size; offset += window < size ? step : size) {
        uint64_t bytes = size - offset < window ? size - offset : window;
        int64_t resident = hr_residency(fd, offset, bytes, NULL);
        if (resident < 0)
            return (int)resident;
        *ret_asked += bytes;
        *ret_resident += (uint64_t)resident;
    }
    return 0;
}

/*
 * Where nobody can tell what the page cache holds, reading through it is right: what is there is copied, and the kernel
 * reads ahead for the rest.
 */
static uint8_t heat_of(const struct heat_of_file *found)
{
    if (found->error || found->resident >= found->asked)
        return HEAT_HOT;
    return found->resident == 0 ? HEAT_COLD : HEAT_MIXED;
}

/* The first chunk of a file; chunks stand in the order of files. */
static size_t first_chunk(const struct hr_plan *plan, size_t file_index)
{
    size_t low = 0, high = plan->chunk_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->chunks[middle].file_index < file_index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* As far as its places tell: what is wrong about it costs time, as above. */
static int is_all_cached(int fd, uint64_t begin, uint64_t end)
{
    uint64_t bytes = end - begin < HR_HEAT_STEP_PLACE_BYTES ? end - begin : HR_HEAT_STEP_PLACE_BYTES;
    for (uint64_t at = begin; at + bytes <= end; at += HR_HEAT_STEP_BYTES)
        if (hr_residency(fd, at, bytes, NULL) < (int64_t)bytes)
            return 0;
    return hr_residency(fd, end - bytes, bytes, NULL) == (int64_t)bytes;
}

/* Of the file's chunks [first, end): those at edges, if they are few; else all cached ones are alike. */
static void mark_edges(struct hr_load *load, size_t first, size_t end)
{
    const struct hr_plan_chunk *chunks = load->plan.chunks;
    _Atomic uint8_t *kinds = load->heat->kinds;
    uint64_t next_cold = UINT64_MAX; /* where the cold chunk behind the one at hand begins */
    size_t hot_count = 0, edge_count = 0;
    for (size_t i = end; i-- > first;) {
        hot_count += kinds[i] == CHUNK_HOT;
        if (kinds[i] == CHUNK_COLD) {
            next_cold = chunks[i].file_begin;
        } else if (next_cold != UINT64_MAX && chunks[i].file_end + HR_HEAT_EDGE_BYTES > next_cold) {
            kinds[i] = CHUNK_EDGE;
            edge_count++;
        }
    }
    for (size_t i = first; i < end && edge_count * HR_HEAT_EDGE_PART > hot_count; i++)
        if (kinds[i] == CHUNK_EDGE)
            kinds[i] = CHUNK_HOT;
}

/*
 * All chunks of a file that is held in part, by places of each: nothing is read before that is known, and counting all
 * pages would take 5 ms a GB. Where the kernel does not count (files of others), a byte of each place is tried. What cannot
 * be told is read past the page cache.
 */
static void look_at_chunks(struct hr_load *load, size_t file_index, int fd)
{
    const struct hr_plan *plan = &load->plan;
    size_t first = first_chunk(plan, file_index), i = first;
    for (; i < plan->chunk_count && plan->chunks[i].file_index == file_index; i++) {
        int is_hot = is_all_cached(fd, plan->chunks[i].file_begin, plan->chunks[i].file_end);
        load->heat->kinds[i] = is_hot ? CHUNK_HOT : CHUNK_COLD;
    }
    mark_edges(load, first, i);
    load->heat->is_mixed = 1;
}

/* The lock is held. */
static void look_at_file(struct hr_load *load, size_t file_index, int fd)
{
    const struct hr_file *file = &load->checkpoint->files[file_index];
    struct heat_of_file *found = &load->heat->files[file_index];
    found->error = sample_file(fd, file->size, &found->asked, &found->resident);
    uint8_t heat = heat_of(found);
    if (heat != HEAT_HOT) {
        const struct hr_storage *known = known_storage(load, file_index);
        if (known)
            found->storage = *known;
        else
            hr_storage_probe(load->checkpoint->open_paths[file_index], fd, &found->storage);
        if (found->storage.is_memory)
            heat = HEAT_HOT;
    }
    if (heat == HEAT_MIXED)
        look_at_chunks(load, file_index, fd);
    found->heat = heat;
}

struct heat_of_file hr_heat_of_file(struct hr_load *load, size_t file_index, int fd)
{
    pthread_mutex_lock(&load->heat->lock);
    if (load->heat->files[file_index].heat == HEAT_UNKNOWN)
        look_at_file(load, file_index, fd);
    struct heat_of_file found = load->heat->files[file_index];
    pthread_mutex_unlock(&load->heat->lock);
    return found;
}

/* Runs that lie far apart are read one by one, which O_DIRECT does not serve. */
static int is_compact(const struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    return chunk->file_end - chunk->file_begin <= load->loader->chunk_bytes;
}

static uint32_t cold_mode(const struct hr_load *load, const struct hr_storage *storage)
{
    if (load->loader->keep_cache)
        return HR_READ_BUFFERED;
    return hr_storage_wants_more_than_pages(storage) ? storage->fallback_mode : storage->mode;
}

static const struct hr_chunk_reading hot = {HR_READ_BUFFERED, 0, 0};

static struct hr_chunk_reading cold(const struct hr_load *load, const struct hr_plan_chunk *chunk,
                                    const struct heat_of_file *found)
{
    uint32_t mode = cold_mode(load, &found->storage);
    if (mode == HR_READ_DIRECT && !is_compact(load, chunk))
        mode = found->storage.fallback_mode;
    return (struct hr_chunk_reading){mode, 1, mode == HR_READ_DIRECT ? found->storage.memory_alignment : 0};
}

void hr_heat_take_ahead(struct hr_load *load)
{
    struct hr_ahead *ahead = load->checkpoint->ahead;
    uint64_t begin, end, bytes = 0;
    size_t size = strlen(load->route_reason);
    hr_ahead_end(ahead);
    for (size_t i = 0; i < load->checkpoint->file_count; i++) {
        hr_ahead_take(ahead, i, &begin, &end);
        if (load->heat) {
            load->heat->files[i].ahead_begin = begin;
            load->heat->files[i].ahead_end = end;
        }
        bytes += end - begin;
    }
    if (bytes && load->heat)
        snprintf(load->route_reason + size, sizeof load->route_reason - size, "; %llu MiB were read ahead",
                 (unsigned long long)(bytes >> 20));
}

void hr_heat_share_ahead(struct hr_load *load, const struct hr_load *main)
{
    if (!load->heat || !main->heat)
        return;
    for (size_t i = 0; i < load->checkpoint->file_count; i++) {
        load->heat->files[i].ahead_begin = main->heat->files[i].ahead_begin;
        load->heat->files[i].ahead_end = main->heat->files[i].ahead_end;
    }
}

/* Some of it came, or comes, by reading ahead: it is copied from the page cache, and does not stay there. */
static int is_ahead(const struct hr_load *load, const struct hr_plan_chunk *chunk, const struct heat_of_file *found)
{
    return chunk->file_begin < found->ahead_end && chunk->file_end > found->ahead_begin && !load->loader->keep_cache;
}

/* The lock is held; the file was looked at. */
static struct hr_chunk_reading reading_of(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    struct heat_of_file *found = &load->heat->files[chunk->file_index];
    if (is_ahead(load, chunk, found))
        return (struct hr_chunk_reading){HR_READ_DROP, 0, 0};
    if (found->heat == HEAT_HOT ||
        (found->heat == HEAT_MIXED && load->heat->kinds[chunk - load->plan.chunks] != CHUNK_COLD))
        return hot;
    found->has_cold = 1;
    return cold(load, chunk, found);
}

int hr_heat_is_known(struct hr_load *load, const struct hr_plan_chunk *chunk, struct hr_chunk_reading *ret_reading)
{
    *ret_reading = hot;
    if (!load->heat)
        return 1;
    pthread_mutex_lock(&load->heat->lock);
    int is_known = load->heat->files[chunk->file_index].heat != HEAT_UNKNOWN;
    if (is_known)
        *ret_reading = reading_of(load, chunk);
    pthread_mutex_unlock(&load->heat->lock);
    return is_known;
}

struct hr_chunk_reading hr_heat_of_chunk(struct hr_load *load, const struct hr_plan_chunk *chunk, int fd)
{
    hr_heat_of_file(load, chunk->file_index, fd);
    pthread_mutex_lock(&load->heat->lock);
    struct hr_chunk_reading reading = reading_of(load, chunk);
    pthread_mutex_unlock(&load->heat->lock);
    return reading;
}

struct hr_chunk_reading hr_heat_without_direct(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    pthread_mutex_lock(&load->heat->lock);
    struct hr_storage *storage = &load->heat->files[chunk->file_index].storage;
    if (storage->mode == HR_READ_DIRECT) {
        size_t used = strlen(storage->detail);
        snprintf(storage->detail + used, sizeof storage->detail - used, "; no O_DIRECT: a file refused a read");
    }
    storage->mode = storage->fallback_mode;
    struct hr_chunk_reading reading = {storage->fallback_mode, 1, 0};
    pthread_mutex_unlock(&load->heat->lock);
    return reading;
}

void hr_heat_without_places(struct hr_load *load, const struct hr_plan_chunk *chunk)
{
    pthread_mutex_lock(&load->heat->lock);
    struct hr_storage *storage = &load->heat->files[chunk->file_index].storage;
    if (storage->memory_alignment) {
        size_t used = strlen(storage->detail);
        snprintf(storage->detail + used, sizeof storage->detail - used,
                 "; through buffers: a read to its place failed");
    }
    storage->memory_alignment = 0;
    pthread_mutex_unlock(&load->heat->lock);
}

static const struct hr_storage *first_cold(const struct hr_load *load)
{
    for (size_t i = 0; i < load->checkpoint->file_count; i++)
        if (load->heat->files[i].has_cold)
            return &load->heat->files[i].storage;
    return NULL;
}

static const char *why_not_direct(const struct hr_load *load, const struct hr_storage *storage)
{
    if (load->loader->keep_cache)
        return ", since keep_cache is set";
    return hr_storage_wants_more_than_pages(storage) ? ", since O_DIRECT wants an alignment to more than pages" : "";
}

/* How much of what came past the page cache needed no copying. */
static void describe_places(const struct hr_load *load, char *text, size_t capacity)
{
    uint64_t bytes = load->bytes_in_place, of = load->bytes_direct;
    *text = '\0';
    if (bytes && of)
        snprintf(text, capacity, ", %.0f %% of it straight to its place", 100.0 * (double)bytes / (double)of);
}

static void describe_fixed(const struct hr_load *load, char *text, size_t capacity)
{
    char refused[56];
    int fixed = load->has_fixed;
    *text = '\0';
    if (fixed > 0)
        snprintf(text, capacity, ", fixed buffers");
    if (fixed < 0) {
        hr_fixed_describe(fixed, refused, sizeof refused);
        snprintf(text, capacity, ", fixed buffers %s", refused);
    }
}

void hr_heat_describe(struct hr_load *load, char *text, size_t capacity)
{
    char places[48], fixed[80];
    describe_places(load, places, sizeof places);
    describe_fixed(load, fixed, sizeof fixed);
    *text = '\0';
    if (!load->heat || pthread_mutex_trylock(&load->heat->lock))
        return;
    const struct hr_storage *storage = first_cold(load);
    if (storage)
        snprintf(text, capacity, "%s by %s%s%s%s: %s", hr_read_mode_name(cold_mode(load, storage)),
                 load->cold_backend->name, places, fixed, why_not_direct(load, storage), storage->detail);
    pthread_mutex_unlock(&load->heat->lock);
}
