/*
 * gds.h: GPUDirect Storage: files that are read into a ring of slots in device memory, by cuFile, from where lanes spread
 * them to their places (hr_lane_spread). So nothing is ever read beside memory that somebody else owns.
 *
 * cuFile reads either by direct transfers from storage to the device, or in what it calls its compatibility mode, through
 * host memory of its own, which is slower than our own staging. It does not say which; gds_direct.c has our rule.
 *
 * Threads   All functions may be called from any threads at once; a slot belongs to one thread at a time.
 * Errors    HR_EUNSUPPORTED when cuFile or what it needs is not there, HR_EIO_ERROR, HR_EDEVICE_ERROR, HR_EOUT_OF_MEMORY;
 *           with the library's code and its name where it gave one.
 * Fork      Nothing here may be called in a child of fork() for what was opened before it, but hr_gds_forget().
 */
#ifndef HR_DEVICE_GDS_H
#define HR_DEVICE_GDS_H

#include <headrace/headrace.h>
#include <stdint.h>

#include "device/device.h"

/* What offsets in files and slots are multiples of, and slots are padded to: what O_DIRECT and DMA want. */
#define HR_GDS_ALIGNMENT 4096u

struct hr_gds;
struct hr_gds_file;

/*
 * A ring of up to `slot_count` slots of at least `slot_bytes` in the memory of a GPU, each registered with cuFile. Where
 * registration is refused (the aperture of the device is full) there are fewer slots; without any it is an error.
 * Holds a reference to the device. Blocks while cuFile starts.
 */
int hr_gds_open(struct hr_device *device, uint64_t slot_bytes, uint32_t slot_count, struct hr_gds **ret_gds,
                struct hr_error *err);
/* No read may be running and no lane may use a slot; files are closed. NULL is allowed. */
void hr_gds_close(struct hr_gds *gds);
/* In a forked child: frees what is the process's own. */
void hr_gds_forget(struct hr_gds *gds);

uint32_t hr_gds_slot_count(const struct hr_gds *gds);
uint64_t hr_gds_slot_bytes(const struct hr_gds *gds); /* a multiple of the alignment */
/* Device memory; HR_PLACE_SLACK bytes around it may be read. */
char *hr_gds_slot(const struct hr_gds *gds, uint32_t slot_index);
/* "16 slots of 4160 KiB", and why not more. Lives as long as `gds`. */
const char *hr_gds_detail(const struct hr_gds *gds);

/*
 * Opens the file of `fd` once more, for reads past the page cache where its filesystem has them. `fd` may be closed
 * then. Any ring of the process may read it.
 */
int hr_gds_file_open(struct hr_gds *gds, int fd, struct hr_gds_file **ret_file, struct hr_error *err);
/* NULL is allowed. */
void hr_gds_file_close(struct hr_gds *gds, struct hr_gds_file *file);

/*
 * Reads `bytes` from `file_offset` on to `slot_offset` of a slot; both offsets are multiples of HR_GDS_ALIGNMENT. Up to
 * that many bytes more may be read behind them, for which the slot has room. Short counts are continued here: less than
 * `bytes` is returned only when the file ends there. Blocks. Bytes and calls are added to the last two, repeats included.
 */
int64_t hr_gds_read(struct hr_gds *gds, struct hr_gds_file *file, uint32_t slot_index, uint64_t slot_offset,
                    uint64_t file_offset, uint64_t bytes, uint64_t *bytes_read, uint64_t *read_count,
                    struct hr_error *err);

/* ----------------------------------------------------------------------------------- gds_direct.c */

/*
 * 1 when nvidia-fs, which does direct transfers, is there for this process; else 0 and the reason. Loads nothing.
 */
int hr_gds_platform(char *detail, size_t capacity);
/*
 * 1 when files on the filesystem of this device number (st_dev) are read by direct transfers: nvidia-fs is there, cuFile
 * is not told to read by POSIX calls, and it supports the storage. Else 0: compatibility mode. `detail` says why, or what
 * was found.
 */
int hr_gds_is_direct(const struct hr_gds *gds, uint64_t device_number, char *detail, size_t capacity);

#endif
