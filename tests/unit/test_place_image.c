/*
 * test_place_image.c: the placing kernel is inside the library, whole, in a form that a driver knows.
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
#include "device/place_image.h"

/* Byte for byte the file of the tree, and a NUL. */
static void test_ptx(void **state)
{
    static char file[1 << 20];
    (void)state;
    FILE *stream = fopen(HR_SOURCE_DIR "/src/device/kernels/place.ptx", "rb");
    assert_non_null(stream);
    size_t file_size = fread(file, 1, sizeof file, stream), size = 0;
    fclose(stream);
    const char *ptx = hr_place_ptx(&size);
    assert_int_equal(size, file_size + 1);
    assert_memory_equal(ptx, file, size); /* the array is zero after the file */
    assert_int_equal(strlen(ptx), file_size);
}

/* What drivers and tools look for: the version before all else but comments, GPUs that exist, the entry by its name. */
static void test_ptx_says_what_it_is(void **state)
{
    size_t size;
    (void)state;
    const char *line = hr_place_ptx(&size), *ptx = line;
    while (line[0] == '/' && line[1] == '/')
        line = strchr(line, '\n') + 1;
    assert_memory_equal(line, ".version ", 9);
    assert_ptr_equal(strstr(ptx, ".version"), line);
    assert_true(strtod(line + 9, NULL) <= 7.0); /* CUDA 11.0 */
    assert_non_null(strstr(ptx, ".target sm_75"));
    assert_non_null(strstr(ptx, ".visible .entry " HR_PLACE_KERNEL_NAME "("));
}

/* A fatbin's header: its mark, its version, its own size, and the size of what follows. */
static void test_image(void **state)
{
    size_t size = 0, ptx_size = 0;
    const char *kind = NULL;
    (void)state;
    const void *image = hr_place_image(&size, &kind);
    assert_non_null(image);
    if (strcmp(kind, "PTX") == 0) {
        assert_ptr_equal(image, hr_place_ptx(&ptx_size));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ptx),
        cmocka_unit_test(test_ptx_says_what_it_is),
        cmocka_unit_test(test_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
