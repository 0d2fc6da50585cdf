/*
 * pread.c: the backend that reads with preadv on the calling thread. An operation is done when submit returns;
 * wait hands finished ones out in the order of submission. It works wherever files can be read, so it is also what
 * the engine falls back to.
 *
 * Invariant: the queue holds `count` finished operations, the oldest at `first`, and count <= depth.
 */
#include "io/io.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"

struct hr_io {
    uint32_t depth, first, count;
    struct hr_io_op *queue[];
};

static int pread_probe(char *detail, size_t detail_capacity)
{
    snprintf(detail, detail_capacity, "always there");
    return 1;
}

static int pread_open(uint32_t depth, struct hr_io **ret_io, struct hr_error *err)
{
    size_t bytes = sizeof(struct hr_io) + depth * sizeof(struct hr_io_op *);
    struct hr_io *io = hr_alloc(bytes);
    if (!io)
        return hr_fail_memory(err, bytes, "a queue of reads");
    io->depth = depth;
    *ret_io = io;
    return 0;
}

static void pread_close(struct hr_io *io)
{
    hr_free(io);
}

/* EINTR is endless by nature; EAGAIN is not expected from files, so that it must not become a silent spin. */
static int64_t read_retrying(const struct hr_io_op *op)
{
    int again_count = 0;
    for (;;) {
        ssize_t got = hr_sys->preadv(op->fd, op->vectors, op->vector_count, op->offset, (int)op->flags);
        int again = got == -EAGAIN && !(op->flags & RWF_NOWAIT);
        if (got == -EINTR || (again && again_count++ < HR_IO_RETRY_MAX))
            continue;
        return got;
    }
}

static int pread_submit(struct hr_io *io, struct hr_io_op *op)
{
    assert(io->count < io->depth);
    op->result = read_retrying(op);
    io->queue[(io->first + io->count) % io->depth] = op;
    io->count++;
    return 0;
}

static struct hr_io_op *pread_wait(struct hr_io *io)
{
    if (io->count == 0)
        return NULL;
    struct hr_io_op *op = io->queue[io->first];
    io->first = (io->first + 1) % io->depth;
    io->count--;
    return op;
}

static int pread_is_done(const struct hr_io *io)
{
    return io->count > 0;
}

static int pread_has_fixed(const struct hr_io *io)
{
    (void)io;
    return 0;
}

const struct hr_io_backend hr_io_pread = {
    .name = "pread",
    .route = HR_ROUTE_PREAD,
    .probe = pread_probe,
    .open = pread_open,
    .close = pread_close,
    .submit = pread_submit,
    .wait = pread_wait,
    .is_done = pread_is_done,
    .has_fixed = pread_has_fixed,
};
