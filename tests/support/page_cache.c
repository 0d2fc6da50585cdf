/*
 * page_cache.c: see page_cache.h.
 */
#include "support/page_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/residency.h"
#include "support/make_files.h"

int page_cache_file(const char *path, uint64_t seed, uint64_t size)
{
    unsigned char *bytes = malloc(size ? size : 1);
    assert_non_null(bytes);
    test_fill(bytes, seed, 0, size);
    test_raw_write(path, bytes, size);
    free(bytes);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    return fd;
}

void page_cache_empty(int fd, uint64_t size)
{
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    if (hr_residency_exact(fd, 0, size) == 0)
        return;
    print_message("skipped: the page cache cannot be emptied here, or does not tell what it holds\n");
    skip();
}

void page_cache_drop(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fsync(fd) == 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

int64_t page_cache_held(const char *path)
{
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &stat) == 0);
    int64_t bytes = hr_residency_exact(fd, 0, (uint64_t)stat.st_size);
    close(fd);
    return bytes;
}

/* Now and then a page that was just read is gone again, perhaps by a drop that came late. */
void page_cache_fill(int fd, uint64_t offset, uint64_t size)
{
    char page[4096];
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
    for (int turn = 0; turn < 20 && hr_residency_exact(fd, offset, size) < (int64_t)size; turn++)
        for (uint64_t at = offset; at < offset + size; at += sizeof page)
            assert_true(pread(fd, page, sizeof page, (off_t)at) > 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL), 0);
}

const char *page_cache_hole(const char *name, uint64_t size)
{
    enum { BLOCK = 1 << 20 };
    const char *path = test_path(name);
    char *buffer = malloc(BLOCK);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && buffer);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    for (uint64_t offset = 0; offset < size; offset += BLOCK)
        assert_int_equal(pread(fd, buffer, BLOCK, (off_t)offset), BLOCK);
    close(fd);
    free(buffer);
    return path;
}
