/*
 * place.h: what the placing kernel and the converting one are given, shared by the kernels (device/kernels/place.cu,
 * cast.cu), by what launches them, and by the tests' model of them.
 *
 * A move takes `rows` rows of `bytes` bytes. Row r is read from source + r * source_pitch and written to
 * target + r * target_pitch. Sources are pinned host memory as the device sees it, or device memory; nothing needs
 * any alignment. The kernel may read up to HR_PLACE_SLACK bytes on either side of a row, and uses nothing of them. It
 * writes exactly the rows. Rows of all moves of a launch do not overlap. A launch without moves reads no table.
 *
 * A move with a cast is the converting kernel's: `bytes` is of a row of the source, whole elements, and each of them is
 * written converted (convert/convert_parts.h). All else is the same. A launch has moves of one kind only.
 */
#ifndef HR_DEVICE_PLACE_H
#define HR_DEVICE_PLACE_H

#define HR_PLACE_SLACK 32
#define HR_PLACE_KERNEL_NAME "hr_place"
#define HR_CAST_KERNEL_NAME "hr_cast"

struct hr_move {
    unsigned long long source, target; /* addresses */
    unsigned long long bytes, rows;    /* of a row; neither is 0 */
    long long source_pitch, target_pitch;
    /*
     * 0, or a conversion: the dtype of the source, that of the target, and the binary logarithms of the bytes of an element
     * of either, a byte each from the lowest on.
     */
    unsigned long long cast;
};

#endif
