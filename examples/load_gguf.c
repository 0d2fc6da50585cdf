/*
 * load_gguf.c: loads the tensors of a GGUF file by their offsets, and compares each with a plain read:
 * `load_gguf FILE.gguf`. A file of another format needs no more than a reader of its table, as this one:
 *
 *   "GGUF", u32 version (2 or 3), u64 count of tensors, u64 count of metadata pairs; little-endian
 *   pairs: text key, u32 type, value; a text is u64 size and bytes; an array is u32 type, u64 count, values
 *   tensors: text name, u32 count of dimensions, u64 extents (the fastest first), u32 type, u64 offset
 *   padding to `general.alignment` (u32, 32 without it); tensors' offsets count from there
 *
 * F32, F16, BF16 and integers are loaded as what they are, blocks of quantized types as bytes: rows of blocks, U8.
 * Format: docs/gguf.md of ggml. Nothing in the file is trusted: each count is compared with the bytes that are left.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIMENSION_MAX 4   /* of the format */
#define ARRAY_DEPTH_MAX 8 /* arrays of arrays are allowed, nobody writes them */

/* The file as it is read, front to back. After the first fault `failure` says what it was, and nothing is read. */
struct reader {
    const unsigned char *bytes;
    uint64_t size, at;
    const char *failure;
};

/* What the tensors of a file are, in the form that the library takes; names lie in the file. */
struct table {
    struct hr_extent *extents;
    uint64_t *shapes; /* DIMENSION_MAX for each */
    size_t count;
    uint64_t alignment;
};

struct block_type {
    uint32_t type;
    uint32_t dtype;           /* U8: blocks */
    uint32_t elements, bytes; /* of a block */
};

/* Numbers of ggml_type, and what a block of each holds. */
static const struct block_type block_types[] = {
    /* F32, F16, I8, I16, I32, I64, F64, BF16 */
    {0, HR_DTYPE_F32, 1, 4},
    {1, HR_DTYPE_F16, 1, 2},
    {24, HR_DTYPE_I8, 1, 1},
    {25, HR_DTYPE_I16, 1, 2},
    {26, HR_DTYPE_I32, 1, 4},
    {27, HR_DTYPE_I64, 1, 8},
    {28, HR_DTYPE_F64, 1, 8},
    {30, HR_DTYPE_BF16, 1, 2},
    /* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4 */
    {2, HR_DTYPE_U8, 32, 18},
    {3, HR_DTYPE_U8, 32, 20},
    {6, HR_DTYPE_U8, 32, 22},
    {7, HR_DTYPE_U8, 32, 24},
    {8, HR_DTYPE_U8, 32, 34},
    {20, HR_DTYPE_U8, 32, 18},
    {39, HR_DTYPE_U8, 32, 17},
    /* Q2_K to Q6_K */
    {10, HR_DTYPE_U8, 256, 84},
    {11, HR_DTYPE_U8, 256, 110},
    {12, HR_DTYPE_U8, 256, 144},
    {13, HR_DTYPE_U8, 256, 176},
    {14, HR_DTYPE_U8, 256, 210},
    /* IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ3_S, IQ2_S, IQ4_XS, IQ1_M, TQ1_0, TQ2_0 */
    {16, HR_DTYPE_U8, 256, 66},
    {17, HR_DTYPE_U8, 256, 74},
    {18, HR_DTYPE_U8, 256, 98},
    {19, HR_DTYPE_U8, 256, 50},
    {21, HR_DTYPE_U8, 256, 110},
    {22, HR_DTYPE_U8, 256, 82},
    {23, HR_DTYPE_U8, 256, 136},
    {29, HR_DTYPE_U8, 256, 56},
    {34, HR_DTYPE_U8, 256, 54},
    {35, HR_DTYPE_U8, 256, 66},
};

/* ------------------------------------------------------------------------------------- reading the file */

static void fail(struct reader *reader, const char *what)
{
    if (!reader->failure)
        reader->failure = what;
}

/* The next `size` bytes, or NULL. */
static const unsigned char *take(struct reader *reader, uint64_t size)
{
    if (!reader->failure && size > reader->size - reader->at)
        fail(reader, "the file ends too early");
    if (reader->failure)
        return NULL;
    reader->at += size;
    return reader->bytes + (reader->at - size);
}

