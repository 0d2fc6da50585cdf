/*
 * test_host_memory.c: alignment, full use and return of blocks on both sides of every size limit, and what a
 * refusal of memory does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/sys.h"
#include "device/host.h"
#include "support/faults.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

static const uint64_t sizes[] = {0,           1,       255,         256,     257,         4096,        64 * KIB - 1,
                                 64 * KIB,    65537,   2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB + 7, 4 * MIB,
                                 5 * MIB - 1, 64 * MIB};
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

static void fill_ends(unsigned char *memory, uint64_t bytes)
{
    uint64_t edge = bytes < 4096 ? bytes : 4096;
    memset(memory, 0xa5, edge);
    memset(memory + bytes - edge, 0x5a, edge);
}

static void test_alignment_and_use(void **state)
{
    void *blocks[SIZE_COUNT];
    (void)state;
    faults_install();
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        assert_int_equal(hr_host_alloc(sizes[i], &blocks[i]), 0);
        assert_int_equal((uintptr_t)blocks[i] % 256, 0);
        if (sizes[i] >= 2 * MIB)
            assert_int_equal((uintptr_t)blocks[i] % (2 * MIB), 0);
        fill_ends(blocks[i], sizes[i]);
    }
    for (size_t i = 0; i < SIZE_COUNT; i++) { /* none was written into by another */
        const unsigned char *bytes = blocks[i];
        if (sizes[i] > 0)
            assert_int_equal(bytes[sizes[i] - 1], 0x5a);
        if (sizes[i] >= 8192)
            assert_int_equal(bytes[0], 0xa5);
        hr_host_free(blocks[i], sizes[i]);
    }
    assert_int_equal(faults_live().allocation_count, 0);
    assert_int_equal(faults_live().mapping_bytes, 0);
    faults_remove();
}

static void test_trimmed(void **state)
{
    void *block;
    (void)state;
    faults_install();
    assert_int_equal(hr_host_alloc(3 * MIB + 7, &block), 0);
    assert_int_equal(faults_live().mapping_bytes, 3 * MIB + 4 * KIB);
    hr_host_free(block, 3 * MIB + 7);
    hr_host_free(NULL, 3 * MIB);
    faults_remove();
}

static void test_refusal(void **state)
{
    (void)state;
    faults_install();
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        void *block = &block;
        faults_fail(FAULT_MEMORY | FAULT_MAP, 1, 0);
        assert_int_equal(hr_host_alloc(sizes[i], &block), HR_EOUT_OF_MEMORY);
        assert_ptr_equal(block, &block);
    }
    faults_fail(0, 0, 0);
    void *block = &block;
    assert_int_equal(hr_host_alloc(UINT64_MAX, &block), HR_EOUT_OF_MEMORY);
    assert_int_equal(hr_host_alloc(INT64_MAX, &block), HR_EOUT_OF_MEMORY);
    assert_ptr_equal(block, &block);
    assert_int_equal(faults_live().allocation_count, 0);
    assert_int_equal(faults_live().mapping_bytes, 0);
    faults_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_use),
        cmocka_unit_test(test_trimmed),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
