/*
 * uring.c: the backend that reads with io_uring, one ring per hr_io. An operation is handed to the kernel inside
 * submit; what the kernel did not take then is offered again by wait.
 *
 * Invariants: the ring has a submission entry for each of the `depth` operations, and twice as many completion
 * entries, so neither can overflow. in_flight counts operations that were submitted and not returned; those that
 * the kernel has not taken yet are the last unsubmitted(io) of them, still in the submission queue. An operation is
 * returned only when its completion was seen or when the kernel never took it: until then its memory is the
 * kernel's. After a submission error that does not pass, `error` is set and nothing is submitted any more.
 * A read into a registered buffer that is refused is read once more without.
 */
#include "io/io.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdio.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/fixed.h"

struct hr_io {
    struct io_uring ring;
    uint32_t depth, in_flight;
    uint32_t again_count;   /* completions in a row that said EAGAIN */
    uint32_t dropped_count; /* with `error`: entries of the submission queue that were returned as failed */
    int error;              /* -errno, or 0 */
    struct hr_fixed fixed;
};

/*
 * COOP_TASKRUN (Linux 5.19): completions need not interrupt the thread, which always comes to fetch them.
 * SINGLE_ISSUER would bind the ring to the thread that made it, and buys nothing without DEFER_TASKRUN.
 */
static int ring_open(struct io_uring *ring, unsigned entries)
{
    int error = hr_sys->ring_init(entries, ring, IORING_SETUP_COOP_TASKRUN);
    if (error == -EINVAL)
        error = hr_sys->ring_init(entries, ring, 0);
    return error;
}

/* Who forbids io_uring: the system's switch, or else what encloses this process. */
static const char *denied_reason(void)
{
    char text[16];
    ssize_t size = hr_read_text("/proc/sys/kernel/io_uring_disabled", text, sizeof text);
    if (size > 0 && text[0] == '1')
        return "sysctl kernel.io_uring_disabled is 1: only members of kernel.io_uring_group and root may use it";
    if (size > 0 && text[0] == '2')
        return "sysctl kernel.io_uring_disabled is 2: set it to 0 to allow io_uring";
    return "a seccomp profile or security module forbids it; containers often do: allow io_uring_setup, "
           "io_uring_enter and io_uring_register there";
}

static const char *ring_open_reason(int error)
{
    switch (error) {
    case -ENOSYS:
        return "this kernel has no io_uring (Linux 5.1 has) or a container profile hides it";
    case -EPERM:
    case -EACCES:
        return denied_reason();
    case -ENOMEM:
        return "the kernel had no memory for a ring, or the locked-memory limit (ulimit -l) is too low";
    case -EMFILE:
    case -ENFILE:
        return "too many open files; raise the limit (ulimit -n)";
    default:
        return "the kernel refused to set up a ring";
    }
}

/* Completes a no-op, because some sandboxes allow the setup and refuse the rest. */
static int ring_try(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (!sqe)
        return -EBUSY;
    io_uring_prep_nop(sqe);
    int error;
    do
        error = hr_sys->ring_submit(ring);
    while (error == -EINTR);
    if (error < 1)
        return error ? error : -EAGAIN;
    do
        error = hr_sys->ring_wait(ring, &cqe);
    while (error == -EINTR);
    if (error)
        return error;
    error = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return error;
}

static int uring_probe(char *detail, size_t detail_capacity)
{
    struct io_uring ring;
    int error = ring_open(&ring, 2);
    if (error) {
        snprintf(detail, detail_capacity, "%s (errno %d)", ring_open_reason(error), -error);
        return 0;
    }
    error = ring_try(&ring);
    hr_sys->ring_exit(&ring);
    if (error)
        snprintf(detail, detail_capacity, "a ring was set up, but a no-op on it failed (errno %d)", -error);
    else
        snprintf(detail, detail_capacity, "a ring was set up and completed a no-op");
    return error == 0;
}

static int uring_open(uint32_t depth, struct hr_io **ret_io, struct hr_error *err)
{
    struct hr_io *io = hr_alloc(sizeof *io);
    if (!io)
        return hr_fail_memory(err, sizeof *io, "an io_uring");
    int error = ring_open(&io->ring, depth);
    if (error) {
        hr_free(io);
        return hr_fail_sys(err, error == -ENOMEM ? HR_EOUT_OF_MEMORY : HR_EUNSUPPORTED, -error,
                           "io_uring with %u entries cannot be set up: %s; the route \"pread\" works without it", depth,
                           ring_open_reason(error));
    }
    io->depth = depth;
    *ret_io = io;
    return 0;
}

static void uring_close(struct hr_io *io)
{
    if (!io)
        return;
    assert(io->in_flight == 0);
    hr_fixed_close(&io->fixed, &io->ring);
    hr_sys->ring_exit(&io->ring);
    hr_free(io);
}

