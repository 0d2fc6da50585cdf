/*
 * sys.h: the seam to the operating system. Everything that can fail and is not pure computation goes through
 * this table: memory, files, mappings, threads, the clock, io_uring. Tests replace it to fail the n-th call or
 * to play a slow disk; the library itself never writes it.
 *
 * Calls return what the system call returns, or -errno; allocations return NULL.
 */
#ifndef HR_BASE_SYS_H
#define HR_BASE_SYS_H

#if !defined(__linux__) || !defined(__LP64__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "headrace runs on Linux, on 64-bit little-endian machines only; see docs/platforms.md"
#endif

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* What O_DIRECT asks of memory addresses and file offsets; 0 in both: the file does not support it. */
struct hr_direct_alignment {
    uint32_t memory_bytes, offset_bytes;
};

struct io_uring;
struct io_uring_cqe;
struct hr_dir;

struct hr_sys {
    /* memory */
    void *(*alloc)(size_t bytes);
    void *(*resize)(void *memory, size_t bytes);
    void (*free)(void *memory);
    void *(*map)(void *hint, size_t bytes, int protection, int flags, int fd, uint64_t offset); /* NULL on failure */
    int (*unmap)(void *memory, size_t bytes);
    int (*advise)(void *memory, size_t bytes, int advice);
    /* files */
    int (*open)(const char *path, int flags);
    int (*close)(int fd);
    int (*duplicate)(int fd, int lowest, int close_on_exec); /* as the lowest free descriptor from `lowest` on */
    int (*fstat)(int fd, struct stat *ret_stat);
    int (*stat)(const char *path, struct stat *ret_stat);
    int (*current_folder)(char *ret_path, size_t capacity);                    /* its absolute name, NUL-terminated */
    ssize_t (*link_read)(const char *path, char *ret_target, size_t capacity); /* bytes; not NUL-terminated */
    /* `flags`: RWF_*; a kernel that does not know one says -EOPNOTSUPP, one without flags at all -ENOSYS */
    ssize_t (*preadv)(int fd, const struct iovec *vectors, int vector_count, uint64_t offset, int flags);
    /* a new file for writing, which must not exist; `mode` is subject to the umask */
    int (*create)(const char *path, unsigned mode);
    ssize_t (*pwritev)(int fd, const struct iovec *vectors, int vector_count, uint64_t offset);
    int (*allocate)(int fd, uint64_t size); /* disk space for the first `size` bytes, which become the file's size */
    int (*set_mode)(int fd, unsigned mode); /* past the umask */
    int (*sync)(int fd);                    /* of a file or a folder, onto the storage */
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*fadvise)(int fd, uint64_t offset, uint64_t size, int advice); /* size 0: to the end of the file */
    int (*fs_type)(int fd, uint32_t *ret_magic);                        /* the filesystem's number, see statfs(2) */
    /* by statx(2); -ENODATA where the kernel (Linux 6.1 does) or the filesystem does not tell */
    int (*direct_alignment)(int fd, struct hr_direct_alignment *ret_alignment);
    int (*may_write)(int fd); /* 0 when this user owns the file or may write it, else -errno */
    /* one byte a page, its lowest bit set for those in memory; for files of others it says that all are */
    int (*mincore)(void *memory, size_t bytes, unsigned char *ret_pages);
    /* of whole pages of memory: bytes in huge pages, of those that are there; -ENOTTY before Linux 6.7 */
    int64_t (*large_page_bytes)(const void *memory, size_t bytes);
    /* pages of [offset, offset + size) that the page cache holds; size > 0 */
    int (*cachestat)(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count);
    /* folders: names one by one, NULL at the end (*ret_error 0) or on failure (-errno) */
    int (*dir_open)(const char *path, struct hr_dir **ret_dir);
    const char *(*dir_next)(struct hr_dir *dir, int *ret_error);
    void (*dir_close)(struct hr_dir *dir);
    /* threads and time */
    int (*thread_start)(pthread_t *ret_thread, void *(*main)(void *), void *argument);
    uint64_t (*clock_ns)(void);
    int64_t (*date)(void);           /* seconds since 1970 */
    uint64_t (*thread_cpu_ns)(void); /* processor time that this thread has taken */
    /* what this process may use: cores by its affinity, at least 1; descriptors */
    unsigned (*core_count)(void);
    int (*descriptor_limits)(uint64_t *ret_soft, uint64_t *ret_hard);
    int (*locked_memory_limit)(uint64_t *ret_bytes); /* UINT64_MAX: none */
    /* the calling thread's CPUs, bit i: CPU i; words that the kernel does not fill are 0 */
    int (*affinity_get)(uint64_t *ret_words, size_t word_count);
    int (*affinity_set)(const uint64_t *words, size_t word_count);
    /* whole pages: those not touched yet come from `node`, from others when it is full */
    int (*memory_prefer)(void *memory, size_t bytes, unsigned node);
    /* shared libraries, by the names that the loader searches; NULL when there is none */
    void *(*library_open)(const char *name);
    void *(*library_symbol)(void *library, const char *name);
    void (*library_close)(void *library);
    /* io_uring, as liburing names them */
    int (*ring_init)(unsigned entries, struct io_uring *ring, unsigned flags);
    void (*ring_exit)(struct io_uring *ring);
    int (*ring_submit)(struct io_uring *ring);
    int (*ring_wait)(struct io_uring *ring, struct io_uring_cqe **ret_cqe);
    int (*ring_buffers)(struct io_uring *ring, unsigned count); /* a table of registered buffers, all of them empty */
    int (*ring_buffer_set)(struct io_uring *ring, unsigned index, const struct iovec *memory); /* an empty one */
    int (*ring_buffers_free)(struct io_uring *ring);
};

/* The table in use. Read by everyone; replaced only by tests, while no object of the library exists. */
extern const struct hr_sys *hr_sys;
/* The real one. */
extern const struct hr_sys hr_sys_real;

/* Shorthands for memory: zeroed, and array-sized with overflow checked; NULL on failure. */
void *hr_alloc(size_t bytes);
void *hr_alloc_array(size_t count, size_t element_bytes);
void hr_free(void *memory);
char *hr_strndup(const char *text, size_t size);

/* Reads exactly `size` bytes unless the file ends: returns the bytes read, or -errno. EINTR is retried. */
ssize_t hr_read_full(int fd, void *buffer, size_t size, uint64_t offset);

/* The first capacity - 1 bytes of a small text file (/proc, /sys), NUL-terminated: their number, or -errno. */
ssize_t hr_read_text(const char *path, char *buffer, size_t capacity);

#endif
