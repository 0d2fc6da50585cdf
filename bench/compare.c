/*
 * compare.c: see compare.h.
 */
#include "compare.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/convert.h"
#include "measure.h"

#define SAMPLED_ITEMS 64
#define SAMPLED_BYTES ((uint64_t)1 << 20)

struct verifier {
    struct hr_load *load;
    int fd;
    char *loaded, *stored, *converted; /* SAMPLED_BYTES each, the first and the last eight times as many */
};

/* What the range of the file, of whole elements, must have become. */
static const char *wanted(const struct verifier *verifier, const struct hr_tensor *tensor, uint32_t dtype,
                          uint64_t bytes)
{
    if (dtype == tensor->dtype)
        return verifier->stored;
    hr_convert(tensor->dtype, dtype, verifier->converted, verifier->stored, bytes / (hr_dtype_bits(tensor->dtype) / 8));
    return verifier->converted;
}

static void compare_range(const struct verifier *verifier, size_t item, const struct hr_tensor *tensor, uint64_t from,
                          uint64_t end)
{
    struct hr_error err;
    struct hr_view view = {.size = sizeof view};
    if (hr_load_view(verifier->load, item, &view, &err) < 0)
        die("hr_load_view", err.message);
    uint64_t from_bits = hr_dtype_bits(tensor->dtype), to_bits = hr_dtype_bits(view.dtype);
    while (from < end) {
        uint64_t bytes = end - from < SAMPLED_BYTES ? end - from : SAMPLED_BYTES, there = bytes * to_bits / from_bits;
        if (hr_load_read(verifier->load, item, from * to_bits / from_bits, there, verifier->loaded, &err) < 0)
            die("hr_load_read", err.message);
        if (pread(verifier->fd, verifier->stored, bytes, (off_t)(tensor->offset + from)) != (ssize_t)bytes)
            die("pread", tensor->name);
        if (memcmp(verifier->loaded, wanted(verifier, tensor, view.dtype, bytes), there) != 0)
            die("the bytes that were loaded are not those of the file", tensor->name);
        from += bytes;
    }
}

/* The beginning, the middle and the end of an item, or all of it. Returns the bytes compared. */
static uint64_t compare_item(const struct verifier *verifier, size_t item, const struct hr_tensor *tensor, int all)
{
    if (all || tensor->size <= 3 * SAMPLED_BYTES) {
        compare_range(verifier, item, tensor, 0, tensor->size);
        return tensor->size;
    }
    uint64_t middle = tensor->size / 2 / 8 * 8;
    compare_range(verifier, item, tensor, 0, SAMPLED_BYTES);
    compare_range(verifier, item, tensor, middle, middle + SAMPLED_BYTES);
    compare_range(verifier, item, tensor, tensor->size - SAMPLED_BYTES, tensor->size);
    return 3 * SAMPLED_BYTES;
}

struct compared compare_load(struct hr_load *load, const struct hr_checkpoint *checkpoint, int all)
{
    size_t count = hr_checkpoint_count(checkpoint), file_index = SIZE_MAX;
    size_t step = all || count < SAMPLED_ITEMS ? 1 : count / SAMPLED_ITEMS;
    struct verifier verifier = {.load = load,
                                .fd = -1,
                                .loaded = malloc(8 * SAMPLED_BYTES),
                                .stored = malloc(SAMPLED_BYTES),
                                .converted = malloc(8 * SAMPLED_BYTES)};
    struct compared compared = {0};
    for (size_t i = 0; i < count; i += step, compared.items++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, i);
        if (tensor->file_index != file_index) {
            file_index = tensor->file_index;
            if (verifier.fd >= 0)
                close(verifier.fd);
            verifier.fd = open(hr_checkpoint_file(checkpoint, file_index)->path, O_RDONLY | O_CLOEXEC);
        }
        compared.bytes += compare_item(&verifier, i, tensor, all);
    }
    close(verifier.fd);
    free(verifier.loaded);
    free(verifier.stored);
    free(verifier.converted);
    return compared;
}
