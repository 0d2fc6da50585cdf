/*
 * storage.h: how a file is best read when the page cache does not hold it, so that the page cache is left as it was.
 * Every fact is probed on the file itself, none is guessed from versions.
 */
#ifndef HR_IO_STORAGE_H
#define HR_IO_STORAGE_H

#include <stdint.h>

/* How bytes are read. The ladder of what leaves the page cache alone: direct, dontcache, drop. */
enum hr_read_mode {
    HR_READ_BUFFERED,  /* through the page cache, where they stay */
    HR_READ_DIRECT,    /* with O_DIRECT, past it */
    HR_READ_DONTCACHE, /* through it with RWF_DONTCACHE: the kernel drops what the read has put there */
    HR_READ_DROP,      /* through it, then hr_drop_behind() */
};

/* Linux 6.14; the headers that we build with may be older. */
#define HR_RWF_DONTCACHE 0x80

struct hr_storage {
    uint32_t mode;             /* enum hr_read_mode: the first of the ladder that works; BUFFERED where is_memory */
    uint32_t fallback_mode;    /* where a file refuses O_DIRECT: DONTCACHE, DROP; BUFFERED as above */
    uint32_t offset_alignment; /* of O_DIRECT, for offsets and sizes: a power of two; 0 unless `mode` is DIRECT */
    uint32_t memory_alignment; /* for addresses */
    int is_remote;             /* a network's or FUSE's: latency is high, and many large reads belong in flight */
    int is_memory;             /* tmpfs, ramfs, hugetlbfs: always resident, O_DIRECT is pointless */
    char detail[160];          /* the filesystem, what was refused and why */
};

/*
 * Asks the system about the file `path`, open at `fd` without O_DIRECT: by statx(2) and fstatfs(2), by opening it with
 * O_DIRECT and reading one aligned block, by one flagged read. What cannot be told counts as refused, so
 * there is always an answer. The answer holds for the filesystem, so that one file a st_dev is enough; single
 * files may still refuse O_DIRECT (encrypted, compressed). Blocks for as long as one read does.
 */
void hr_storage_probe(const char *path, int fd, struct hr_storage *ret_storage);

/* O_DIRECT wants a larger alignment than the pages that chunks are read in: it is not used then. */
int hr_storage_wants_more_than_pages(const struct hr_storage *storage);

/* "direct", "dontcache", ...: as statistics name it. */
const char *hr_read_mode_name(uint32_t mode);

#endif
