/*
 * test_kernel_image.c: the kernels are inside the library, whole, in a form that a driver knows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/place.h"
#include "device/kernel_image.h"

static const struct {
    enum hr_kernel kernel;
    const char *path, *entry;
} kernels[] = {
    {HR_KERNEL_PLACE, HR_SOURCE_DIR "/src/device/kernels/place.ptx", HR_PLACE_KERNEL_NAME},
    {HR_KERNEL_CAST, HR_SOURCE_DIR "/src/device/kernels/cast.ptx", HR_CAST_KERNEL_NAME},
};

/* Byte for byte the file of the tree, and a NUL. */
static void test_ptx(void **state)
{
    static char file[1 << 20];
    (void)state;
    for (size_t i = 0; i < HR_KERNEL_COUNT; i++) {
        FILE *stream = fopen(kernels[i].path, "rb");
        assert_non_null(stream);
        memset(file, 0, sizeof file);
        size_t file_size = fread(file, 1, sizeof file, stream), size = 0;
        fclose(stream);
        assert_true(file_size < sizeof file);
        const char *ptx = hr_kernel_ptx(kernels[i].kernel, &size);
        assert_int_equal(size, file_size + 1);
        assert_memory_equal(ptx, file, size); /* the array is zero after the file */
        assert_int_equal(strlen(ptx), file_size);
    }
}

/* What drivers and tools look for: the version before all else but comments, GPUs that exist, the entry by its name. */
static void expect_ptx_of(enum hr_kernel kernel, const char *entry)
{
    size_t size;
    char start[64];
    const char *line = hr_kernel_ptx(kernel, &size), *ptx = line;
    while (line[0] == '/' && line[1] == '/')
        line = strchr(line, '\n') + 1;
    assert_memory_equal(line, ".version ", 9);
    assert_ptr_equal(strstr(ptx, ".version"), line);
    assert_true(strtod(line + 9, NULL) <= 7.0); /* CUDA 11.0 */
    assert_non_null(strstr(ptx, ".target sm_75"));
    snprintf(start, sizeof start, ".visible .entry %s(", entry);
    assert_non_null(strstr(ptx, start));
    assert_string_equal(hr_kernel_name(kernel), entry);
}

static void test_ptx_says_what_it_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < HR_KERNEL_COUNT; i++)
        expect_ptx_of(kernels[i].kernel, kernels[i].entry);
}

/* A fatbin's header: its mark, its version, its own size, and the size of what follows. */
static void expect_image_of(enum hr_kernel kernel)
{
    size_t size = 0, ptx_size = 0;
    const char *kind = NULL;
    const void *image = hr_kernel_image(kernel, &size, &kind);
    assert_non_null(image);
    if (strcmp(kind, "PTX") == 0) {
        assert_ptr_equal(image, hr_kernel_ptx(kernel, &ptx_size));
        assert_int_equal(size, ptx_size);
        return;
    }
    struct {
        uint32_t mark;
        uint16_t version, header_size;
        uint64_t size;
    } header;
    assert_string_equal(kind, "fatbin");
    assert_true(size > sizeof header);
    memcpy(&header, image, sizeof header);
    assert_int_equal(header.mark, 0xBA55ED50);
    assert_int_equal(header.header_size + header.size, size);
    assert_int_equal((uintptr_t)image % 8, 0);
}

static void test_image(void **state)
{
    (void)state;
    for (size_t i = 0; i < HR_KERNEL_COUNT; i++)
        expect_image_of(kernels[i].kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ptx),
        cmocka_unit_test(test_ptx_says_what_it_is),
        cmocka_unit_test(test_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
