/*
 * load_to_memory.c: loads a whole checkpoint into memory and walks over what came: `load_to_memory PATH...`.
 * One request, one wait; the tensors stay valid until the load is freed.
 */
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* One item per tensor: whole, as stored, in memory of the library. */
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

static void print_view(const struct hr_tensor *tensor, const struct hr_view *view)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < view->bytes; i++)
        sum += ((const unsigned char *)view->data)[i];
    printf("%s %s [", tensor->name, hr_dtype_name(view->dtype));
    for (uint32_t d = 0; d < view->rank; d++)
        printf("%s%" PRIu64, d ? "," : "", view->shape[d]);
    printf("] %" PRIu64 " bytes, sum of bytes %" PRIu64 "\n", view->bytes, sum);
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
    for (size_t i = 0; code == 0 && i < count; i++) {
        struct hr_view view = {.size = sizeof view};
        code = hr_load_view(load, i, &view, err);
        if (code == 0)
            print_view(hr_checkpoint_at(checkpoint, i), &view);
    }
    hr_load_free(load);
    return code;
}

int main(int argument_count, char **arguments)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    const char *const *paths = (const char *const *)arguments + 1;
    if (argument_count < 2) {
        fprintf(stderr, "usage: %s PATH...\n", arguments[0]);
        return 2;
    }
    int code = hr_checkpoint_open(paths, (size_t)argument_count - 1, NULL, &checkpoint, &err);
    if (code == 0)
        code = hr_loader_new(NULL, &loader, &err);
    if (code == 0)
        code = load_and_print(loader, checkpoint, &err);
    if (code)
        fprintf(stderr, "%s: %s: %s\n", hr_error_kind(code), err.file, err.message);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return code ? 1 : 0;
}
