/*
 * cuda_device.c: describes GPUs, opens them, and brackets their use: the caller's current context and capture mode are
 * what they were after every call, and a fault that has destroyed the context is remembered and answers the next ones.
 *
 * Whoever opens a GPU gets the same object, so that its reaper, its kernel and its faults are known to all. The list of
 * open ones is one of the process's few global objects; its lock is never held across a driver call.
 */
#include "device/cuda_device.h"

#include <stdio.h>
#include <string.h>

#include "base/sys.h"

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hr_device *open_devices;

int hr_cuda_count(const struct hr_cuda_driver *driver, int *ret_count, struct hr_error *err)
{
    int count = 0;
    hr_cu_result result = driver->cuDeviceGetCount(&count);
    if (result != HR_CU_SUCCESS)
        return hr_fail_driver(err, HR_EDEVICE_UNAVAILABLE, (int)result, hr_cuda_result_name(driver, result),
                              "the CUDA driver does not say which GPUs there are");
    if (count <= 0)
        return hr_fail(err, HR_EDEVICE_UNAVAILABLE,
                       "the CUDA driver shows no GPU: CUDA_VISIBLE_DEVICES may hide them, or the container was started "
                       "without any");
    *ret_count = count;
    return 0;
}

/* `otherwise` when the driver does not know the attribute. */
static int attribute_of(const struct hr_device *device, unsigned attribute, int otherwise)
{
    int value;
    return device->driver->cuDeviceGetAttribute(&value, attribute, device->number) == HR_CU_SUCCESS ? value : otherwise;
}

/* The driver gives a MIG instance's UUID without a prefix; its name tells what it is. */
static void describe_uuid(struct hr_device *device)
{
    struct hr_cu_uuid uuid;
    struct hr_device_info *info = &device->info;
    if (!device->driver->cuDeviceGetUuid || device->driver->cuDeviceGetUuid(&uuid, device->number) != HR_CU_SUCCESS)
        return;
    size_t size = (size_t)snprintf(info->uuid, sizeof info->uuid, "%s", strstr(info->name, " MIG ") ? "MIG-" : "GPU-");
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        size +=
            (size_t)snprintf(info->uuid + size, sizeof info->uuid - size, "%s%02x", dash, (unsigned char)uuid.bytes[i]);
    }
}

/*
 * Confidential computing shows in that the driver registers no host memory on a discrete GPU: the device cannot reach
 * it then, and memory that the driver makes moves by page faults.
 */
static void describe_abilities(struct hr_device *device)
{
    struct hr_device_info *info = &device->info;
    info->compute_major = (uint32_t)attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    info->compute_minor = (uint32_t)attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    info->copy_engine_count = (uint32_t)attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 0);
    int registers = attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, -1);
    device->registers_host = registers != 0; /* where it is not known, trying tells */
    info->confidential = registers == 0 && !attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_INTEGRATED, 0);
    device->reads_host =
        registers >= 0 && !info->confidential && attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1);
    device->pitch_bytes_max = (uint64_t)attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0);
}

int hr_cuda_describe(const struct hr_cuda_driver *driver, int ordinal, struct hr_device *ret_device,
                     struct hr_error *err)
{
    size_t total = 0;
    struct hr_device_info *info = &ret_device->info;
    memset(ret_device, 0, sizeof *ret_device);
    ret_device->driver = driver;
    hr_cu_result result = driver->cuDeviceGet(&ret_device->number, ordinal);
    if (result == HR_CU_SUCCESS)
        result = driver->cuDeviceGetName(info->name, sizeof info->name, ret_device->number);
    if (result == HR_CU_SUCCESS)
        result = driver->cuDeviceTotalMem(&total, ret_device->number);
    if (result != HR_CU_SUCCESS)
        return hr_fail_driver(err, HR_EDEVICE_UNAVAILABLE, (int)result, hr_cuda_result_name(driver, result),
                              "cuda:%d cannot be asked what it is; see what nvidia-smi says", ordinal);
    info->size = sizeof *info;
    info->type = HR_DEVICE_CUDA;
    info->ordinal = ordinal;
    info->memory_bytes = total;
    snprintf(info->pci, sizeof info->pci, "%04x:%02x:%02x.0",
             (unsigned)attribute_of(ret_device, HR_CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0),
             (unsigned)attribute_of(ret_device, HR_CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0) & 0xffu,
             (unsigned)attribute_of(ret_device, HR_CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0) & 0xffu);
    describe_uuid(ret_device);
    describe_abilities(ret_device);
    return 0;
}

