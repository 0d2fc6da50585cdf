/*
 * test_topology.c: what is read out of trees of /sys, and what is decided from it, for machines of many kinds. What a
 * machine does not tell is unknown, and then nothing is bound.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "support/faults.h"
#include "support/machines.h"
#include "topo/binding.h"

/* Memory behind a CXL port: node 2 has no processors. GPU 0 says that it is there. */
static const struct sysfs_entry memory_nodes[] = {
    NODES("0-2"),
    NODE("0", "0-7"),
    NODE("1", "8-15"),
    NODE("2", ""),
    PCI("1b", "pci0000:00", "2"),
    PCI("2b", "pci0000:00", "1"),
};
/* One socket and memory behind a port: one node with processors. */
static const struct sysfs_entry one_and_memory[] = {NODES("0-1"), NODE("0", "0-7"), NODE("1", ""),
                                                    PCI("1b", "pci0000:00", "0")};
/* Sub-NUMA clusters: a socket as four nodes. */
static const struct sysfs_entry clusters[] = {
    NODES("0-3"),       NODE("0", "0-7"),   NODE("1", "8-15"),
    NODE("2", "16-23"), NODE("3", "24-31"), PCI("1b", "pci0000:00", "2"),
};
/* Node 1 was taken out, and so were CPUs. */
static const struct sysfs_entry gaps[] = {
    NODES("0,2"), NODE("0", "0-3,6-7"), NODE("2", "16-23"), NODE("1", "8-15"), PCI("1b", "pci0000:00", "2"),
};
/* Firmware that leaves the GPU's node out: a bridge tells (1b), local CPUs tell (2b), nobody does (3b, 4b). */
static const struct sysfs_entry untold[] = {
    NODES("0-1"),
    NODE("0", "0-7"),
    NODE("1", "8-15"),
    PCI("1b", "pci0000:00", "-1"),
    BRIDGE("1b", "pci0000:00", "1"),
    PCI("2b", "pci0000:00", "-1"),
    BRIDGE("2b", "pci0000:00", "-1"),
    LOCAL_CPUS("2b", "pci0000:00", "9-12"),
    PCI("3b", "pci0000:00", "-1"),
    LOCAL_CPUS("3b", "pci0000:00", "0-15"),
    PCI("4b", "pci0000:00", "-1"),
    LOCAL_CPUS("4b", "pci0000:00", "0,400"),
};
static const struct sysfs_entry nonsense[] = {
    NODES("0-1"),
    NODE("0", "0-7"),
    NODE("1", "8-"),
    PCI("1b", "pci0000:00", "0"),
};
static const struct sysfs_entry hidden[] = {{"kernel/nothing", "", NULL}};

struct decision {
    const char *name;
    struct fake_sysfs machine;
    const char *gpus[3]; /* buses that a load goes to */
    int node;            /* expected, as are the next two */
    uint32_t core_count;
    const char *cpus;
    const char *reason; /* a part of it */
};

static void list_to_set(const char *list, struct hr_cpu_set *set)
{
    assert_int_equal(hr_list_parse(list, set->words, HR_CPU_COUNT_MAX), 0);
}

static void decide(const struct decision *decision, struct hr_placement *ret_placement)
{
    struct hr_topology *topology = hr_topology_read();
    struct hr_cpu_set affinity;
    char address[32];
    int nodes[3];
    size_t count = 0;
    assert_non_null(topology);
    assert_int_equal(hr_sys->affinity_get(affinity.words, HR_CPU_COUNT_MAX / 64), 0);
    for (; count < 3 && decision->gpus[count]; count++) {
        snprintf(address, sizeof address, "0000:%s:00.0", decision->gpus[count]);
        nodes[count] = hr_topology_pci_node(topology, address);
    }
    hr_placement_decide(topology, &affinity, nodes, count, ret_placement);
    hr_free(topology);
}

