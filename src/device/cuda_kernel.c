/*
 * cuda_kernel.c: the kernels: each loaded once per device, on first use, and launched. Where kernels cannot read
 * pinned host memory, sources and table go to device memory of the lane first, in one copy each.
 */
#include <stdio.h>

#include "base/limits.h"
#include "device/cuda_device.h"

/* Sources keep their place in a line of this many bytes in device memory, as if they were read where they are. */
#define LINE_BYTES 256u
#define GROWTH_BYTES (2u << 20)

/* ------------------------------------------------------------------------------------------- loading */

/* In the device's context. Leaves nothing loaded on failure. */
static hr_cu_result module_load(struct hr_device *device, enum hr_kernel kernel, const void *image)
{
    const struct hr_cuda_driver *driver = device->driver;
    hr_cu_module module;
    hr_cu_result result = driver->cuModuleLoadData(&module, image);
    if (result != HR_CU_SUCCESS)
        return result;
    result = driver->cuModuleGetFunction(&device->kernels[kernel].function, module, hr_kernel_name(kernel));
    if (result == HR_CU_SUCCESS)
        device->kernels[kernel].module = module;
    else
        driver->cuModuleUnload(module);
    return result;
}

/*
 * Once, of nothing: the driver may put off loading the code until then, and loading waits for what the device is doing,
 * which must not happen in the middle of a load.
 */
static hr_cu_result launch_nothing(struct hr_device *device, enum hr_kernel kernel)
{
    const struct hr_cuda_driver *driver = device->driver;
    hr_cu_address table = 0;
    unsigned count = 0;
    void *parameters[] = {&table, &count};
    hr_cu_stream stream;
    hr_cu_result result = driver->cuStreamCreate(&stream, HR_CU_STREAM_NON_BLOCKING);
    if (result != HR_CU_SUCCESS)
        return result;
    result = driver->cuLaunchKernel(device->kernels[kernel].function, 1, 1, 1, HR_PLACE_THREAD_COUNT, 1, 1, 0, stream,
                                    parameters, NULL);
    hr_cu_result ended = driver->cuStreamSynchronize(stream);
    driver->cuStreamDestroy(stream);
    return result != HR_CU_SUCCESS ? result : ended;
}

/* In the device's context, under the lock. A driver that is older than the fatbin may still take the PTX. */
static int kernel_load(struct hr_device *device, enum hr_kernel kernel)
{
    const struct hr_cuda_driver *driver = device->driver;
    size_t size, capacity = sizeof device->kernels[kernel].detail;
    const char *kind;
    const void *image = hr_kernel_image(kernel, &size, &kind);
    if (!driver->cuModuleLoadData) {
        snprintf(device->kernels[kernel].detail, capacity, "this driver loads no modules");
        return 0;
    }
    hr_cu_result result = module_load(device, kernel, image);
    if (result != HR_CU_SUCCESS && image != hr_kernel_ptx(kernel, &size))
        result = module_load(device, kernel, hr_kernel_ptx(kernel, &size));
    if (result == HR_CU_SUCCESS)
        result = launch_nothing(device, kernel);
    if (result == HR_CU_SUCCESS)
        return 1;
    hr_cuda_note(device, result);
    snprintf(device->kernels[kernel].detail, capacity,
             "the %s kernel (%s) does not load for compute capability %u.%u: %s (%u)",
             kernel == HR_KERNEL_CAST ? "converting" : "placing", kind, device->info.compute_major,
             device->info.compute_minor, hr_cuda_result_name(driver, result), result);
    return 0;
}

/* In the device's context. Loads once; whether it is usable. */
static int kernel_get(struct hr_device *device, enum hr_kernel kernel)
{
    atomic_int *state = &device->kernels[kernel].state;
    if (*state == HR_KERNEL_UNKNOWN) {
        pthread_mutex_lock(&device->kernel_lock);
        if (*state == HR_KERNEL_UNKNOWN)
            *state = kernel_load(device, kernel) ? HR_KERNEL_USABLE : HR_KERNEL_MISSING;
        pthread_mutex_unlock(&device->kernel_lock);
    }
    return *state == HR_KERNEL_USABLE;
}

static int kernel_describe(struct hr_device *device, enum hr_kernel kernel, char *detail, size_t capacity)
{
    struct hr_cuda_scope scope;
    struct hr_error error;
    const char *reason = "host memory needs no kernel";
    int is_usable = 0;
    if (device->driver && hr_cuda_enter(device, &scope, &error)) {
        reason = error.message;
    } else if (device->driver) {
        is_usable = kernel_get(device, kernel);
        reason = device->kernels[kernel].detail;
        hr_cuda_leave(device, &scope);
    }
    if (capacity)
        snprintf(detail, capacity, "%s", is_usable ? "" : reason);
    return is_usable;
}

