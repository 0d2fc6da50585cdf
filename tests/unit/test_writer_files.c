/*
 * test_writer_files.c: what becomes of files and folders: permissions, what is replaced and what is not, systems that fail
 * at any call, full disks, progress and cancelling, memory of GPUs. Nothing partial is ever left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "support/faults.h"
#include "support/gpu.h"
#include "support/make_files.h"
#include "support/write_scene.h"

static struct write_scene scene;

static int setup(void **state)
{
    (void)state;
    write_scene_fill(&scene);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    write_scene_release(&scene);
    return 0;
}

static int write_to(const char *path, uint64_t shard_bytes, struct hr_error *err)
{
    struct hr_write_options options = {.size = sizeof options, .shard_bytes = shard_bytes, .thread_count = 3};
    return hr_write(path, scene.tensors, scene.sources, scene.count, &options, err);
}

static void write_ok(const char *path)
{
    struct hr_error err = {0};
    if (write_to(path, 0, &err))
        fail_msg("%s: %s", path, err.message);
}

static unsigned mode_of(const char *path)
{
    struct stat facts;
    assert_int_equal(lstat(path, &facts), 0);
    return facts.st_mode & 07777;
}

/* -------------------------------------------------------------------------------- what is replaced */

static void test_modes(void **state)
{
    static const unsigned masks[] = {0, 022, 027, 077};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        mode_t before = umask(masks[i]);
        const char *path = test_path("modes/m.safetensors");
        unlink(path);
        write_ok(path);
        assert_int_equal(mode_of(path), 0666 & ~masks[i]);
        assert_int_equal(chmod(path, 0640), 0); /* what stood there says what is right, whatever the umask */
        write_ok(path);
        assert_int_equal(mode_of(path), 0640);
        umask(before);
    }
    assert_int_equal(folder_entry_count(test_path("modes")), 1);
}

