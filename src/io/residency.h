/*
 * residency.h: what the page cache holds of a file, and giving back what a read has put there. Nothing here keeps
 * state. `fd` is a descriptor without O_DIRECT.
 */
#ifndef HR_IO_RESIDENCY_H
#define HR_IO_RESIDENCY_H

#include <stdint.h>

/* How it was found out. */
enum hr_residency_way {
    HR_RESIDENCY_UNKNOWN,
    HR_RESIDENCY_CACHESTAT, /* counted by the kernel */
    HR_RESIDENCY_PROBES,    /* estimated: one byte read without waiting, from HR_RESIDENCY_PROBE_MAX places at most */
    HR_RESIDENCY_MINCORE,   /* counted in a mapping */
};

/*
 * Places that are probed: one for each of these bytes, at least 1. Each that the page cache does not hold costs the
 * reading of a page, 0.4 % of the bytes.
 */
#define HR_RESIDENCY_PROBE_BYTES (UINT64_C(1) << 20)
#define HR_RESIDENCY_PROBE_MAX 64u

/*
 * How much of [offset, offset + size) the page cache holds, in bytes; a page that the range only touches counts as far
 * as it is inside. Tries the ways in the order above; mincore only for files that this user owns or may write, since
 * for others it says that all is there. -errno where none can tell: what cachestat said (ENOSYS before Linux 6.5, EPERM
 * for files of others). `ret_way` may be NULL.
 *
 * Probing sets the descriptor's advice to POSIX_FADV_RANDOM meanwhile and to POSIX_FADV_NORMAL afterwards; reads of
 * others through the same descriptor go without read-ahead in between.
 */
int64_t hr_residency(int fd, uint64_t offset, uint64_t size, enum hr_residency_way *ret_way);

/* The same by cachestat alone: exact, and nothing is read. */
int64_t hr_residency_exact(int fd, uint64_t offset, uint64_t size);

/* Reads a byte and throws it away: when this returns, it is there. As preadv2(2): 1, 0 past the file's end, or -errno. */
int hr_read_byte(int fd, uint64_t offset, int flags);

/*
 * Lets the page cache drop the whole pages within [offset, offset + size), the file's last one included where the range
 * reaches its end. Pages that were there before the read go too: ask before reading, and call this only for what
 * was not. Pages that are dirty, mapped or in larger units that reach beyond the range stay. 0 or -errno.
 */
int hr_drop_behind(int fd, uint64_t offset, uint64_t size);

#endif
