/*
 * storage.c: the ladder of storage.h. Each rung is tried on the file itself: filesystems accept O_DIRECT at open and
 * refuse it at the first read, and kernels know flags that a filesystem does not.
 */
#include "io/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/limits.h"
#include "base/sys.h"

/* What every drive and filesystem that we know accepts; taken where none tells. */
#define ALIGNMENT_USUAL HR_CUT_ALIGNMENT
/* More would make aligned supersets of chunks much larger than the chunks. */
#define ALIGNMENT_MAX HR_CHUNK_BYTES_MIN

enum kind { LOCAL, REMOTE, MEMORY };

/* By the numbers of linux/magic.h and of statfs(2); virtiofs has FUSE's. */
static const struct {
    uint32_t magic;
    enum kind kind;
    const char *name;
} filesystems[] = {
    {0x01021994, MEMORY, "tmpfs"},    {0x858458f6, MEMORY, "ramfs"},  {0x958458f6, MEMORY, "hugetlbfs"},
    {0x6969, REMOTE, "NFS"},          {0xff534d42, REMOTE, "CIFS"},   {0xfe534d42, REMOTE, "SMB2"},
    {0x517b, REMOTE, "SMB"},          {0x65735546, REMOTE, "FUSE"},   {0x00c36400, REMOTE, "Ceph"},
    {0x0bd00bd0, REMOTE, "Lustre"},   {0x47504653, REMOTE, "GPFS"},   {0x01021997, REMOTE, "9P"},
    {0x5346414f, REMOTE, "AFS"},      {0x6b414653, REMOTE, "AFS"},    {0x19830326, REMOTE, "BeeGFS"},
    {0x20030528, REMOTE, "OrangeFS"}, {0xaad7aaea, REMOTE, "PanFS"},  {0x73757245, REMOTE, "Coda"},
    {0x786f4256, REMOTE, "vboxsf"},   {0xbacbacbc, REMOTE, "vmhgfs"}, {0xef53, LOCAL, "ext4"},
    {0x58465342, LOCAL, "XFS"},       {0x9123683e, LOCAL, "btrfs"},   {0xf2f52010, LOCAL, "F2FS"},
    {0x2fc12fc1, LOCAL, "ZFS"},       {0x794c7630, LOCAL, "overlay"},
};

__attribute__((format(printf, 2, 3))) static void add_detail(struct hr_storage *storage, const char *format, ...)
{
    size_t used = strlen(storage->detail);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(storage->detail + used, sizeof storage->detail - used, format, arguments);
    va_end(arguments);
}

static void ask_filesystem(int fd, struct hr_storage *storage)
{
    uint32_t magic;
    int error = hr_sys->fs_type(fd, &magic);
    if (error) {
        add_detail(storage, "unknown filesystem (errno %d)", -error);
        return;
    }
    for (size_t i = 0; i < sizeof filesystems / sizeof filesystems[0]; i++) {
        if (filesystems[i].magic != magic)
            continue;
        storage->is_remote = filesystems[i].kind == REMOTE;
        storage->is_memory = filesystems[i].kind == MEMORY;
        add_detail(storage, "%s", filesystems[i].name);
        return;
    }
    add_detail(storage, "filesystem 0x%x", magic);
}

static int is_power_of_two(uint32_t number)
{
    return number && (number & (number - 1)) == 0;
}

/* What O_DIRECT has to keep to. 0 when it need not even be tried. */
static int ask_alignment(int fd, struct hr_storage *storage)
{
    struct hr_direct_alignment told;
    storage->offset_alignment = storage->memory_alignment = ALIGNMENT_USUAL;
    if (hr_sys->direct_alignment(fd, &told) < 0)
        return 1;
    storage->offset_alignment = told.offset_bytes;
    storage->memory_alignment = told.memory_bytes;
    if (told.offset_bytes == 0 || told.memory_bytes == 0) {
        add_detail(storage, "; no O_DIRECT: statx says so");
        return 0;
    }
    int usable = is_power_of_two(told.offset_bytes) && is_power_of_two(told.memory_bytes) &&
                 told.offset_bytes <= ALIGNMENT_MAX && told.memory_bytes <= ALIGNMENT_MAX;
    if (!usable)
        add_detail(storage, "; no O_DIRECT: it wants alignment to %u and %u bytes", told.offset_bytes,
                   told.memory_bytes);
    return usable;
}

