/*
 * test_gds_driver.c: our declarations of cuFile against a real cufile.h: every value, the layout of every struct and the
 * type of every function. The compiler compares. Where CMake found no cufile.h (HEADRACE_CUFILE_H), which needs a cuda.h
 * too, the test says so and is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "device/gds_driver.h"

#ifdef HEADRACE_CUFILE_H
#include <cufile.h>

#define CHECK_VALUE(name, value) _Static_assert((int)CU_FILE_##name == HR_CU_FILE_##name, #name);
HR_CU_FILE_ERROR_LIST(CHECK_VALUE)
HR_CU_FILE_VALUE_LIST(CHECK_VALUE)

#define CHECK_MEMBER(ours, theirs, member)                                                          \
    _Static_assert(offsetof(struct ours, member) == offsetof(theirs, member), #theirs "." #member); \
    _Static_assert(sizeof(((struct ours *)0)->member) == sizeof(((theirs *)0)->member), #theirs "." #member);
#define CHECK_ERROR(member) CHECK_MEMBER(hr_cu_file_error, CUfileError_t, member)
#define CHECK_DESCR(member) CHECK_MEMBER(hr_cu_file_descr, CUfileDescr_t, member)
#define CHECK_PROPS(member) CHECK_MEMBER(hr_cu_file_properties, CUfileDrvProps_t, member)
/* clang-format off */
CHECK_ERROR(err) CHECK_ERROR(cu_err)
CHECK_DESCR(type) CHECK_DESCR(handle.fd) CHECK_DESCR(handle.handle) CHECK_DESCR(fs_ops)
CHECK_PROPS(nvfs.major_version) CHECK_PROPS(nvfs.minor_version) CHECK_PROPS(nvfs.poll_thresh_size)
CHECK_PROPS(nvfs.max_direct_io_size) CHECK_PROPS(nvfs.dstatusflags) CHECK_PROPS(nvfs.dcontrolflags)
CHECK_PROPS(fflags) CHECK_PROPS(max_device_cache_size) CHECK_PROPS(per_buffer_cache_size)
CHECK_PROPS(max_device_pinned_mem_size) CHECK_PROPS(max_batch_io_size)
    /* clang-format on */
    _Static_assert(sizeof(struct hr_cu_file_error) == sizeof(CUfileError_t), "CUfileError_t");
_Static_assert(sizeof(struct hr_cu_file_descr) == sizeof(CUfileDescr_t), "CUfileDescr_t");
_Static_assert(sizeof(struct hr_cu_file_properties) > sizeof(CUfileDrvProps_t), "CUfileDrvProps_t has outgrown ours");

/* From here on our structs are the library's. */
#define hr_cu_file_error CUfileError
#define hr_cu_file_descr CUfileDescr_t
#define hr_cu_file_properties CUfileDrvProps
#define CHECK_FUNCTION(name, result, parameters)                                          \
    _Static_assert(__builtin_types_compatible_p(result(*) parameters, __typeof__(&name)), \
                   #name " is declared otherwise");
HR_CU_FILE_FUNCTION_LIST(CHECK_FUNCTION)
HR_CU_FILE_CLOSE(CHECK_FUNCTION)

#define SKIP_REASON NULL
#else
#define SKIP_REASON "skipped: no cufile.h was found (HEADRACE_CUFILE_H)"
#endif

static void test_declarations(void **state)
{
    const char *reason = SKIP_REASON;
    (void)state;
    if (reason) {
        print_message("%s\n", reason);
        skip();
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(hr_gds_error_name(5036), "CU_FILE_GPU_MEMORY_PINNING_FAILED");
    assert_string_equal(hr_gds_error_name(0), "CU_FILE_SUCCESS");
    assert_non_null(strstr(hr_gds_error_name(4711), "unknown"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_declarations), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
