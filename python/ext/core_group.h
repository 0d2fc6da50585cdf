/*
 * core_group.h: a process group whose transport is a Python object.
 *
 * The object has exchange(bytes), which returns the bytes of all ranks; alloc(size), which returns an address;
 * free(address), all_gather(send, receive, size) and scatter(send, receive, size, root), which return True; what is not
 * true has failed. failure() returns a text or None. close(has_failed) comes last.
 */
#ifndef HR_CORE_GROUP_H
#define HR_CORE_GROUP_H

#include "core.h"

/* Lives in the load that uses it: `group.context` points to it. */
struct core_group {
    PyObject *transport; /* NULL: alone */
    PyObject *text;      /* of the last failure(), which the library reads */
    struct hr_group group;
};

/* Fills a group from the tuple (transport, rank, world, stream), or from None. 0, or -1 with an exception. */
int core_group_init(struct core_group *self, PyObject *tuple);
/* Tells the transport that nothing calls it any more, and whether no load came of it; forgets it. Needs the lock. */
void core_group_close(struct core_group *self, int has_failed);

/* group_decline(group, code, message, file, tensor): see hr_group_decline(). */
PyObject *core_group_decline(PyObject *module, PyObject *arguments);

#endif
