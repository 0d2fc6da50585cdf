/*
 * machines.h: machines as trees of /sys, for fake_sysfs.h. GPUs are where the fake driver says that they are: GPU i at bus
 * 1b + 10 * i. Each macro is an entry; each array a machine's.
 */
#ifndef TESTS_SUPPORT_MACHINES_H
#define TESTS_SUPPORT_MACHINES_H

#include "support/fake_sysfs.h"

#define NODES(list)                                   \
    {                                                 \
        "devices/system/node/online", list "\n", NULL \
    }
#define NODE(number, list)                                            \
    {                                                                 \
        "devices/system/node/node" number "/cpulist", list "\n", NULL \
    }
/* A device at a bus, below a bridge; its own node, or "-1". */
#define PCI(bus, root, number)                                                                           \
    {"bus/pci/devices/0000:" bus ":00.0", NULL, "devices/" root "/0000:" bus ":01.0/0000:" bus ":00.0"}, \
    {                                                                                                    \
        "devices/" root "/0000:" bus ":01.0/0000:" bus ":00.0/numa_node", number "\n", NULL              \
    }
#define BRIDGE(bus, root, number)                                         \
    {                                                                     \
        "devices/" root "/0000:" bus ":01.0/numa_node", number "\n", NULL \
    }
#define LOCAL_CPUS(bus, root, list)                                                           \
    {                                                                                         \
        "devices/" root "/0000:" bus ":01.0/0000:" bus ":00.0/local_cpulist", list "\n", NULL \
    }

#define MACHINE(tree, cpus, stride, allowed)                                                     \
    (struct fake_sysfs)                                                                          \
    {                                                                                            \
        .entries = (tree), .entry_count = sizeof(tree) / sizeof((tree)[0]), .cpu_count = (cpus), \
        .core_stride = (stride), .affinity = (allowed)                                           \
    }

/* Eight CPUs, four cores. */
static const struct sysfs_entry one_socket[] = {NODES("0"), NODE("0", "0-7"), PCI("1b", "pci0000:00", "0")};

/* 64 CPUs that alternate between two sockets, siblings 32 apart; GPUs 0 to 3 at node 0, 4 to 7 at node 1. */
#define EVEN_CPUS "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60,62"
#define ODD_CPUS "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59,61,63"
static const struct sysfs_entry two_sockets[] = {
    NODES("0-1"),
    NODE("0", EVEN_CPUS),
    NODE("1", ODD_CPUS),
    PCI("1b", "pci0000:00", "0"),
    PCI("2b", "pci0000:00", "0"),
    PCI("3b", "pci0000:00", "0"),
    PCI("4b", "pci0000:00", "0"),
    PCI("5b", "pci0000:80", "1"),
    PCI("6b", "pci0000:80", "1"),
    PCI("7b", "pci0000:80", "1"),
    PCI("8b", "pci0000:80", "1"),
};

#endif
