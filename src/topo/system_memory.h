/*
 * system_memory.h: how much memory a process may still take, as the system tells.
 */
#ifndef HR_TOPO_SYSTEM_MEMORY_H
#define HR_TOPO_SYSTEM_MEMORY_H

#include <stdint.h>

/*
 * MemAvailable of /proc/meminfo, in bytes; 0 where that cannot be read. *ret_limit: the least memory.max of this process's
 * cgroup (version 2) and of those above it, whatever is used of it; UINT64_MAX for none.
 */
uint64_t hr_memory_available(uint64_t *ret_limit);

#endif