int hr_device_kernel(struct hr_device *device, char *detail, size_t capacity)
{
    return kernel_describe(device, HR_KERNEL_PLACE, detail, capacity);
}

int hr_device_converts(struct hr_device *device, char *detail, size_t capacity)
{
    return kernel_describe(device, HR_KERNEL_CAST, detail, capacity);
}

int hr_lane_converts(struct hr_lane *lane, const struct hr_staging_block *block)
{
    const atomic_int *state = &lane->device->kernels[HR_KERNEL_CAST].state;
    char none[1];
    if (!lane->device->reads_host || block->kind == HR_STAGING_PAGEABLE)
        return 0;
    return *state == HR_KERNEL_USABLE ||
           (*state == HR_KERNEL_UNKNOWN && hr_device_converts(lane->device, none, sizeof none));
}

/* ------------------------------------------------------------------------------- buffers of the lane */

void hr_lane_buffer_release(struct hr_lane *lane, struct hr_lane_buffer *buffer)
{
    hr_cu_result result = buffer->memory ? lane->device->driver->cuMemFree(buffer->memory) : HR_CU_SUCCESS;
    hr_cuda_note(lane->device, result);
    if (hr_cuda_is_captured(result))
        hr_reaper_add(lane->device, (void *)(uintptr_t)buffer->memory, buffer->bytes);
    *buffer = (struct hr_lane_buffer){0};
}

/*
 * Under the lane's lock. At least `bytes`, in steps so that it seldom grows, since freeing waits for what uses it. 0 when
 * there is no memory: copies will do.
 */
static int buffer_grow(struct hr_lane *lane, struct hr_lane_buffer *buffer, uint64_t bytes)
{
    if (buffer->bytes >= bytes)
        return 1;
    if (bytes > HR_BOUNCE_BYTES_MAX)
        return 0;
    hr_lane_buffer_release(lane, buffer);
    bytes = (bytes + GROWTH_BYTES - 1) / GROWTH_BYTES * GROWTH_BYTES;
    hr_cu_result result = lane->device->driver->cuMemAlloc(&buffer->memory, bytes);
    hr_cuda_note(lane->device, result);
    if (result != HR_CU_SUCCESS)
        buffer->memory = 0;
    else
        buffer->bytes = bytes;
    return result == HR_CU_SUCCESS;
}

/* The host memory that the moves read. Pitches may be negative. */
struct span {
    unsigned long long begin, end;
};

static struct span span_of(const struct hr_move *moves, size_t move_count)
{
    struct span span = {UINT64_MAX, 0};
    for (size_t i = 0; i < move_count; i++) {
        unsigned long long first = moves[i].source;
        unsigned long long last = first + (moves[i].rows - 1) * (unsigned long long)moves[i].source_pitch;
        unsigned long long low = first < last ? first : last, high = first < last ? last : first;
        if (low < span.begin)
            span.begin = low;
        if (high + moves[i].bytes > span.end)
            span.end = high + moves[i].bytes;
    }
    return span;
}

/* ----------------------------------------------------------------------------------------- launching */

static int launch(struct hr_lane *lane, enum hr_kernel kernel, hr_cu_address table, uint64_t bytes, size_t move_count,
                  struct hr_error *err)
{
    unsigned count = (unsigned)move_count;
    void *parameters[] = {&table, &count};
    uint64_t blocks = (bytes + HR_PLACE_BLOCK_BYTES - 1) / HR_PLACE_BLOCK_BYTES;
    if (blocks < move_count)
        blocks = move_count;
    if (blocks > HR_PLACE_BLOCK_COUNT_MAX)
        blocks = HR_PLACE_BLOCK_COUNT_MAX;
    hr_cu_result result =
        lane->device->driver->cuLaunchKernel(lane->device->kernels[kernel].function, (unsigned)blocks, 1, 1,
                                             HR_PLACE_THREAD_COUNT, 1, 1, 0, lane->stream, parameters, NULL);
    return hr_cuda_check(lane->device, result, "launching a kernel", err);
}

/* Adds `shift` to all sources; the bytes that the moves take. */
static uint64_t shift_sources(struct hr_move *moves, size_t move_count, unsigned long long shift)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < move_count; i++) {
        moves[i].source += shift;
        bytes += moves[i].bytes * moves[i].rows;
    }
    return bytes;
}

