/*
 * test_support.c: that the seams see what they must see. A fault table that misses a leak, or a disk whose events do
 * not happen, would make every test above them one that cannot fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <headrace/headrace.h>
#include <string.h>
#include <sys/mman.h>

#include "base/sys.h"
#include "support/fake_storage.h"
#include "support/faults.h"
#include "support/make_files.h"

#define CONTENT_BYTES 10000

static const char *content_write(const char *name, uint64_t seed)
{
    unsigned char content[CONTENT_BYTES];
    const char *path = test_path(name);
    test_fill(content, seed, 0, sizeof content);
    test_raw_write(path, content, sizeof content);
    return path;
}

static void *thread_of_nothing(void *argument)
{
    return argument;
}

static void test_live_counts(void **state)
{
    pthread_t thread;
    void *argument = &thread;
    (void)state;
    const char *path = content_write("live", 1);
    faults_install();
    void *memory = hr_alloc(10);
    void *resized = hr_sys->resize(NULL, 10);
    void *mapping = hr_sys->map(NULL, 5000, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct hr_dir *dir;
    int fd = hr_sys->open(path, O_RDONLY);
    assert_int_equal(hr_sys->dir_open(test_dir(), &dir), 0);
    struct faults_live live = faults_live();
    assert_int_equal(live.allocation_count, 2);
    assert_int_equal(live.mapping_bytes, 8192);
    assert_int_equal(live.descriptor_count, 1);
    assert_int_equal(live.dir_count, 1);
    assert_int_equal(hr_sys->thread_start(&thread, thread_of_nothing, argument), 0);
    assert_int_equal(pthread_join(thread, &argument), 0);
    assert_ptr_equal(argument, &thread);
    hr_free(memory);
    hr_free(hr_sys->resize(resized, 20));
    hr_free(NULL);
    hr_sys->unmap(mapping, 5000);
    hr_sys->close(fd);
    hr_sys->dir_close(dir);
    faults_assert_nothing_live();
    assert_int_equal(faults_count(FAULT_MEMORY), 3);
    assert_int_equal(faults_count(FAULT_MEMORY | FAULT_OPEN | FAULT_THREAD), 5);
    faults_remove();
}

static void test_failing_calls(void **state)
{
    (void)state;
    const char *path = content_write("failing", 1);
    faults_install();
    faults_fail(FAULT_OPEN | FAULT_MEMORY, 3, EACCES);
    void *memory = hr_alloc(1);
    int fd = hr_sys->open(path, O_RDONLY);
    assert_non_null(memory);
    assert_true(fd >= 0);
    assert_int_equal(hr_sys->open(path, O_RDONLY), -EACCES);
    assert_int_equal(hr_sys->close(fd), 0);
    faults_fail_from(FAULT_OPEN, 2, 0);
    fd = hr_sys->open(path, O_RDONLY);
    assert_int_equal(hr_sys->open(path, O_RDONLY), -EMFILE);
    assert_int_equal(hr_sys->open(path, O_RDONLY), -EMFILE);
    assert_int_equal(faults_fired(), 2);
    faults_fail(FAULT_CLOSE, 1, 0);
    assert_int_equal(hr_sys->close(fd), -EIO); /* and yet closed */
    hr_free(memory);
    faults_assert_nothing_live();
    faults_remove();
}

static ssize_t read_some(int fd, uint64_t offset)
{
    unsigned char bytes[100];
    return hr_read_full(fd, bytes, sizeof bytes, offset);
}

static void test_truncation(void **state)
{
    (void)state;
    struct fake_truncation truncation = {content_write("shrinks", 1), 150};
    struct fake_storage storage = {.event_at = 2, .event = fake_event_truncate, .event_context = &truncation};
    int fd = hr_sys->open(truncation.path, O_RDONLY);
    fake_storage_install(&storage);
    assert_int_equal(read_some(fd, 100), 100);
    assert_int_equal(read_some(fd, 100), 50);
    fake_storage_remove();
    hr_sys->close(fd);
}

