/*
 * limits_entry.c: an entry of the limits file to JSON and back, by one table, so that both agree.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "limits_file.h"

enum field_kind { FIELD_TEXT, FIELD_U32, FIELD_U64, FIELD_SIZES };

/* In the order in which they are written. What is not in the text stays 0, what is not in the table is passed over. */
static const struct field {
    const char *name;
    enum field_kind kind;
    size_t offset, size;
} fields[] = {
#define FIELD(name, kind, member)                                                                   \
    {                                                                                               \
        name, kind, offsetof(struct limits_entry, member), sizeof((struct limits_entry *)0)->member \
    }
    FIELD("host", FIELD_TEXT, host),
    FIELD("time", FIELD_U64, limits.time), /* never negative: see limits_parse() */
    FIELD("device_type", FIELD_U32, limits.device.type),
    FIELD("device_ordinal", FIELD_U32, limits.device.ordinal),
    FIELD("device_name", FIELD_TEXT, limits.device.name),
    FIELD("device_uuid", FIELD_TEXT, limits.device.uuid),
    FIELD("device_pci", FIELD_TEXT, limits.device.pci),
    FIELD("device_memory_bytes", FIELD_U64, limits.device.memory_bytes),
    FIELD("path", FIELD_TEXT, path),
    FIELD("cores", FIELD_U32, limits.core_count),
    FIELD("memory_copy", FIELD_U64, limits.memory_copy),
    FIELD("page_cache", FIELD_U64, limits.page_cache),
    FIELD("page_cache_threads", FIELD_U32, limits.page_cache_threads),
    FIELD("page_cache_fresh", FIELD_U64, limits.page_cache_fresh),
    FIELD("storage", FIELD_U64, limits.storage),
    FIELD("to_device_sizes", FIELD_SIZES, limits.to_device_sizes),
    FIELD("to_device", FIELD_SIZES, limits.to_device),
    FIELD("from_device", FIELD_U64, limits.from_device),
    FIELD("page_cache_to_device", FIELD_U64, limits.page_cache_to_device),
    FIELD("pin", FIELD_U64, limits.pin),
    FIELD("page_cache_detail", FIELD_TEXT, limits.page_cache_detail),
    FIELD("storage_detail", FIELD_TEXT, limits.storage_detail),
    FIELD("device_detail", FIELD_TEXT, limits.device_detail),
#undef FIELD
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static void print_field(struct json *json, const struct field *field, const char *member)
{
    uint64_t values[HR_PROBE_SIZE_COUNT];
    uint32_t value;
    switch (field->kind) {
    case FIELD_TEXT:
        json_text(json, field->name, member);
        break;
    case FIELD_U32:
        memcpy(&value, member, sizeof value);
        json_u64(json, field->name, value);
        break;
    case FIELD_U64:
        memcpy(values, member, sizeof values[0]);
        json_u64(json, field->name, values[0]);
        break;
    case FIELD_SIZES:
        memcpy(values, member, sizeof values);
        json_shape(json, field->name, values, HR_PROBE_SIZE_COUNT);
        break;
    }
}

void limits_print(struct json *json, const char *key, const struct limits_entry *entry)
{
    json_open(json, key, '{');
    for (size_t i = 0; i < FIELD_COUNT; i++)
        print_field(json, &fields[i], (const char *)entry + fields[i].offset);
    json_close(json, '}');
}

static int take_u32(struct json_input *input, char *member)
{
    uint64_t wide;
    if (!json_take_u64(input, &wide) || wide > UINT32_MAX)
        return 0;
    uint32_t value = (uint32_t)wide;
    memcpy(member, &value, sizeof value);
    return 1;
}

static int take_sizes(struct json_input *input, char *member)
{
    uint64_t values[HR_PROBE_SIZE_COUNT];
    for (size_t i = 0; i < HR_PROBE_SIZE_COUNT; i++)
        if (!json_take(input, i ? ',' : '[') || !json_take_u64(input, &values[i]))
            return 0;
    memcpy(member, values, sizeof values);
    return json_take(input, ']');
}

static int take_field(struct json_input *input, const struct field *field, char *member)
{
    uint64_t value;
    switch (field->kind) {
    case FIELD_TEXT:
        return json_take_text(input, member, field->size);
    case FIELD_U32:
        return take_u32(input, member);
    case FIELD_SIZES:
        return take_sizes(input, member);
    case FIELD_U64:
        break;
    }
    if (!json_take_u64(input, &value))
        return 0;
    memcpy(member, &value, sizeof value);
    return 1;
}

static int take_pair(struct json_input *input, struct limits_entry *entry)
{
    char name[64];
    if (!json_take_text(input, name, sizeof name) || !json_take(input, ':'))
        return 0;
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (strcmp(fields[i].name, name) == 0)
            return take_field(input, &fields[i], (char *)entry + fields[i].offset);
    return json_skip(input);
}

int limits_parse(struct json_input *input, struct limits_entry *ret_entry)
{
    int more = 1;
    *ret_entry = (struct limits_entry){.limits.size = sizeof ret_entry->limits};
    if (!json_take(input, '{'))
        return 0;
    while (more)
        if (!take_pair(input, ret_entry) || !json_take_end(input, '}', &more))
            return 0;
    return *ret_entry->host && ret_entry->limits.time > 0;
}
