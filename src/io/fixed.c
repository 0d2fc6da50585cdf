/*
 * fixed.c: see fixed.h.
 */
#include "io/fixed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fork.h"
#include "base/sys.h"

/* As many and as large as a reader of a load to a GPU has in flight, unless told otherwise. */
#define PROBE_COUNT HR_QUEUE_DEPTH_DEFAULT
#define PROBE_BYTES HR_CHUNK_BYTES_REMOTE

static int is_inside(const struct iovec *vector, const struct hr_io_buffer *buffer)
{
    const char *begin = vector->iov_base;
    return begin >= buffer->memory && begin + vector->iov_len <= buffer->memory + buffer->bytes;
}

static int find(const struct hr_fixed *fixed, const struct hr_io_buffer *buffer)
{
    for (uint32_t i = 0; i < fixed->count; i++)
        if (fixed->entries[i].serial == buffer->serial && fixed->entries[i].owner == buffer->owner)
            return (int)i;
    return -1;
}

/* Makes the table with the first of them, and all of them empty. 0 or -errno. */
static int register_buffer(struct hr_fixed *fixed, struct io_uring *ring, const struct hr_io_buffer *buffer)
{
    struct iovec memory = {buffer->memory, buffer->bytes};
    int error = fixed->is_open ? 0 : hr_sys->ring_buffers(ring, HR_FIXED_BUFFERS_MAX);
    if (error < 0)
        return error;
    fixed->is_open = 1;
    fixed->generation = hr_fork_generation();
    return hr_sys->ring_buffer_set(ring, fixed->count, &memory);
}

static int add(struct hr_fixed *fixed, struct io_uring *ring, const struct hr_io_buffer *buffer)
{
    if (fixed->error || fixed->count == HR_FIXED_BUFFERS_MAX)
        return -1;
    fixed->error = register_buffer(fixed, ring, buffer);
    if (fixed->error)
        return -1;
    fixed->entries[fixed->count] = (struct fixed_entry){buffer->owner, buffer->serial};
    return (int)fixed->count++;
}

int hr_fixed_index(struct hr_fixed *fixed, struct io_uring *ring, const struct hr_io_op *op)
{
    if (!op->buffer || op->vector_count != 1 || !is_inside(op->vectors, op->buffer))
        return -1;
    int index = find(fixed, op->buffer);
    return index < 0 ? add(fixed, ring, op->buffer) : index;
}

void hr_fixed_refuse(struct hr_fixed *fixed, int error)
{
    fixed->error = error;
    fixed->count = 0;
}

void hr_fixed_close(struct hr_fixed *fixed, struct io_uring *ring)
{
    if (fixed->is_open && fixed->generation == hr_fork_generation())
        hr_sys->ring_buffers_free(ring);
    fixed->is_open = 0;
}

static void describe_no_memory(char *text, size_t capacity)
{
    uint64_t limit;
    if (hr_sys->locked_memory_limit(&limit) < 0 || limit == UINT64_MAX)
        snprintf(text, capacity, "refused (no memory)");
    else if (limit >> 20)
        snprintf(text, capacity, "refused (limit of locked memory %" PRIu64 " MiB)", limit >> 20);
    else
        snprintf(text, capacity, "refused (limit of locked memory %" PRIu64 " KiB)", limit >> 10);
}

void hr_fixed_describe(int error, char *text, size_t capacity)
{
    if (error == -ENOMEM)
        describe_no_memory(text, capacity);
    else if (error == -EINVAL)
        snprintf(text, capacity, "refused (Linux 5.19 has them)");
    else
        snprintf(text, capacity, error ? "refused (errno %d)" : "usable", -error);
}

static int probe_ring(struct io_uring *ring, char *memory)
{
    int error = hr_sys->ring_buffers(ring, PROBE_COUNT);
    for (unsigned i = 0; i < PROBE_COUNT && error == 0; i++) {
        struct iovec slot = {memory + (size_t)i * PROBE_BYTES, PROBE_BYTES};
        error = hr_sys->ring_buffer_set(ring, i, &slot);
    }
    return error;
}

int hr_fixed_probe(void)
{
    size_t bytes = (size_t)PROBE_COUNT * PROBE_BYTES;
    struct io_uring ring;
    char *memory = hr_sys->map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!memory)
        return -ENOMEM;
    int error = hr_sys->ring_init(1, &ring, 0);
    if (error == 0) {
        error = probe_ring(&ring, memory);
        hr_sys->ring_exit(&ring);
    }
    hr_sys->unmap(memory, bytes);
    return error;
}