static void test_replacement(void **state)
{
    struct stat before, after;
    (void)state;
    struct fake_replacement replacement = {content_write("new", 2), content_write("old", 1)};
    struct fake_storage storage = {.event_at = 1, .event = fake_event_replace, .event_context = &replacement};
    int fd = hr_sys->open(replacement.to, O_RDONLY);
    hr_sys->stat(replacement.to, &before);
    fake_storage_install(&storage);
    assert_int_equal(read_some(fd, 0), 100);
    fake_storage_remove();
    hr_sys->stat(replacement.to, &after);
    assert_int_not_equal(before.st_ino, after.st_ino);
    hr_sys->close(fd);
}

/* One file fails, another does not; a delay delays. */
static void test_bad_file_and_delay(void **state)
{
    (void)state;
    struct fake_storage storage = {
        .fail_begin = 100, .fail_end = 200, .fail_path = content_write("bad", 1), .delay_ns = 5000000};
    int bad = hr_sys->open(storage.fail_path, O_RDONLY), good = hr_sys->open(content_write("good", 1), O_RDONLY);
    uint64_t begin_ns = hr_sys->clock_ns();
    fake_storage_install(&storage);
    assert_int_equal(read_some(good, 150), 100);
    assert_int_equal(read_some(bad, 0), 100);
    assert_int_equal(read_some(bad, 1), -EIO);
    assert_int_equal(read_some(bad, 199), -EIO);
    assert_int_equal(read_some(bad, 200), 100);
    assert_int_equal(fake_storage_read_count(), 5);
    fake_storage_remove();
    assert_true(hr_sys->clock_ns() - begin_ns >= 25000000);
    hr_sys->close(bad);
    hr_sys->close(good);
}

/* The maker's own reader: every byte from the file, a changed one found where it is. */
static void test_made_file(void **state)
{
    static unsigned char bytes[1 << 20];
    static const struct test_tensor tensors[] = {
        {.name = "a\"b", .dtype = HR_DTYPE_BF16, .rank = 2, .shape = {3, 7}, .seed = 1},
        {.name = "empty", .dtype = HR_DTYPE_F32, .rank = 2, .shape = {0, 7}},
        {.name = "scalar", .dtype = HR_DTYPE_F64, .seed = 2},
        {.name = "four", .dtype = HR_DTYPE_F4, .rank = 1, .shape = {6}, .seed = 3},
        {.name = "sparse", .dtype = HR_DTYPE_U8, .rank = 1, .shape = {100001}, .seed = 4, .sparse = 1},
    };
    static const char start[] = "{\"a\\\"b\":{\"dtype\":\"BF16\",\"shape\":[3,7],\"data_offsets\":[0,42]},\"empty\":";
    const char *path = test_path("a/folder/made.safetensors");
    (void)state;
    uint64_t data_offset = test_file_write(path, tensors, 5, 3);
    int fd = hr_sys->open(path, O_RDONLY);
    ssize_t size = hr_read_full(fd, bytes, sizeof bytes, 0);
    hr_sys->close(fd);
    assert_int_equal(size, data_offset + 42 + 0 + 8 + 3 + 100001);
    assert_int_equal(bytes[0] | bytes[1] << 8, data_offset - 8);
    assert_memory_equal(bytes + 8, start, sizeof start - 1);
    assert_memory_equal(bytes + data_offset - 5, "}}   ", 5);
    const unsigned char *data = bytes + data_offset;
    for (size_t i = 0; i < 5; i++) {
        uint64_t tensor_bytes = test_tensor_bytes(&tensors[i]);
        assert_int_equal(test_tensor_mismatch(&tensors[i], data, 0, tensor_bytes), tensor_bytes);
        data += tensor_bytes;
    }
    unsigned char *sparse = bytes + data_offset + 53;
    assert_int_equal(sparse[50000], 0);
    sparse[50000] = 1;
    assert_int_equal(test_tensor_mismatch(&tensors[4], sparse, 0, 100001), 50000);
    sparse[100000] ^= 1;
    assert_int_equal(test_tensor_mismatch(&tensors[4], sparse + 60000, 60000, 40001), 40000);
    assert_int_equal(test_mismatch(sparse + 5, 4, 5, 100), 100);
    assert_int_equal(test_mismatch(sparse + 5, 4, 6, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live_counts), cmocka_unit_test(test_failing_calls),
        cmocka_unit_test(test_truncation),  cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_made_file),   cmocka_unit_test(test_bad_file_and_delay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
