/*
 * device.c: devices by their names, their references, and memory of either kind. Host memory is one static device.
 */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/sys.h"
#include "device/cuda_device.h"
#include "device/host.h"

static struct hr_device host_device = {
    .info = {.size = sizeof(struct hr_device_info), .type = HR_DEVICE_CPU, .name = "cpu"},
};

/* ------------------------------------------------------------------------------------------- names */

struct pci_address {
    unsigned domain, bus, slot;
};

/* "0000:1b:00.0", with or without the domain and the function. */
static int pci_parse(const char *text, struct pci_address *ret_address)
{
    unsigned function;
    int size = 0;
    struct pci_address address = {0};
    if (strspn(text, "0123456789abcdefABCDEF:.") != strlen(text))
        return 0;
    if (sscanf(text, "%8x:%2x:%2x%n.%x%n", &address.domain, &address.bus, &address.slot, &size, &function, &size) < 3) {
        address.domain = 0;
        size = 0;
        if (sscanf(text, "%2x:%2x%n.%x%n", &address.bus, &address.slot, &size, &function, &size) < 2)
            return 0;
    }
    *ret_address = address;
    return size > 0 && text[size] == '\0';
}

static int is_named(const struct hr_device_info *info, const char *name)
{
    struct pci_address wanted, own;
    if (strcasecmp(info->uuid, name) == 0)
        return 1;
    return pci_parse(name, &wanted) && pci_parse(info->pci, &own) && wanted.domain == own.domain &&
           wanted.bus == own.bus && wanted.slot == own.slot;
}

static int describe_ordinal(const struct hr_cuda_driver *driver, unsigned long ordinal, struct hr_device *ret_device,
                            struct hr_error *err)
{
    int count;
    int code = hr_cuda_count(driver, &count, err);
    if (code)
        return code;
    if (ordinal >= (unsigned long)count)
        return hr_fail(err, HR_EDEVICE_UNAVAILABLE,
                       "there is no cuda:%lu: this process sees %d GPU%s, cuda:0%s%.0d; CUDA_VISIBLE_DEVICES chooses "
                       "and orders them, and of MIG instances it shows one",
                       ordinal, count, count == 1 ? "" : "s",
                       count == 1 ? "" : " to cuda:", count == 1 ? 0 : count - 1);
    return hr_cuda_describe(driver, (int)ordinal, ret_device, err);
}

/* By UUID or PCI address. */
static int describe_named(const struct hr_cuda_driver *driver, const char *name, struct hr_device *ret_device,
                          struct hr_error *err)
{
    int count;
    int code = hr_cuda_count(driver, &count, err);
    for (int i = 0; !code && i < count; i++) {
        code = hr_cuda_describe(driver, i, ret_device, err);
        if (!code && is_named(&ret_device->info, name))
            return 0;
    }
    if (code)
        return code;
    return hr_fail(err, HR_EDEVICE_UNAVAILABLE,
                   "none of the %d GPUs that this process sees is '%.64s'; CUDA_VISIBLE_DEVICES may hide it, and MIG "
                   "instances have UUIDs of their own",
                   count, name);
}

/* "cuda" and "cuda:N"; 0 when it is neither. */
static int ordinal_parse(const char *name, unsigned long *ret_ordinal)
{
    char *end;
    *ret_ordinal = 0;
    if (strcmp(name, "cuda") == 0)
        return 1;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
        return 0;
    *ret_ordinal = strtoul(name + 5, &end, 10);
    return *end == '\0';
}

static int describe_gpu(const char *name, struct hr_device *ret_device, struct hr_error *err)
{
    const struct hr_cuda_driver *driver;
    struct pci_address address;
    unsigned long ordinal;
    int is_ordinal = ordinal_parse(name, &ordinal);
    if (!is_ordinal && strncasecmp(name, "GPU-", 4) != 0 && strncasecmp(name, "MIG-", 4) != 0 &&
        !pci_parse(name, &address))
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "'%.64s' names no device; say cpu, cuda, cuda:N, auto, a PCI address (0000:1b:00.0) or a whole "
                       "UUID (GPU-... or MIG-...)",
                       name);
    int code = hr_cuda_driver_get(&driver, err);
    if (code)
        return code;
    return is_ordinal ? describe_ordinal(driver, ordinal, ret_device, err)
                      : describe_named(driver, name, ret_device, err);
}

