/*
 * io.h: the contract of the io backends. A backend moves byte ranges of open files into memory; it knows neither
 * tensors nor plans. One hr_io belongs to one thread, which submits operations and waits for completions.
 *
 * An operation is a vectored read at an offset. It completes with a byte count that may be short, or with -errno;
 * continuing after a short count is the engine's business, as is the end of a file. EINTR never reaches the engine
 * and EAGAIN only after HR_IO_RETRY_MAX of them in a row: the backend retries them, but for EAGAIN where the flags ask
 * for it (RWF_NOWAIT).
 */
#ifndef HR_IO_IO_H
#define HR_IO_IO_H

#include <headrace/headrace.h>
#include <stdint.h>
#include <sys/uio.h>

/* Memory that operations come back to, such as a slot of a ring: a backend may make it known to the kernel. */
struct hr_io_buffer {
    char *memory;
    uint64_t bytes;
    const void *owner; /* outlives every hr_io that reads into its buffers */
    uint64_t serial;   /* of this buffer alone among its owner's: what lies at the same address later has another */
};

struct hr_io_op {
    int fd;
    int vector_count;                  /* 1 to HR_IOV_MAX */
    uint32_t flags;                    /* RWF_* of preadv2(2); 0: none */
    uint64_t offset;                   /* of the first byte, from the start of the file */
    const struct iovec *vectors;       /* borrowed until completion */
    const struct hr_io_buffer *buffer; /* that the vectors may lie in; borrowed until completion; NULL: none */
    int64_t result;                    /* bytes read (0: end of file), or -errno */
    int fixed; /* the backend's own: 1: reads into a registered buffer; -errno: that was refused, and it reads without */
};

struct hr_io;

struct hr_io_backend {
    const char *name;
    uint32_t route; /* enum hr_route */
    /* 1 when it works here; else 0 and the reason in `detail`. Touches no file of the caller. */
    int (*probe)(char *detail, size_t detail_capacity);
    /* `depth` operations may be in flight. 0 or a negative code with `err` filled. */
    int (*open)(uint32_t depth, struct hr_io **ret_io, struct hr_error *err);
    /* Nothing may be in flight. NULL is allowed. */
    void (*close)(struct hr_io *io);
    /* Starts an operation; at most `depth` may be in flight. 0, or -errno when it could not even be started. */
    int (*submit)(struct hr_io *io, struct hr_io_op *op);
    /* Blocks until an operation has completed and returns it; NULL only when none is in flight. */
    struct hr_io_op *(*wait)(struct hr_io *io);
    /* 1 when some operation is known to have completed, so that wait would hardly block; never blocks itself. */
    int (*is_done)(const struct hr_io *io);
    /* Whether buffers are registered: 1 some are, 0 none was asked for, or -errno: they were refused. */
    int (*has_fixed)(const struct hr_io *io);
};

extern const struct hr_io_backend hr_io_pread; /* one operation at a time, done inside submit */
extern const struct hr_io_backend hr_io_uring;

#endif