static int fail_open(const struct hr_device *device, hr_cu_result result, struct hr_error *err)
{
    int is_prohibited = attribute_of(device, HR_CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0) == HR_CU_COMPUTEMODE_PROHIBITED;
    const char *remedy = is_prohibited ? "its compute mode prohibits it (nvidia-smi -c DEFAULT allows it)"
                                       : "its memory may be full, or another process may have it for itself";
    return hr_fail_driver(err, HR_EDEVICE_UNAVAILABLE, (int)result, hr_cuda_result_name(device->driver, result),
                          "cuda:%d (%s) gives no context; %s", device->info.ordinal, device->info.name, remedy);
}

/* Without references and with nothing left to reap. */
static void device_close(struct hr_device *device)
{
    struct hr_cuda_scope scope;
    for (int i = 0; i < HR_KERNEL_COUNT; i++) {
        if (!device->kernels[i].module || hr_cuda_enter_to_free(device, &scope))
            continue;
        device->driver->cuModuleUnload(device->kernels[i].module);
        hr_cuda_leave(device, &scope);
    }
    if (device->context)
        device->driver->cuDevicePrimaryCtxRelease(device->number);
    pthread_mutex_destroy(&device->kernel_lock);
    hr_reaper_release(&device->reaper);
    hr_free(device);
}

static int device_make(const struct hr_device *described, struct hr_device **ret_device, struct hr_error *err)
{
    struct hr_device *device = hr_alloc(sizeof *device);
    if (!device || hr_reaper_init(&device->reaper)) {
        hr_free(device);
        return hr_fail_memory(err, sizeof *device, "a device");
    }
    device->driver = described->driver;
    device->info = described->info;
    device->number = described->number;
    device->reads_host = described->reads_host;
    device->registers_host = described->registers_host;
    device->pitch_bytes_max = described->pitch_bytes_max;
    device->reference_count = 1;
    pthread_mutex_init(&device->kernel_lock, NULL);
    hr_cu_result result = device->driver->cuDevicePrimaryCtxRetain(&device->context, device->number);
    if (result != HR_CU_SUCCESS) {
        int code = fail_open(device, result, err);
        device->context = NULL;
        device_close(device);
        return code;
    }
    *ret_device = device;
    return 0;
}

/* Under the lock: another reference to the open device, or NULL. */
static struct hr_device *find_open(int number)
{
    struct hr_device *device = open_devices;
    while (device && device->number != number)
        device = device->next;
    if (device)
        device->reference_count++;
    return device;
}

int hr_cuda_open(const struct hr_device *described, struct hr_device **ret_device, struct hr_error *err)
{
    struct hr_device *made = NULL;
    pthread_mutex_lock(&open_lock);
    struct hr_device *device = find_open(described->number);
    pthread_mutex_unlock(&open_lock);
    if (device) {
        *ret_device = device;
        return 0;
    }
    int code = device_make(described, &made, err);
    if (code)
        return code;
    pthread_mutex_lock(&open_lock);
    device = find_open(described->number);
    if (!device) {
        made->next = open_devices;
        open_devices = made;
    }
    pthread_mutex_unlock(&open_lock);
    if (device) /* another thread was faster */
        device_close(made);
    *ret_device = device ? device : made;
    return 0;
}

void hr_cuda_ref(struct hr_device *device)
{
    pthread_mutex_lock(&open_lock);
    device->reference_count++;
    pthread_mutex_unlock(&open_lock);
}

