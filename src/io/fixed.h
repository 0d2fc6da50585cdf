/*
 * fixed.h: memory that a ring of io_uring reads into again and again, registered with it: its pages are pinned once instead
 * of for each read. What is refused, under the limit of locked memory or by a kernel without such tables, is read without.
 *
 * A buffer is registered when a read first wants it, and until the ring is closed. Its owner may free it before that: the
 * pages live as long as the ring, and nothing is read into them, since whatever comes to lie there is another buffer.
 * One table belongs to the thread of its ring.
 */
#ifndef HR_IO_FIXED_H
#define HR_IO_FIXED_H

#include <liburing.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "io/io.h"

struct hr_fixed {
    int is_open;    /* the ring has a table */
    int generation; /* of base/fork.h: a child shares the ring, and may not take its parent's table away */
    int error;      /* -errno of what was refused: nothing more is registered; or 0 */
    uint32_t count; /* entries in use */
    struct fixed_entry {
        const void *owner;
        uint64_t serial;
    } entries[HR_FIXED_BUFFERS_MAX];
};

/* The entry that holds what the operation reads into, made if need be; -1: it is to be read without. */
int hr_fixed_index(struct hr_fixed *fixed, struct io_uring *ring, const struct hr_io_op *op);
/* A read into registered memory was refused, and the same read without it was not: there are no more of them. */
void hr_fixed_refuse(struct hr_fixed *fixed, int error);
/* Lets go of the memory now; closing the ring would do that some time later. Nothing is in flight. */
void hr_fixed_close(struct hr_fixed *fixed, struct io_uring *ring);

/* For people: "usable", or "refused (why)" of -errno. */
void hr_fixed_describe(int error, char *text, size_t capacity);
/* Registers as much as one reader has in flight with a ring of its own: 0 or -errno. */
int hr_fixed_probe(void);

#endif
