/*
 * in_place.c: see in_place.h.
 */
#include "engine/in_place.h"

#include "base/limits.h"
#include "base/sys.h"

/* Linux 5.14; the headers that we build with may be older. */
#define ADVICE_POPULATE_WRITE 23

int hr_in_large_pages(const void *memory, uint64_t bytes)
{
    uint64_t before = (uintptr_t)memory % HR_CUT_ALIGNMENT;
    uint64_t pages = (before + bytes + HR_CUT_ALIGNMENT - 1) / HR_CUT_ALIGNMENT * HR_CUT_ALIGNMENT;
    char *begin = (char *)memory - before;
    hr_sys->advise(begin, pages, ADVICE_POPULATE_WRITE); /* else there is nothing to tell, and they are small */
    int64_t large = hr_sys->large_page_bytes(begin, pages);
    return large >= 0 && (uint64_t)large >= pages / 4 * 3;
}

struct in_place_range hr_in_place(const struct hr_run *run, const char *place, uint32_t memory_alignment)
{
    uint64_t page = HR_CUT_ALIGNMENT, begin = (run->source_offset + page - 1) / page * page;
    uint64_t end = (run->source_offset + run->bytes) / page * page;
    int agrees = memory_alignment && ((uintptr_t)place + begin - run->source_offset) % memory_alignment == 0;
    if (!agrees || run->bytes < HR_IN_PLACE_BYTES_MIN)
        return (struct in_place_range){run->source_offset, run->source_offset};
    return (struct in_place_range){begin, end};
}
