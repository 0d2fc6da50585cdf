/*
 * cli_device.h: the devices of a load by their names, and how the bytes of an item come back from its own.
 */
#ifndef CLI_CLI_DEVICE_H
#define CLI_CLI_DEVICE_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "output.h"

/* Describes the device of this name; NULL means "auto". */
int device_find(const char *name, struct hr_device_info *ret_info, struct hr_error *err);
/* "cpu", "cuda:1". Returns `out`. */
char *device_name(char out[32], const struct hr_device_info *info);
/* "cpu", "cuda:1 (NVIDIA H200)". Returns `out`. */
char *device_title(char out[192], const struct hr_device_info *info);

/* The devices of a loader. */
struct device_list {
    struct hr_device_info *devices; /* for free() */
    size_t count;
};

/* Whether one of them is no host memory. */
int devices_have_gpu(const struct device_list *list);
/* "cuda:0,cuda:1"; "NVIDIA H200", each name once; "cuda:0 (NVIDIA H200), cuda:1 (NVIDIA H200)". For free(). */
char *devices_names(const struct device_list *list);
char *devices_models(const struct device_list *list);
char *devices_title(const struct device_list *list);

/* An object with all that is known of it. */
void json_device(struct json *json, const char *key, const struct hr_device_info *info);

struct byte_piece {
    const unsigned char *bytes;
    uint64_t size;
};

/* How one thread gets at the bytes of loaded items where they finally lie. It begins as zeroes. */
struct read_back {
    void *buffer; /* for what comes back from a GPU, made when that is first asked for */
};

void read_back_release(struct read_back *read_back);
/*
 * The first of the `bytes_left` bytes of a ready item from `offset` on: on the CPU all of them, where they lie; from a
 * GPU so many as the buffer holds, copied. Valid until the next call.
 */
int read_back_piece(struct read_back *read_back, struct hr_load *load, size_t item_index, uint64_t offset,
                    uint64_t bytes_left, struct byte_piece *ret_piece, struct hr_error *err);

#endif