/* The first GPU that would give a context, else host memory. */
static void describe_auto(struct hr_device *ret_device)
{
    const struct hr_cuda_driver *driver;
    int count = 0, mode;
    if (hr_cuda_driver_get(&driver, NULL) == 0)
        hr_cuda_count(driver, &count, NULL);
    for (int i = 0; i < count; i++)
        if (hr_cuda_describe(driver, i, ret_device, NULL) == 0 &&
            (driver->cuDeviceGetAttribute(&mode, HR_CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, ret_device->number) ||
             mode != HR_CU_COMPUTEMODE_PROHIBITED))
            return;
    ret_device->driver = NULL;
    ret_device->info = host_device.info;
}

/* All of *ret_device that is no resource. */
static int describe(const char *name, struct hr_device *ret_device, struct hr_error *err)
{
    if (!name)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "the device's name must be given; it is NULL");
    memset(ret_device, 0, sizeof *ret_device);
    if (strcmp(name, "cpu") == 0)
        ret_device->info = host_device.info;
    else if (strcmp(name, "auto") == 0)
        describe_auto(ret_device);
    else
        return describe_gpu(name, ret_device, err);
    return 0;
}

int hr_device_find(const char *name, struct hr_device_info *ret_info, struct hr_error *err)
{
    struct hr_device device;
    if (!ret_info)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the device must be given; ret_info is NULL");
    size_t size = ret_info->size;
    if (size < sizeof ret_info->size)
        return hr_fail(err, HR_EINVALID_ARGUMENT,
                       "hr_device_info: the member 'size' is %zu; set it to sizeof the struct", size);
    int code = describe(name, &device, err);
    if (code)
        return code;
    device.info.size = size;
    memcpy(ret_info, &device.info, size < sizeof device.info ? size : sizeof device.info);
    return 0;
}

/* -------------------------------------------------------------------------------------- references */

int hr_device_open(const char *name, struct hr_device **ret_device, struct hr_error *err)
{
    struct hr_device described;
    int code = describe(name, &described, err);
    if (code)
        return code;
    if (described.driver)
        return hr_cuda_open(&described, ret_device, err);
    *ret_device = &host_device;
    return 0;
}

void hr_device_ref(struct hr_device *device)
{
    if (device->driver)
        hr_cuda_ref(device);
}

void hr_device_unref(struct hr_device *device)
{
    if (device && device->driver)
        hr_cuda_unref(device);
}

const struct hr_device_info *hr_device_info(const struct hr_device *device)
{
    return &device->info;
}

int hr_device_is_host(const struct hr_device *device)
{
    return !device->driver;
}

/* ------------------------------------------------------------------------------------------ memory */

/* Where memory is short, some may be with the reaper. */
static int alloc_after_reaping(struct hr_device *device, uint64_t bytes, void **ret_memory, struct hr_error *err)
{
    struct hr_error first;
    int code = hr_cuda_alloc(device, bytes, ret_memory, &first);
    if (code == HR_EOUT_OF_MEMORY) {
        hr_reaper_drain(device);
        return hr_cuda_alloc(device, bytes, ret_memory, err);
    }
    if (code && err)
        *err = first;
    return code;
}

int hr_device_alloc(struct hr_device *device, uint64_t bytes, void **ret_memory, struct hr_error *err)
{
    if (device->driver)
        return alloc_after_reaping(device, bytes, ret_memory, err);
    return hr_host_alloc(bytes, ret_memory) ? hr_fail_memory(err, bytes, "tensors") : 0;
}

/* A capture that forbids it is waited for by the reaper. */
void hr_device_free(struct hr_device *device, void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    if (!device->driver)
        hr_host_free(memory, bytes);
    else if (!hr_cuda_free(device, memory))
        hr_reaper_add(device, memory, bytes);
}

void hr_device_free_later(struct hr_device *device, void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    if (device->driver)
        hr_reaper_add(device, memory, bytes);
    else
        hr_host_free(memory, bytes);
}

void hr_device_reap(struct hr_device *device)
{
    if (device->driver)
        hr_reaper_drain(device);
}

void hr_device_memory(struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total)
{
    *ret_free = *ret_total = 0;
    if (device->driver)
        hr_cuda_memory(device, ret_free, ret_total);
}

int hr_device_read(struct hr_device *device, void *ret_bytes, const void *memory, uint64_t bytes, struct hr_error *err)
{
    if (device->driver)
        return hr_cuda_read(device, ret_bytes, memory, bytes, err);
    memcpy(ret_bytes, memory, bytes);
    return 0;
}
