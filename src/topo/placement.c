/*
 * placement.c: see placement.h. Each reason not to bind is tested in turn; the first that holds is the one that is said.
 */
#include "topo/placement.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"

#define REASON(placement, ...) snprintf((placement)->reason, sizeof(placement)->reason, __VA_ARGS__)

void hr_placement_none(struct hr_placement *ret_placement, const char *reason)
{
    memset(ret_placement, 0, sizeof *ret_placement);
    ret_placement->node = -1;
    REASON(ret_placement, "not bound: %s", reason);
}

/* The node of all devices; -1 when it is unknown of one, -2 when they are at several. */
static int common_node(const int *device_nodes, size_t device_count)
{
    int node = device_nodes[0];
    for (size_t i = 0; i < device_count; i++) {
        if (device_nodes[i] < 0)
            return -1;
        if (device_nodes[i] != node)
            node = -2;
    }
    return node;
}

/* Whatever does not depend on the affinity; NULL when nothing speaks against binding. */
static const char *objection(const struct hr_topology *topology, const int *device_nodes, size_t device_count)
{
    if (device_count == 0)
        return "no GPU";
    if (topology->node_count == 0)
        return "/sys tells of no NUMA nodes";
    if (topology->node_count == 1)
        return "one NUMA node with processors";
    if (common_node(device_nodes, device_count) == -1)
        return "a GPU's NUMA node is not known";
    return common_node(device_nodes, device_count) < 0 ? "the GPUs are at several NUMA nodes" : NULL;
}

/*
 * A few cores beside the GPU read less than many far from it: where the affinity leaves fewer than half of the readers
 * that it would have elsewhere, they stay there.
 */
static int too_few(uint32_t core_count, uint32_t all_count, size_t device_count)
{
    return core_count * 2 < hr_placement_readers(all_count, device_count);
}

uint32_t hr_placement_readers(uint32_t core_count, size_t gpu_count)
{
    uint32_t most = HR_READER_DEFAULT_MAX;
    if (gpu_count && gpu_count * HR_READER_REMOTE_DEFAULT < most)
        most = (uint32_t)gpu_count * HR_READER_REMOTE_DEFAULT;
    return core_count < most ? core_count : most;
}

void hr_placement_decide(const struct hr_topology *topology, const struct hr_cpu_set *affinity, const int *device_nodes,
                         size_t device_count, struct hr_placement *ret_placement)
{
    const char *reason = objection(topology, device_nodes, device_count);
    struct hr_cpu_set cpus;
    if (reason) {
        hr_placement_none(ret_placement, reason);
        return;
    }
    int node = device_nodes[0];
    uint32_t all_count = hr_topology_core_count(topology, affinity);
    hr_topology_node_cpus(topology, node, &cpus);
    int has_cpus = hr_cpu_set_count(&cpus) > 0;
    hr_cpu_set_intersect(&cpus, affinity);
    uint32_t core_count = hr_topology_core_count(topology, &cpus);
    hr_placement_none(ret_placement, "");
    if (!has_cpus) {
        REASON(ret_placement, "not bound: the GPU's NUMA node %d has no processors", node);
    } else if (core_count == 0) {
        REASON(ret_placement, "not bound: the affinity leaves out the GPU's NUMA node %d", node);
    } else if (too_few(core_count, all_count, device_count)) {
        REASON(ret_placement, "not bound: the affinity has only %u of its %u cores at the GPU's NUMA node %d",
               core_count, all_count, node);
    } else {
        ret_placement->node = node;
        ret_placement->core_count = core_count;
        ret_placement->cpus = cpus;
        REASON(ret_placement, "readers (%u cores) and staging at the GPU's NUMA node %d of %u", core_count, node,
               topology->node_count);
    }
}
