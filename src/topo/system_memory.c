/*
 * system_memory.c: see system_memory.h.
 */
#include "topo/system_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"

/* The number after `key` in a file of "Key:  1234 kB" lines, in bytes; 0 when it is not there. */
static uint64_t meminfo_bytes(const char *key)
{
    char text[4096];
    if (hr_read_text("/proc/meminfo", text, sizeof text) <= 0)
        return 0;
    char *line = strstr(text, key);
    return line ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

/* memory.max of the cgroup (version 2) at `path`: bytes, or UINT64_MAX for none. */
static uint64_t cgroup_limit(const char *path)
{
    char file[512], text[32];
    snprintf(file, sizeof file, "/sys/fs/cgroup%s/memory.max", path);
    if (hr_read_text(file, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The least limit of this process's cgroup and those above it. */
static uint64_t cgroup_limit_least(void)
{
    char text[1024];
    uint64_t least = UINT64_MAX;
    if (hr_read_text("/proc/self/cgroup", text, sizeof text) <= 0)
        return least;
    char *path = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!path)
        return least;
    path = strchr(path, '/');
    if (!path)
        return least;
    path[strcspn(path, "\n")] = '\0';
    for (size_t size = strlen(path);; size--) { /* "/a/b", "/a", and "" for the root */
        if (path[size] == '/' || path[size] == '\0') {
            path[size] = '\0';
            uint64_t limit = cgroup_limit(path);
            least = limit < least ? limit : least;
        }
        if (size == 0)
            return least;
    }
}

uint64_t hr_memory_available(uint64_t *ret_limit)
{
    *ret_limit = cgroup_limit_least();
    return meminfo_bytes("MemAvailable:");
}
