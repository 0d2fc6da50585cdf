/*
 * place.h: what the placing kernel is given, shared by the kernel (device/kernels/place.cu), by what launches it, and by
 * the tests' model of it.
 *
 * A move takes `rows` rows of `bytes` bytes. Row r is read from source + r * source_pitch and written to
 * target + r * target_pitch. Sources are pinned host memory as the device sees it, or device memory; nothing needs
 * any alignment. The kernel may read up to HR_PLACE_SLACK bytes on either side of a row, and uses nothing of them. It
 * writes exactly the rows. Rows of all moves of a launch do not overlap. A launch without moves reads no table.
 */
#ifndef HR_DEVICE_PLACE_H
#define HR_DEVICE_PLACE_H

#define HR_PLACE_SLACK 32
#define HR_PLACE_KERNEL_NAME "hr_place"

struct hr_move {
    unsigned long long source, target; /* addresses */
    unsigned long long bytes, rows;    /* of a row; neither is 0 */
    long long source_pitch, target_pitch;
};

#endif
