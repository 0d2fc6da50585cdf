/*
 * sys.c: the real system behind the seam, and the few helpers that everyone would write again.
 */
#include "base/sys.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"

static void *real_alloc(size_t bytes)
{
    return malloc(bytes);
}

static void *real_resize(void *memory, size_t bytes)
{
    return realloc(memory, bytes);
}

static void real_free(void *memory)
{
    free(memory);
}

static void *real_map(void *hint, size_t bytes, int protection, int flags, int fd, uint64_t offset)
{
    void *memory = mmap(hint, bytes, protection, flags, fd, (off_t)offset);
    return memory == MAP_FAILED ? NULL : memory;
}

static int real_unmap(void *memory, size_t bytes)
{
    return munmap(memory, bytes) ? -errno : 0;
}

static int real_advise(void *memory, size_t bytes, int advice)
{
    return madvise(memory, bytes, advice) ? -errno : 0;
}

static int real_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int real_close(int fd)
{
    return close(fd) ? -errno : 0;
}

static int real_duplicate(int fd, int lowest, int close_on_exec)
{
    int copy = fcntl(fd, close_on_exec ? F_DUPFD_CLOEXEC : F_DUPFD, lowest);
    return copy < 0 ? -errno : copy;
}

static int real_fstat(int fd, struct stat *ret_stat)
{
    return fstat(fd, ret_stat) ? -errno : 0;
}

static int real_stat(const char *path, struct stat *ret_stat)
{
    return stat(path, ret_stat) ? -errno : 0;
}

static int real_current_folder(char *ret_path, size_t capacity)
{
    return getcwd(ret_path, capacity) ? 0 : -errno;
}

static ssize_t real_link_read(const char *path, char *ret_target, size_t capacity)
{
    ssize_t size = readlink(path, ret_target, capacity);
    return size < 0 ? -errno : size;
}

/*
 * preadv2(2), Linux 4.6, by number: not every C library has it, and theirs hides a missing call behind another error.
 * The last half of the offset is for 32-bit machines.
 */
static ssize_t real_preadv(int fd, const struct iovec *vectors, int vector_count, uint64_t offset, int flags)
{
    ssize_t size = flags ? syscall(SYS_preadv2, fd, vectors, (long)vector_count, (long)offset, 0L, (long)flags)
                         : preadv(fd, vectors, vector_count, (off_t)offset);
    return size < 0 ? -errno : size;
}

static int real_create(const char *path, unsigned mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
    return fd < 0 ? -errno : fd;
}

static ssize_t real_pwritev(int fd, const struct iovec *vectors, int vector_count, uint64_t offset)
{
    ssize_t size = pwritev(fd, vectors, vector_count, (off_t)offset);
    return size < 0 ? -errno : size;
}

/* Not posix_fallocate(3), which writes every block where the filesystem cannot allocate. */
static int real_allocate(int fd, uint64_t size)
{
    return fallocate(fd, 0, 0, (off_t)size) ? -errno : 0;
}

static int real_set_mode(int fd, unsigned mode)
{
    return fchmod(fd, (mode_t)mode) ? -errno : 0;
}

static int real_sync(int fd)
{
    return fsync(fd) ? -errno : 0;
}

static int real_rename(const char *from, const char *to)
{
    return rename(from, to) ? -errno : 0;
}

static int real_unlink(const char *path)
{
    return unlink(path) ? -errno : 0;
}

static int real_fadvise(int fd, uint64_t offset, uint64_t size, int advice)
{
    return -posix_fadvise(fd, (off_t)offset, (off_t)size, advice);
}

static int real_fs_type(int fd, uint32_t *ret_magic)
{
    struct statfs facts;
    if (fstatfs(fd, &facts))
        return -errno;
    *ret_magic = (uint32_t)facts.f_type;
    return 0;
}

/* struct statx of statx(2) as far as it matters here: the C libraries that we build with lack the last fields. */
struct statx_facts {
    uint32_t mask;
    unsigned char between[148];
    uint32_t memory_alignment, offset_alignment;
    unsigned char rest[96];
};
_Static_assert(sizeof(struct statx_facts) == 256, "what the kernel writes");

#define STATX_DIOALIGN_BIT 0x2000u

static int real_direct_alignment(int fd, struct hr_direct_alignment *ret_alignment)
{
    struct statx_facts facts = {0};
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN_BIT, &facts))
        return -errno;
    if (!(facts.mask & STATX_DIOALIGN_BIT))
        return -ENODATA;
    *ret_alignment = (struct hr_direct_alignment){facts.memory_alignment, facts.offset_alignment};
    return 0;
}

/* faccessat2(2), Linux 5.8: it alone asks about a descriptor. */
#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

