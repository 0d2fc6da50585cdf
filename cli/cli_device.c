/*
 * cli_device.c: names of devices, and reading back. Which devices there are the library knows.
 */
#include "cli_device.h"

#include <stdio.h>
#include <stdlib.h>

enum { READ_BACK_BYTES = 8 << 20 }; /* large enough for the link's speed, small enough for each hashing thread */

int device_find(const char *name, struct hr_device_info *ret_info, struct hr_error *err)
{
    *ret_info = (struct hr_device_info){.size = sizeof *ret_info};
    return hr_device_find(name ? name : "auto", ret_info, err);
}

char *device_name(char out[32], const struct hr_device_info *info)
{
    if (info->type == HR_DEVICE_CUDA)
        snprintf(out, 32, "cuda:%d", info->ordinal);
    else
        snprintf(out, 32, "cpu");
    return out;
}

char *device_title(char out[192], const struct hr_device_info *info)
{
    char name[32];
    if (info->type == HR_DEVICE_CUDA)
        snprintf(out, 192, "%s (%s)", device_name(name, info), info->name);
    else
        snprintf(out, 192, "cpu");
    return out;
}

void json_device(struct json *json, const char *key, const struct hr_device_info *info)
{
    char name[32];
    json_open(json, key, '{');
    json_text(json, "device", device_name(name, info));
    json_text(json, "name", info->name);
    json_text(json, "uuid", info->uuid);
    json_text(json, "pci", info->pci);
    json_u64(json, "memory_bytes", info->memory_bytes);
    json_u64(json, "compute_major", info->compute_major);
    json_u64(json, "compute_minor", info->compute_minor);
    json_u64(json, "copy_engines", info->copy_engine_count);
    json_bool(json, "confidential", info->confidential != 0);
    json_close(json, '}');
}

void read_back_init(struct read_back *read_back, const struct hr_device_info *device)
{
    *read_back = (struct read_back){.device = device};
    if (device->type != HR_DEVICE_CPU)
        read_back->buffer = allocate(READ_BACK_BYTES, 1);
}

void read_back_release(struct read_back *read_back)
{
    free(read_back->buffer);
    *read_back = (struct read_back){0};
}

int read_back_piece(struct read_back *read_back, struct hr_load *load, size_t item_index, uint64_t offset,
                    uint64_t bytes_left, struct byte_piece *ret_piece, struct hr_error *err)
{
    struct hr_view view = {.size = sizeof view};
    if (read_back->buffer) {
        ret_piece->bytes = read_back->buffer;
        ret_piece->size = bytes_left < READ_BACK_BYTES ? bytes_left : READ_BACK_BYTES;
        return hr_load_read(load, item_index, offset, ret_piece->size, read_back->buffer, err);
    }
    int code = hr_load_view(load, item_index, &view, err);
    if (code < 0)
        return code;
    ret_piece->bytes = (const unsigned char *)view.data + offset;
    ret_piece->size = bytes_left;
    return 0;
}
