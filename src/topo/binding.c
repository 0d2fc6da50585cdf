/*
 * binding.c: see binding.h.
 */
#include "topo/binding.h"

#include "base/sys.h"

#define WORD_COUNT (HR_CPU_COUNT_MAX / 64)

int hr_binding_thread(const struct hr_placement *placement)
{
    struct hr_cpu_set cpus;
    if (placement->node < 0)
        return 0;
    int code = hr_sys->affinity_get(cpus.words, WORD_COUNT);
    if (code < 0)
        return code;
    hr_cpu_set_intersect(&cpus, &placement->cpus);
    if (hr_cpu_set_count(&cpus) == 0) /* whoever started the load has moved away since */
        return 0;
    return hr_sys->affinity_set(cpus.words, WORD_COUNT);
}

int hr_binding_memory(void *memory, size_t bytes, int node)
{
    return node < 0 ? 0 : hr_sys->memory_prefer(memory, bytes, (unsigned)node);
}
