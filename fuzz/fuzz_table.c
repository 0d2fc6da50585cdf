/*
 * fuzz_table.c: tables that a caller describes, against their rules one by one in numbers that cannot overflow: what is
 * taken, in which order it stands, that names find it; and that the twin without names takes the same ranges.
 *
 * Input: sizes of three files, which are played, then extents: name, dtype, rank, shape, file, offset.
 */
#include "fuzz.h"

#include <string.h>
#include <sys/stat.h>

#include "base/sys.h"
#include "base/utf8.h"
#include "catalog/checkpoint.h"

enum { FILE_COUNT = 3, EXTENT_MAX = 10, NAME_MAX_BYTES = 3, RANK_DRAWN = 4, RANK_LIMIT = 64 };

static uint64_t file_sizes[FILE_COUNT];
static int opened_count;

static int open_played(const char *path, int flags)
{
    (void)path;
    (void)flags;
    return 1000 + opened_count++ % FILE_COUNT;
}

static int close_played(int fd)
{
    (void)fd;
    return 0;
}

static int fstat_played(int fd, struct stat *ret_stat)
{
    memset(ret_stat, 0, sizeof *ret_stat);
    ret_stat->st_mode = S_IFREG;
    ret_stat->st_ino = (ino_t)fd;
    ret_stat->st_size = (off_t)file_sizes[fd - 1000];
    return 0;
}

struct drawn {
    struct hr_extent extents[EXTENT_MAX];
    char names[EXTENT_MAX][NAME_MAX_BYTES];
    uint64_t shapes[EXTENT_MAX][RANK_LIMIT + 1];
    size_t count;
};

static void draw(struct fuzz_feed *feed, struct drawn *drawn)
{
    for (; feed->size && drawn->count < EXTENT_MAX; drawn->count++) {
        struct hr_extent *extent = &drawn->extents[drawn->count];
        char *name = drawn->names[drawn->count];
        uint64_t *shape = drawn->shapes[drawn->count];
        uint8_t first = fuzz_byte(feed);
        *extent = (struct hr_extent){.size = sizeof *extent, .name = first & 0x80 ? NULL : name, .shape = shape};
        extent->name_size = first % (NAME_MAX_BYTES + 1);
        for (size_t i = 0; i < extent->name_size; i++)
            name[i] = (char)fuzz_byte(feed);
        extent->dtype = fuzz_byte(feed) % (HR_DTYPE_COUNT + 2);
        uint8_t rank = fuzz_byte(feed);
        extent->rank = rank >= 0xf0 ? RANK_LIMIT + (rank & 1) : rank % (RANK_DRAWN + 1);
        for (uint32_t d = 0; d < extent->rank; d++)
            shape[d] = fuzz_number(feed);
        extent->file_index = fuzz_byte(feed) % (FILE_COUNT + 1);
        extent->offset = fuzz_number(feed);
    }
}

/* Bytes of an extent, -1 where it has none: more than the largest file, or no whole bytes. */
static __int128 model_bytes(const struct hr_extent *extent)
{
    __int128 bits = hr_dtype_bits(extent->dtype), elements = 1;
    for (uint32_t d = 0; d < extent->rank; d++) {
        if (extent->shape[d] && elements > (__int128)UINT64_MAX / extent->shape[d])
            return -1; /* also where a later extent is 0: the order of the product counts */
        elements *= extent->shape[d];
    }
    bits *= elements;
    return bits > UINT64_MAX || bits % 8 ? -1 : bits / 8;
}

static int model_takes(const struct hr_extent *extent)
{
    if (extent->file_index >= FILE_COUNT || !hr_dtype_bits(extent->dtype) || extent->rank > RANK_LIMIT)
        return 0;
    __int128 bytes = model_bytes(extent);
    return bytes >= 0 && bytes + extent->offset <= file_sizes[extent->file_index];
}

