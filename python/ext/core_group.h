/*
 * core_group.h: a process group whose transport is a Python object.
 *
 * The object has exchange(bytes), which returns the bytes of all ranks; alloc(size), which returns an address;
 * free(address), all_gather(send, receive, size) and scatter(send, receive, size, root), which return True; what is not
 * true has failed. failure() returns a text or None. close(has_failed) comes last. communicator() comes before the first
 * collective, on its thread, and makes the device current there: it returns None, or the addresses of a communicator of
 * NCCL and of core_nccl_flags; then collectives are made on that (core_nccl.h), and blame(text) is called when one fails.
 */
#ifndef HR_CORE_GROUP_H
#define HR_CORE_GROUP_H

#include "core.h"
#include "core_nccl.h"

/* Lives in the load that uses it: `group.context` points to it. */
struct core_group {
    PyObject *transport; /* NULL: alone */
    PyObject *text;      /* of the last failure(), which the library reads */
    int has_asked;       /* for a communicator */
    struct core_nccl nccl;
    struct hr_group group;
};

/* Fills a group from the tuple (transport, rank, world, stream), or from None. 0, or -1 with an exception. */
int core_group_init(struct core_group *self, PyObject *tuple);
/* Tells the transport that nothing calls it any more, and whether no load came of it; forgets it. Needs the lock. */
void core_group_close(struct core_group *self, int has_failed);

/* group_decline(group, code, message, file, tensor): see hr_group_decline(). */
PyObject *core_group_decline(PyObject *module, PyObject *arguments);

#endif
