/*
 * capability.c: what this library can use on this machine, each with what was found and, where it is lacking, what
 * would help. Every fact is probed here and now; no file but those of /proc and /sys is touched.
 *
 * Invariant: a probe that cannot tell says so; it never guesses.
 */
#include <headrace/headrace.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/sys.h"
#include "device/gds.h"
#include "io/io.h"
#include "io/residency.h"
#include "topo/placement.h"
#include "topo/system_memory.h"

#define DETAIL(entry, ...) snprintf((entry)->detail, sizeof(entry)->detail, __VA_ARGS__)
#define MIB (UINT64_C(1) << 20)

static void probe_pread(struct hr_capability *entry)
{
    entry->usable = hr_io_pread.probe(entry->detail, sizeof entry->detail);
}

static void probe_uring(struct hr_capability *entry)
{
    entry->usable = hr_io_uring.probe(entry->detail, sizeof entry->detail);
}

static void probe_mmap(struct hr_capability *entry)
{
    entry->usable = 1;
    DETAIL(entry, "host memory only, never chosen by itself: pages are read when touched, and a file that shrinks "
                  "meanwhile means SIGBUS");
}

/* A descriptor that cannot exist: a kernel that has the call says EBADF, and no file is needed. */
static void probe_cachestat(struct hr_capability *entry)
{
    int64_t answer = hr_residency_exact(-1, 0, 1);
    entry->usable = answer == -EBADF;
    if (entry->usable)
        DETAIL(entry, "tells what the page cache holds; recent kernels refuse it (EPERM) for files that this user "
                      "neither owns nor may write");
    else if (answer == -ENOSYS)
        DETAIL(entry,
               "this kernel does not count what the page cache holds: Linux 6.5 does; single bytes are read without "
               "waiting instead");
    else
        DETAIL(entry,
               "refused (errno %d), by a container's seccomp profile for instance: allow cachestat there; "
               "single bytes are read without waiting instead",
               (int)-answer);
}

static void probe_huge_pages(struct hr_capability *entry)
{
    char modes[64];
    ssize_t size = hr_read_text("/sys/kernel/mm/transparent_hugepage/enabled", modes, sizeof modes);
    char *mode = size > 0 ? strchr(modes, '[') : NULL;
    char *end = mode ? strchr(mode, ']') : NULL;
    entry->usable = 0;
    if (!end) {
        DETAIL(entry, "this kernel has no transparent huge pages, or /sys is hidden; large destinations use small "
                      "pages and are slower to make");
        return;
    }
    *end = '\0';
    entry->usable = strcmp(mode + 1, "never") != 0;
    DETAIL(entry, "transparent_hugepage is \"%s\"%s", mode + 1,
           entry->usable ? ": memory of 2 MiB and more asks for them"
                         : ": write madvise to /sys/kernel/mm/transparent_hugepage/enabled for large destinations to "
                           "be made faster");
}

static void probe_open_files(struct hr_capability *entry)
{
    uint64_t soft, hard;
    int error = hr_sys->descriptor_limits(&soft, &hard);
    entry->usable = !error && soft / 2 >= 1;
    if (error) {
        DETAIL(entry, "cannot tell the limit (errno %d)", -error);
        return;
    }
    uint64_t kept = soft / 2 < HR_OPEN_FILES_MAX ? soft / 2 : HR_OPEN_FILES_MAX;
    DETAIL(entry, "limit %llu (hard limit %llu): a load keeps at most %llu files open%s", (unsigned long long)soft,
           (unsigned long long)hard, (unsigned long long)kept,
           kept < HR_OPEN_FILES_MAX ? "; a higher limit (ulimit -n) helps with many files" : "");
}

static void probe_cores(struct hr_capability *entry)
{
    unsigned count = hr_sys->core_count();
    entry->usable = 1;
    DETAIL(entry, "%u by this process's affinity: a load starts %u reader threads unless told otherwise, %u for a GPU",
           count, hr_placement_readers(count, 0), hr_placement_readers(count, 1));
}

static void probe_memory(struct hr_capability *entry)
{
    uint64_t limit, available = hr_memory_available(&limit);
    entry->usable = available > 0;
    if (!available)
        DETAIL(entry, "cannot tell what is available: /proc/meminfo cannot be read");
    else if (limit < available)
        DETAIL(entry, "%llu MiB by the limit of this process's cgroup; the machine has %llu MiB available",
               (unsigned long long)(limit / MIB), (unsigned long long)(available / MIB));
    else
        DETAIL(entry, "%llu MiB available", (unsigned long long)(available / MIB));
}