/* Who has the old file mapped keeps it; its name is the new one's. */
static void test_mapped(void **state)
{
    const char *path = test_path("mapped/m.safetensors");
    (void)state;
    test_raw_write(path, "old content", 11);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *map = mmap(NULL, 11, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(map != MAP_FAILED);
    close(fd);
    write_ok(path);
    assert_memory_equal(map, "old content", 11);
    munmap(map, 11);
    write_scene_check(&scene, path);
}

/* From the mapping of the very file that is replaced, while it is. */
static void test_onto_itself(void **state)
{
    const char *path = test_path("itself/m.safetensors");
    struct write_scene mapped = {0};
    struct hr_checkpoint *checkpoint;
    struct hr_error err = {0};
    size_t size = 0;
    (void)state;
    write_ok(path);
    free(file_content(path, &size));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const char *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    assert_int_equal(hr_checkpoint_open(&path, 1, NULL, &checkpoint, &err), 0);
    mapped.count = hr_checkpoint_count(checkpoint);
    for (size_t i = 0; i < mapped.count; i++) {
        mapped.tensors[i] = *hr_checkpoint_at(checkpoint, i);
        mapped.sources[i] =
            (struct hr_source){.size = sizeof mapped.sources[i], .data = map + mapped.tensors[i].offset};
    }
    assert_int_equal(hr_write(path, mapped.tensors, mapped.sources, mapped.count, NULL, &err), 0);
    hr_checkpoint_close(checkpoint);
    munmap((void *)map, size);
    write_scene_check(&scene, path);
}

static void test_links(void **state)
{
    const char *link = test_path("links/link.safetensors"), *target = test_path("links/target.safetensors");
    struct stat facts;
    size_t size;
    (void)state;
    test_raw_write(target, "target", 6);
    assert_int_equal(symlink("target.safetensors", link), 0);
    write_ok(link);
    assert_true(lstat(link, &facts) == 0 && S_ISREG(facts.st_mode));
    char *content = file_content(target, &size);
    assert_string_equal(content, "target");
    free(content);
    write_scene_check(&scene, link);
    unlink(link);
    assert_int_equal(symlink("nothing", link), 0);
    write_ok(link);
    write_scene_check(&scene, link);
}

static void refuse(const char *path, int code, int error, const char *said)
{
    struct hr_error err = {0};
    int got = write_to(path, 0, &err);
    if (got != code || err.sys_errno != error || !strstr(err.message, said))
        fail_msg("%s: %d, errno %d: %s", path, got, err.sys_errno, err.message);
}

static void test_bad_targets(void **state)
{
    char name[300], beyond[400];
    (void)state;
    test_path("bad/folder/x");
    refuse(test_path("bad/folder"), HR_ENOT_A_REGULAR_FILE, 0, "a folder");
    assert_int_equal(mkfifo(test_path("bad/pipe"), 0600), 0);
    refuse(test_path("bad/pipe"), HR_ENOT_A_REGULAR_FILE, 0, "not a regular file");
    snprintf(beyond, sizeof beyond, "%s/missing/x", test_path("bad"));
    refuse(beyond, HR_EIO_ERROR, ENOENT, "missing/x");
    refuse("", HR_EINVALID_ARGUMENT, 0, "empty");
    /* the longest name that a filesystem allows, and one more */
    memset(name, 'n', 256);
    name[255] = '\0';
    snprintf(beyond, sizeof beyond, "bad/long/%.*s", 255, name);
    const char *path = test_path(beyond);
    write_ok(path);
    write_scene_check(&scene, path);
    snprintf(beyond, sizeof beyond, "bad/long/%sn", name);
    refuse(test_path(beyond), HR_EIO_ERROR, ENAMETOOLONG, "");
    assert_int_equal(folder_entry_count(test_path("bad/long")), 1);
    assert_int_equal(folder_entry_count(test_path("bad/folder")), 0);
}

/* -------------------------------------------------------------------------------- systems that fail */

struct fault_case {
    const char *path, *folder;
    uint64_t shard_bytes;
    int is_new; /* nothing stands there; else "old" */
};

static int is_old(const char *path)
{
    size_t size;
    char *content = file_content(path, &size);
    int is_same = strcmp(content, "old") == 0;
    free(content);
    return is_same;
}

/* A failure leaves what was there, or after the rename the whole new file; never a file of another name. */
static int write_scenario(void *context, struct hr_error *err)
{
    const struct fault_case *tested = context;
    unlink(tested->path);
    if (!tested->is_new)
        test_raw_write(tested->path, "old", 3);
    int code = write_to(tested->path, 0, err);
    size_t entries = folder_entry_count(tested->folder);
    const struct hr_sys *faulty = hr_sys;
    hr_sys = &hr_sys_real;
    if (code == 0 || (entries == 1 && (tested->is_new || !is_old(tested->path))))
        write_scene_check(&scene, tested->path);
    hr_sys = faulty;
    assert_int_equal(entries, code && tested->is_new && access(tested->path, F_OK) ? 0 : 1);
    return code;
}

static int shard_scenario(void *context, struct hr_error *err)
{
    const struct fault_case *tested = context;
    char command[512];
    snprintf(command, sizeof command, "rm -f %s/*", tested->folder);
    assert_int_equal(system(command), 0);
    int code = write_to(tested->path, tested->shard_bytes, err);
    size_t entries = folder_entry_count(tested->folder);
    const struct hr_sys *faulty = hr_sys;
    hr_sys = &hr_sys_real;
    if (code == 0 || entries)
        write_scene_check(&scene, tested->folder);
    hr_sys = faulty;
    return code;
}

static void test_faults(void **state)
{
    static const int errors[] = {0, 0, ENOSPC, EINTR, EOPNOTSUPP};
    const char *folder = test_path("faults"), *path = test_path("faults/f.safetensors");
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct fault_case tested = {path, folder, 0, i % 2 == 0};
        assert_true(faults_sweep(FAULT_ALL, errors[i], write_scenario, &tested) > 20);
    }
}

