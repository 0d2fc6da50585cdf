/*
 * test_cuda_driver.c: our declarations of the CUDA driver against a real cuda.h: every value, the layout of every
 * struct, and the type of every function in the version that the driver is asked for. The compiler compares. Where CMake
 * found no cuda.h (HEADRACE_CUDA_H), or one older than CUDA 12.8, the test says so and is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda_driver.h" /* before the macros of cuda.h can rename anything in it */

#ifdef HEADRACE_CUDA_H
#include <cuda.h>
#endif

#if defined(CUDA_VERSION) && CUDA_VERSION >= 12080
#include <cudaTypedefs.h>

#define CHECK_VALUE(name, value) _Static_assert((int)CU_##name == HR_CU_##name, #name);
#define CHECK_RESULT(name, value) _Static_assert((int)CUDA_##name == HR_CU_##name, #name);
HR_CU_VALUE_LIST(CHECK_VALUE)
HR_CU_RESULT_LIST(CHECK_RESULT)
_Static_assert((int)CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == HR_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, "access order");

#define CHECK_MEMBER(ours, theirs, member)                                                          \
    _Static_assert(offsetof(struct ours, member) == offsetof(theirs, member), #theirs "." #member); \
    _Static_assert(sizeof(((struct ours *)0)->member) == sizeof(((theirs *)0)->member), #theirs "." #member);
#define CHECK_2D(member) CHECK_MEMBER(hr_cu_memcpy_2d, CUDA_MEMCPY2D, member)
#define CHECK_ATTRIBUTES(member) CHECK_MEMBER(hr_cu_memcpy_attributes, CUmemcpyAttributes, member)
#define CHECK_LOCATION(member) CHECK_MEMBER(hr_cu_memory_location, CUmemLocation, member)
/* clang-format off */
CHECK_2D(srcXInBytes) CHECK_2D(srcY) CHECK_2D(srcMemoryType) CHECK_2D(srcHost) CHECK_2D(srcDevice) CHECK_2D(srcArray)
CHECK_2D(srcPitch) CHECK_2D(dstXInBytes) CHECK_2D(dstY) CHECK_2D(dstMemoryType) CHECK_2D(dstHost) CHECK_2D(dstDevice)
CHECK_2D(dstArray) CHECK_2D(dstPitch) CHECK_2D(WidthInBytes) CHECK_2D(Height)
CHECK_ATTRIBUTES(srcAccessOrder) CHECK_ATTRIBUTES(srcLocHint) CHECK_ATTRIBUTES(dstLocHint) CHECK_ATTRIBUTES(flags)
CHECK_LOCATION(type) CHECK_LOCATION(id)
    /* clang-format on */
    _Static_assert(sizeof(struct hr_cu_memcpy_2d) == sizeof(CUDA_MEMCPY2D), "CUDA_MEMCPY2D");
_Static_assert(sizeof(struct hr_cu_memcpy_attributes) == sizeof(CUmemcpyAttributes), "CUmemcpyAttributes");
_Static_assert(sizeof(struct hr_cu_memory_location) == sizeof(CUmemLocation), "CUmemLocation");
_Static_assert(sizeof(struct hr_cu_uuid) == sizeof(CUuuid), "CUuuid");

/* From here on our structs are the driver's. */
#define hr_cu_uuid CUuuid_st
#define hr_cu_memcpy_2d CUDA_MEMCPY2D_st
#define hr_cu_memcpy_attributes CUmemcpyAttributes_st
#define CHECK_FUNCTION(name, version, parameters)                                                     \
    _Static_assert(__builtin_types_compatible_p(hr_cu_result(*) parameters, PFN_##name##_v##version), \
                   #name " is declared otherwise");
HR_CU_FUNCTION_LIST(CHECK_FUNCTION)
HR_CU_OPTIONAL_FUNCTION_LIST(CHECK_FUNCTION)

#define SKIP_REASON NULL
#elif defined(CUDA_VERSION)
#define SKIP_REASON "skipped: this cuda.h is older than CUDA 12.8"
#else
#define SKIP_REASON "skipped: no cuda.h was found (HEADRACE_CUDA_H)"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_declarations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
