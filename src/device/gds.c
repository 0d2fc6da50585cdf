/*
 * gds.c: the ring of device memory, the files, and reads from one into the other.
 *
 * Invariant: slots 0 to slot_count - 1 are registered, and no others. Files are known to cuFile, not to a ring.
 */
#include "device/gds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/limits.h"
#include "base/sys.h"
#include "device/cuda_device.h"
#include "device/gds_driver.h"
#include "device/gds_ring.h"

struct hr_gds_file {
    hr_cu_file_handle handle;
    int fd;
};

/* ---------------------------------------------------------------------------------------- the ring */

static uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

/* A page lies before the first slot and behind the last, for the kernel to read; one is lost to the alignment. */
static int ring_alloc(struct hr_gds *gds, struct hr_error *err)
{
    gds->memory_bytes = gds->slot_bytes * gds->slot_count + 3ull * HR_GDS_PAGE_BYTES;
    int code = hr_device_alloc(gds->device, gds->memory_bytes, &gds->memory, err);
    if (!code)
        gds->slots = (char *)(uintptr_t)(align_up((uintptr_t)gds->memory, HR_GDS_PAGE_BYTES) + HR_GDS_PAGE_BYTES);
    return code;
}

/* In the device's context. As many slots as cuFile takes; the first refusal is the reason for there being no more. */
static int ring_register(struct hr_gds *gds, struct hr_error *err)
{
    struct hr_cu_file_error result = {0};
    uint32_t wanted = gds->slot_count;
    for (gds->slot_count = 0; gds->slot_count < wanted; gds->slot_count++) {
        result = gds->driver->cuFileBufRegister(hr_gds_slot(gds, gds->slot_count), gds->slot_bytes, 0);
        if (result.err != HR_CU_FILE_SUCCESS)
            break;
    }
    if (gds->slot_count == 0)
        return hr_fail_driver(err, HR_EUNSUPPORTED, result.err, hr_gds_error_name(result.err),
                              "cuFile registers no %llu bytes of cuda:%d; other programs may hold its aperture (BAR1), "
                              "or chunk_bytes is too large",
                              (unsigned long long)gds->slot_bytes, hr_device_info(gds->device)->ordinal);
    int size = snprintf(gds->detail, sizeof gds->detail, "device memory: %u slots of %llu KiB", gds->slot_count,
                        (unsigned long long)(gds->slot_bytes >> 10));
    if (gds->slot_count < wanted)
        snprintf(gds->detail + size, sizeof gds->detail - (size_t)size, ", not %u: cuFileBufRegister: %s (%d)", wanted,
                 hr_gds_error_name(result.err), result.err);
    return 0;
}

/* In the device's context. */
static int driver_start(struct hr_gds *gds, struct hr_error *err)
{
    int code = hr_gds_driver_acquire(&gds->driver, err);
    if (code)
        return code;
    struct hr_cu_file_error result = gds->driver->cuFileDriverGetProperties(&gds->properties);
    if (result.err == HR_CU_FILE_SUCCESS)
        return 0;
    hr_gds_driver_release();
    gds->driver = NULL;
    return hr_fail_driver(err, HR_EUNSUPPORTED, result.err, hr_gds_error_name(result.err),
                          "cuFile does not tell its properties");
}

static int ring_init(struct hr_gds *gds, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(gds->device, &scope, err);
    if (code)
        return code;
    code = driver_start(gds, err);
    hr_cuda_leave(gds->device, &scope);
    if (!code)
        code = ring_alloc(gds, err);
    if (!code)
        code = hr_cuda_enter(gds->device, &scope, err);
    if (code) {
        gds->slot_count = 0; /* none is registered */
        return code;
    }
    code = ring_register(gds, err);
    hr_cuda_leave(gds->device, &scope);
    return code;
}

int hr_gds_open(struct hr_device *device, uint64_t slot_bytes, uint32_t slot_count, struct hr_gds **ret_gds,
                struct hr_error *err)
{
    struct hr_gds *gds = hr_alloc(sizeof *gds);
    if (!gds)
        return hr_fail_memory(err, sizeof *gds, "a ring of device memory");
    gds->device = device;
    hr_device_ref(device);
    gds->slot_bytes = align_up(slot_bytes, HR_GDS_PAGE_BYTES);
    gds->slot_count = slot_count;
    int code = ring_init(gds, err);
    if (code) {
        hr_gds_close(gds);
        return code;
    }
    *ret_gds = gds;
    return 0;
}

void hr_gds_close(struct hr_gds *gds)
{
    struct hr_cuda_scope scope;
    if (!gds)
        return;
    if (gds->driver) {
        int is_alive = hr_cuda_enter_to_free(gds->device, &scope) == 0;
        while (is_alive && gds->slot_count)
            gds->driver->cuFileBufDeregister(hr_gds_slot(gds, --gds->slot_count));
        hr_gds_driver_release();
        if (is_alive)
            hr_cuda_leave(gds->device, &scope);
    }
    hr_device_free(gds->device, gds->memory, gds->memory_bytes);
    hr_device_unref(gds->device);
    hr_free(gds);
}

void hr_gds_forget(struct hr_gds *gds)
{
    hr_free(gds);
}

uint32_t hr_gds_slot_count(const struct hr_gds *gds)
{
    return gds->slot_count;
}