static void test_shard_faults(void **state)
{
    struct fault_case tested = {test_path("faulty/f.safetensors"), test_path("faulty"), 2 << 20, 1};
    (void)state;
    assert_true(faults_sweep(FAULT_ALL, 0, shard_scenario, &tested) > 30);
    assert_true(faults_sweep(FAULT_WRITE, ENOSPC, shard_scenario, &tested) > 10);
}

/* A tensor that could not be written is put again. */
static void test_put_again(void **state)
{
    const char *path = test_path("again/a.safetensors");
    struct hr_writer *writer = NULL;
    struct hr_error err = {0};
    (void)state;
    faults_install();
    assert_int_equal(hr_writer_new(path, scene.tensors, scene.count, NULL, &writer, &err), 0);
    for (size_t i = 0; i < scene.count; i++) {
        faults_fail(FAULT_WRITE, 1, ENOSPC);
        int code = hr_writer_put(writer, i, &scene.sources[i], &err);
        if (faults_fired()) {
            assert_int_equal(code, HR_EIO_ERROR);
            assert_string_equal(err.file, path);
            assert_true(err.offset != HR_NO_OFFSET || err.sys_errno != ENOSPC);
            if (i + 1 < scene.count)
                assert_int_equal(hr_writer_put(writer, i, &scene.sources[i], &err), 0);
            else
                code = hr_writer_put(writer, i, &scene.sources[i], &err);
        }
    }
    assert_int_equal(hr_writer_finish(writer, &err), 0);
    hr_writer_free(writer);
    faults_assert_nothing_live();
    faults_remove();
    write_scene_check(&scene, path);
}

/* Writes that take less than they were given. */
static struct hr_sys narrow_table;
static atomic_uint narrow_count;

static ssize_t narrow_pwritev(int fd, const struct iovec *vectors, int vector_count, uint64_t offset)
{
    unsigned number = atomic_fetch_add(&narrow_count, 1);
    struct iovec first = vectors[0];
    if (number % 3 == 0)
        return number % 2 ? -EINTR : -EAGAIN;
    size_t most = number % 7 == 1 ? 1 : 100000 + number % 1000;
    first.iov_len = first.iov_len < most ? first.iov_len : most;
    return vector_count > 1 && number % 5 == 0 ? hr_sys_real.pwritev(fd, vectors, 2, offset)
                                               : hr_sys_real.pwritev(fd, &first, 1, offset);
}

static int allocate_not(int fd, uint64_t size)
{
    (void)fd, (void)size;
    return -EOPNOTSUPP;
}

static void test_narrow_writes(void **state)
{
    (void)state;
    narrow_table = hr_sys_real;
    narrow_table.pwritev = narrow_pwritev;
    narrow_table.allocate = allocate_not;
    hr_sys = &narrow_table;
    write_ok(test_path("narrow.safetensors"));
    hr_sys = &hr_sys_real;
    assert_true(narrow_count > 20);
    write_scene_check(&scene, test_path("narrow.safetensors"));
}

/* A filesystem that takes bytes in their order only, and one that cannot rename: what to do stands in the error. */
static uint64_t sequential_offset;

static ssize_t sequential_pwritev(int fd, const struct iovec *vectors, int vector_count, uint64_t offset)
{
    if (offset != sequential_offset)
        return -EINVAL;
    ssize_t written = hr_sys_real.pwritev(fd, vectors, vector_count, offset);
    sequential_offset = offset + (uint64_t)written;
    return written;
}

static int rename_not(const char *from, const char *to)
{
    (void)from, (void)to;
    return -EPERM;
}