/* A number of 1 to 8 bytes; 0 after a fault. */
static uint64_t take_number(struct reader *reader, unsigned size)
{
    const unsigned char *bytes = take(reader, size);
    uint64_t number = 0;
    for (unsigned i = 0; bytes && i < size; i++)
        number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

static const char *take_text(struct reader *reader, uint64_t *ret_size)
{
    *ret_size = take_number(reader, 8);
    return (const char *)take(reader, *ret_size);
}

/* How many bytes a value of a metadata type has; 0: text, array, or no type. */
static unsigned value_bytes(uint32_t type)
{
    static const unsigned bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* u8 i8 u16 i16 u32 i32 f32 bool . . */
    return type < sizeof bytes / sizeof bytes[0] ? bytes[type] : 0;
}

static void skip_value(struct reader *reader, uint32_t type, unsigned depth)
{
    enum { TEXT = 8, ARRAY = 9 };
    uint64_t size;
    if (type == TEXT) {
        take_text(reader, &size);
    } else if (type == ARRAY) {
        uint32_t element = (uint32_t)take_number(reader, 4);
        uint64_t count = take_number(reader, 8), bytes = value_bytes(element);
        if (depth == ARRAY_DEPTH_MAX)
            fail(reader, "arrays of metadata lie too deep");
        else if (bytes && count > reader->size / bytes)
            fail(reader, "an array of metadata is longer than the file");
        else if (bytes)
            take(reader, count * bytes);
        else
            for (uint64_t i = 0; !reader->failure && i < count; i++) /* ends with the file: each takes some bytes */
                skip_value(reader, element, depth + 1);
    } else if (value_bytes(type)) {
        take(reader, value_bytes(type));
    } else {
        fail(reader, "metadata of a type that the format does not have");
    }
}

static void read_metadata(struct reader *reader, uint64_t pair_count, struct table *table)
{
    static const char key[] = "general.alignment";
    table->alignment = 32;
    for (uint64_t i = 0; !reader->failure && i < pair_count; i++) {
        uint64_t size;
        const char *name = take_text(reader, &size);
        uint32_t type = (uint32_t)take_number(reader, 4);
        if (name && size == sizeof key - 1 && memcmp(name, key, size) == 0 && type == 4)
            table->alignment = take_number(reader, 4);
        else
            skip_value(reader, type, 0);
    }
    if (!reader->failure && (table->alignment == 0 || table->alignment % 8))
        fail(reader, "the alignment is not a multiple of 8");
}

static const struct block_type *find_type(uint32_t type)
{
    for (size_t i = 0; i < sizeof block_types / sizeof block_types[0]; i++)
        if (block_types[i].type == type)
            return &block_types[i];
    return NULL;
}

/* A tensor's line; its offset still counts from the start of the data. */
static void read_tensor(struct reader *reader, struct hr_extent *extent, uint64_t *shape)
{
    uint64_t name_size;
    const char *name = take_text(reader, &name_size);
    uint32_t rank = (uint32_t)take_number(reader, 4);
    if (rank > DIMENSION_MAX)
        fail(reader, "a tensor has more than 4 dimensions");
    for (uint32_t d = 0; !reader->failure && d < rank; d++) /* row-major, as the library has it: the slowest first */
        shape[rank - 1 - d] = take_number(reader, 8);
    const struct block_type *type = find_type((uint32_t)take_number(reader, 4));
    uint64_t offset = take_number(reader, 8);
    if (!type)
        fail(reader, "a tensor has a type that this program does not know");
    else if (type->elements > 1 && (rank == 0 || shape[rank - 1] % type->elements))
        fail(reader, "rows of a quantized tensor are no whole blocks");
    else if (type->elements > 1 && shape[rank - 1] / type->elements > UINT64_MAX / type->bytes)
        fail(reader, "a tensor's extents are too large");
    if (reader->failure)
        return;
    if (type->elements > 1)
        shape[rank - 1] = shape[rank - 1] / type->elements * type->bytes;
    *extent = (struct hr_extent){.size = sizeof *extent,
                                 .name = name,
                                 .name_size = (size_t)name_size,
                                 .dtype = type->dtype,
                                 .rank = rank,
                                 .shape = shape,
                                 .offset = offset};
}

static void read_tensors(struct reader *reader, uint64_t count, struct table *table)
{
    enum { TENSOR_BYTES_MIN = 8 + 4 + 4 + 8 };
    if (count > (reader->size - reader->at) / TENSOR_BYTES_MIN)
        fail(reader, "the file ends before its tensors are listed");
    if (reader->failure)
        return;
    table->count = (size_t)count;
    table->extents = calloc(table->count + 1, sizeof *table->extents);
    table->shapes = calloc(table->count + 1, DIMENSION_MAX * sizeof *table->shapes);
    if (!table->extents || !table->shapes)
        fail(reader, "no memory for the table");
    for (size_t i = 0; !reader->failure && i < table->count; i++)
        read_tensor(reader, &table->extents[i], table->shapes + i * DIMENSION_MAX);
    /* The data begin at the next multiple of the alignment; that each tensor lies in the file is the library's task. */
    uint64_t data = reader->at + (table->alignment - reader->at % table->alignment) % table->alignment;
    for (size_t i = 0; !reader->failure && i < table->count; i++) {
        if (table->extents[i].offset % table->alignment || table->extents[i].offset > UINT64_MAX - data)
            fail(reader, "a tensor's offset is not aligned, or too large");
        table->extents[i].offset += data;
    }
}

static void read_table(struct reader *reader, struct table *table)
{
    const unsigned char *magic = take(reader, 4);
    uint32_t version = (uint32_t)take_number(reader, 4);
    uint64_t tensor_count = take_number(reader, 8), pair_count = take_number(reader, 8);
    if (magic && memcmp(magic, "GGUF", 4))
        fail(reader, "this is not a GGUF file");
    if (version != 2 && version != 3)
        fail(reader, "the version is neither 2 nor 3, or the file is big-endian");
    read_metadata(reader, pair_count, table);
    if (!reader->failure)
        read_tensors(reader, tensor_count, table);
}

/* ------------------------------------------------------------------------------------- loading */

static int report(struct hr_error *err, int code, const char *what)
{
    err->code = code;
    snprintf(err->message, sizeof err->message, "%s", what);
    return code;
}

/* Whether a loaded tensor is what a plain read of the file gives. */
static int compare(int fd, const struct hr_tensor *tensor, const struct hr_view *view, struct hr_error *err)
{
    unsigned char part[1 << 16];
    for (uint64_t at = 0; at < view->bytes;) {
        uint64_t left = view->bytes - at;
        ssize_t got = pread(fd, part, left < sizeof part ? (size_t)left : sizeof part, (off_t)(tensor->offset + at));
        if (got <= 0)
            return report(err, HR_EIO_ERROR, "the plain read failed");
        if (memcmp((const unsigned char *)view->data + at, part, (size_t)got))
            return report(err, HR_EIO_ERROR, "a loaded tensor differs from a plain read");
        at += (uint64_t)got;
    }
    return 0;
}

static void print_tensor(const struct hr_tensor *tensor)
{
    printf("%s %s [", tensor->name, hr_dtype_name(tensor->dtype));
    for (uint32_t d = 0; d < tensor->rank; d++)
        printf("%s%" PRIu64, d ? "," : "", tensor->shape[d]);
    printf("] %" PRIu64 " bytes at %" PRIu64 ": equal\n", tensor->size, tensor->offset);
}

static int load_and_compare(int fd, struct hr_loader *loader, const struct hr_checkpoint *checkpoint,
                            struct hr_error *err)
{
    struct hr_load *load = NULL;
    size_t count = hr_checkpoint_count(checkpoint);
    struct hr_item *items = calloc(count + 1, sizeof *items);
    if (!items)
        return report(err, HR_EOUT_OF_MEMORY, "no memory for a request");
    for (size_t i = 0; i < count; i++) {
        items[i].size = sizeof *items;
        items[i].tensor_index = i;
    }
    int code = hr_load_start(loader, checkpoint, items, count, NULL, &load, err);
    free(items);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    for (size_t i = 0; code == 0 && i < count; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, i);
        struct hr_view view = {.size = sizeof view};
        code = hr_load_view(load, i, &view, err);
        if (code == 0)
            code = compare(fd, tensor, &view, err);
        if (code == 0)
            print_tensor(tensor);
    }
    hr_load_free(load);
    return code;
}