static int launch_pinned(struct hr_lane *lane, enum hr_kernel kernel, const struct hr_staging_block *block,
                         struct hr_move *moves, size_t move_count, struct hr_place_counts *counts, struct hr_error *err)
{
    unsigned long long shift = (unsigned long long)block->device_shift;
    uint64_t bytes = shift_sources(moves, move_count, shift);
    int code = launch(lane, kernel, (uintptr_t)moves + shift, bytes, move_count, err);
    if (code)
        return code;
    counts->bytes_sent += bytes;
    counts->kernel_count++;
    return 0;
}

/* Under the lane's lock. The stream's order keeps the buffers from being overwritten too early. */
static int launch_bounced(struct hr_lane *lane, enum hr_kernel kernel, struct hr_move *moves, size_t move_count,
                          const struct span *span, struct hr_place_counts *counts, struct hr_error *err)
{
    const struct hr_cuda_driver *driver = lane->device->driver;
    hr_cu_address target = lane->sources.memory + LINE_BYTES + span->begin % LINE_BYTES;
    hr_cu_result result =
        driver->cuMemcpyHtoDAsync(target, (const void *)(uintptr_t)span->begin, span->end - span->begin, lane->stream);
    uint64_t bytes = shift_sources(moves, move_count, target - span->begin);
    if (result == HR_CU_SUCCESS)
        result = driver->cuMemcpyHtoDAsync(lane->table.memory, moves, move_count * sizeof *moves, lane->stream);
    int code = hr_cuda_check(lane->device, result, "copying to the device", err);
    if (!code)
        code = launch(lane, kernel, lane->table.memory, bytes, move_count, err);
    if (code)
        return code;
    counts->bytes_sent += span->end - span->begin;
    counts->copy_count++;
    counts->kernel_count++;
    return 0;
}

int hr_lane_launch(struct hr_lane *lane, enum hr_kernel kernel, const struct hr_staging_block *block,
                   struct hr_move *moves, size_t move_count, struct hr_place_counts *counts, int *ret_done,
                   struct hr_error *err)
{
    struct hr_device *device = lane->device;
    *ret_done = 0;
    if (move_count > UINT32_MAX || !kernel_get(device, kernel))
        return 0;
    if (device->reads_host) {
        *ret_done = block->kind != HR_STAGING_PAGEABLE;
        return *ret_done ? launch_pinned(lane, kernel, block, moves, move_count, counts, err) : 0;
    }
    struct span span = span_of(moves, move_count);
    pthread_mutex_lock(&lane->lock);
    *ret_done = buffer_grow(lane, &lane->table, move_count * sizeof *moves) &&
                buffer_grow(lane, &lane->sources, span.end - span.begin + 3 * (uint64_t)LINE_BYTES);
    int code = *ret_done ? launch_bounced(lane, kernel, moves, move_count, &span, counts, err) : 0;
    pthread_mutex_unlock(&lane->lock);
    return code;
}

/* Under the lane's lock, where kernels do not read the table in host memory. */
static int launch_table(struct hr_lane *lane, enum hr_kernel kernel, const struct hr_move *moves, size_t move_count,
                        uint64_t bytes, struct hr_error *err)
{
    hr_cu_result result =
        lane->device->driver->cuMemcpyHtoDAsync(lane->table.memory, moves, move_count * sizeof *moves, lane->stream);
    int code = hr_cuda_check(lane->device, result, "copying to the device", err);
    return code ? code : launch(lane, kernel, lane->table.memory, bytes, move_count, err);
}

int hr_lane_launch_resident(struct hr_lane *lane, enum hr_kernel kernel, const struct hr_staging_block *block,
                            struct hr_move *moves, size_t move_count, struct hr_place_counts *counts, int *ret_done,
                            struct hr_error *err)
{
    int code = 0;
    *ret_done = 0;
    if (move_count > UINT32_MAX || !kernel_get(lane->device, kernel))
        return 0;
    uint64_t bytes = shift_sources(moves, move_count, 0);
    if (lane->device->reads_host && block->kind != HR_STAGING_PAGEABLE) {
        *ret_done = 1;
        code = launch(lane, kernel, (uintptr_t)moves + (unsigned long long)block->device_shift, bytes, move_count, err);
    } else {
        pthread_mutex_lock(&lane->lock);
        *ret_done = buffer_grow(lane, &lane->table, move_count * sizeof *moves);
        code = *ret_done ? launch_table(lane, kernel, moves, move_count, bytes, err) : 0;
        pthread_mutex_unlock(&lane->lock);
    }
    if (!code)
        counts->kernel_count += (uint64_t)*ret_done;
    return code;
}
