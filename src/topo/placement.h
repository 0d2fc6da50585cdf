/*
 * placement.h: the decision where the readers of a load and its staging memory belong. Pure: facts in, plain data out.
 *
 * Bytes for a GPU cross the link between sockets once less when they are read into memory at the GPU's node, by CPUs of
 * that node. The caller's own thread is never moved, and nothing is bound where that cannot help.
 */
#ifndef HR_TOPO_PLACEMENT_H
#define HR_TOPO_PLACEMENT_H

#include "topo/topology.h"

struct hr_placement {
    int node;               /* readers and staging belong there; -1: nothing is bound */
    uint32_t core_count;    /* physical cores of `cpus`; more readers than that take turns. 0 when nothing is bound */
    struct hr_cpu_set cpus; /* of the node, within the affinity */
    char reason[120];       /* what is bound, or why nothing is */
};

/* `device_nodes`: of each GPU that is loaded to, -1 where it is unknown. `affinity`: CPUs that the process may use. */
void hr_placement_decide(const struct hr_topology *topology, const struct hr_cpu_set *affinity, const int *device_nodes,
                         size_t device_count, struct hr_placement *ret_placement);
/* Readers of a load to so many GPUs, by so many cores, unless told otherwise. */
uint32_t hr_placement_readers(uint32_t core_count, size_t gpu_count);
/* Nothing is bound, for this reason. */
void hr_placement_none(struct hr_placement *ret_placement, const char *reason);

#endif