/* The file's first `size` bytes to `memory`: bytes or -errno. */
static ssize_t read_once(int fd, void *memory, size_t size, int flags)
{
    struct iovec vector = {memory, size};
    ssize_t got;
    do
        got = hr_sys->preadv(fd, &vector, 1, 0, flags);
    while (got == -EINTR);
    return got;
}

static ssize_t read_aligned(int fd, const struct hr_storage *storage)
{
    size_t alignment = storage->memory_alignment;
    char *memory = hr_alloc(storage->offset_alignment + alignment);
    if (!memory)
        return -ENOMEM;
    char *aligned = memory + (alignment - (uintptr_t)memory % alignment) % alignment;
    ssize_t got = read_once(fd, aligned, storage->offset_alignment, 0);
    hr_free(memory);
    return got;
}

/* O_NONBLOCK so that a pipe in the file's place cannot hold the call up. */
static int try_direct(const char *path, int fd, struct hr_storage *storage)
{
    if (!ask_alignment(fd, storage))
        return 0;
    int direct_fd = hr_sys->open(path, O_RDONLY | O_NONBLOCK | O_DIRECT);
    if (direct_fd == -EMFILE || direct_fd == -ENFILE) { /* says nothing of the file; its reads find out the rest */
        add_detail(storage, "; O_DIRECT not tried: no descriptor was left");
        return 1;
    }
    if (direct_fd < 0) {
        add_detail(storage, "; no O_DIRECT: open says errno %d", -direct_fd);
        return 0;
    }
    ssize_t got = read_aligned(direct_fd, storage);
    hr_sys->close(direct_fd);
    if (got < 0)
        add_detail(storage, "; no O_DIRECT: a read of %u bytes says errno %d", storage->offset_alignment, (int)-got);
    return got >= 0;
}

/* What is resident already stays so: the flag concerns only what a read brings in. */
static int try_dontcache(int fd, struct hr_storage *storage)
{
    char byte;
    ssize_t got = read_once(fd, &byte, 1, HR_RWF_DONTCACHE);
    if (got >= 0)
        return 1;
    add_detail(storage, "; no RWF_DONTCACHE: %s%d", got == -EOPNOTSUPP ? "not supported, errno " : "errno ", (int)-got);
    return 0;
}

void hr_storage_probe(const char *path, int fd, struct hr_storage *ret_storage)
{
    struct hr_storage storage = {.mode = HR_READ_BUFFERED, .fallback_mode = HR_READ_BUFFERED};
    ask_filesystem(fd, &storage);
    int direct = !storage.is_memory && try_direct(path, fd, &storage);
    if (!direct)
        storage.offset_alignment = storage.memory_alignment = 0;
    if (storage.is_memory) {
        add_detail(&storage, ": always resident");
    } else {
        storage.fallback_mode = try_dontcache(fd, &storage) ? HR_READ_DONTCACHE : HR_READ_DROP;
        storage.mode = direct ? HR_READ_DIRECT : storage.fallback_mode;
    }
    *ret_storage = storage;
}

int hr_storage_wants_more_than_pages(const struct hr_storage *storage)
{
    return storage->offset_alignment > HR_CUT_ALIGNMENT || storage->memory_alignment > HR_CUT_ALIGNMENT;
}

const char *hr_read_mode_name(uint32_t mode)
{
    static const char *const names[] = {"buffered", "direct", "dontcache", "drop"};
    return names[mode];
}
