/*
 * cuda_driver.c: finds the driver and its entry points. The table is one of the process's few global objects: it is
 * written once, under the lock, before `is_ready` is set, and stays as it is; so does the library.
 */
#include "device/cuda_driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/fork.h"
#include "base/sys.h"

#define LIBRARY "libcuda.so.1"
#define NO_DRIVER_REMEDY "install NVIDIA's driver, or in a container start it with its GPUs (--gpus all)"

typedef hr_cu_result address_function(const char *, void **, int, unsigned long long, unsigned *);
typedef hr_cu_result address_function_11(const char *, void **, int, unsigned long long);

/* cuGetProcAddress() got a fifth parameter in CUDA 12. One of the two is there. */
struct finder {
    address_function *find;
    address_function_11 *find_11;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library; /* under the lock; kept once cuInit() was called, since the driver may have begun to run */
static struct hr_cuda_driver table;
static atomic_int is_ready;
static int fork_generation; /* of the process that started the driver; written before is_ready */

static int finder_init(struct finder *finder)
{
    void *address = hr_sys->library_symbol(library, "cuGetProcAddress_v2");
    memcpy(&finder->find, &address, sizeof address);
    address = address ? NULL : hr_sys->library_symbol(library, "cuGetProcAddress");
    memcpy(&finder->find_11, &address, sizeof address);
    return finder->find || finder->find_11;
}

/* NULL when the driver does not have it in this version. */
static void *entry_point(const struct finder *finder, const char *name, int version)
{
    void *address = NULL;
    unsigned status;
    hr_cu_result result = finder->find
                              ? finder->find(name, &address, version, HR_CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status)
                              : finder->find_11(name, &address, version, HR_CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    return result == HR_CU_SUCCESS ? address : NULL;
}

/* The name of the first required function that is missing, or NULL. */
static const char *table_fill(struct hr_cuda_driver *driver, const struct finder *finder)
{
    const char *missing = NULL;
    void *address;
#define FILL(name, version, parameters)            \
    address = entry_point(finder, #name, version); \
    memcpy(&driver->name, &address, sizeof address);
#define FILL_REQUIRED(name, version, parameters) \
    FILL(name, version, parameters)              \
    if (!address && !missing)                    \
        missing = #name;
    HR_CU_FUNCTION_LIST(FILL_REQUIRED)
    HR_CU_OPTIONAL_FUNCTION_LIST(FILL)
#undef FILL
#undef FILL_REQUIRED
    if (!driver->cuDeviceGetUuid) { /* older ones do not know the UUIDs of MIG instances */
        address = entry_point(finder, "cuDeviceGetUuid", 9020);
        memcpy(&driver->cuDeviceGetUuid, &address, sizeof address);
    }
    if (!driver->cuModuleUnload || !driver->cuModuleGetFunction || !driver->cuLaunchKernel)
        driver->cuModuleLoadData = NULL; /* modules wholly or not at all */
    return missing;
}

const char *hr_cuda_result_name(const struct hr_cuda_driver *driver, hr_cu_result result)
{
    const char *name = NULL;
    return driver->cuGetErrorName(result, &name) == HR_CU_SUCCESS && name ? name : "unknown error";
}

static int fail_start(const struct hr_cuda_driver *driver, hr_cu_result result, struct hr_error *err)
{
    const char *remedy = "see what nvidia-smi says";
    if (result == HR_CU_ERROR_NO_DEVICE)
        remedy = "the driver sees no GPU: CUDA_VISIBLE_DEVICES may hide them, or the container was started without any";
    else if (result == HR_CU_ERROR_STUB_LIBRARY)
        remedy = "the " LIBRARY " that was found is the toolkit's stub; take its folder out of LD_LIBRARY_PATH";
    else if (result == HR_CU_ERROR_SYSTEM_DRIVER_MISMATCH)
        remedy = LIBRARY " and the kernel's module are of different versions; reload the module or restart the machine";
    else if (result == HR_CU_ERROR_NOT_INITIALIZED)
        remedy = "CUDA cannot be used in a child of a fork whose parent used it; start the process anew (spawn)";
    return hr_fail_driver(err, HR_EDEVICE_UNAVAILABLE, (int)result, hr_cuda_result_name(driver, result),
                          "the CUDA driver does not start; %s", remedy);
}

/* Under the lock. What a failure has filled of the table is filled again by the next try. */
static int driver_start(struct hr_error *err)
{
    struct finder finder;
    if (!library)
        library = hr_sys->library_open(LIBRARY);
    if (!library)
        return hr_fail(err, HR_EDEVICE_UNAVAILABLE,
                       "no CUDA driver: the loader finds no " LIBRARY "; " NO_DRIVER_REMEDY);
    const char *missing = finder_init(&finder) ? table_fill(&table, &finder) : "cuGetProcAddress";
    if (missing) {
        hr_sys->library_close(library);
        library = NULL;
        return hr_fail(err, HR_EDEVICE_UNAVAILABLE,
                       "the CUDA driver is too old: it lacks %s; CUDA 11.3 (driver 465) or later is needed", missing);
    }
    hr_cu_result result = table.cuInit(0);
    if (result != HR_CU_SUCCESS)
        return fail_start(&table, result, err);
    fork_generation = hr_fork_generation();
    is_ready = 1;
    return 0;
}

int hr_cuda_driver_get(const struct hr_cuda_driver **ret_driver, struct hr_error *err)
{
    int code = 0;
    if (!is_ready) {
        pthread_mutex_lock(&lock);
        if (!is_ready)
            code = driver_start(err);
        pthread_mutex_unlock(&lock);
    }
    if (!code && fork_generation != hr_fork_generation())
        code = hr_fail(err, HR_EFORKED,
                       "the CUDA driver was started before a fork and cannot be used in the child; start the process "
                       "anew (spawn), or fork before a GPU is used");
    if (!code)
        *ret_driver = &table;
    return code;
}