int hr_cuda_unref_unless_last(struct hr_device *device)
{
    pthread_mutex_lock(&open_lock);
    int is_last = device->reference_count == 1;
    if (!is_last)
        device->reference_count--;
    pthread_mutex_unlock(&open_lock);
    return !is_last;
}

void hr_cuda_unref(struct hr_device *device)
{
    pthread_mutex_lock(&open_lock);
    int is_last = --device->reference_count == 0;
    struct hr_device **link = &open_devices;
    while (is_last && *link && *link != device)
        link = &(*link)->next;
    if (is_last && *link)
        *link = device->next;
    pthread_mutex_unlock(&open_lock);
    if (!is_last)
        return;
    hr_reaper_drain(device);
    device_close(device);
}

static int is_fault(hr_cu_result result)
{
    return result == HR_CU_ERROR_ECC_UNCORRECTABLE || result == HR_CU_ERROR_NVLINK_UNCORRECTABLE ||
           result == HR_CU_ERROR_ILLEGAL_ADDRESS || result == HR_CU_ERROR_LAUNCH_TIMEOUT ||
           result == HR_CU_ERROR_CONTEXT_IS_DESTROYED || result == HR_CU_ERROR_ASSERT ||
           (result >= HR_CU_ERROR_HARDWARE_STACK_ERROR && result <= HR_CU_ERROR_LAUNCH_FAILED);
}

void hr_cuda_note(struct hr_device *device, hr_cu_result result)
{
    unsigned none = 0;
    if (is_fault(result))
        atomic_compare_exchange_strong(&device->fault, &none, result);
}

/* After a fault: the first one counts, whatever the driver has said since. */
static int fail_fault(struct hr_device *device, struct hr_error *err)
{
    unsigned fault = device->fault;
    return hr_fail_driver(err, HR_EDEVICE_ERROR, (int)fault, hr_cuda_result_name(device->driver, fault),
                          "cuda:%d has had a fault that destroyed its context; this process cannot use the device any "
                          "more and must be started anew",
                          device->info.ordinal);
}

int hr_cuda_check(struct hr_device *device, hr_cu_result result, const char *what, struct hr_error *err)
{
    if (result == HR_CU_SUCCESS)
        return 0;
    hr_cuda_note(device, result);
    if (device->fault)
        return fail_fault(device, err);
    int code = result == HR_CU_ERROR_OUT_OF_MEMORY ? HR_EOUT_OF_MEMORY : HR_EDEVICE_ERROR;
    return hr_fail_driver(err, code, (int)result, hr_cuda_result_name(device->driver, result), "cuda:%d: %s failed",
                          device->info.ordinal, what);
}

int hr_cuda_enter(struct hr_device *device, struct hr_cuda_scope *ret_scope, struct hr_error *err)
{
    const struct hr_cuda_driver *driver = device->driver;
    hr_cu_context ignored;
    if (device->fault)
        return fail_fault(device, err);
    int code = hr_cuda_check(device, driver->cuCtxPushCurrent(device->context), "making its context current", err);
    if (code)
        return code;
    ret_scope->capture_mode = HR_CU_STREAM_CAPTURE_MODE_RELAXED;
    hr_cu_result result = driver->cuThreadExchangeStreamCaptureMode(&ret_scope->capture_mode);
    code = hr_cuda_check(device, result, "relaxing the thread's capture mode", err);
    if (code)
        driver->cuCtxPopCurrent(&ignored);
    return code;
}

int hr_cuda_enter_to_free(struct hr_device *device, struct hr_cuda_scope *ret_scope)
{
    int code = hr_cuda_enter(device, ret_scope, NULL);
    return code ? hr_cuda_enter(device, ret_scope, NULL) : 0;
}

void hr_cuda_leave(struct hr_device *device, struct hr_cuda_scope *scope)
{
    hr_cu_context ignored;
    device->driver->cuThreadExchangeStreamCaptureMode(&scope->capture_mode);
    device->driver->cuCtxPopCurrent(&ignored);
}
