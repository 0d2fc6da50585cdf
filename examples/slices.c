/*
 * slices.c: one rank's block of the rows of a matrix into the caller's own memory: `slices PATH TENSOR RANK WORLD`.
 * The rows arrive in a buffer whose rows are wider than the tensor's (as aligned or padded matrices have them), which
 * is what `into_strides` is for. Only the needed bytes are read.
 */
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW_ALIGNMENT 128

struct rows {
    uint32_t rank, world;
    uint64_t first, count;
    size_t row_bytes, pitch_bytes;
    unsigned char *memory; /* count * pitch_bytes */
};

/* Memory for the block of the rows that belongs to the rank. */
static int rows_init(struct rows *rows, const struct hr_tensor *tensor, uint32_t rank, uint32_t world)
{
    uint64_t bits = tensor->shape[1] * hr_dtype_bits(tensor->dtype);
    struct hr_range own;
    hr_shard_range(tensor->shape[0], rank, world, &own);
    rows->rank = rank;
    rows->world = world;
    rows->first = own.start;
    rows->count = own.stop - own.start;
    rows->row_bytes = (size_t)(bits / 8);
    rows->pitch_bytes = (rows->row_bytes + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
    rows->memory = calloc(rows->count ? (size_t)rows->count : 1, rows->pitch_bytes ? rows->pitch_bytes : 1);
    return rows->memory && bits % 8 == 0 ? 0 : -1;
}

static int load_rows(const struct hr_checkpoint *checkpoint, const struct hr_tensor *tensor, const struct rows *rows,
                     struct hr_error *err)
{
    int64_t strides[2] = {(int64_t)rows->pitch_bytes, hr_dtype_bits(tensor->dtype) / 8};
    struct hr_item item = {
        .size = sizeof item,
        .tensor_index = (size_t)(tensor - hr_checkpoint_at(checkpoint, 0)),
        .into = rows->memory,
        .into_strides = strides,
        .shard_dim = 0, /* 1: columns */
        .shard_rank = rows->rank,
        .shard_world = rows->world,
    };
    struct hr_loader *loader = NULL;
    struct hr_load *load = NULL;
    int code = hr_loader_new(NULL, &loader, err);
    if (code == 0)
        code = hr_load_start(loader, checkpoint, &item, 1, NULL, &load, err);
    if (code == 0)
        code = hr_load_wait(load, 0, err);
    hr_load_free(load); /* the rows are the caller's and stay */
    hr_loader_free(loader);
    return code;
}

static void rows_print(const struct rows *rows)
{
    for (uint64_t row = 0; row < rows->count; row++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < rows->row_bytes; i++)
            sum += rows->memory[row * rows->pitch_bytes + i];
        printf("row %" PRIu64 ": %zu bytes, sum of bytes %" PRIu64 "\n", rows->first + row, rows->row_bytes, sum);
    }
}

static int print_rank(const struct hr_checkpoint *checkpoint, char **arguments, struct hr_error *err)
{
    const struct hr_tensor *tensor = hr_checkpoint_find(checkpoint, arguments[2], strlen(arguments[2]));
    unsigned long rank = strtoul(arguments[3], NULL, 10), world = strtoul(arguments[4], NULL, 10);
    struct rows rows = {0};
    int code = HR_EINVALID_ARGUMENT;
    if (!tensor || tensor->rank != 2 || rank >= world || world > UINT32_MAX)
        snprintf(err->message, sizeof err->message, "'%s' must be a matrix of the checkpoint, and RANK below WORLD",
                 arguments[2]);
    else if (rows_init(&rows, tensor, (uint32_t)rank, (uint32_t)world))
        snprintf(err->message, sizeof err->message, "no memory, or rows that do not end on a byte");
    else
        code = load_rows(checkpoint, tensor, &rows, err);
    if (code == 0)
        rows_print(&rows);
    free(rows.memory);
    return code;
}

int main(int argument_count, char **arguments)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_error err = {0};
    if (argument_count != 5) {
        fprintf(stderr, "usage: %s PATH TENSOR RANK WORLD\n", arguments[0]);
        return 2;
    }
    const char *path = arguments[1];
    int code = hr_checkpoint_open(&path, 1, NULL, &checkpoint, &err);
    if (code == 0)
        code = print_rank(checkpoint, arguments, &err);
    if (code)
        fprintf(stderr, "%s\n", err.message);
    hr_checkpoint_close(checkpoint);
    return code ? 1 : 0;
}
