/*
 * cpu_set.h: sets of CPU numbers, in the layout of the kernel's affinity masks, and its lists as text ("0-3,8,10-11").
 * Pure.
 */
#ifndef HR_TOPO_CPU_SET_H
#define HR_TOPO_CPU_SET_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

struct hr_cpu_set {
    uint64_t words[HR_CPU_COUNT_MAX / 64];
};

/*
 * Numbers below `limit` that the list names are set in `words`, others cleared. 0, or -1 when it is no such list; an
 * empty line is the empty list. Numbers from `limit` on are left out.
 */
int hr_list_parse(const char *text, uint64_t *words, uint32_t limit);

void hr_cpu_set_add(struct hr_cpu_set *set, uint32_t cpu);
int hr_cpu_set_has(const struct hr_cpu_set *set, uint32_t cpu);
uint32_t hr_cpu_set_count(const struct hr_cpu_set *set);
/* set = set and other. */
void hr_cpu_set_intersect(struct hr_cpu_set *set, const struct hr_cpu_set *other);

#endif