static void check_decision(const struct decision *decision)
{
    struct hr_placement placement;
    struct hr_cpu_set expected = {0};
    fake_sysfs_install(&decision->machine);
    decide(decision, &placement);
    fake_sysfs_remove();
    print_message("%s: %s\n", decision->name, placement.reason);
    assert_int_equal(placement.node, decision->node);
    assert_int_equal(placement.core_count, decision->core_count);
    if (decision->cpus)
        list_to_set(decision->cpus, &expected);
    assert_memory_equal(&placement.cpus, &expected, sizeof expected);
    if (!strstr(placement.reason, decision->reason))
        fail_msg("%s: '%s' is not in '%s'", decision->name, decision->reason, placement.reason);
}

static void test_decisions(void **state)
{
    const struct decision decisions[] = {
        {"one socket", MACHINE(one_socket, 8, 4, "0-7"), {"1b"}, -1, 0, NULL, "one NUMA node"},
        {"no GPU", MACHINE(two_sockets, 64, 32, "0-63"), {NULL}, -1, 0, NULL, "no GPU"},
        {"first GPU", MACHINE(two_sockets, 64, 32, "0-63"), {"1b"}, 0, 16, EVEN_CPUS, "node 0 of 2"},
        {"last GPU", MACHINE(two_sockets, 64, 32, "0-63"), {"8b"}, 1, 16, ODD_CPUS, "node 1 of 2"},
        {"same node", MACHINE(two_sockets, 64, 32, "0-63"), {"5b", "6b", "7b"}, 1, 16, ODD_CPUS, "16 cores"},
        {"both nodes", MACHINE(two_sockets, 64, 32, "0-63"), {"1b", "8b"}, -1, 0, NULL, "several NUMA nodes"},
        {"no such GPU", MACHINE(two_sockets, 64, 32, "0-63"), {"1b", "9b"}, -1, 0, NULL, "not known"},
        {"cpuset of the node", MACHINE(two_sockets, 64, 32, ODD_CPUS), {"8b"}, 1, 16, ODD_CPUS, "node 1"},
        {"cpuset of the other", MACHINE(two_sockets, 64, 32, EVEN_CPUS), {"8b"}, -1, 0, NULL, "leaves out"},
        {"siblings in part", MACHINE(two_sockets, 64, 32, "0-3,33,35"), {"8b"}, 1, 2, "1,3,33,35", "2 cores"},
        {"one of a core's threads",
         MACHINE(two_sockets, 64, 32, "0-31"),
         {"8b"},
         1,
         16,
         "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31",
         "16 cores"},
        {"a few of the node",
         MACHINE(two_sockets, 64, 32, "0,2,4,6,8,10,12,14,1,3"),
         {"8b"},
         -1,
         0,
         NULL,
         "only 2 of its 10 cores"},
        {"half of what readers want",
         MACHINE(two_sockets, 64, 32, EVEN_CPUS ",1,3,5,7,9,11,13,15"),
         {"8b"},
         1,
         8,
         "1,3,5,7,9,11,13,15",
         "8 cores"},
        {"memory only", MACHINE(memory_nodes, 16, 0, "0-15"), {"1b"}, -1, 0, NULL, "node 2 has no processors"},
        {"beside memory only", MACHINE(memory_nodes, 16, 0, "0-15"), {"2b"}, 1, 8, "8-15", "node 1 of 2"},
        {"one and memory", MACHINE(one_and_memory, 8, 4, "0-7"), {"1b"}, -1, 0, NULL, "one NUMA node"},
        {"clusters", MACHINE(clusters, 32, 0, "0-31"), {"1b"}, 2, 8, "16-23", "node 2 of 4"},
        {"gaps", MACHINE(gaps, 24, 0, "0-3,6-7,16-23"), {"1b"}, 2, 8, "16-23", "node 2 of 2"},
        {"a bridge tells", MACHINE(untold, 16, 0, "0-15"), {"1b"}, 1, 8, "8-15", "node 1"},
        {"local CPUs tell", MACHINE(untold, 16, 0, "0-15"), {"2b"}, 1, 8, "8-15", "node 1"},
        {"local to both", MACHINE(untold, 16, 0, "0-15"), {"3b"}, -1, 0, NULL, "not known"},
        {"local to none", MACHINE(untold, 16, 0, "0-15"), {"4b"}, -1, 0, NULL, "not known"},
        {"one of two makes sense", MACHINE(nonsense, 16, 0, "0-15"), {"1b"}, -1, 0, NULL, "one NUMA node"},
        {"hidden", MACHINE(hidden, 16, 0, "0-15"), {"1b"}, -1, 0, NULL, "/sys tells of no NUMA nodes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof decisions / sizeof decisions[0]; i++)
        check_decision(&decisions[i]);
}

static void test_lists(void **state)
{
    static const char *const wrong[] = {"x", "1-", "-1", "3-2", "1,,2", "1 2", "1-2-3", "1,\n", "0x3"};
    struct hr_cpu_set set;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(hr_list_parse(wrong[i], set.words, HR_CPU_COUNT_MAX), -1);
    list_to_set("\n", &set);
    assert_int_equal(hr_cpu_set_count(&set), 0);
    list_to_set("0,63-64,8190-99999999999999999999,7", &set);
    assert_int_equal(hr_cpu_set_count(&set), 6);
    assert_true(hr_cpu_set_has(&set, 8191) && hr_cpu_set_has(&set, 63) && !hr_cpu_set_has(&set, 62));
}

/* ----------------------------------------------------------------------------------------- storage */

#define DRIVE(number, root, name, folder)                              \
    {                                                                  \
        "dev/block/" number, NULL, "devices/" root "/" name "/" folder \
    }
#define SLAVE(folder, name, target)                                \
    {                                                              \
        "devices/" folder "/slaves/" name, NULL, "devices/" target \
    }

static const struct sysfs_entry drives[] = {
    PCI("c1", "pci0000:00", "0"),
    PCI("c2", "pci0000:80", "1"),
    DRIVE("259:0", "pci0000:00/0000:c1:01.0/0000:c1:00.0", "nvme/nvme0", "nvme0n1"),
    DRIVE("259:1", "pci0000:80/0000:c2:01.0/0000:c2:00.0", "nvme/nvme1", "nvme1n1"),
    DRIVE("259:2", "pci0000:80/0000:c2:01.0/0000:c2:00.0", "nvme/nvme1", "nvme1n1/nvme1n1p1"),
    DRIVE("252:1", "virtual", "block", "dm-1"),
    SLAVE("virtual/block/dm-1", "nvme1n1p1", "pci0000:80/0000:c2:01.0/0000:c2:00.0/nvme/nvme1/nvme1n1/nvme1n1p1"),
    DRIVE("9:0", "virtual", "block", "md0"),
    SLAVE("virtual/block/md0", "nvme0n1", "pci0000:00/0000:c1:01.0/0000:c1:00.0/nvme/nvme0/nvme0n1"),
    SLAVE("virtual/block/md0", "nvme1n1", "pci0000:80/0000:c2:01.0/0000:c2:00.0/nvme/nvme1/nvme1n1"),
    DRIVE("9:1", "virtual", "block", "md1"),
    SLAVE("virtual/block/md1", "dm-1", "virtual/block/dm-1"),
    DRIVE("259:3", "virtual", "block", "md1/md1p1"),
    DRIVE("7:0", "virtual", "block", "loop0"),
    DRIVE("9:9", "virtual", "block", "md9"),
    SLAVE("virtual/block/md9", "md9", "virtual/block/md9"), /* no kernel makes it */
};

static void test_storage(void **state)
{
    static const struct {
        unsigned major, minor;
        int node;
    } cases[] = {{259, 0, 0}, {259, 1, 1}, {259, 2, 1}, {252, 1, 1}, {9, 0, -1}, {9, 1, 1},
                 {259, 3, 1}, {7, 0, -1},  {8, 0, -1},  {0, 41, -1}, {9, 9, -1}};
    const struct fake_sysfs machine = MACHINE(drives, 0, 0, "0");
    (void)state;
    fake_sysfs_install(&machine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        print_message("%u:%u\n", cases[i].major, cases[i].minor);
        assert_int_equal(hr_topology_storage_node(makedev(cases[i].major, cases[i].minor)), cases[i].node);
    }
    fake_sysfs_remove();
}

/* ---------------------------------------------------------------------------------------- failures */

static int read_and_decide(void *context, struct hr_error *err)
{
    struct hr_topology *topology = hr_topology_read();
    (void)context;
    if (!topology) {
        *err = (struct hr_error){.code = HR_EOUT_OF_MEMORY, .message = "the topology"};
        return HR_EOUT_OF_MEMORY;
    }
    int node = hr_topology_pci_node(topology, "0000:8b:00.0");
    assert_true(node == 1 || node == -1);
    int storage = hr_topology_storage_node(makedev(9, 1));
    assert_true(storage == 1 || storage == -1);
    struct hr_cpu_set cpus;
    hr_topology_node_cpus(topology, node, &cpus);
    assert_in_range(hr_topology_core_count(topology, &cpus), 0, hr_cpu_set_count(&cpus));
    hr_free(topology);
    return 0;
}

static void test_sweep(void **state)
{
    struct sysfs_entry all[sizeof two_sockets / sizeof two_sockets[0] + sizeof drives / sizeof drives[0]];
    const struct fake_sysfs machine = MACHINE(all, 64, 32, "0-63");
    (void)state;
    memcpy(all, two_sockets, sizeof two_sockets);
    memcpy((char *)all + sizeof two_sockets, drives, sizeof drives);
    fake_sysfs_install(&machine);
    unsigned long count = faults_sweep(FAULT_ALL, 0, read_and_decide, NULL);
    fake_sysfs_remove();
    assert_in_range(count, 40, 500);
}

/* ----------------------------------------------------------------------------------------- binding */

static void test_binding(void **state)
{
    struct hr_placement placement;
    struct hr_cpu_set expected;
    struct fake_sysfs machine = MACHINE(two_sockets, 64, 32, "0-7");
    (void)state;
    fake_sysfs_install(&machine);
    hr_placement_none(&placement, "nothing");
    assert_int_equal(hr_binding_thread(&placement), 0);
    assert_int_equal(hr_binding_memory(&placement, 1, -1), 0);
    assert_int_equal(fake_sysfs_bound().thread_count + fake_sysfs_bound().memory_count, 0);

    placement.node = 1;
    list_to_set(ODD_CPUS, &placement.cpus);
    list_to_set("1,3,5,7", &expected); /* as far as the thread's affinity has them */
    assert_int_equal(hr_binding_thread(&placement), 0);
    struct fake_sysfs_bound bound = fake_sysfs_bound();
    assert_int_equal(bound.thread_count, 1);
    assert_memory_equal(&bound.cpus, &expected, sizeof expected);
    fake_sysfs_remove();

    machine.affinity = EVEN_CPUS; /* it has moved away since */
    fake_sysfs_install(&machine);
    assert_int_equal(hr_binding_thread(&placement), 0);
    assert_int_equal(fake_sysfs_bound().thread_count, 0);
    fake_sysfs_remove();

    machine.affinity = NULL;
    fake_sysfs_install(&machine);
    assert_int_equal(hr_binding_thread(&placement), -EPERM);
    fake_sysfs_remove();
}

/* The real calls: what this thread has can be set again, and node 0 can be preferred where the kernel has nodes at all. */
static void test_real_calls(void **state)
{
    struct hr_cpu_set before, after;
    void *memory = NULL;
    (void)state;
    assert_int_equal(hr_sys->affinity_get(before.words, HR_CPU_COUNT_MAX / 64), 0);
    assert_int_equal(hr_cpu_set_count(&before), hr_sys->core_count());
    assert_int_equal(hr_sys->affinity_set(before.words, HR_CPU_COUNT_MAX / 64), 0);
    assert_int_equal(hr_sys->affinity_get(after.words, HR_CPU_COUNT_MAX / 64), 0);
    assert_memory_equal(&before, &after, sizeof before);

    memory = hr_sys->map(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_non_null(memory);
    int code = hr_sys->memory_prefer(memory, 1 << 20, 0);
    assert_true(code == 0 || code == -ENOSYS || code == -EPERM || code == -EINVAL);
    assert_int_equal(hr_sys->memory_prefer(memory, 1 << 20, HR_NODE_COUNT_MAX), -EINVAL);
    memset(memory, 1, 1 << 20);
    hr_sys->unmap(memory, 1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decisions), cmocka_unit_test(test_lists),   cmocka_unit_test(test_storage),
        cmocka_unit_test(test_sweep),     cmocka_unit_test(test_binding), cmocka_unit_test(test_real_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
