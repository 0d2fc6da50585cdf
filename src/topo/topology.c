/*
 * topology.c: reads /sys/devices/system/node and cpu. A list that cannot be read or makes no sense leaves its node or
 * its siblings out, as if /sys had not told.
 */
#include "topo/topology.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/sys.h"

/* A list of 8192 CPUs that alternate between two nodes has 20 KB. */
#define TEXT_BYTES (32u << 10)

/* A list from a file; -1 when it is not there, is no list or does not fit. `text` has TEXT_BYTES. */
static int read_list(const char *path, char *text, uint64_t *words, uint32_t limit)
{
    ssize_t size = hr_read_text(path, text, TEXT_BYTES);
    return size <= 0 || size == TEXT_BYTES - 1 ? -1 : hr_list_parse(text, words, limit);
}

/* Gives the node its CPUs; a node without any does not count. */
static void add_node(struct hr_topology *topology, int16_t node, char *text)
{
    struct hr_cpu_set cpus;
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    if (read_list(path, text, cpus.words, HR_CPU_COUNT_MAX) < 0 || hr_cpu_set_count(&cpus) == 0)
        return;
    topology->nodes[topology->node_count++] = node;
    for (uint32_t cpu = 0; cpu < HR_CPU_COUNT_MAX; cpu++)
        if (hr_cpu_set_has(&cpus, cpu))
            topology->cpus[cpu].node = node;
}

static void read_nodes(struct hr_topology *topology, char *text)
{
    uint64_t online[HR_NODE_COUNT_MAX / 64];
    if (read_list("/sys/devices/system/node/online", text, online, HR_NODE_COUNT_MAX) < 0)
        return;
    for (int16_t node = 0; node < (int16_t)HR_NODE_COUNT_MAX; node++)
        if (online[node / 64] >> node % 64 & 1)
            add_node(topology, node, text);
}

/* The CPU's siblings share its core; whose core is known already are not asked. */
static void read_siblings(struct hr_topology *topology, uint16_t cpu, char *text)
{
    struct hr_cpu_set siblings;
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    if (topology->cpus[cpu].core != cpu || read_list(path, text, siblings.words, HR_CPU_COUNT_MAX) < 0)
        return;
    for (uint32_t other = cpu + 1u; other < HR_CPU_COUNT_MAX; other++)
        if (hr_cpu_set_has(&siblings, other))
            topology->cpus[other].core = cpu;
}

struct hr_topology *hr_topology_read(void)
{
    struct hr_topology *topology = hr_alloc(sizeof *topology);
    char *text = hr_alloc(TEXT_BYTES);
    if (!topology || !text) {
        hr_free(topology);
        hr_free(text);
        return NULL;
    }
    for (uint16_t cpu = 0; cpu < HR_CPU_COUNT_MAX; cpu++)
        topology->cpus[cpu] = (struct hr_topology_cpu){.node = -1, .core = cpu};
    read_nodes(topology, text);
    for (uint16_t cpu = 0; topology->node_count > 1 && cpu < HR_CPU_COUNT_MAX; cpu++)
        if (topology->cpus[cpu].node >= 0)
            read_siblings(topology, cpu, text);
    hr_free(text);
    return topology;
}

void hr_topology_node_cpus(const struct hr_topology *topology, int node, struct hr_cpu_set *ret_cpus)
{
    memset(ret_cpus, 0, sizeof *ret_cpus);
    for (uint32_t cpu = 0; cpu < HR_CPU_COUNT_MAX; cpu++)
        if (node >= 0 && topology->cpus[cpu].node == node)
            hr_cpu_set_add(ret_cpus, cpu);
}

uint32_t hr_topology_core_count(const struct hr_topology *topology, const struct hr_cpu_set *cpus)
{
    struct hr_cpu_set cores = {0};
    for (uint32_t cpu = 0; cpu < HR_CPU_COUNT_MAX; cpu++)
        if (hr_cpu_set_has(cpus, cpu))
            hr_cpu_set_add(&cores, topology->cpus[cpu].core);
    return hr_cpu_set_count(&cores);
}

uint64_t hr_topology_processors(int node)
{
    char boot[64] = "";
    struct hr_cpu_set affinity;
    ssize_t size = hr_read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (size <= 0 || hr_sys->affinity_get(affinity.words, HR_CPU_COUNT_MAX / 64) < 0)
        return 0;
    uint64_t digest = XXH3_64bits_withSeed(boot, (size_t)size, (uint64_t)node);
    return XXH3_64bits_withSeed(&affinity, sizeof affinity, digest);
}