static void probe_cuda(struct hr_capability *entry)
{
    struct hr_device_info info = {.size = sizeof info};
    struct hr_error error;
    entry->usable = hr_device_find("cuda", &info, &error) == 0;
    if (entry->usable)
        DETAIL(entry, "%s, %llu MiB, compute capability %u.%u, at %s", info.name,
               (unsigned long long)(info.memory_bytes / MIB), info.compute_major, info.compute_minor, info.pci);
    else
        DETAIL(entry, "%.200s", error.message);
}

/* Without loading cuFile, which is heavy. */
static void probe_gds(struct hr_capability *entry)
{
    char detail[120];
    entry->usable = hr_gds_platform(detail, sizeof detail);
    DETAIL(entry, "%.120s: route gds, if libcufile.so.0 is there, %s", detail,
           entry->usable ? "reads by direct transfers where the filesystem has them" : "is in compatibility mode only");
}

/* Adds to the detail; what does not fit is cut. */
__attribute__((format(printf, 2, 3))) static void add(struct hr_capability *entry, const char *format, ...)
{
    va_list arguments;
    size_t size = strlen(entry->detail);
    va_start(arguments, format);
    vsnprintf(entry->detail + size, sizeof entry->detail - size, format, arguments);
    va_end(arguments);
}

/* The nodes of the GPUs by their number, -1 where it is unknown; returns how many there are. */
static size_t gpu_nodes(const struct hr_topology *topology, int *nodes)
{
    struct hr_device_info info = {.size = sizeof info};
    char name[16];
    for (size_t i = 0; i < HR_DEVICE_COUNT_MAX; i++) {
        snprintf(name, sizeof name, "cuda:%zu", i);
        if (hr_device_find(name, &info, NULL) < 0)
            return i;
        nodes[i] = hr_topology_pci_node(topology, info.pci);
    }
    return HR_DEVICE_COUNT_MAX;
}

/* The GPUs at a node, as " 0 1 2"; nothing for none. */
static void add_gpus(struct hr_capability *entry, const int *nodes, size_t count, int node, const char *intro)
{
    int said = 0;
    for (size_t i = 0; i < count; i++)
        if (nodes[i] == node)
            add(entry, "%s %zu", said++ ? "" : intro, i);
}

static void describe_numa(struct hr_capability *entry, const struct hr_topology *topology,
                          const struct hr_cpu_set *affinity)
{
    int nodes[HR_DEVICE_COUNT_MAX];
    struct hr_placement placement;
    struct hr_cpu_set cpus;
    size_t count = gpu_nodes(topology, nodes);
    hr_placement_decide(topology, affinity, nodes, count > 0, &placement);
    entry->usable = placement.node >= 0;
    add(entry, "%s%s", count ? "a load to cuda:0: " : "", placement.reason);
    if (topology->node_count < 2)
        return;
    for (uint32_t i = 0; i < topology->node_count; i++) {
        hr_topology_node_cpus(topology, topology->nodes[i], &cpus);
        uint32_t all = hr_topology_core_count(topology, &cpus);
        hr_cpu_set_intersect(&cpus, affinity);
        add(entry, "; node %d: %u of %u cores", topology->nodes[i], hr_topology_core_count(topology, &cpus), all);
        add_gpus(entry, nodes, count, topology->nodes[i], ", cuda");
    }
    add_gpus(entry, nodes, count, -1, "; unknown node: cuda");
}

static void probe_numa(struct hr_capability *entry)
{
    struct hr_cpu_set affinity;
    struct hr_topology *topology = hr_topology_read();
    if (!topology)
        DETAIL(entry, "cannot tell: no memory");
    else if (hr_sys->affinity_get(affinity.words, HR_CPU_COUNT_MAX / 64) < 0)
        DETAIL(entry, "nothing is bound: the affinity cannot be read");
    else
        describe_numa(entry, topology, &affinity);
    hr_free(topology);
}

static const struct {
    const char *name;
    void (*probe)(struct hr_capability *entry);
} capabilities[] = {
    {"pread", probe_pread},
    {"io_uring", probe_uring},
    {"mmap", probe_mmap},
    {"cachestat", probe_cachestat},
    {"huge_pages", probe_huge_pages},
    {"open_files", probe_open_files},
    {"cores", probe_cores},
    {"memory", probe_memory},
    {"cuda", probe_cuda},
    {"gds", probe_gds},
    {"numa", probe_numa},
};

size_t hr_capabilities(struct hr_capability *ret_capabilities, size_t capacity)
{
    size_t count = sizeof capabilities / sizeof capabilities[0];
    if (!ret_capabilities)
        return count;
    for (size_t i = 0; i < count && i < capacity; i++) {
        ret_capabilities[i] = (struct hr_capability){.name = capabilities[i].name};
        capabilities[i].probe(&ret_capabilities[i]);
    }
    return count;
}
