/*
 * Our declarations of the CUDA driver against a real cuda.h: every value, the layout of every struct, the type of every
 * function in the version that the driver is asked for. The compiler does the comparing; without a cuda.h
 * (HEADRACE_CUDA_H) nothing can be compared, and the test says so.
 */
#include "device/cuda_driver.h"

#include "test_model.h"

#ifdef HEADRACE_HAS_CUDA_H
#include <cuda.h>
#include <cudaTypedefs.h>

#define CHECK_VALUE(name, value) _Static_assert((int)CU_##name == HR_CU_##name, #name);
#define CHECK_RESULT(name, value) _Static_assert((int)CUDA_##name == HR_CU_##name, #name);
HR_CU_VALUE_LIST(CHECK_VALUE)
HR_CU_RESULT_LIST(CHECK_RESULT)
