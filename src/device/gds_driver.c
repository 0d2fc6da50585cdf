/*
 * gds_driver.c: finds cuFile, opens its driver for the first who needs it and closes it with the last. The table is
 * written under the lock, before anybody gets it, and stays as it is; so does the library, which may have begun threads.
 *
 * Where its driver does not start, because /dev/nvidia-fs0 is missing for instance, the library may close descriptor 0,
 * which is the program's. So a copy of that is held around every call that starts or ends something, and put back.
 */
#include "device/gds_driver.h"

#include <pthread.h>
#include <string.h>

#include "base/sys.h"

#define LIBRARY "libcufile.so.0"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library;
static struct hr_gds_driver table;
static unsigned holder_count;
static int is_ours; /* the driver was opened by us, and not by somebody else in this process */

/* ------------------------------------------------------------------------------------ descriptor 0 */

/* A copy of descriptor 0, or a negative number when there is none to lose. */
static int input_hold(void)
{
    return hr_sys->duplicate(0, 3, 1);
}

/* Puts it back if it was closed. If somebody has opened another file as 0 meanwhile, that stays. */
static void input_restore(int held)
{
    if (held < 0)
        return;
    int fd = hr_sys->duplicate(held, 0, 0);
    if (fd > 0)
        hr_sys->close(fd);
    hr_sys->close(held);
}

/* ----------------------------------------------------------------------------------------- the table */

static void *symbol(const char *name)
{
    return hr_sys->library_symbol(library, name);
}

/* The name of the first function that is missing, or NULL. */
static const char *table_fill(struct hr_gds_driver *driver)
{
    const char *missing = NULL;
    void *address;
#define FILL(name, result, parameters)               \
    address = symbol(#name);                         \
    memcpy(&driver->name, &address, sizeof address); \
    if (!address && !missing)                        \
        missing = #name;
    HR_CU_FILE_FUNCTION_LIST(FILL)
#undef FILL
    address = symbol("cuFileDriverClose_v2");
    if (!address)
        address = symbol("cuFileDriverClose");
    memcpy(&driver->cuFileDriverClose, &address, sizeof address);
    return missing || address ? missing : "cuFileDriverClose";
}

static int library_load(struct hr_error *err)
{
    if (library)
        return 0;
    int input = input_hold();
    library = hr_sys->library_open(LIBRARY);
    input_restore(input);
    if (!library)
        return hr_fail(err, HR_EUNSUPPORTED,
                       "no cuFile: the loader finds no " LIBRARY " that it can load; install GPUDirect Storage (the "
                       "toolkit's libcufile, or the package nvidia-cufile and its folder in LD_LIBRARY_PATH)");
    const char *missing = table_fill(&table);
    if (!missing)
        return 0;
    hr_sys->library_close(library);
    library = NULL;
    return hr_fail(err, HR_EUNSUPPORTED, LIBRARY " is too old: it lacks %s", missing);
}

static int fail_start(struct hr_cu_file_error result, struct hr_error *err)
{
    const char *remedy = "see cufile.log";
    if (result.err == HR_CU_FILE_DRIVER_NOT_INITIALIZED)
        remedy = "the kernel module nvidia-fs is not loaded; load it, or allow the compatibility mode "
                 "(allow_compat_mode in cufile.json, or CUFILE_ALLOW_COMPAT_MODE=true)";
    else if (result.err == HR_CU_FILE_PERMISSION_DENIED)
        remedy = "this process may not open /dev/nvidia-fs*; a container must be given them";
    else if (result.err == HR_CU_FILE_DRIVER_VERSION_MISMATCH)
        remedy = "nvidia-fs and " LIBRARY " are of versions that do not fit";
    return hr_fail_driver(err, HR_EUNSUPPORTED, result.err, hr_gds_error_name(result.err), "cuFile does not start; %s",
                          remedy);
}

/* Under the lock. */
static int driver_open(struct hr_error *err)
{
    int code = library_load(err);
    if (code)
        return code;
    int input = input_hold();
    struct hr_cu_file_error result = table.cuFileDriverOpen();
    input_restore(input);
    is_ours = result.err == HR_CU_FILE_SUCCESS;
    return is_ours || result.err == HR_CU_FILE_DRIVER_ALREADY_OPEN ? 0 : fail_start(result, err);
}

int hr_gds_driver_acquire(const struct hr_gds_driver **ret_driver, struct hr_error *err)
{
    pthread_mutex_lock(&lock);
    int code = holder_count ? 0 : driver_open(err);
    if (!code) {
        holder_count++;
        *ret_driver = &table;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

void hr_gds_driver_release(void)
{
    pthread_mutex_lock(&lock);
    if (--holder_count == 0 && is_ours) {
        int input = input_hold();
        table.cuFileDriverClose();
        input_restore(input);
    }
    pthread_mutex_unlock(&lock);
}

const char *hr_gds_error_name(int error)
{
    switch (error) {
#define NAME(name, value) \
    case value:           \
        return "CU_FILE_" #name;
        HR_CU_FILE_ERROR_LIST(NAME)
#undef NAME
    default:
        return "unknown error of cuFile";
    }
}
