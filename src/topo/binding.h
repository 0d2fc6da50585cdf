/*
 * binding.h: what a placement decided is done: by system calls of our own, since libnuma would be one more library for
 * two calls whose interface the kernel keeps. A refusal (a container's seccomp profile, a kernel without NUMA) only makes
 * loads slower: it is a reason in text, never an error.
 */
#ifndef HR_TOPO_BINDING_H
#define HR_TOPO_BINDING_H

#include "topo/placement.h"

/*
 * Moves the calling thread, one of our own, to the placement's CPUs, as far as its affinity has them: narrowed, never
 * widened. 0 also when nothing is to be bound; -errno when it was refused.
 */
int hr_binding_thread(const struct hr_placement *placement);

/* Whole pages that nobody has touched yet: they come from `node` when it has room. 0 also for node -1; -errno. */
int hr_binding_memory(void *memory, size_t bytes, int node);

#endif
