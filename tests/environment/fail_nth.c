/*
 * fail_nth.c: preloaded into Python, fails the n-th call by which headrace's extension asks the C library for memory,
 * files or threads, and counts what it has not given back. Calls from anywhere else are left alone, so that the
 * package under test is the one that users get, and Python itself never fails. The test reaches it through ctypes.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define PAGE_BYTES 4096

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

/* For the test: */
void fail_nth_find(const char *file_name);
void fail_nth_arm(long n); /* 0: nothing fails any more */
long fail_nth_fired(void);
long fail_nth_live_blocks(void);
long fail_nth_live_pages(void);

int __open_2(const char *path, int flags);

static _Atomic uintptr_t code_begin, code_end;
static atomic_long calls_left, fired, live_blocks, live_pages;

/* Whether the caller of the function that this stands in is the extension. */
#define FROM_EXTENSION() is_extension((uintptr_t)__builtin_return_address(0))
/* The function of this name and type behind ours. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_extension(uintptr_t address)
{
    return address >= atomic_load(&code_begin) && address < atomic_load(&code_end);
}

/* Whether this call of the extension has to fail. */
static int must_fail(int error)
{
    if (atomic_load(&calls_left) <= 0 || atomic_fetch_sub(&calls_left, 1) != 1)
        return 0;
    atomic_fetch_add(&fired, 1);
    errno = error;
    return 1;
}

static int find_code(struct dl_phdr_info *info, size_t size, void *file_name)
{
    (void)size;
    if (strcmp(info->dlpi_name, file_name) != 0)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            atomic_store(&code_begin, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
            atomic_store(&code_end, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
        }
    return 1;
}

void fail_nth_find(const char *file_name)
{
    dl_iterate_phdr(find_code, (void *)(uintptr_t)file_name);
}

void fail_nth_arm(long n)
{
    atomic_store(&fired, 0);
    atomic_store(&calls_left, n);
}

long fail_nth_fired(void)
{
    return atomic_load(&fired);
}

long fail_nth_live_blocks(void)
{
    return atomic_load(&live_blocks);
}

long fail_nth_live_pages(void)
{
    return atomic_load(&live_pages);
}

/* ------------------------------------------------------------------------------------------- memory */

void *malloc(size_t bytes)
{
    int ours = FROM_EXTENSION();
    void *memory = ours && must_fail(ENOMEM) ? NULL : __libc_malloc(bytes);
    atomic_fetch_add(&live_blocks, ours && memory);
    return memory;
}

void *calloc(size_t count, size_t bytes)
{
    int ours = FROM_EXTENSION();
    void *memory = ours && must_fail(ENOMEM) ? NULL : __libc_calloc(count, bytes);
    atomic_fetch_add(&live_blocks, ours && memory);
    return memory;
}

void *realloc(void *before, size_t bytes)
{
    int ours = FROM_EXTENSION();
    void *memory = ours && must_fail(ENOMEM) ? NULL : __libc_realloc(before, bytes);
    atomic_fetch_add(&live_blocks, ours && memory && !before);
    return memory;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    int ours = FROM_EXTENSION();
    void *memory = ours && must_fail(ENOMEM) ? NULL : __libc_memalign(alignment, bytes);
    atomic_fetch_add(&live_blocks, ours && memory);
    return memory;
}

void free(void *memory)
{
    atomic_fetch_sub(&live_blocks, FROM_EXTENSION() && memory);
    __libc_free(memory);
}

static long pages(size_t bytes)
{
    return (long)((bytes + PAGE_BYTES - 1) / PAGE_BYTES);
}

void *mmap(void *hint, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    int ours = FROM_EXTENSION();
    if (ours && must_fail(ENOMEM))
        return MAP_FAILED;
    void *memory = REAL(mmap)(hint, bytes, protection, flags, fd, offset);
    if (ours && memory != MAP_FAILED)
        atomic_fetch_add(&live_pages, pages(bytes));
    return memory;
}

int munmap(void *memory, size_t bytes)
{
    int ours = FROM_EXTENSION();
    int error = REAL(munmap)(memory, bytes);
    if (ours && !error)
        atomic_fetch_sub(&live_pages, pages(bytes));
    return error;
}

int madvise(void *memory, size_t bytes, int advice)
{
    return FROM_EXTENSION() && must_fail(EINVAL) ? -1 : REAL(madvise)(memory, bytes, advice);
}

/* --------------------------------------------------------------------------------- files and threads */

int open(const char *path, int flags, ...)
{
    int ours = FROM_EXTENSION();
    va_list rest;
    va_start(rest, flags);
    mode_t mode = __OPEN_NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return ours && must_fail(EMFILE) ? -1 : REAL(open)(path, flags, mode);
}

int __open_2(const char *path, int flags)
{
    return FROM_EXTENSION() && must_fail(EMFILE) ? -1 : REAL(open)(path, flags);
}

int fstat(int fd, struct stat *ret_stat)
{
    return FROM_EXTENSION() && must_fail(EIO) ? -1 : REAL(fstat)(fd, ret_stat);
}

int stat(const char *path, struct stat *ret_stat)
{
    return FROM_EXTENSION() && must_fail(EIO) ? -1 : REAL(stat)(path, ret_stat);
}

ssize_t preadv(int fd, const struct iovec *vectors, int count, off_t offset)
{
    return FROM_EXTENSION() && must_fail(EIO) ? -1 : REAL(preadv)(fd, vectors, count, offset);
}

DIR *opendir(const char *path)
{
    return FROM_EXTENSION() && must_fail(EMFILE) ? NULL : REAL(opendir)(path);
}

int pthread_create(pthread_t *ret_thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument)
{
    if (FROM_EXTENSION() && must_fail(EAGAIN))
        return EAGAIN;
    return REAL(pthread_create)(ret_thread, attributes, main, argument);
}
