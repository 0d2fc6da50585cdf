/*
 * cli_device.c: names of devices, and reading back. Which devices there are the library knows.
 */
#include "cli_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ------------------------------------------------------------------------------------------- lists */

int devices_have_gpu(const struct device_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->devices[i].type != HR_DEVICE_CPU)
            return 1;
    return 0;
}

/* Puts a text behind what is there, with a separator if something is. */
static void append(char *out, size_t capacity, const char *separator, const char *text)
{
    size_t size = strlen(out);
    snprintf(out + size, capacity - size, "%s%s", size ? separator : "", text);
}

enum { TITLE_BYTES = 192 };

char *devices_names(const struct device_list *list)
{
    char name[32], *out = allocate(list->count + 1, sizeof name);
    for (size_t i = 0; i < list->count; i++)
        append(out, (list->count + 1) * sizeof name, ",", device_name(name, &list->devices[i]));
    return out;
}

static int is_named_before(const struct device_list *list, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (strcmp(list->devices[i].name, list->devices[index].name) == 0)
            return 1;
    return 0;
}

char *devices_models(const struct device_list *list)
{
    char *out = allocate(list->count + 1, TITLE_BYTES);
    for (size_t i = 0; i < list->count; i++)
        if (!is_named_before(list, i))
            append(out, (list->count + 1) * TITLE_BYTES, ", ", list->devices[i].name);
    return out;
}

char *devices_title(const struct device_list *list)
{
    char title[TITLE_BYTES], *out = allocate(list->count + 1, TITLE_BYTES);
    for (size_t i = 0; i < list->count; i++)
        append(out, (list->count + 1) * TITLE_BYTES, ", ", device_title(title, &list->devices[i]));
    return out;
}

/* ------------------------------------------------------------------------------------------ reading back */

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

void read_back_release(struct read_back *read_back)
{
    free(read_back->buffer);
    *read_back = (struct read_back){0};
}

int read_back_piece(struct read_back *read_back, struct hr_load *load, size_t item_index, uint64_t offset,
                    uint64_t bytes_left, struct byte_piece *ret_piece, struct hr_error *err)
{
    struct hr_view view = {.size = sizeof view};
    int code = hr_load_view(load, item_index, &view, err);
    if (code < 0)
        return code;
    if (view.device_type != HR_DEVICE_CPU) {
        if (!read_back->buffer)
            read_back->buffer = allocate(READ_BACK_BYTES, 1);
        ret_piece->bytes = read_back->buffer;
        ret_piece->size = bytes_left < READ_BACK_BYTES ? bytes_left : READ_BACK_BYTES;
        return hr_load_read(load, item_index, offset, ret_piece->size, read_back->buffer, err);
    }
    ret_piece->bytes = (const unsigned char *)view.data + offset;
    ret_piece->size = bytes_left;
    return 0;
}