static int real_may_write(int fd)
{
    struct stat facts;
    if (fstat(fd, &facts))
        return -errno;
    if (facts.st_uid == geteuid())
        return 0;
    return syscall(SYS_faccessat2, fd, "", W_OK, AT_EMPTY_PATH | AT_EACCESS) ? -errno : 0;
}

static int real_mincore(void *memory, size_t bytes, unsigned char *ret_pages)
{
    return mincore(memory, bytes, ret_pages) ? -errno : 0;
}

/* PAGEMAP_SCAN of /proc/self/pagemap, as its documentation gives it: the headers that we build with may be older. */
#define PAGE_IS_PRESENT (1u << 3)
#define PAGE_IS_HUGE (1u << 6)
#define SCAN_REGIONS 32

struct scan_region {
    uint64_t begin, end, categories;
};

struct scan_argument {
    uint64_t size, flags, begin, end, walk_end, regions, region_count, pages_max;
    uint64_t category_inverted, category_mask, category_any_mask, return_mask;
};

#define SCAN_PAGES _IOWR('f', 16, struct scan_argument)

static int64_t real_large_page_bytes(const void *memory, size_t bytes)
{
    struct scan_region regions[SCAN_REGIONS];
    struct scan_argument scan = {.size = sizeof scan, .begin = (uintptr_t)memory, .end = (uintptr_t)memory + bytes};
    int64_t found = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    scan.regions = (uintptr_t)regions;
    scan.region_count = SCAN_REGIONS;
    scan.category_mask = scan.return_mask = PAGE_IS_PRESENT | PAGE_IS_HUGE;
    while (scan.begin < scan.end) {
        int count = ioctl(fd, SCAN_PAGES, &scan);
        if (count < 0) {
            found = -errno;
            break;
        }
        for (int i = 0; i < count; i++)
            found += (int64_t)(regions[i].end - regions[i].begin);
        if (scan.walk_end <= scan.begin)
            break;
        scan.begin = scan.walk_end;
    }
    close(fd);
    return found;
}

/*
 * cachestat(2), Linux 6.5, has no wrapper in the C libraries that we build with. The number is the same on all
 * architectures but alpha.
 */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct page_range {
    uint64_t offset, size;
};

struct page_counts {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

static int real_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    struct page_range range = {offset, size};
    struct page_counts counts = {0};
    if (syscall(SYS_cachestat, fd, &range, &counts, 0))
        return -errno;
    *ret_page_count = counts.cached;
    return 0;
}

static int real_dir_open(const char *path, struct hr_dir **ret_dir)
{
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    *ret_dir = (struct hr_dir *)dir;
    return 0;
}

static const char *real_dir_next(struct hr_dir *dir, int *ret_error)
{
    errno = 0;
    struct dirent *entry = readdir((DIR *)dir);
    *ret_error = entry ? 0 : -errno;
    return entry ? entry->d_name : NULL;
}

static void real_dir_close(struct hr_dir *dir)
{
    closedir((DIR *)dir);
}

/*
 * Our threads take no signals that others send: a handler of the application must not run on them, nor interrupt
 * their reads. Those that a thread raises itself stay, for the application's crash handler.
 */
static int real_thread_start(pthread_t *ret_thread, void *(*main)(void *), void *argument)
{
    static const int own_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own_signals / sizeof own_signals[0]; i++)
        sigdelset(&blocked, own_signals[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(ret_thread, NULL, main, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_setname_np(*ret_thread, "headrace");
    return -error;
}

static int64_t real_date(void)
{
    return time(NULL);
}

static uint64_t real_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The kernel refuses a mask that is smaller than its own; this one has room for 65,536 cores. */
static unsigned real_core_count(void)
{
    cpu_set_t cores[64];
    if (sched_getaffinity(0, sizeof cores, cores))
        return 1;
    return (unsigned)CPU_COUNT_S(sizeof cores, cores);
}

/* The system calls themselves: the C library's wrappers hide how much of the mask the kernel filled. */
static int real_affinity_get(uint64_t *ret_words, size_t word_count)
{
    memset(ret_words, 0, word_count * sizeof *ret_words);
    return syscall(SYS_sched_getaffinity, 0, word_count * sizeof *ret_words, ret_words) < 0 ? -errno : 0;
}

static int real_affinity_set(const uint64_t *words, size_t word_count)
{
    return syscall(SYS_sched_setaffinity, 0, word_count * sizeof *words, words) ? -errno : 0;
}

/*
 * mbind(2) has no wrapper outside libnuma. Preferred, not bound: a bound node that is full means the out-of-memory
 * killer, a preferred one slower pages. The kernel counts one bit less than it is told.
 */
#define MPOL_PREFERRED_MODE 1

static int real_memory_prefer(void *memory, size_t bytes, unsigned node)
{
    unsigned long mask[HR_NODE_COUNT_MAX / 64] = {0};
    if (node >= HR_NODE_COUNT_MAX)
        return -EINVAL;
    mask[node / 64] = 1ul << node % 64;
    return syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED_MODE, mask, HR_NODE_COUNT_MAX + 1ul, 0) ? -errno : 0;
}

static int real_descriptor_limits(uint64_t *ret_soft, uint64_t *ret_hard)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return -errno;
    *ret_soft = limit.rlim_cur;
    *ret_hard = limit.rlim_max;
    return 0;
}

