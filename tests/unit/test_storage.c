/*
 * test_storage.c: how a file is best read: on the filesystem of the tests, on memory, and on systems that refuse any of
 * the rungs; and that the modes do what they promise to the bytes and to the page cache.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "io/io.h"
#include "io/residency.h"
#include "io/storage.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/make_files.h"
#include "support/page_cache.h"

#define MIB (UINT64_C(1) << 20)
#define SEED 5
#define FILE_BYTES (2 * MIB + 1808)

static int content_open(void)
{
    return page_cache_file(test_path("content"), SEED, FILE_BYTES);
}

static void assert_whole(const struct hr_storage *storage)
{
    assert_true(storage->mode <= HR_READ_DROP && storage->fallback_mode <= HR_READ_DROP);
    assert_in_range(strlen(storage->detail), 3, sizeof storage->detail - 2); /* longer ones were cut */
    if (storage->mode != HR_READ_DIRECT) {
        assert_int_equal(storage->offset_alignment, 0);
        assert_int_equal(storage->memory_alignment, 0);
        return;
    }
    assert_true(storage->offset_alignment > 0 && storage->memory_alignment > 0);
    assert_int_equal(storage->offset_alignment & (storage->offset_alignment - 1), 0);
    assert_int_equal(storage->memory_alignment & (storage->memory_alignment - 1), 0);
}

static struct hr_storage probe_path(const char *path)
{
    struct hr_storage storage;
    memset(&storage, 0x55, sizeof storage);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    hr_storage_probe(path, fd, &storage);
    if (fd >= 0)
        close(fd);
    assert_whole(&storage);
    return storage;
}

/* On a system that is as `options` say. */
static struct hr_storage probe_on(struct fake_storage options)
{
    close(content_open());
    fake_storage_install(&options);
    struct hr_storage storage = probe_path(test_path("content"));
    fake_storage_remove();
    return storage;
}

static void skip_unless(int possible, const struct hr_storage *storage)
{
    if (possible)
        return;
    print_message("skipped: not on this filesystem: %s\n", storage->detail);
    skip();
}

static struct hr_storage here(void)
{
    close(content_open());
    return probe_path(test_path("content"));
}

/* ------------------------------------------------------------------------------------- what is found */

/* Probing a cold file brings in no more than the page of its one flagged read. */
static void test_here(void **state)
{
    struct hr_storage storage;
    (void)state;
    int fd = content_open();
    page_cache_empty(fd, FILE_BYTES);
    faults_install();
    hr_storage_probe(test_path("content"), fd, &storage);
    faults_assert_nothing_live();
    faults_remove();
    assert_whole(&storage);
    assert_int_equal(storage.is_memory, 0); /* its page cache could be emptied */
    assert_true(storage.mode != HR_READ_BUFFERED);
    usleep(20000);
    assert_true(hr_residency_exact(fd, 0, FILE_BYTES) <= 128 << 10);
    print_message("%s: %s\n", hr_read_mode_name(storage.mode), storage.detail);
    close(fd);
}

static void test_memory_filesystem(void **state)
{
    const char *path = "/dev/shm/headrace-test-storage";
    (void)state;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        print_message("skipped: no /dev/shm\n");
        skip();
    }
    close(fd);
    struct hr_storage storage = probe_path(path);
    unlink(path);
    assert_int_equal(storage.is_memory, 1);
    assert_int_equal(storage.is_remote, 0);
    assert_int_equal(storage.mode, HR_READ_BUFFERED);
    assert_int_equal(storage.fallback_mode, HR_READ_BUFFERED);
    assert_non_null(strstr(storage.detail, "tmpfs"));
}

/* In a mount namespace of a child's own. 0: as expected, 1: not, 2: cannot be mounted. */
static int probe_huge_pages(const char *folder)
{
    char path[600];
    struct hr_storage storage;
    snprintf(path, sizeof path, "%s/file", folder);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "hugetlbfs", 0, NULL))
        return 2;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return 2;
    hr_storage_probe(path, fd, &storage);
    int64_t resident = hr_residency(fd, 0, MIB, NULL); /* whatever it is: no crash */
    return !(storage.is_memory && storage.mode == HR_READ_BUFFERED && strstr(storage.detail, "hugetlbfs")) ||
           resident > (int64_t)MIB;
}