static int model_takes_name(const struct drawn *drawn, size_t index)
{
    const struct hr_extent *extent = &drawn->extents[index];
    if (!extent->name || extent->name_size == 0 || memchr(extent->name, '\0', extent->name_size) ||
        hr_utf8_valid_prefix((const unsigned char *)extent->name, extent->name_size) != extent->name_size)
        return 0;
    for (size_t i = 0; i < index; i++)
        if (drawn->extents[i].name && drawn->extents[i].name_size == extent->name_size &&
            memcmp(drawn->extents[i].name, extent->name, extent->name_size) == 0)
            return 0;
    return 1;
}

static void check_tensor(const struct hr_tensor *tensor, const struct hr_extent *extent)
{
    FUZZ_CHECK(tensor->dtype == extent->dtype && tensor->rank == extent->rank);
    FUZZ_CHECK(tensor->file_index == extent->file_index && tensor->offset == extent->offset);
    FUZZ_CHECK(tensor->size == (uint64_t)model_bytes(extent));
    FUZZ_CHECK(tensor->shape != extent->shape &&
               memcmp(tensor->shape, extent->shape, extent->rank * sizeof *extent->shape) == 0);
}

/* Each extent is found by its name; tensors stand in the order of (file, offset, position given). */
static void check_checkpoint(const struct hr_checkpoint *checkpoint, const struct drawn *drawn)
{
    const struct hr_tensor *first = hr_checkpoint_at(checkpoint, 0);
    FUZZ_CHECK(hr_checkpoint_count(checkpoint) == drawn->count);
    for (size_t i = 0; i < drawn->count; i++) {
        const struct hr_extent *extent = &drawn->extents[i];
        const struct hr_tensor *tensor = hr_checkpoint_find(checkpoint, extent->name, extent->name_size);
        FUZZ_CHECK(tensor && tensor->name != extent->name && tensor->name[tensor->name_size] == '\0');
        check_tensor(tensor, extent);
        size_t before = 0;
        for (size_t k = 0; k < drawn->count; k++) {
            const struct hr_extent *other = &drawn->extents[k];
            before += other->file_index != extent->file_index ? other->file_index < extent->file_index
                      : other->offset != extent->offset       ? other->offset < extent->offset
                                                              : k < i;
        }
        FUZZ_CHECK((size_t)(tensor - first) == before);
    }
}

static void run(const struct drawn *drawn)
{
    static const char *const paths[FILE_COUNT] = {"a", "b", "c"};
    struct hr_checkpoint *files = NULL, *named = NULL, *unnamed = NULL;
    struct hr_error err;
    int is_good = 1, is_good_named = 1;
    for (size_t i = 0; i < drawn->count; i++) {
        is_good &= model_takes(&drawn->extents[i]);
        is_good_named &= model_takes_name(drawn, i);
    }
    int code = hr_checkpoint_from_table(paths, FILE_COUNT, drawn->extents, drawn->count, &named, &err);
    FUZZ_CHECK((code == 0) == (is_good && is_good_named));
    if (code)
        fuzz_check_error(&err, code, UINT64_MAX);
    else
        check_checkpoint(named, drawn);
    FUZZ_CHECK(hr_checkpoint_from_table(paths, FILE_COUNT, NULL, 0, &files, &err) == 0);
    code = hr_checkpoint_extents(files, drawn->extents, drawn->count, &unnamed, &err);
    FUZZ_CHECK((code == 0) == is_good);
    for (size_t i = 0; code == 0 && i < drawn->count; i++)
        check_tensor(hr_checkpoint_at(unnamed, i), &drawn->extents[i]);
    hr_checkpoint_close(named);
    hr_checkpoint_close(files);
    hr_checkpoint_close(unnamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hr_sys played;
    struct fuzz_feed feed = {data, size};
    struct drawn drawn = {0};
    for (size_t i = 0; i < FILE_COUNT; i++)
        file_sizes[i] = fuzz_number(&feed) & INT64_MAX;
    draw(&feed, &drawn);
    played = hr_sys_real;
    played.open = open_played;
    played.close = close_played;
    played.fstat = fstat_played;
    hr_sys = &played;
    opened_count = 0;
    run(&drawn);
    hr_sys = &hr_sys_real;
    return 0;
}
