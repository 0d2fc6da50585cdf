/*
 * simulation.c: see simulation.h. The order of the draws is part of a seed's meaning; nothing depends on it else.
 */
#include "support/simulation.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/faults.h"
#include "support/gpu.h"

#define KIB UINT64_C(1024)
#define GUARD_BYTE 0xa5

/* splitmix64; below `bound`, which is not 0 */
static uint64_t pick(uint64_t *random, uint64_t bound)
{
    uint64_t x = *random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) % bound;
}

static int chance(uint64_t *random, unsigned percent)
{
    return pick(random, 100) < percent;
}

/* --------------------------------------------------------------------------------------- checkpoint */

static void draw_tensor(struct test_tensor *tensor, uint64_t *random)
{
    static const uint64_t extents_max[] = {7, 60, 300};
    tensor->dtype = (uint32_t)(1 + pick(random, HR_DTYPE_COUNT - 1));
    tensor->seed = pick(random, UINT64_C(1) << 40);
    if (chance(random, 8)) {
        tensor->dtype = HR_DTYPE_U8;
        tensor->rank = 1;
        tensor->shape[0] = 700 * KIB + pick(random, 700 * KIB);
        return;
    }
    uint64_t most = extents_max[pick(random, 3)];
    tensor->rank = (uint32_t)pick(random, most > 60 ? 3 : 5);
    for (uint32_t d = 0; d < tensor->rank; d++)
        tensor->shape[d] = chance(random, 3) ? 0 : 1 + pick(random, d ? most : most * 4);
    if (hr_dtype_bits(tensor->dtype) < 8) { /* elements must fill bytes */
        tensor->rank += tensor->rank == 0;
        tensor->shape[tensor->rank - 1] = 4 * (1 + pick(random, 50));
    }
    while (test_tensor_bytes(tensor) > 400 * KIB) /* some 60 ^ 4 */
        tensor->shape[0] = tensor->shape[0] > 1 ? tensor->shape[0] / 2 : (tensor->shape[1] /= 2, 1);
}

static void make_old(const char *path)
{
    struct timespec long_ago[2] = {{1000000000, 5}, {1000000000, 5}};
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
}

void sim_model_make(struct test_model *model, uint64_t seed)
{
    static char names[SIM_TENSOR_MAX][16];
    struct test_tensor tensors[SIM_TENSOR_MAX] = {0};
    uint64_t random = seed / SIM_SEEDS_PER_MODEL + 1;
    size_t count = 1 + pick(&random, SIM_TENSOR_MAX);
    size_t per_file = 1 + pick(&random, count < 8 ? count : 8);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "t.%zu", i);
        tensors[i].name = names[i];
        draw_tensor(&tensors[i], &random);
    }
    model_write(model, "simulated", tensors, count, per_file, pick(&random, 9));
    for (size_t i = 0; i < model->path_count; i++)
        make_old(model->paths[i]);
    model_open(model);
}

/* ------------------------------------------------------------------------------------------ devices */

/* Host memory, a GPU, or both in either order. */
static void draw_devices(struct sim *sim)
{
    uint64_t kind = pick(&sim->random, 10);
    if (kind < 6 || !gpu_name())
        return;
    sim->device_count = kind < 8 ? 1 : 2;
    sim->devices[0] = kind == 9 ? "cpu" : gpu_name();
    sim->devices[1] = kind == 9 ? gpu_name() : "cpu";
}

int sim_on_gpu(const struct sim *sim, uint32_t device_index)
{
    return device_index < sim->device_count && strcmp(sim->devices[device_index], "cpu") != 0;
}

/* The counting allocator's hook, with device memory for GPUs. */
static void *hook_alloc(void *context, const struct hr_allocation *allocation)
{
    struct sim *sim = context;
    if (!sim_on_gpu(sim, allocation->device_index))
        return counting_hook(&sim->counting).alloc(&sim->counting, allocation);
    long number = atomic_fetch_add(&sim->counting.alloc_count, 1) + 1;
    void *memory = sim->counting.fail_at && number >= sim->counting.fail_at ? NULL : gpu_try_alloc(allocation->bytes);
    atomic_fetch_add(&sim->counting.live_count, memory != NULL);
    return memory;
}

static void hook_free(void *context, void *memory, const struct hr_allocation *allocation)
{
    struct sim *sim = context;
    if (!sim_on_gpu(sim, allocation->device_index)) {
        counting_hook(&sim->counting).free(&sim->counting, memory, allocation);
        return;
    }
    gpu_free(memory, allocation->bytes);
    atomic_fetch_sub(&sim->counting.live_count, 1);
}

/* ------------------------------------------------------------------------------------------ request */

static uint64_t range_extent(const struct hr_range *range)
{
    return (range->stop - range->start + range->step - 1) / range->step;
}