static void test_odd_filesystems(void **state)
{
    struct hr_write_options options = {.size = sizeof options, .thread_count = 1};
    const char *path = test_path("odd/o.safetensors");
    struct hr_writer *writer = NULL;
    struct hr_error err = {0};
    (void)state;
    narrow_table = hr_sys_real;
    narrow_table.pwritev = sequential_pwritev;
    narrow_table.allocate = allocate_not;
    hr_sys = &narrow_table;
    sequential_offset = 0;
    assert_int_equal(hr_write(path, scene.tensors, scene.sources, scene.count, &options, &err), 0);
    sequential_offset = 0;
    assert_int_equal(hr_writer_new(path, scene.tensors, scene.count, &options, &writer, &err), 0);
    assert_int_equal(hr_writer_put(writer, 0, &scene.sources[0], &err), HR_EIO_ERROR);
    assert_non_null(strstr(err.message, "one thread"));
    hr_writer_free(writer);
    narrow_table = hr_sys_real;
    narrow_table.rename = rename_not;
    unlink(path);
    assert_int_equal(hr_write(path, scene.tensors, scene.sources, scene.count, &options, &err), HR_EIO_ERROR);
    assert_non_null(strstr(err.message, "copy"));
    hr_sys = &hr_sys_real;
    assert_int_equal(folder_entry_count(test_path("odd")), 0);
}

