/*
 * device_node.c: the node that a device is at. A folder of /sys that stands for a device is left upwards by "..", which the
 * kernel resolves behind the symbolic link: so a drive leads to its controller, and a GPU to the bridges above it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "topo/topology.h"

/* Bridges above a device, folders above a partition: real machines have up to 8. */
#define LEVEL_COUNT_MAX 12
/* Device mapper over md over partitions: each is a level. */
#define STACK_DEPTH_MAX 4
#define PATH_BYTES 512

/* The first node that is told at `folder` or above it; -1 when none is. */
static int node_upwards(const char *folder)
{
    char path[PATH_BYTES + 64], text[16];
    for (int level = 0; level < LEVEL_COUNT_MAX; level++) {
        int size = snprintf(path, sizeof path, "%s", folder);
        for (int i = 0; i < level; i++)
            size += snprintf(path + size, sizeof path - (size_t)size, "/..");
        snprintf(path + size, sizeof path - (size_t)size, "/numa_node");
        if (hr_read_text(path, text, sizeof text) > 0 && text[0] >= '0' && text[0] <= '9')
            return (int)strtol(text, NULL, 10);
    }
    return -1;
}

/* The node that has all local CPUs of a PCI device; -1 when they are on several, as is said where it is not known. */
static int local_node(const struct hr_topology *topology, const char *folder)
{
    struct hr_cpu_set cpus;
    char path[PATH_BYTES], text[4096];
    int node = -1;
    snprintf(path, sizeof path, "%s/local_cpulist", folder);
    ssize_t size = hr_read_text(path, text, sizeof text);
    if (size <= 0 || size == sizeof text - 1 || hr_list_parse(text, cpus.words, HR_CPU_COUNT_MAX) < 0)
        return -1;
    for (uint32_t cpu = 0; cpu < HR_CPU_COUNT_MAX; cpu++) {
        if (!hr_cpu_set_has(&cpus, cpu))
            continue;
        if (topology->cpus[cpu].node < 0 || (node >= 0 && topology->cpus[cpu].node != node))
            return -1;
        node = topology->cpus[cpu].node;
    }
    return node;
}

int hr_topology_pci_node(const struct hr_topology *topology, const char *address)
{
    char folder[96];
    if (!*address)
        return -1;
    snprintf(folder, sizeof folder, "/sys/bus/pci/devices/%.32s", address);
    int node = node_upwards(folder);
    return node >= 0 ? node : local_node(topology, folder);
}

static int block_node(const char *folder, int depth);

/* What the drives below a virtual one agree on; -ENOENT when there are none. */
static int slaves_node(const char *folder, int depth)
{
    char path[PATH_BYTES];
    struct hr_dir *dir;
    const char *name;
    int error, node = -ENOENT;
    if (snprintf(path, sizeof path, "%s/slaves", folder) >= (int)sizeof path || hr_sys->dir_open(path, &dir) < 0)
        return -ENOENT;
    while ((name = hr_sys->dir_next(dir, &error)) != NULL) {
        if (name[0] == '.')
            continue;
        int slave = -1;
        if (snprintf(path, sizeof path, "%s/slaves/%s", folder, name) < (int)sizeof path)
            slave = block_node(path, depth + 1);
        node = node == -ENOENT || node == slave ? slave : -1;
    }
    hr_sys->dir_close(dir);
    return error ? -1 : node;
}

/* A partition of a virtual drive lies below it. */
static int block_node(const char *folder, int depth)
{
    char above[PATH_BYTES];
    if (depth > STACK_DEPTH_MAX)
        return -1;
    int node = slaves_node(folder, depth);
    if (node == -ENOENT && snprintf(above, sizeof above, "%s/..", folder) < (int)sizeof above)
        node = slaves_node(above, depth);
    return node == -ENOENT ? node_upwards(folder) : node;
}

int hr_topology_storage_node(dev_t device)
{
    char folder[64];
    if (major(device) == 0) /* no drive: network, memory, or a file system over several */
        return -1;
    snprintf(folder, sizeof folder, "/sys/dev/block/%u:%u", major(device), minor(device));
    return block_node(folder, 0);
}