static void draw_ranges(struct sim *sim, size_t i, const struct test_tensor *tensor)
{
    struct sim_item *part = &sim->parts[i];
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint64_t extent = tensor->shape[d];
        uint64_t start = chance(&sim->random, 50) ? 0 : pick(&sim->random, extent + 1);
        uint64_t stop = chance(&sim->random, 50) ? extent : start + pick(&sim->random, extent - start + 1);
        part->ranges[d] = (struct hr_range){start, stop, chance(&sim->random, 70) ? 1 : 1 + pick(&sim->random, 4)};
    }
    sim->items[i].ranges = part->ranges;
}

static uint8_t *guarded_alloc(size_t bytes, int on_gpu)
{
    if (on_gpu)
        return gpu_alloc(bytes + 2 * SIM_GUARD_BYTES, GUARD_BYTE);
    uint8_t *memory =
        aligned_alloc(SIM_GUARD_BYTES, (bytes + 3 * SIM_GUARD_BYTES - 1) / SIM_GUARD_BYTES * SIM_GUARD_BYTES);
    memset(memory, GUARD_BYTE, bytes + 2 * SIM_GUARD_BYTES);
    return memory;
}

/* Memory of the caller: compact, or with room between the first dimension's entries. */
static void draw_into(struct sim *sim, size_t i, const struct test_tensor *tensor)
{
    struct sim_item *part = &sim->parts[i];
    uint64_t bits = hr_dtype_bits(tensor->dtype), count = 1;
    size_t bytes;
    for (uint32_t d = tensor->rank; d-- > 0;) {
        part->strides[d] = (int64_t)(count * bits / 8);
        count *= sim->items[i].ranges ? range_extent(&part->ranges[d]) : tensor->shape[d];
    }
    bytes = (size_t)(count * bits / 8);
    if (bytes && tensor->rank >= 2 && bits >= 8 && chance(&sim->random, 30)) {
        uint64_t rows = sim->items[i].ranges ? range_extent(&part->ranges[0]) : tensor->shape[0];
        uint64_t room = (1 + pick(&sim->random, 3)) * bits / 8;
        part->strides[0] += (int64_t)room;
        bytes += (size_t)(rows * room);
        sim->items[i].into_strides = part->strides;
    }
    part->buffer_bytes = bytes;
    part->buffer = guarded_alloc(bytes, sim_on_gpu(sim, sim->items[i].device_index));
    sim->items[i].into = part->buffer + SIM_GUARD_BYTES;
}

static void draw_item(struct sim *sim, size_t i, size_t tensor_index, int plain)
{
    const struct test_tensor *tensor = &sim->model->tensors[tensor_index];
    sim->items[i] = (struct hr_item){.size = sizeof sim->items[i], .tensor_index = tensor_index};
    if (sim->device_count > 1)
        sim->items[i].device_index = (uint32_t)pick(&sim->random, sim->device_count);
    if (plain)
        return;
    if (hr_dtype_bits(tensor->dtype) >= 8 && tensor->rank && test_tensor_bytes(tensor) <= 400 * KIB &&
        chance(&sim->random, 50))
        draw_ranges(sim, i, tensor);
    if (chance(&sim->random, 30))
        draw_into(sim, i, tensor);
}

static void draw_items(struct sim *sim)
{
    size_t count = sim->model->count;
    int whole = chance(&sim->random, 40);
    sim->item_count = whole ? count : 1 + pick(&sim->random, SIM_ITEM_MAX);
    for (size_t i = 0; i < sim->item_count; i++)
        draw_item(sim, i, whole ? i : pick(&sim->random, count), whole);
    for (size_t i = 0; i < sim->item_count; i++)
        sim->wait_order[i] = i;
    for (size_t i = sim->item_count; i > 1 && sim->order != SIM_WAIT_IN_ORDER; i--) {
        size_t at = pick(&sim->random, i), kept = sim->wait_order[at];
        sim->wait_order[at] = sim->wait_order[i - 1];
        sim->wait_order[i - 1] = kept;
    }
}

/* ------------------------------------------------------------------------------------------ options */

static int count_down(void *context, const struct hr_progress *progress)
{
    struct sim *sim = context;
    if (progress->bytes_done > progress->bytes_total || progress->item_done > progress->item_count)
        atomic_store(&sim->progress_wrong, 1);
    return atomic_fetch_sub(&sim->progress_left, 1) == 1;
}

