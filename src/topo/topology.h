/*
 * topology.h: which CPUs belong to which NUMA node and physical core, and which node a device is at, as /sys tells. What
 * it does not tell is unknown (-1), never guessed and never an error: containers hide /sys in part or wholly, and firmware
 * leaves nodes out.
 */
#ifndef HR_TOPO_TOPOLOGY_H
#define HR_TOPO_TOPOLOGY_H

#include <sys/types.h>

#include "topo/cpu_set.h"

struct hr_topology_cpu {
    int16_t node;  /* -1: of none that is online */
    uint16_t core; /* the lowest CPU number among its thread siblings; its own when that is not told */
};

/* Immutable once read. */
struct hr_topology {
    uint32_t node_count; /* online nodes with CPUs; nodes with memory only are left out. 0: /sys tells nothing */
    int16_t nodes[HR_NODE_COUNT_MAX]; /* their numbers, rising, not without gaps */
    struct hr_topology_cpu cpus[HR_CPU_COUNT_MAX];
};

/* NULL without memory. The caller frees it with hr_free(). Thread siblings are asked for only if there are several nodes. */
struct hr_topology *hr_topology_read(void);

/* The CPUs of a node. */
void hr_topology_node_cpus(const struct hr_topology *topology, int node, struct hr_cpu_set *ret_cpus);
/* Physical cores that CPUs of the set belong to. */
uint32_t hr_topology_core_count(const struct hr_topology *topology, const struct hr_cpu_set *cpus);

/* The node of a PCI device ("0000:1b:00.0"): its own, else that of a bridge above it, else that of its local CPUs; or -1. */
int hr_topology_pci_node(const struct hr_topology *topology, const char *address);
/*
 * The node of the drive behind a file's st_dev: of partitions and of device mapper and md where all their drives agree;
 * else, and for network and memory file systems, -1.
 */
int hr_topology_storage_node(dev_t device);

/*
 * A number that processes have in common which run on the same processors: of the same running kernel, with the same
 * affinity, and of the same node if they are bound to one (else -1). 0: not known.
 */
uint64_t hr_topology_processors(int node);

#endif
