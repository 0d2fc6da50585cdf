/*
 * stream.c: takes tensors as they become ready and lets go of each at once: `stream WINDOW_BYTES PATH...`.
 * The window bounds the memory: no more than that exists and is not handed out, whatever the checkpoint's size.
 */
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Where the work on one tensor would be done. */
static void use(const struct hr_tensor *tensor, const struct hr_view *view)
{
    printf("%s %" PRIu64 " bytes\n", tensor->name, view->bytes);
}

static int consume(struct hr_load *load, const struct hr_checkpoint *checkpoint, struct hr_error *err)
{
    for (;;) {
        size_t index;
        struct hr_view view = {.size = sizeof view};
        int code = hr_load_next(load, &index, err);
        if (code == HR_EEND)
            return 0;
        if (code == 0)
            code = hr_load_view(load, index, &view, err);
        if (code == 0) {
            use(hr_checkpoint_at(checkpoint, index), &view);
            code = hr_load_drop(load, index, err); /* `view` points nowhere from here on */
        }
        if (code)
            return code;
    }
}

static int stream(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, uint64_t window_bytes,
                  struct hr_error *err)
{
    /* HR_OWN_EACH: each tensor has its own memory, so dropping one frees it. An arena is freed with its last one. */
    struct hr_load_options options = {.size = sizeof options, .ownership = HR_OWN_EACH, .window_bytes = window_bytes};
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_load *load = NULL;
    size_t count = hr_checkpoint_count(checkpoint);
    struct hr_item *items = calloc(count ? count : 1, sizeof *items);
    if (!items) {
        snprintf(err->message, sizeof err->message, "no memory for %zu items", count);
        return HR_EOUT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++)
        items[i] = (struct hr_item){.size = sizeof items[i], .tensor_index = i};
    int code = hr_load_start(loader, checkpoint, items, count, &options, &load, err);
    free(items);
    if (code == 0)
        code = consume(load, checkpoint, err);
    if (code == 0 && hr_load_stats(load, &stats) == 0)
        fprintf(stderr, "at most %" PRIu64 " bytes were waiting to be taken\n", stats.peak_window_bytes);
    hr_load_free(load);
    return code;
}

int main(int argument_count, char **arguments)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_error err = {0};
    if (argument_count < 3) {
        fprintf(stderr, "usage: %s WINDOW_BYTES PATH...\n", arguments[0]);
        return 2;
    }
    uint64_t window_bytes = strtoull(arguments[1], NULL, 10);
    int code =
        hr_checkpoint_open((const char *const *)arguments + 2, (size_t)argument_count - 2, NULL, &checkpoint, &err);
    if (code == 0)
        code = hr_loader_new(NULL, &loader, &err);
    if (code == 0)
        code = stream(loader, checkpoint, window_bytes, &err);
    if (code)
        fprintf(stderr, "%s: %s: %s\n", hr_error_kind(code), err.file, err.message);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return code ? 1 : 0;
}