static void test_huge_page_filesystem(void **state)
{
    const char *folder = test_path("huge");
    int status;
    (void)state;
    mkdir(folder, 0700);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(probe_huge_pages(folder));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) {
        print_message("skipped: hugetlbfs cannot be mounted here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_kinds(void **state)
{
    static const struct {
        uint32_t magic;
        int is_remote, is_memory;
        const char *name;
    } kinds[] = {
        {0x6969, 1, 0, "NFS"},       {0x65735546, 1, 0, "FUSE"},
        {0xff534d42, 1, 0, "CIFS"},  {0x0bd00bd0, 1, 0, "Lustre"},
        {0x01021994, 0, 1, "tmpfs"}, {0x858458f6, 0, 1, "ramfs"},
        {0x58465342, 0, 0, "XFS"},   {0x958458f6, 0, 1, "hugetlbfs"},
        {0x9123683e, 0, 0, "btrfs"}, {0x12345678, 0, 0, "0x12345678"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct hr_storage storage = probe_on((struct fake_storage){.fs_magic = kinds[i].magic});
        assert_int_equal(storage.is_remote, kinds[i].is_remote);
        assert_int_equal(storage.is_memory, kinds[i].is_memory);
        assert_int_equal(storage.mode == HR_READ_BUFFERED, kinds[i].is_memory);
        assert_non_null(strstr(storage.detail, kinds[i].name));
    }
}

/* ----------------------------------------------------------------------------------- what is refused */

static void assert_no_direct(struct fake_storage lacking, const char *reason)
{
    struct hr_storage truth = here();
    lacking.fs_magic = 0xef53;
    struct hr_storage storage = probe_on(lacking);
    assert_int_equal(storage.mode, truth.is_memory ? HR_READ_DROP : truth.fallback_mode);
    assert_int_equal(storage.mode, storage.fallback_mode);
    assert_non_null(strstr(storage.detail, reason));
    lacking.flags_error = EOPNOTSUPP;
    storage = probe_on(lacking);
    assert_int_equal(storage.mode, HR_READ_DROP);
    assert_int_equal(storage.fallback_mode, HR_READ_DROP);
    assert_non_null(strstr(storage.detail, reason));
    assert_non_null(strstr(storage.detail, "no RWF_DONTCACHE: not supported"));
}

static void test_no_direct(void **state)
{
    (void)state;
    assert_no_direct((struct fake_storage){.direct_open_error = EINVAL}, "no O_DIRECT: open says errno 22");
    assert_no_direct((struct fake_storage){.direct_open_error = EPERM}, "no O_DIRECT: open says errno 1");
    assert_no_direct((struct fake_storage){.alignment = {512, 0}}, "no O_DIRECT: statx says so");
    assert_no_direct((struct fake_storage){.alignment = {512, 2 << 20}}, "alignment to 2097152 and 512 bytes");
    assert_no_direct((struct fake_storage){.alignment = {3, 512}}, "alignment to 512 and 3 bytes");
}

/* That no descriptor is left says nothing of the file: what statx says of it is believed, and reads find out. */
static void test_no_descriptor(void **state)
{
    static const int errors[] = {EMFILE, ENFILE};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct hr_storage storage = probe_on((struct fake_storage){.fs_magic = 0xef53, .direct_open_error = errors[i]});
        assert_int_equal(storage.mode, HR_READ_DIRECT);
        assert_non_null(strstr(storage.detail, "no descriptor was left"));
        assert_no_direct((struct fake_storage){.alignment = {512, 0}, .direct_open_error = errors[i]}, "statx says so");
    }
}

static void test_direct_refused_when_read(void **state)
{
    struct hr_storage truth = here();
    (void)state;
    skip_unless(truth.mode == HR_READ_DIRECT, &truth);
    assert_no_direct((struct fake_storage){.direct_read_error = EINVAL}, "bytes says errno 22");
    assert_no_direct((struct fake_storage){.direct_read_error = EIO}, "bytes says errno 5");
}

static void test_no_flags(void **state)
{
    static const int errors[] = {ENOSYS, EOPNOTSUPP, EINVAL, EPERM};
    struct hr_storage truth = here();
    (void)state;
    skip_unless(!truth.is_memory, &truth);
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct hr_storage storage = probe_on((struct fake_storage){.flags_error = errors[i]});
        assert_int_equal(storage.fallback_mode, HR_READ_DROP);
        assert_int_equal(storage.mode, truth.mode == HR_READ_DIRECT ? HR_READ_DIRECT : HR_READ_DROP);
        assert_non_null(strstr(storage.detail, "no RWF_DONTCACHE"));
    }
}

/* Kernels before 6.1 do not tell the alignment: pages serve. */
static void test_alignment_unknown(void **state)
{
    struct hr_storage truth = here();
    (void)state;
    skip_unless(truth.mode == HR_READ_DIRECT && truth.offset_alignment <= 4096, &truth);
    for (int i = 0; i < 2; i++) {
        struct hr_storage storage = probe_on((struct fake_storage){.alignment_error = i ? ENOSYS : ENODATA});
        assert_int_equal(storage.mode, HR_READ_DIRECT);
        assert_int_equal(storage.offset_alignment, 4096);
        assert_int_equal(storage.memory_alignment, 4096);
    }
}

static void test_odd_files(void **state)
{
    struct hr_storage truth = here();
    uint32_t expected = truth.is_memory ? HR_READ_BUFFERED : HR_READ_DROP;
    (void)state;
    close(page_cache_file(test_path("empty"), SEED, 0));
    probe_path(test_path("empty"));
    struct hr_storage storage = probe_path(test_path("missing"));
    assert_int_equal(storage.mode, HR_READ_DROP);
    assert_non_null(strstr(storage.detail, "open says errno 2"));
    assert_int_equal(mkfifo(test_path("fifo"), 0600), 0);
    storage = probe_path(test_path("fifo"));
    assert_int_equal(storage.mode, expected);
    storage = probe_path(test_dir());
    assert_int_equal(storage.mode, expected);
}

/* The n-th call failing, and all from the n-th on: an answer, whole, and nothing left open. */
static void test_every_call_failing(void **state)
{
    static void (*const fail[])(unsigned, unsigned long, int) = {faults_fail, faults_fail_from};
    static const int errors[] = {EIO, EINVAL, EOPNOTSUPP, ENOMEM};
    struct hr_storage storage;
    (void)state;
    int fd = content_open();
    for (size_t i = 0; i < 8; i++) {
        for (unsigned long n = 1, fired = 1; fired; n++) {
            faults_install();
            fail[i % 2](FAULT_ALL, n, errors[i / 2]);
            hr_storage_probe(test_path("content"), fd, &storage);
            fired = faults_fired();
            faults_assert_nothing_live();
            faults_remove();
            assert_whole(&storage);
        }
    }
    close(fd);
}

/* ------------------------------------------------------------------------------------- what modes do */

/* Reads the superset of [offset, offset + size) that O_DIRECT allows; returns its end as far as there is file. */
static uint64_t read_superset(int fd, const struct hr_storage *storage, uint64_t offset, uint64_t size)
{
    uint64_t unit = storage->offset_alignment;
    uint64_t begin = offset / unit * unit, end = (offset + size + unit - 1) / unit * unit, at = begin;
    char *memory = NULL;
    assert_int_equal(posix_memalign((void **)&memory, 4096, end - begin), 0);
    while (at < end) {
        struct iovec vector = {memory + (at - begin), end - at};
        ssize_t got = hr_sys->preadv(fd, &vector, 1, at, 0);
        assert_true(got >= 0);
        at += (uint64_t)got;
        if (got == 0 || at % unit)
            break;
    }
    assert_int_equal(test_mismatch(memory, SEED, begin, at - begin), at - begin);
    free(memory);
    return at;
}

static void read_supersets(const struct hr_storage *storage)
{
    uint64_t unit = storage->offset_alignment;
    int fd = hr_sys->open(test_path("content"), O_RDONLY | O_DIRECT);
    assert_true(fd >= 0);
    assert_int_equal(read_superset(fd, storage, 0, 1), unit);
    assert_int_equal(read_superset(fd, storage, unit - 1, 2), 2 * unit);
    assert_int_equal(read_superset(fd, storage, 1000, MIB), (1000 + MIB + unit - 1) / unit * unit);
    assert_int_equal(read_superset(fd, storage, FILE_BYTES - 1, 1), FILE_BYTES); /* short, and only here */
    assert_int_equal(read_superset(fd, storage, MIB, FILE_BYTES - MIB), FILE_BYTES);
    hr_sys->close(fd);
}

/* Past the page cache, the right bytes, also where reads are cut short in the middle of the file. */
static void test_direct(void **state)
{
    struct hr_storage storage = here();
    struct fake_storage shortening = {.short_percent = 80};
    unsigned long read_count = 0;
    (void)state;
    skip_unless(storage.mode == HR_READ_DIRECT && storage.offset_alignment <= 4096, &storage);
    int fd = content_open();
    page_cache_empty(fd, FILE_BYTES);
    read_supersets(&storage);
    assert_int_equal(hr_residency_exact(fd, 0, FILE_BYTES), 0);
    for (shortening.seed = 0; shortening.seed < 20 && storage.offset_alignment == 512; shortening.seed++) {
        fake_storage_install(&shortening);
        read_supersets(&storage);
        read_count += fake_storage_read_count();
        fake_storage_remove();
    }
    assert_true(storage.offset_alignment != 512 || read_count > 150);
    close(fd);
}

/* Reads all of the file in the given backend and mode; the bytes must be right. */
static void read_all(const struct hr_io_backend *backend, int fd, uint32_t flags)
{
    struct hr_error err;
    struct hr_io *io;
    unsigned char *memory = malloc(FILE_BYTES);
    assert_non_null(memory);
    assert_int_equal(backend->open(1, &io, &err), 0);
    for (uint64_t at = 0; at < FILE_BYTES;) {
        struct iovec vector = {memory + at, FILE_BYTES - at < MIB ? FILE_BYTES - at : MIB};
        struct hr_io_op op = {.fd = fd, .vector_count = 1, .offset = at, .vectors = &vector, .flags = flags};
        assert_int_equal(backend->submit(io, &op), 0);
        assert_ptr_equal(backend->wait(io), &op);
        assert_true(op.result > 0);
        at += (uint64_t)op.result;
    }
    assert_int_equal(test_mismatch(memory, SEED, 0, FILE_BYTES), FILE_BYTES);
    backend->close(io);
    free(memory);
}

static const struct hr_io_backend *const backends[] = {&hr_io_pread, &hr_io_uring};

#define FOR_BACKENDS(backend)                                    \
    for (size_t i_ = 0; i_ < 2; i_++)                            \
        for (const struct hr_io_backend *backend = backends[i_]; \
             backend && (backend == &hr_io_pread || backend->probe((char[240]){0}, 240)); backend = NULL)

static void test_dontcache(void **state)
{
    struct hr_storage storage = here();
    (void)state;
    skip_unless(storage.fallback_mode == HR_READ_DONTCACHE, &storage);
    FOR_BACKENDS(backend)
    {
        int fd = content_open();
        page_cache_empty(fd, FILE_BYTES);
        read_all(backend, fd, HR_RWF_DONTCACHE);
        usleep(20000);
        assert_true((uint64_t)hr_residency_exact(fd, 0, FILE_BYTES) <= FILE_BYTES / 16);
        close(fd);
    }
}

static void test_drop(void **state)
{
    (void)state;
    FOR_BACKENDS(backend)
    {
        int fd = content_open();
        page_cache_empty(fd, FILE_BYTES);
        read_all(backend, fd, 0);
        assert_int_equal(hr_residency_exact(fd, 0, FILE_BYTES), FILE_BYTES);
        assert_int_equal(hr_drop_behind(fd, 0, FILE_BYTES), 0);
        assert_int_equal(hr_residency_exact(fd, 0, FILE_BYTES), 0);
        close(fd);
    }
}

/* ------------------------------------------------------------------------------------------ for people */

static void assert_described(struct fake_storage options, const char *begin, const char *part)
{
    char text[320];
    struct hr_error err = {0};
    fake_storage_install(&options);
    int code = hr_storage_describe(test_path("content"), text, sizeof text, &err);
    fake_storage_remove();
    assert_int_equal(code, 0);
    if (strncmp(text, begin, strlen(begin)) != 0 || !strstr(text, part))
        fail_msg("\"%s\" does not begin with \"%s\" or lacks \"%s\"", text, begin, part);
}

static void test_described(void **state)
{
    (void)state;
    close(content_open());
    struct hr_storage here = probe_path(test_path("content"));
    skip_unless(!here.is_memory, &here);
    assert_described((struct fake_storage){0}, hr_read_mode_name(here.mode), here.detail);
    assert_described((struct fake_storage){.direct_open_error = EINVAL, .flags_error = EOPNOTSUPP},
                     "drop: ", "no O_DIRECT: open says errno 22");
    assert_described((struct fake_storage){.fs_magic = 0x6969}, hr_read_mode_name(here.mode), "NFS");
    assert_described((struct fake_storage){.fs_magic = 0x6969}, hr_read_mode_name(here.mode), ", remote");
    assert_described((struct fake_storage){.fs_magic = 0x01021994}, "buffered: ", "tmpfs");
    skip_unless(here.mode == HR_READ_DIRECT, &here);
    assert_described((struct fake_storage){.alignment = {4096, 65536}}, hr_read_mode_name(here.fallback_mode),
                     "offsets on 65536");
}

static void test_described_wrongly(void **state)
{
    char text[8];
    struct hr_error err = {0};
    (void)state;
    close(content_open());
    assert_int_equal(hr_storage_describe(NULL, text, sizeof text, &err), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_storage_describe(test_path("content"), NULL, 8, &err), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_storage_describe(test_path("content"), text, 0, NULL), HR_EINVALID_ARGUMENT);
    assert_int_equal(hr_storage_describe(test_path("none"), text, sizeof text, &err), HR_EIO_ERROR);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_int_equal(hr_storage_describe(test_path("content"), text, sizeof text, &err), 0);
    assert_int_equal(strlen(text), sizeof text - 1); /* cut */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_here),
        cmocka_unit_test(test_memory_filesystem),
        cmocka_unit_test(test_huge_page_filesystem),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_no_direct),
        cmocka_unit_test(test_no_descriptor),
        cmocka_unit_test(test_direct_refused_when_read),
        cmocka_unit_test(test_no_flags),
        cmocka_unit_test(test_alignment_unknown),
        cmocka_unit_test(test_odd_files),
        cmocka_unit_test(test_every_call_failing),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_dontcache),
        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_described),
        cmocka_unit_test(test_described_wrongly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
