/*
 * in_place.c: see in_place.h.
 */
#include "engine/in_place.h"

#include "base/limits.h"

struct in_place_range hr_in_place(const struct hr_run *run, const char *place, uint32_t memory_alignment)
{
    uint64_t page = HR_CUT_ALIGNMENT, begin = (run->source_offset + page - 1) / page * page;
    uint64_t end = (run->source_offset + run->bytes) / page * page;
    int agrees = memory_alignment && ((uintptr_t)place + begin - run->source_offset) % memory_alignment == 0;
    if (!agrees || run->bytes < HR_IN_PLACE_BYTES_MIN)
        return (struct in_place_range){run->source_offset, run->source_offset};
    return (struct in_place_range){begin, end};
}