static int real_locked_memory_limit(uint64_t *ret_bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        return -errno;
    *ret_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
    return 0;
}

static uint64_t real_thread_cpu_ns(void)
{
    struct timespec taken;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &taken);
    return (uint64_t)taken.tv_sec * 1000000000u + (uint64_t)taken.tv_nsec;
}

static void *real_library_open(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void real_library_close(void *library)
{
    dlclose(library);
}

static int real_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret_cqe)
{
    return io_uring_wait_cqe(ring, ret_cqe);
}

static int real_ring_buffer_set(struct io_uring *ring, unsigned index, const struct iovec *memory)
{
    int count = io_uring_register_buffers_update_tag(ring, index, memory, NULL, 1);
    return count < 0 ? count : count == 1 ? 0 : -EINVAL;
}

const struct hr_sys hr_sys_real = {
    .alloc = real_alloc,
    .resize = real_resize,
    .free = real_free,
    .map = real_map,
    .unmap = real_unmap,
    .advise = real_advise,
    .open = real_open,
    .close = real_close,
    .duplicate = real_duplicate,
    .fstat = real_fstat,
    .stat = real_stat,
    .current_folder = real_current_folder,
    .link_read = real_link_read,
    .preadv = real_preadv,
    .create = real_create,
    .pwritev = real_pwritev,
    .allocate = real_allocate,
    .set_mode = real_set_mode,
    .sync = real_sync,
    .rename = real_rename,
    .unlink = real_unlink,
    .fadvise = real_fadvise,
    .fs_type = real_fs_type,
    .direct_alignment = real_direct_alignment,
    .may_write = real_may_write,
    .mincore = real_mincore,
    .large_page_bytes = real_large_page_bytes,
    .cachestat = real_cachestat,
    .dir_open = real_dir_open,
    .dir_next = real_dir_next,
    .dir_close = real_dir_close,
    .thread_start = real_thread_start,
    .clock_ns = real_clock_ns,
    .date = real_date,
    .core_count = real_core_count,
    .descriptor_limits = real_descriptor_limits,
    .locked_memory_limit = real_locked_memory_limit,
    .affinity_get = real_affinity_get,
    .affinity_set = real_affinity_set,
    .memory_prefer = real_memory_prefer,
    .thread_cpu_ns = real_thread_cpu_ns,
    .library_open = real_library_open,
    .library_symbol = dlsym,
    .library_close = real_library_close,
    .ring_init = io_uring_queue_init,
    .ring_exit = io_uring_queue_exit,
    .ring_submit = io_uring_submit,
    .ring_wait = real_ring_wait,
    .ring_buffers = io_uring_register_buffers_sparse,
    .ring_buffer_set = real_ring_buffer_set,
    .ring_buffers_free = io_uring_unregister_buffers,
};

const struct hr_sys *hr_sys = &hr_sys_real;

void *hr_alloc(size_t bytes)
{
    void *memory = hr_sys->alloc(bytes ? bytes : 1);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

void *hr_alloc_array(size_t count, size_t element_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, element_bytes, &bytes))
        return NULL;
    return hr_alloc(bytes);
}

void hr_free(void *memory)
{
    hr_sys->free(memory);
}

char *hr_strndup(const char *text, size_t size)
{
    char *copy = hr_sys->alloc(size + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    copy[size] = '\0';
    return copy;
}

ssize_t hr_read_full(int fd, void *buffer, size_t size, uint64_t offset)
{
    size_t done = 0;
    while (done < size) {
        struct iovec vector = {(char *)buffer + done, size - done};
        ssize_t got = hr_sys->preadv(fd, &vector, 1, offset + done, 0);
        if (got == -EINTR)
            continue;
        if (got < 0)
            return got;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

ssize_t hr_read_text(const char *path, char *buffer, size_t capacity)
{
    int fd = hr_sys->open(path, O_RDONLY);
    if (fd < 0)
        return fd;
    ssize_t size = hr_read_full(fd, buffer, capacity - 1, 0);
    hr_sys->close(fd);
    if (size >= 0)
        buffer[size] = '\0';
    return size;
}
