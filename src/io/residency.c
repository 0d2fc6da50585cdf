/*
 * residency.c: what the page cache holds of a file. The kernel counts whole pages; a page that the range only
 * touches counts, so the answer is cut to the range's size.
 */
#include "io/io.h"

#include <unistd.h>

#include "base/sys.h"

int64_t hr_residency(int fd, uint64_t offset, uint64_t size)
{
    uint64_t page_count;
    if (size == 0) /* which the kernel takes for "to the end of the file" */
        return 0;
    int error = hr_sys->cachestat(fd, offset, size, &page_count);
    if (error)
        return error;
    uint64_t bytes = page_count * (uint64_t)sysconf(_SC_PAGESIZE);
    return (int64_t)(bytes < size ? bytes : size);
}