/* In a namespace of its own: the status of the child. */
static int full_disk(void)
{
    struct hr_error err = {0};
    char *folder = strdup(test_path("disk"));
    if (mkdir(folder, 0700) || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=1m"))
        return 77;
    char path[512];
    snprintf(path, sizeof path, "%s/d.safetensors", folder);
    if (write_to(path, 0, &err) != HR_EIO_ERROR || err.sys_errno != ENOSPC || !strstr(err.message, "full"))
        return 1;
    if (folder_entry_count(folder) != 0)
        return 2;
    if (mount("none", folder, NULL, MS_REMOUNT | MS_RDONLY, NULL))
        return 77;
    if (write_to(path, 0, &err) != HR_EIO_ERROR || err.sys_errno != EROFS || !strstr(err.message, "read-only"))
        return 3;
    return 0;
}

static void test_full_disk(void **state)
{
    int status;
    (void)state;
    test_dir();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(full_disk());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip(); /* nothing can be mounted here */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ------------------------------------------------------------------------------------- many files */

enum { SMALL_COUNT = 48 };

/* Tensors of 1000 bytes, each a file of its own. */
static void small_scene(struct write_scene *ret_scene)
{
    static char names[SMALL_COUNT][8];
    static const uint64_t shape[] = {1000};
    *ret_scene = (struct write_scene){0};
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        snprintf(names[i], sizeof names[i], "t%02zu", i);
        write_scene_add(ret_scene, names[i], HR_DTYPE_U8, 1, shape);
    }
}

static atomic_int sync_count, sync_at_once, sync_at_once_max, sync_failing, sync_crowd, refused_count, refused_least,
    thread_lack;

/* What the storage takes its time for: so many files that wait for it at once, so many that had no descriptor meanwhile. */
static int has_come(void)
{
    return atomic_load(&sync_at_once_max) >= atomic_load(&sync_crowd) &&
           atomic_load(&refused_count) >= atomic_load(&refused_least);
}

/* As of a drive that takes its time, at most two seconds, and that fails once. */
static int slow_sync(int fd)
{
    int at_once = atomic_fetch_add(&sync_at_once, 1) + 1, most = atomic_load(&sync_at_once_max);
    while (at_once > most && !atomic_compare_exchange_weak(&sync_at_once_max, &most, at_once))
        ;
    usleep(3000);
    for (int i = 0; i < 2000 && !has_come(); i++)
        usleep(1000);
    int number = atomic_fetch_add(&sync_count, 1) + 1;
    atomic_fetch_sub(&sync_at_once, 1);
    return number == atomic_load(&sync_failing) ? -EIO : hr_sys_real.sync(fd);
}

static int no_thread(pthread_t *ret_thread, void *(*main)(void *), void *argument)
{
    return atomic_load(&thread_lack) ? -EAGAIN : hr_sys_real.thread_start(ret_thread, main, argument);
}

/* No descriptor while any file waits for the storage. */
static int scarce_create(const char *path, unsigned mode)
{
    if (!atomic_load(&sync_at_once))
        return hr_sys_real.create(path, mode);
    atomic_fetch_add(&refused_count, 1);
    return -EMFILE;
}

/* Put one by one, by one thread. */
static int put_small(const struct write_scene *small, const char *path, struct hr_error *err)
{
    struct hr_write_options options = {.size = sizeof options, .shard_bytes = 1000};
    struct hr_writer *writer = NULL;
    atomic_store(&sync_count, 0);
    atomic_store(&sync_at_once_max, 0);
    int code = hr_writer_new(path, small->tensors, small->count, &options, &writer, err);
    for (size_t i = 0; !code && i < small->count; i++)
        code = hr_writer_put(writer, i, &small->sources[i], err);
    if (!code)
        code = hr_writer_finish(writer, err);
    hr_writer_free(writer);
    return code;
}

/* The storage is waited for by many threads at once, by the one there is, and without more descriptors than there are. */
static void test_many_files(void **state)
{
    struct write_scene small;
    struct hr_sys table = hr_sys_real;
    struct hr_error err = {0};
    (void)state;
    small_scene(&small);
    table.sync = slow_sync;
    table.thread_start = no_thread;
    hr_sys = &table;
    for (int way = 0; way < 3; way++) {
        atomic_store(&thread_lack, way == 1);
        atomic_store(&sync_crowd, way == 0 ? 5 : 0);
        atomic_store(&refused_least, way == 2);
        table.create = way == 2 ? scarce_create : hr_sys_real.create;
        if (put_small(&small, test_path("small/s.safetensors"), &err))
            fail_msg("way %d: %s", way, err.message);
        assert_int_equal(atomic_load(&sync_count), SMALL_COUNT + 2); /* the index, and the folder */
        if (way == 0)
            assert_true(atomic_load(&sync_at_once_max) >= 5);
        if (way == 1)
            assert_int_equal(atomic_load(&sync_at_once_max), 1);
        if (way == 2)
            assert_true(atomic_load(&refused_count) >= 1); /* and was tried again */
        write_scene_check(&small, test_path("small/s.safetensors.index.json"));
    }
    atomic_store(&thread_lack, 0);
    atomic_store(&refused_least, 0);
    hr_sys = &hr_sys_real;
    write_scene_release(&small);
}

/* Whichever wait fails, the whole does, by the name of that file, and nothing is left; threads of hr_write() stop. */
static void test_storage_fails_late(void **state)
{
    struct write_scene small;
    struct hr_sys table = hr_sys_real;
    struct hr_write_options options = {.size = sizeof options, .shard_bytes = 1000, .thread_count = 3};
    const char *path = test_path("late/s.safetensors");
    (void)state;
    small_scene(&small);
    mkdir(test_path("late"), 0700);
    table.sync = slow_sync;
    hr_sys = &table;
    for (int failing = 1; failing <= SMALL_COUNT; failing += failing < 3 ? 1 : 15)
        for (int is_whole = 0; is_whole <= 1; is_whole++) {
            struct hr_error err = {0};
            atomic_store(&sync_count, 0);
            atomic_store(&sync_failing, failing);
            int code = is_whole ? hr_write(path, small.tensors, small.sources, small.count, &options, &err)
                                : put_small(&small, path, &err);
            assert_int_equal(code, HR_EIO_ERROR);
            assert_int_equal(err.sys_errno, EIO);
            assert_non_null(strstr(err.message, "waiting for the storage"));
            assert_non_null(strstr(err.file, "late/s-000"));
            assert_int_equal(folder_entry_count(test_path("late")), 0);
        }
    atomic_store(&sync_failing, 0);
    hr_sys = &hr_sys_real;
    write_scene_release(&small);
}

/* ------------------------------------------------------------------------------------ life and death */

static void test_freed_early(void **state)
{
    (void)state;
    for (size_t put = 0; put <= scene.count; put += scene.count / 2) {
        struct hr_write_options options = {.size = sizeof options, .shard_bytes = 2 << 20};
        struct hr_writer *writer = NULL;
        struct hr_error err = {0};
        faults_install();
        assert_int_equal(
            hr_writer_new(test_path("early/e.safetensors"), scene.tensors, scene.count, &options, &writer, &err), 0);
        for (size_t i = 0; i < put; i++)
            assert_int_equal(hr_writer_put(writer, i, &scene.sources[i], &err), 0);
        hr_writer_free(writer);
        faults_assert_nothing_live();
        faults_remove();
        assert_int_equal(folder_entry_count(test_path("early")), 0);
    }
    hr_writer_free(NULL);
}

struct told {
    unsigned count, stop_at;
    uint64_t bytes;
};

static int told_progress(void *context, const struct hr_progress *progress)
{
    struct told *told = context;
    assert_true(progress->bytes_done >= told->bytes && progress->bytes_done <= progress->bytes_total);
    assert_true(progress->item_done <= progress->item_count && progress->item_count == scene.count);
    told->bytes = progress->bytes_done;
    return ++told->count == told->stop_at;
}

static ssize_t slow_pwritev(int fd, const struct iovec *vectors, int vector_count, uint64_t offset)
{
    usleep(60000);
    return hr_sys_real.pwritev(fd, vectors, vector_count, offset);
}

static void test_progress(void **state)
{
    (void)state;
    narrow_table = hr_sys_real;
    narrow_table.pwritev = slow_pwritev;
    for (unsigned stop_at = 0; stop_at < 2; stop_at++) {
        struct told told = {.stop_at = stop_at};
        struct hr_write_options options = {
            .size = sizeof options, .thread_count = 1, .progress = told_progress, .progress_context = &told};
        struct hr_error err = {0};
        hr_sys = &narrow_table;
        int code = hr_write(test_path("told/p.safetensors"), scene.tensors, scene.sources, scene.count, &options, &err);
        hr_sys = &hr_sys_real;
        assert_int_equal(code, stop_at ? HR_ECANCELLED : 0);
        assert_true(told.count >= 1);
        if (stop_at) /* the file of the first run */
            write_scene_check(&scene, test_path("told/p.safetensors"));
        assert_int_equal(folder_entry_count(test_path("told")), 1);
    }
}

/* -------------------------------------------------------------------------------------------- GPUs */

static void test_gpu(void **state)
{
    const char *devices[] = {"cpu", gpu_name()};
    void *memory[WRITE_TENSOR_MAX];
    struct hr_source sources[WRITE_TENSOR_MAX];
    (void)state;
    if (!devices[1])
        skip();
    memcpy(sources, scene.sources, sizeof sources);
    for (size_t i = 0; i < scene.count; i++) { /* every third one stays in host memory */
        uint64_t size = i % 3 ? hr_dtype_bits(scene.tensors[i].dtype) : 0;
        for (uint32_t d = 0; d < scene.tensors[i].rank; d++)
            size *= scene.tensors[i].shape[d];
        memory[i] = size ? gpu_alloc(size / 8, 0) : NULL;
        if (!memory[i])
            continue;
        gpu_write(memory[i], scene.sources[i].data, size / 8);
        sources[i].data = memory[i];
        sources[i].device_index = 1;
    }
    for (uint32_t threads = 1; threads < 4; threads++) {
        struct hr_write_options options = {
            .size = sizeof options, .devices = devices, .device_count = 2, .thread_count = threads};
        struct hr_error err = {0};
        const char *path = test_path("gpu/g.safetensors");
        if (hr_write(path, scene.tensors, sources, scene.count, &options, &err))
            fail_msg("%s", err.message);
        write_scene_check(&scene, path);
        unlink(path);
    }
    for (size_t i = 0; i < scene.count; i++)
        if (memory[i])
            gpu_free(memory[i], 0);
    gpu_reap();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes),         cmocka_unit_test(test_mapped),
        cmocka_unit_test(test_onto_itself),   cmocka_unit_test(test_links),
        cmocka_unit_test(test_bad_targets),   cmocka_unit_test(test_faults),
        cmocka_unit_test(test_shard_faults),  cmocka_unit_test(test_put_again),
        cmocka_unit_test(test_narrow_writes), cmocka_unit_test(test_odd_filesystems),
        cmocka_unit_test(test_full_disk),     cmocka_unit_test(test_freed_early),

        cmocka_unit_test(test_progress),      cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_many_files),    cmocka_unit_test(test_storage_fails_late),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