static void draw_loader(struct sim *sim)
{
    uint64_t *random = &sim->random;
    uint32_t route = (uint32_t)pick(random, chance(random, 20) ? HR_ROUTE_MMAP + 1 : HR_ROUTE_MMAP);
    if ((route == HR_ROUTE_URING && !uring_usable()) || (route == HR_ROUTE_MMAP && sim->device_count))
        route = HR_ROUTE_PREAD;
    sim->loader_options = (struct hr_loader_options){
        .size = sizeof sim->loader_options,
        .route = route,
        .thread_count = (uint32_t)(1 + pick(random, 6)),
        .chunk_bytes = 64 * KIB + (chance(random, 50) ? 0 : pick(random, 400 * KIB)),
        .queue_depth = (uint32_t)(1 + pick(random, 16)),
        .arena_bytes = chance(random, 50) ? 0 : 1 + pick(random, 1024 * KIB),
        .devices = sim->devices,
        .device_count = sim->device_count,
        .lane_count = (uint32_t)pick(random, 4),
    };
    if (chance(random, 50))
        sim->loader_options.staging_bytes = sim->loader_options.chunk_bytes + pick(random, 2048 * KIB);
    if (chance(random, 30))
        sim->loader_options.allocator = (struct hr_allocator){sim, hook_alloc, hook_free};
    if (sim->loader_options.allocator.alloc && chance(random, 20)) {
        sim->counting.fail_at = (long)(1 + pick(random, 10));
        sim->causes |= SIM_NO_MEMORY;
    }
}

static void draw_load(struct sim *sim)
{
    uint64_t *random = &sim->random;
    static const uint64_t windows[] = {0, 0, 1, 100 * KIB, 1000 * KIB};
    sim->load_options = (struct hr_load_options){
        .size = sizeof sim->load_options,
        .ownership = (uint32_t)pick(random, 2),
        .window_bytes = windows[pick(random, 5)],
        .sequential = (uint32_t)chance(random, 15),
    };
    if (chance(random, 8)) {
        sim->load_options.deadline_ns = 1 + pick(random, 4000000);
        sim->causes |= SIM_DEADLINE;
    }
    if (chance(random, 20)) {
        sim->load_options.progress = count_down;
        sim->load_options.progress_context = sim;
        sim->load_options.progress_ns = 1 + pick(random, 200000);
    }
    if (sim->load_options.progress && chance(random, 30)) {
        sim->progress_left = (long)(1 + pick(random, 8));
        sim->causes |= SIM_CANCELLED;
    }
    sim->helper = chance(random, 15);
    if (chance(random, 12)) {
        sim->stop = chance(random, 50) ? SIM_STOP_CANCEL : SIM_STOP_FREE;
        sim->stop_after = pick(random, sim->item_count);
        sim->causes |= SIM_CANCELLED;
    }
}

/* ------------------------------------------------------------------------------------------- faults */

static void draw_mutation(struct sim *sim)
{
    size_t file_index = pick(&sim->random, sim->model->path_count);
    const struct hr_file *file = hr_checkpoint_file(sim->model->checkpoint, file_index);
    struct sim_mutation *mutation = &sim->mutation;
    *mutation = (struct sim_mutation){
        .change = (enum sim_change)pick(&sim->random, SIM_CHANGE_COUNT),
        .path = sim->model->paths[file_index],
        .size = file->size,
        .offset = pick(&sim->random, file->size),
    };
    sim->mutate = 1;
    sim->mutate_first = chance(&sim->random, 15);
    sim->causes |= SIM_CHANGED;
    if (mutation->change == SIM_REPLACE) {
        char *zeros = calloc(1, file->size);
        mutation->other_path = test_path("other.safetensors");
        test_raw_write(mutation->other_path, zeros, file->size);
        free(zeros);
        make_old(mutation->other_path);
    }
    if (sim->mutate_first)
        return;
    sim->storage.event_at = 1 + pick(&sim->random, 20);
    sim->storage.event = sim_mutate;
    sim->storage.event_context = mutation;
}

static void draw_bad_place(struct sim *sim)
{
    static const int errors[] = {EIO, EIO, EBADMSG, ENXIO};
    size_t tensor_index = pick(&sim->random, sim->model->count);
    const struct hr_tensor *tensor = hr_checkpoint_at(sim->model->checkpoint, tensor_index);
    sim->storage.fail_path = model_path(sim->model, tensor_index);
    sim->storage.fail_begin = tensor->offset + (tensor->size ? pick(&sim->random, tensor->size) : 0);
    sim->storage.fail_end = sim->storage.fail_begin + 1 + pick(&sim->random, 5000);
    sim->storage.fail_error = errors[pick(&sim->random, 4)];
    sim->causes |= SIM_BAD_PLACE;
}

static void draw_storage(struct sim *sim)
{
    uint64_t *random = &sim->random;
    sim->storage = (struct fake_storage){.seed = sim->seed, .reorder_percent = (unsigned)pick(random, 101)};
    sim->storage.cold = chance(random, 50);
    sim->storage.descriptor_max = chance(random, 30) ? 2 + pick(random, 6) : 0;
    if (chance(random, 25))
        return;
    sim->storage.short_percent = (unsigned)pick(random, 70);
    sim->storage.eintr_percent = (unsigned)pick(random, 30);
    sim->storage.eagain_percent = (unsigned)pick(random, 30);
    if (chance(random, 50)) /* a sleep takes some 60 us, however short it is meant to be */
        return;
    sim->storage.delay_random_ns = chance(random, 70) ? 0 : 1 + pick(random, 100000);
    sim->storage.slow_percent = (unsigned)pick(random, 20);
    sim->storage.slow_ns = 1 + pick(random, 300000);
}