/* The table is read from a mapping; the tensors are not: they are loaded. */
static int read_and_load(const char *path, int fd, const struct reader *mapped, struct hr_error *err)
{
    struct reader reader = *mapped;
    struct table table = {0};
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    read_table(&reader, &table);
    int code = reader.failure ? report(err, HR_EINVALID_ARGUMENT, reader.failure)
                              : hr_checkpoint_from_table(&path, 1, table.extents, table.count, &checkpoint, err);
    free(table.extents); /* everything was copied */
    free(table.shapes);
    if (code == 0)
        code = hr_loader_new(NULL, &loader, err);
    if (code == 0)
        code = load_and_compare(fd, loader, checkpoint, err);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return code;
}

int main(int argument_count, char **arguments)
{
    struct hr_error err = {0};
    struct reader reader = {0};
    struct stat stat;
    if (argument_count != 2) {
        fprintf(stderr, "usage: %s FILE.gguf\n", arguments[0]);
        return 2;
    }
    int fd = open(arguments[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) != 0) {
        perror(arguments[1]);
        return 1;
    }
    void *mapping = stat.st_size ? mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (mapping != MAP_FAILED) {
        reader.bytes = mapping;
        reader.size = (uint64_t)stat.st_size;
    }
    int code = read_and_load(arguments[1], fd, &reader, &err);
    if (code)
        fprintf(stderr, "%s: %s: %s%s%s\n", arguments[1], hr_error_kind(code), err.tensor, *err.tensor ? ": " : "",
                err.message);
    if (mapping != MAP_FAILED)
        munmap(mapping, (size_t)stat.st_size);
    close(fd);
    return code ? 1 : 0;
}
