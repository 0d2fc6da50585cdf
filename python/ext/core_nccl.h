/*
 * core_nccl.h: collectives on a communicator of NCCL that the framework made. Without the interpreter lock: a thread that
 * runs Python may keep that for milliseconds, in which whole windows of a group go by.
 *
 * NCCL is the library that is loaded already, with the framework. Nobody else uses the communicator meanwhile, but it may
 * be aborted at any time, and is then gone: who does that sets `alarm`, waits a moment and until nobody is `busy`.
 */
#ifndef HR_CORE_NCCL_H
#define HR_CORE_NCCL_H

#include <stdatomic.h>
#include <stdint.h>

/* Shared with the transport, as two ints. */
struct core_nccl_flags {
    atomic_int alarm; /* set by the transport: the communicator must not be used any more */
    atomic_int busy;  /* set here: it is in use */
};

struct core_nccl {
    void *communicator; /* NULL: there is none to use */
    void *stream;       /* CUstream of the collectives */
    uint32_t world;
    struct core_nccl_flags *flags;
    int result; /* of the first call that failed; 0 */
};

/* Finds NCCL in the process. 0; else it cannot be used, and self->communicator is NULL. */
int core_nccl_init(struct core_nccl *self, void *communicator, void *stream, uint32_t world,
                   struct core_nccl_flags *flags);
/*
 * As hr_group has them; the scatters of all roots are one launch, by the last. The device must be current on the thread.
 * Not 0: alarm, or self->result says why; after an alarm the launch may never have been ended, so the thread calls no more.
 */
int core_nccl_all_gather(struct core_nccl *self, const void *send, void *receive, uint64_t bytes);
int core_nccl_scatter(struct core_nccl *self, const void *send, void *receive, uint64_t bytes, uint32_t root);
/* What self->result means. */
const char *core_nccl_text(const struct core_nccl *self);

#endif
