/*
 * gds_driver.h: what is used of cuFile (libcufile.so.0), declared by ourselves so that nothing of it is needed to build.
 * The names are the library's; types carry an own prefix. tests/unit/test_gds_driver.c compares all of it with a real
 * cufile.h.
 *
 * The library is heavy: it starts threads, takes device memory and reads its own configuration. So it is loaded only when
 * somebody asks for it here, and its driver is closed again with the last who did.
 *
 * Source: the cuFile API reference, and cufile.h of versions 1.0 to 1.20.
 */
#ifndef HR_DEVICE_GDS_DRIVER_H
#define HR_DEVICE_GDS_DRIVER_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* X(number): errors by the library's names. Ours are HR_CU_FILE_name, the library's CU_FILE_name. */
/* clang-format off */
#define HR_CU_FILE_ERROR_LIST(X)                                                                    \
    X(SUCCESS, 0) X(DRIVER_NOT_INITIALIZED, 5001) X(DRIVER_INVALID_PROPS, 5002)                     \
    X(DRIVER_UNSUPPORTED_LIMIT, 5003) X(DRIVER_VERSION_MISMATCH, 5004)                              \
    X(DRIVER_VERSION_READ_ERROR, 5005) X(DRIVER_CLOSING, 5006) X(PLATFORM_NOT_SUPPORTED, 5007)      \
    X(IO_NOT_SUPPORTED, 5008) X(DEVICE_NOT_SUPPORTED, 5009) X(NVFS_DRIVER_ERROR, 5010)              \
    X(CUDA_DRIVER_ERROR, 5011) X(CUDA_POINTER_INVALID, 5012) X(CUDA_MEMORY_TYPE_INVALID, 5013)      \
    X(CUDA_POINTER_RANGE_ERROR, 5014) X(CUDA_CONTEXT_MISMATCH, 5015) X(INVALID_MAPPING_SIZE, 5016)  \
    X(INVALID_MAPPING_RANGE, 5017) X(INVALID_FILE_TYPE, 5018) X(INVALID_FILE_OPEN_FLAG, 5019)       \
    X(DIO_NOT_SET, 5020) X(INVALID_VALUE, 5022) X(MEMORY_ALREADY_REGISTERED, 5023)                  \
    X(MEMORY_NOT_REGISTERED, 5024) X(PERMISSION_DENIED, 5025) X(DRIVER_ALREADY_OPEN, 5026)          \
    X(HANDLE_NOT_REGISTERED, 5027) X(HANDLE_ALREADY_REGISTERED, 5028) X(DEVICE_NOT_FOUND, 5029)     \
    X(INTERNAL_ERROR, 5030) X(GETNEWFD_FAILED, 5031) X(NVFS_SETUP_ERROR, 5033)                      \
    X(IO_DISABLED, 5034) X(GPU_MEMORY_PINNING_FAILED, 5036)

/* X(name, value): bits of the properties, and the one type of handles. Ours are HR_CU_FILE_name. */
#define HR_CU_FILE_VALUE_LIST(X)                                                                    \
    X(LUSTRE_SUPPORTED, 0) X(WEKAFS_SUPPORTED, 1) X(NFS_SUPPORTED, 2) X(GPFS_SUPPORTED, 3)          \
    X(NVME_SUPPORTED, 4) X(BEEGFS_SUPPORTED, 9) X(ALLOW_COMPAT_MODE, 1) X(POSIX_IO_MODE, 2)         \
    X(HANDLE_TYPE_OPAQUE_FD, 1)

enum {
#define HR_CU_FILE_ENUM(name, value) HR_CU_FILE_##name = value,
    HR_CU_FILE_ERROR_LIST(HR_CU_FILE_ENUM) HR_CU_FILE_VALUE_LIST(HR_CU_FILE_ENUM)
#undef HR_CU_FILE_ENUM
};
/* clang-format on */

typedef void *hr_cu_file_handle;

struct hr_cu_file_error {
    int err;         /* 0, or of HR_CU_FILE_ERROR_LIST */
    unsigned cu_err; /* of the CUDA driver, with HR_CU_FILE_CUDA_DRIVER_ERROR */
};

struct hr_cu_file_descr {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
};

/* Sizes are KiB. What versions before the last have is the front of it; `spare` is room for what later ones add. */
struct hr_cu_file_properties {
    struct {
        unsigned major_version, minor_version; /* of nvidia-fs */
        size_t poll_thresh_size, max_direct_io_size;
        unsigned dstatusflags;  /* bit per kind of storage, HR_CU_FILE_..._SUPPORTED */
        unsigned dcontrolflags; /* bits HR_CU_FILE_ALLOW_COMPAT_MODE, HR_CU_FILE_POSIX_IO_MODE */
    } nvfs;
    unsigned fflags, max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size, max_batch_io_size,
        max_batch_io_timeout_msecs;
    unsigned spare[64];
};

/* X(name, result, parameters) */
/* clang-format off */
#define HR_CU_FILE_FUNCTION_LIST(X)                                                                                  \
    X(cuFileDriverOpen, struct hr_cu_file_error, (void))                                                             \
    X(cuFileDriverGetProperties, struct hr_cu_file_error, (struct hr_cu_file_properties *ret_properties))            \
    X(cuFileHandleRegister, struct hr_cu_file_error, (hr_cu_file_handle *ret_handle, struct hr_cu_file_descr *descr))\
    X(cuFileHandleDeregister, void, (hr_cu_file_handle handle))                                                      \
    X(cuFileBufRegister, struct hr_cu_file_error, (const void *memory, size_t bytes, int flags))                     \
    X(cuFileBufDeregister, struct hr_cu_file_error, (const void *memory))                                            \
    X(cuFileRead, ssize_t, (hr_cu_file_handle handle, void *memory, size_t bytes, off_t offset, off_t memory_offset))
/* cuFileDriverClose_v2, by its name before version 1.8 cuFileDriverClose. */
#define HR_CU_FILE_CLOSE(X) X(cuFileDriverClose, struct hr_cu_file_error, (void))

struct hr_gds_driver {
#define HR_CU_FILE_MEMBER(name, result, parameters) result (*name) parameters;
    HR_CU_FILE_FUNCTION_LIST(HR_CU_FILE_MEMBER) HR_CU_FILE_CLOSE(HR_CU_FILE_MEMBER)
#undef HR_CU_FILE_MEMBER
};
/* clang-format on */

/*
 * The library, with its driver open, until hr_gds_driver_release(). HR_EUNSUPPORTED with cause and remedy when it is not
 * there or does not start. Any thread, in a device's context; blocks while it starts. Not in a child of fork().
 */
int hr_gds_driver_acquire(const struct hr_gds_driver **ret_driver, struct hr_error *err);
void hr_gds_driver_release(void);

/* "CU_FILE_...", never NULL. */
const char *hr_gds_error_name(int error);

#endif
