/*
 * device_map.c: reads a device map and finds the entry that fits each item best.
 */
#include "device_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_device.h"

/* How well a key fits: modules by their length, from 1 on. */
#define FIT_PATTERN (SIZE_MAX - 1)
#define FIT_NAME SIZE_MAX

struct entry {
    const char *key; /* borrowed from the argument, not terminated */
    size_t key_size;
    struct hr_device_info device;
};

/* The entry of an item so far. */
struct choice {
    size_t fit; /* 0: none */
    size_t entry_index;
};

/* Names may contain '='; devices cannot, so the last one divides. */
static int entry_parse(const char *argument, struct entry *ret_entry, struct hr_error *err)
{
    struct hr_error found;
    const char *equals = strrchr(argument, '=');
    if (!equals)
        return error_set(err, HR_EINVALID_ARGUMENT, "--device-map '%s' is not of the form KEY=DEVICE", argument);
    ret_entry->key = argument;
    ret_entry->key_size = (size_t)(equals - argument);
    int code = device_find(equals + 1, &ret_entry->device, &found);
    return code < 0 ? error_set(err, code, "--device-map '%s': %s", argument, found.message) : 0;
}

static int covers_module(const struct entry *entry, const struct hr_tensor *tensor)
{
    if (entry->key_size == 0)
        return 1;
    return tensor->name_size > entry->key_size && tensor->name[entry->key_size] == '.' &&
           memcmp(tensor->name, entry->key, entry->key_size) == 0;
}

static size_t entry_fit(const struct entry *entry, const struct hr_tensor *tensor, int is_match)
{
    if (tensor->name_size == entry->key_size && memcmp(tensor->name, entry->key, entry->key_size) == 0)
        return FIT_NAME;
    if (is_match)
        return FIT_PATTERN;
    return covers_module(entry, tensor) ? 1 + entry->key_size : 0;
}

/* What of the items an entry covers, and better than those before it. A module may have no tensors; maps name such. */
static int entry_apply(const struct hr_checkpoint *checkpoint, const struct entry *entry, size_t entry_index,
                       const struct request *request, struct choice *choices, struct hr_error *err)
{
    char *key = strndup(entry->key, entry->key_size);
    if (!key)
        return error_set(err, HR_EOUT_OF_MEMORY, "out of memory for a key of --device-map");
    size_t tensor_count = hr_checkpoint_count(checkpoint);
    int is_pattern = strpbrk(key, "*?[") && !hr_checkpoint_find(checkpoint, key, entry->key_size);
    size_t match = is_pattern ? hr_checkpoint_match(checkpoint, key, 0) : SIZE_MAX;
    int code = match == tensor_count && tensor_count > 0
                   ? error_set(err, HR_ETENSOR_NOT_FOUND, "--device-map: no tensor's name matches '%s'", key)
                   : 0;
    for (size_t i = 0; !code && i < request->item_count; i++) { /* items are in the order of their tensors */
        size_t index = request->items[i].tensor_index;
        if (match < index)
            match = hr_checkpoint_match(checkpoint, key, index);
        size_t fit = entry_fit(entry, hr_checkpoint_at(checkpoint, index), match == index);
        if (fit > choices[i].fit)
            choices[i] = (struct choice){fit, entry_index};
    }
    free(key);
    return code;
}

static int uncovered(const struct hr_checkpoint *checkpoint, const struct request *request,
                     const struct choice *choices, struct hr_error *err)
{
    size_t count = 0, first = 0;
    for (size_t i = request->item_count; i-- > 0;)
        if (choices[i].fit == 0) {
            first = i;
            count++;
        }
    const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, request->items[first].tensor_index);
    char others[40] = "";
    if (count > 1)
        snprintf(others, sizeof others, " and %zu more", count - 1);
    return error_set(err, HR_EINVALID_ARGUMENT,
                     "no entry of --device-map covers tensor '%s'%s; add --device for what is left, or an "
                     "entry (=DEVICE covers everything)",
                     tensor->name, others);
}

/* The index of a device in the list, at its end when it is new. The list has room for it. */
static uint32_t list_place(struct device_list *list, const struct hr_device_info *device)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->devices[i].type == device->type && list->devices[i].ordinal == device->ordinal)
            return (uint32_t)i;
    list->devices[list->count] = *device;
    return (uint32_t)list->count++;
}

/* `entries` and `entry_count` end with the fallback, which is what choices without a fit mean. */
static int settle(const struct hr_checkpoint *checkpoint, const struct entry *entries, size_t entry_count,
                  const struct choice *choices, struct request *request, struct device_list *list, struct hr_error *err)
{
    int has_fallback = entries[entry_count].device.type != 0;
    list->devices = allocate(entry_count + 1, sizeof *list->devices);
    for (size_t i = 0; i < request->item_count; i++) {
        if (choices[i].fit == 0 && !has_fallback)
            return uncovered(checkpoint, request, choices, err);
        const struct entry *entry = &entries[choices[i].fit ? choices[i].entry_index : entry_count];
        request->items[i].device_index = list_place(list, &entry->device);
    }
    if (list->count == 0)
        list_place(list, &entries[0].device);
    return 0;
}

int device_map_apply(const struct hr_checkpoint *checkpoint, const struct text_list *texts, const char *fallback,
                     struct request *request, struct device_list *ret_devices, struct hr_error *err)
{
    struct entry *entries = allocate(texts->count + 1, sizeof *entries);
    struct choice *choices = allocate(request->item_count, sizeof *choices);
    int code = fallback ? device_find(fallback, &entries[texts->count].device, err) : 0;
    for (size_t i = 0; i < texts->count && code == 0; i++) {
        code = entry_parse(texts->texts[i], &entries[i], err);
        if (code == 0)
            code = entry_apply(checkpoint, &entries[i], i, request, choices, err);
    }
    if (code == 0)
        code = settle(checkpoint, entries, texts->count, choices, request, ret_devices, err);
    free(choices);
    free(entries);
    return code;
}