static void draw_faults(struct sim *sim)
{
    if (sim->loader_options.route != HR_ROUTE_MMAP && chance(&sim->random, 22))
        draw_mutation(sim);
    if (chance(&sim->random, 12))
        draw_bad_place(sim);
    if (chance(&sim->random, 12)) {
        sim->fault_classes = chance(&sim->random, 60) ? FAULT_ALL : 1u << pick(&sim->random, FAULT_CLASS_COUNT);
        sim->fault_at = 1 + pick(&sim->random, 60);
        sim->causes |= SIM_ANY_CALL;
    }
}

void sim_init(struct sim *sim, uint64_t seed, const struct test_model *model)
{
    *sim = (struct sim){.seed = seed, .random = seed * UINT64_C(0xd1b54a32d192ed03), .model = model};
    sim->order = (enum sim_order)pick(&sim->random, SIM_ORDER_COUNT);
    draw_devices(sim);
    draw_items(sim);
    draw_loader(sim);
    draw_load(sim);
    draw_storage(sim);
    draw_faults(sim);
}

void sim_release(struct sim *sim)
{
    for (size_t i = 0; i < sim->item_count; i++) {
        struct sim_item *part = &sim->parts[i];
        if (part->buffer && sim_on_gpu(sim, sim->items[i].device_index))
            gpu_free(part->buffer, part->buffer_bytes + 2 * SIM_GUARD_BYTES);
        else
            free(part->buffer);
    }
}

/* ---------------------------------------------------------------------------------- what happens */

void sim_mutate(void *context)
{
    const struct sim_mutation *mutation = context;
    int failed = 0;
    if (mutation->change == SIM_TRUNCATE || mutation->change == SIM_REGROW)
        failed |= truncate(mutation->path, (off_t)mutation->offset);
    if (mutation->change == SIM_REGROW)
        failed |= truncate(mutation->path, (off_t)mutation->size);
    if (mutation->change == SIM_GROW)
        failed |= truncate(mutation->path, (off_t)(mutation->size + 1 + mutation->offset));
    if (mutation->change == SIM_REPLACE)
        failed |= rename(mutation->other_path, mutation->path);
    if (mutation->change == SIM_REMOVE)
        failed |= unlink(mutation->path);
    if (mutation->change == SIM_REWRITE) {
        char bytes[512];
        size_t left = mutation->size - mutation->offset;
        int fd = open(mutation->path, O_WRONLY | O_CLOEXEC);
        memset(bytes, 0x77, sizeof bytes);
        failed |= fd < 0 || pwrite(fd, bytes, left < sizeof bytes ? left : sizeof bytes, (off_t)mutation->offset) < 1;
        failed |= close(fd);
    }
    if (failed)
        print_error("change %d of %s failed\n", (int)mutation->change, mutation->path);
}

static void check_guard(const struct sim *sim, size_t item_index, const uint8_t *guard)
{
    uint8_t copy[SIM_GUARD_BYTES];
    if (sim_on_gpu(sim, sim->items[item_index].device_index)) {
        gpu_read(copy, guard, sizeof copy);
        guard = copy;
    }
    for (size_t k = 0; k < SIM_GUARD_BYTES; k++)
        assert_int_equal(guard[k], GUARD_BYTE);
}

void sim_check_guards(const struct sim *sim)
{
    for (size_t i = 0; i < sim->item_count; i++) {
        const struct sim_item *part = &sim->parts[i];
        if (!part->buffer)
            continue;
        check_guard(sim, i, part->buffer);
        check_guard(sim, i, part->buffer + SIM_GUARD_BYTES + part->buffer_bytes);
    }
}

int sim_allows(const struct sim *sim, int code)
{
    unsigned causes = sim->causes;
    if (code == 0 || causes & SIM_ANY_CALL)
        return 1;
    switch (code) {
    case HR_EIO_ERROR:
        return causes & SIM_BAD_PLACE;
    case HR_EFILE_CHANGED:
    case HR_ESHORT_READ:
        return causes & SIM_CHANGED;
    case HR_ECANCELLED:
        return causes & SIM_CANCELLED;
    case HR_EDEADLINE_EXCEEDED:
        return causes & SIM_DEADLINE;
    case HR_EOUT_OF_MEMORY:
        return causes & SIM_NO_MEMORY;
    default:
        return 0;
    }
}