uint64_t hr_gds_slot_bytes(const struct hr_gds *gds)
{
    return gds->slot_bytes;
}

char *hr_gds_slot(const struct hr_gds *gds, uint32_t slot_index)
{
    return (char *)((uintptr_t)gds->slots + slot_index * gds->slot_bytes);
}

const char *hr_gds_detail(const struct hr_gds *gds)
{
    return gds->detail;
}

/* ----------------------------------------------------------------------------------------- files */

/* Direct transfers want O_DIRECT, which not every filesystem has. */
static int open_again(int fd)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = hr_sys->open(path, O_RDONLY | O_NONBLOCK | O_DIRECT);
    return again == -EINVAL || again == -EOPNOTSUPP ? hr_sys->open(path, O_RDONLY | O_NONBLOCK) : again;
}

int hr_gds_file_open(struct hr_gds *gds, int fd, struct hr_gds_file **ret_file, struct hr_error *err)
{
    struct hr_cuda_scope scope;
    struct hr_cu_file_error result;
    struct hr_gds_file *file = hr_alloc(sizeof *file);
    if (!file)
        return hr_fail_memory(err, sizeof *file, "a file of cuFile");
    file->fd = open_again(fd);
    int code = file->fd < 0 ? hr_fail_sys(err, HR_EIO_ERROR, -file->fd, "cannot open the file again for cuFile") : 0;
    if (!code && (code = hr_cuda_enter(gds->device, &scope, err)) < 0)
        hr_sys->close(file->fd);
    if (!code) {
        struct hr_cu_file_descr descr = {.type = HR_CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = file->fd};
        result = gds->driver->cuFileHandleRegister(&file->handle, &descr);
        hr_cuda_leave(gds->device, &scope);
        if (result.err != HR_CU_FILE_SUCCESS) {
            hr_sys->close(file->fd);
            code = hr_fail_driver(err, HR_EUNSUPPORTED, result.err, hr_gds_error_name(result.err),
                                  "cuFile does not take this file; use another route");
        }
    }
    if (code) {
        hr_free(file);
        return code;
    }
    *ret_file = file;
    return 0;
}

void hr_gds_file_close(struct hr_gds *gds, struct hr_gds_file *file)
{
    struct hr_cuda_scope scope;
    if (!file)
        return;
    int is_alive = hr_cuda_enter_to_free(gds->device, &scope) == 0;
    gds->driver->cuFileHandleDeregister(file->handle);
    if (is_alive)
        hr_cuda_leave(gds->device, &scope);
    hr_sys->close(file->fd);
    hr_free(file);
}

/* ------------------------------------------------------------------------------------------ reads */

static int fail_read(int64_t result, int error, uint64_t bytes, uint64_t offset, struct hr_error *err)
{
    if (result == -1)
        return hr_fail_sys(err, HR_EIO_ERROR, error, "reading %llu bytes at byte %llu by cuFile failed",
                           (unsigned long long)bytes, (unsigned long long)offset);
    return hr_fail_driver(err, HR_EIO_ERROR, (int)-result, hr_gds_error_name((int)-result),
                          "reading %llu bytes at byte %llu by cuFile failed", (unsigned long long)bytes,
                          (unsigned long long)offset);
}

/* In the device's context. Goes on at a multiple of the alignment, so that a part of a page is read once more. */
static int64_t read_all(struct hr_gds *gds, struct hr_gds_file *file, char *slot, uint64_t slot_offset,
                        uint64_t file_offset, uint64_t bytes, uint64_t *bytes_read, uint64_t *read_count,
                        struct hr_error *err)
{
    uint64_t whole = align_up(bytes, HR_GDS_ALIGNMENT), done = 0;
    while (done < bytes) {
        uint64_t from = done / HR_GDS_ALIGNMENT * HR_GDS_ALIGNMENT;
        ssize_t result = gds->driver->cuFileRead(file->handle, slot, whole - from, (off_t)(file_offset + from),
                                                 (off_t)(slot_offset + from));
        int error = errno;
        if (result == -1 && error == EINTR)
            continue;
        if (result < 0)
            return fail_read(result, error, whole - from, file_offset + from, err);
        if ((uint64_t)result > whole - from)
            return hr_fail(err, HR_EIO_ERROR, "cuFile says that it has read %lld bytes where %llu were asked for",
                           (long long)result, (unsigned long long)(whole - from));
        ++*read_count;
        *bytes_read += (uint64_t)result;
        if (from + (uint64_t)result <= done)
            break; /* nothing new: the end of the file */
        done = from + (uint64_t)result;
    }
    return (int64_t)(done < bytes ? done : bytes);
}

int64_t hr_gds_read(struct hr_gds *gds, struct hr_gds_file *file, uint32_t slot_index, uint64_t slot_offset,
                    uint64_t file_offset, uint64_t bytes, uint64_t *bytes_read, uint64_t *read_count,
                    struct hr_error *err)
{
    struct hr_cuda_scope scope;
    int code = hr_cuda_enter(gds->device, &scope, err);
    if (code)
        return code;
    int64_t result =
        read_all(gds, file, hr_gds_slot(gds, slot_index), slot_offset, file_offset, bytes, bytes_read, read_count, err);
    hr_cuda_leave(gds->device, &scope);
    return result;
}
