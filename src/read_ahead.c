/*
 * read_ahead.c: hr_checkpoint_read_ahead(): the kernel reads a checkpoint's first bytes while its loads cannot begin yet.
 *
 * posix_fadvise(POSIX_FADV_WILLNEED) asks for at most one window of the device's (max of its read-ahead and its largest
 * request: 128 KiB on many machines, 8 MiB on some) and forgets the rest, without a word. So the file is asked for step
 * by step, and a step is what the page cache was seen to take.
 */
#include <fcntl.h>
#include <headrace/headrace.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"
#include "catalog/checkpoint.h"
#include "io/residency.h"
#include "topo/system_memory.h"

struct reading {
    const struct hr_checkpoint *checkpoint;
    uint64_t load_count; /* of the checkpoint, at first */
    uint64_t left;       /* bytes that may still be asked for */
    uint64_t step;       /* bytes that one call is taken for */
    uint64_t in_flight;  /* most of the file at hand */
};

/* A quarter of what this process may still take: pages that nobody uses are given up first, and others want some, too. */
static uint64_t default_bytes(void)
{
    uint64_t limit, available = hr_memory_available(&limit);
    return (available < limit ? available : limit) / 4;
}

/* Asks for [at, at + bytes): how much of it is on its way; 0 where the kernel reads nothing ahead; or -errno. */
static int64_t ask(int fd, uint64_t at, uint64_t bytes)
{
    int error = hr_sys->fadvise(fd, at, bytes, POSIX_FADV_WILLNEED);
    if (error)
        return error;
    int64_t here = hr_residency_exact(fd, at, bytes);
    if (here < 0) /* nobody counts: what all kernels read */
        here = HR_READ_AHEAD_STEP_MIN;
    return (uint64_t)here < bytes ? here : (int64_t)bytes;
}

/* All of [at, at + bytes), step by step; 0 where the kernel reads nothing ahead. */
static int ask_all(struct reading *reading, int fd, uint64_t at, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t wanted = bytes - done < reading->step ? bytes - done : reading->step;
        int64_t taken = ask(fd, at + done, wanted);
        if (taken <= 0)
            return 0;
        if ((uint64_t)taken < wanted)
            reading->step = (uint64_t)taken > HR_READ_AHEAD_STEP_MIN ? (uint64_t)taken : HR_READ_AHEAD_STEP_MIN;
        done += (uint64_t)taken;
    }
    reading->left -= bytes;
    return 1;
}

/* Once so much is on its way that the drive is busy, a step for each that has come. */
static int read_step(struct reading *reading, size_t file_index, int fd, uint64_t at, uint64_t bytes)
{
    if (!hr_ahead_announce(reading->checkpoint->ahead, file_index, at, at + bytes) || !ask_all(reading, fd, at, bytes))
        return 0;
    reading->in_flight += bytes;
    if (reading->in_flight <= HR_READ_AHEAD_FLIGHT_BYTES)
        return 1;
    reading->in_flight -= bytes;
    return hr_read_byte(fd, at + bytes - 1 - reading->in_flight, 0) == 1;
}

/* How much is looked at next: little till the first bytes that are not cached are found. */
static uint64_t next_bytes(const struct reading *reading, const struct hr_file *file, uint64_t at, int is_begun)
{
    uint64_t bytes = is_begun ? HR_READ_AHEAD_BYTES : HR_READ_AHEAD_STEP_MIN;
    bytes = bytes < reading->left ? bytes : reading->left;
    return bytes < file->size - at ? bytes : file->size - at;
}

/*
 * A file that is the caller's, from the first byte on that the page cache does not hold, to the next that it holds. Only
 * the bytes behind the header may be there, read ahead with that; more, and the file is not cold.
 */
static void read_claimed(struct reading *reading, size_t file_index, int fd)
{
    const struct hr_file *file = &reading->checkpoint->files[file_index];
    uint64_t first = file->data_offset / HR_CUT_ALIGNMENT * HR_CUT_ALIGNMENT, at, bytes;
    int is_begun = 0;
    reading->in_flight = 0;
    for (at = first; at < file->size && reading->left; at += bytes) {
        bytes = next_bytes(reading, file, at, is_begun);
        int64_t resident = hr_residency(fd, at, bytes, NULL);
        if (resident < 0 || (resident && (is_begun || at - first >= HR_READ_AHEAD_SKIP_BYTES)))
            return;
        if (!resident && !read_step(reading, file_index, fd, at, bytes))
            return;
        is_begun = !resident;
    }
    if (is_begun)
        hr_read_byte(fd, at - 1, 0); /* or many small files would all be on their way */
}

/* A file that cannot be opened is left to the load, which names what is wrong. */
static void read_file(struct reading *reading, size_t file_index)
{
    struct hr_ahead *ahead = reading->checkpoint->ahead;
    int fd = hr_sys->open(reading->checkpoint->open_paths[file_index], O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return;
    if (hr_ahead_claim(ahead, file_index, reading->load_count)) {
        read_claimed(reading, file_index, fd);
        hr_ahead_finish(ahead, file_index);
    }
    hr_sys->close(fd);
}

int hr_checkpoint_read_ahead(const struct hr_checkpoint *checkpoint, uint64_t most_bytes, uint64_t *ret_bytes,
                             struct hr_error *err)
{
    if (!checkpoint)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "the checkpoint must be given; it is NULL");
    uint64_t most = most_bytes ? most_bytes : default_bytes();
    struct reading reading = {.checkpoint = checkpoint,
                              .load_count = atomic_load(&checkpoint->ahead->load_count),
                              .left = most,
                              .step = HR_READ_AHEAD_BYTES};
    for (size_t i = 0; i < checkpoint->file_count && reading.left; i++)
        read_file(&reading, i);
    if (ret_bytes)
        *ret_bytes = most - reading.left;
    return 0;
}
