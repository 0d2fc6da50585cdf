/*
 * load_to_gpu.c: loads a checkpoint into a GPU, without Python and without the CUDA toolkit:
 * `load_to_gpu DEVICE PATH...`, where DEVICE is "cuda:0", "auto" (the first GPU, else host memory) or "cpu".
 * It prints where each tensor lies: addresses of the device, to be given to kernels, cuBLAS and their like in the
 * device's primary context, on any stream.
 */
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* One item per tensor: whole, as stored, in memory of the library, on the loader's only device. */
static struct hr_item *request_all(const struct hr_checkpoint *checkpoint)
{
    size_t count = hr_checkpoint_count(checkpoint);
    struct hr_item *items = calloc(count ? count : 1, sizeof *items);
    for (size_t i = 0; items && i < count; i++) {
        items[i].size = sizeof items[i];
        items[i].tensor_index = i;
    }
    return items;
}

static int print_tensors(struct hr_load *load, const struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < hr_checkpoint_count(checkpoint); i++) {
        struct hr_view view = {.size = sizeof view};
        code = hr_load_view(load, i, &view, err);
        if (code)
            break;
        printf("%s %s [", hr_checkpoint_at(checkpoint, i)->name, hr_dtype_name(view.dtype));
        for (uint32_t d = 0; d < view.rank; d++)
            printf("%s%" PRIu64, d ? "," : "", view.shape[d]);
        printf("] %" PRIu64 " bytes at 0x%" PRIxPTR "\n", view.bytes, (uintptr_t)view.data);
    }
    return code;
}

static void print_speed(struct hr_loader *loader, const struct hr_load *load)
{
    struct hr_device_info device = {.size = sizeof device};
    struct hr_stats stats = {.size = sizeof stats};
    if (hr_loader_device(loader, 0, &device) == 0 && hr_load_stats(load, &stats) == 0 && stats.total_ns)
        fprintf(stderr, "%s: %.3f GB in %.3f s, %.2f GB/s\n", device.name, (double)stats.bytes_ready / 1e9,
                (double)stats.total_ns / 1e9, (double)stats.bytes_ready / (double)stats.total_ns);
}

static int load_and_print(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    struct hr_load *load = NULL;
    size_t count = hr_checkpoint_count(checkpoint);
    struct hr_item *items = request_all(checkpoint);
    if (!items) {
        snprintf(err->message, sizeof err->message, "no memory for %zu items", count);
        return HR_EOUT_OF_MEMORY;
    }
    int code = hr_load_start(loader, checkpoint, items, count, NULL, &load, err);
    free(items); /* they are read during the call only */
    if (code == 0)
        code = hr_load_wait_all(load, err);
    if (code == 0) {
        print_speed(loader, load);
        code = print_tensors(load, checkpoint, err);
    }
    hr_load_free(load); /* frees the tensors as well; what runs on them must have ended */
    return code;
}

int main(int argument_count, char **arguments)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    if (argument_count < 3) {
        fprintf(stderr, "usage: %s DEVICE PATH...\n", arguments[0]);
        return 2;
    }
    const char *device = arguments[1];
    const char *const *paths = (const char *const *)arguments + 2;
    struct hr_loader_options options = {.size = sizeof options, .devices = &device, .device_count = 1};
    int code = hr_checkpoint_open(paths, (size_t)argument_count - 2, NULL, &checkpoint, &err);
    if (code == 0)
        code = hr_loader_new(&options, &loader, &err);
    if (code == 0)
        code = load_and_print(loader, checkpoint, &err);
    if (code)
        fprintf(stderr, "%s: %s: %s\n", hr_error_kind(code), err.file, err.message);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return code ? 1 : 0;
}
