/*
 * gds_direct.c: whether cuFile would read a file by direct transfers from storage to the device. The library does not say,
 * and in its compatibility mode it succeeds all the same, so this is our rule. All of it must hold:
 *
 *   1. the kernel module nvidia-fs is there: /proc/driver/nvidia-fs exists and /dev/nvidia-fs0 can be opened;
 *   2. cuFile has found it (its properties name a version) and is not told to read by POSIX calls;
 *   3. the file lies on ext4 or XFS on a local NVMe drive, on NFS over RDMA, Lustre, WekaFS, GPFS or BeeGFS, and the
 *      properties say that this kind of storage is supported.
 *
 * What else cuFile may be able to do (RAIDs of NVMe drives, drives behind fabrics, PCI P2PDMA without nvidia-fs) is
 * counted as compatibility mode: the rule would rather miss direct transfers than promise them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "device/gds.h"
#include "device/gds_driver.h"
#include "device/gds_ring.h"

#define PROC "/proc/driver/nvidia-fs"
#define DEVICE "/dev/nvidia-fs0"
/* Lists of mounts are longer only on hosts of very many containers, which then get the compatibility mode. */
#define MOUNTS_BYTES_MAX (1u << 20)

static int say(char *detail, size_t capacity, const char *reason)
{
    snprintf(detail, capacity, "%s", reason);
    return 0;
}

int hr_gds_platform(char *detail, size_t capacity)
{
    struct stat ignored;
    if (hr_sys->stat(PROC, &ignored) < 0)
        return say(detail, capacity, "the kernel module nvidia-fs is not loaded (no " PROC ")");
    int fd = hr_sys->open(DEVICE, O_RDWR | O_NONBLOCK);
    if (fd < 0) {
        snprintf(detail, capacity, DEVICE " cannot be opened: %s", strerror(-fd));
        return 0;
    }
    hr_sys->close(fd);
    snprintf(detail, capacity, "nvidia-fs is loaded");
    return 1;
}

/* ----------------------------------------------------------------------------------------- mounts */

struct mount {
    char type[32];
    int is_rdma; /* "proto=rdma" among the options of the filesystem */
};

/* "36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue" */
static int mount_parse(char *line, unsigned long device_number, struct mount *ret_mount)
{
    unsigned major_number, minor_number;
    char *end = strstr(line, " - ");
    if (!end || sscanf(line, "%*u %*u %u:%u", &major_number, &minor_number) != 2 ||
        major_number != major(device_number) || minor_number != minor(device_number) ||
        sscanf(end, " - %31s", ret_mount->type) != 1)
        return 0;
    ret_mount->is_rdma = strstr(end, "proto=rdma") != NULL;
    return 1;
}

/* 0 when no mount has this number. */
static int mount_find(uint64_t device_number, struct mount *ret_mount)
{
    char *text = hr_alloc(MOUNTS_BYTES_MAX), *rest = NULL;
    int is_found = 0;
    if (!text || hr_read_text("/proc/self/mountinfo", text, MOUNTS_BYTES_MAX) < 0) {
        hr_free(text);
        return 0;
    }
    for (char *line = strtok_r(text, "\n", &rest); line && !is_found; line = strtok_r(NULL, "\n", &rest))
        is_found = mount_parse(line, device_number, ret_mount);
    hr_free(text);
    return is_found;
}

/* ---------------------------------------------------------------------------------------- storage */

static int is_local_nvme(uint64_t device_number)
{
    char path[48], target[512];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(device_number), minor(device_number));
    ssize_t size = hr_sys->link_read(path, target, sizeof target - 1);
    if (size <= 0)
        return 0;
    target[size] = '\0';
    return strstr(target, "/nvme") && !strstr(target, "nvme-fabrics");
}

static const struct {
    const char *type;
    int flag; /* bit of dstatusflags */
    const char *needs;
} storages[] = {
    {"ext4", HR_CU_FILE_NVME_SUPPORTED, "a local NVMe drive"},
    {"xfs", HR_CU_FILE_NVME_SUPPORTED, "a local NVMe drive"},
    {"nfs", HR_CU_FILE_NFS_SUPPORTED, "proto=rdma"},
    {"nfs4", HR_CU_FILE_NFS_SUPPORTED, "proto=rdma"},
    {"lustre", HR_CU_FILE_LUSTRE_SUPPORTED, NULL},
    {"wekafs", HR_CU_FILE_WEKAFS_SUPPORTED, NULL},
    {"gpfs", HR_CU_FILE_GPFS_SUPPORTED, NULL},
    {"beegfs", HR_CU_FILE_BEEGFS_SUPPORTED, NULL},
};

static int has_what_it_needs(int flag, const struct mount *mount, uint64_t device_number)
{
    if (flag == HR_CU_FILE_NVME_SUPPORTED)
        return is_local_nvme(device_number);
    return flag != HR_CU_FILE_NFS_SUPPORTED || mount->is_rdma;
}

static int storage_check(unsigned supported, uint64_t device_number, char *detail, size_t capacity)
{
    struct mount mount = {"", 0};
    if (!mount_find(device_number, &mount))
        return say(detail, capacity, "the files' filesystem is not known");
    for (size_t i = 0; i < sizeof storages / sizeof storages[0]; i++) {
        if (strcmp(mount.type, storages[i].type) != 0)
            continue;
        int has_needs = has_what_it_needs(storages[i].flag, &mount, device_number);
        int is_supported = supported >> storages[i].flag & 1;
        if (!has_needs)
            snprintf(detail, capacity, "%s without %s", mount.type, storages[i].needs);
        else
            snprintf(detail, capacity, is_supported ? "%s" : "cuFile has no support for %s here", mount.type);
        return has_needs && is_supported;
    }
    snprintf(detail, capacity, "%s has no direct transfers", mount.type);
    return 0;
}

int hr_gds_is_direct(const struct hr_gds *gds, uint64_t device_number, char *detail, size_t capacity)
{
    const struct hr_cu_file_properties *properties = &gds->properties;
    if (!hr_gds_platform(detail, capacity))
        return 0;
    if (properties->nvfs.major_version == 0)
        return say(detail, capacity, "cuFile has not found nvidia-fs");
    if (properties->nvfs.dcontrolflags >> HR_CU_FILE_POSIX_IO_MODE & 1)
        return say(detail, capacity, "cuFile is told to read by POSIX calls");
    return storage_check(properties->nvfs.dstatusflags, device_number, detail, capacity);
}