static uint32_t unsubmitted(const struct hr_io *io)
{
    return io_uring_sq_ready(&io->ring) - io->dropped_count;
}

/*
 * Offers the submission queue to the kernel. What it cannot take now stays there for the next call, as long as
 * some completion will come to make room; otherwise trying again is all that can be done, for a while.
 */
static void ring_flush(struct hr_io *io)
{
    int again_count = 0;
    while (!io->error && unsubmitted(io) > 0) {
        int taken = hr_sys->ring_submit(&io->ring);
        if (taken > 0 || taken == -EINTR)
            continue;
        int passing = taken == 0 || taken == -EAGAIN || taken == -EBUSY;
        if (passing && unsubmitted(io) < io->in_flight)
            return;
        if (passing && again_count++ < HR_IO_RETRY_MAX)
            continue;
        io->error = taken ? taken : -EAGAIN;
    }
}

static int op_queue(struct hr_io *io, struct hr_io_op *op)
{
    if (io->error)
        return io->error;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
    if (!sqe)
        return -EBUSY;
    int index = op->fixed < 0 ? -1 : hr_fixed_index(&io->fixed, &io->ring, op);
    if (index < 0) {
        io_uring_prep_readv(sqe, op->fd, op->vectors, (unsigned)op->vector_count, op->offset);
    } else {
        op->fixed = 1;
        io_uring_prep_read_fixed(sqe, op->fd, op->vectors->iov_base, (unsigned)op->vectors->iov_len, op->offset, index);
    }
    sqe->rw_flags = (int)op->flags;
    io_uring_sqe_set_data(sqe, op);
    return 0;
}

static int uring_submit(struct hr_io *io, struct hr_io_op *op)
{
    assert(io->in_flight < io->depth);
    op->fixed = 0;
    int error = op_queue(io, op);
    if (error)
        return error;
    io->in_flight++;
    ring_flush(io);
    return 0;
}

/* With `error`: the next operation that the kernel never took, or NULL. */
static struct hr_io_op *unsubmitted_take(struct hr_io *io)
{
    const struct io_uring_sq *queue = &io->ring.sq;
    if (unsubmitted(io) == 0)
        return NULL;
    unsigned index = (*queue->khead + io->dropped_count++) & queue->ring_mask;
    return (struct hr_io_op *)(uintptr_t)queue->sqes[index].user_data;
}

/* The next completion. Failing waits are repeated: nothing that the kernel holds may be given up. */
static struct hr_io_op *completion_take(struct hr_io *io, int *ret_result)
{
    struct io_uring_cqe *cqe;
    while (hr_sys->ring_wait(&io->ring, &cqe) < 0)
        continue;
    struct hr_io_op *op = io_uring_cqe_get_data(cqe);
    *ret_result = cqe->res;
    io_uring_cqe_seen(&io->ring, cqe);
    return op;
}

/* The file may refuse reads into registered memory, or the memory itself: it is known by the same read without. */
static int must_read_without(struct hr_io *io, struct hr_io_op *op, int result)
{
    if (op->fixed < 0 && result >= 0)
        hr_fixed_refuse(&io->fixed, op->fixed);
    if (op->fixed <= 0 || (result != -EINVAL && result != -EOPNOTSUPP && result != -EFAULT))
        return 0;
    op->fixed = result;
    return 1;
}

/* EINTR is endless by nature; EAGAIN is not expected from files, so that it must not become a silent spin. */
static int must_repeat(struct hr_io *io, const struct hr_io_op *op, int result)
{
    if (result == -EINTR)
        return 1;
    if (result == -EAGAIN && !(op->flags & RWF_NOWAIT))
        return io->again_count++ < HR_IO_RETRY_MAX;
    io->again_count = 0;
    return 0;
}

static struct hr_io_op *op_finish(struct hr_io *io, struct hr_io_op *op, int result)
{
    op->result = result;
    io->in_flight--;
    return op;
}

static struct hr_io_op *uring_wait(struct hr_io *io)
{
    while (io->in_flight > 0) {
        ring_flush(io);
        struct hr_io_op *op = io->error ? unsubmitted_take(io) : NULL;
        if (op)
            return op_finish(io, op, io->error);
        int result;
        op = completion_take(io, &result);
        if (!must_repeat(io, op, result) && !must_read_without(io, op, result))
            return op_finish(io, op, result);
        int error = op_queue(io, op);
        if (error)
            return op_finish(io, op, error);
    }
    return NULL;
}

static int uring_is_done(const struct hr_io *io)
{
    return io_uring_cq_ready(&io->ring) > 0;
}

static int uring_has_fixed(const struct hr_io *io)
{
    return io->fixed.error ? io->fixed.error : io->fixed.count > 0;
}

const struct hr_io_backend hr_io_uring = {
    .name = "uring",
    .route = HR_ROUTE_URING,
    .probe = uring_probe,
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .wait = uring_wait,
    .is_done = uring_is_done,
    .has_fixed = uring_has_fixed,
};
