/*
 * verb_doctor.c: what the library can use here, which GPUs there are, and how the storage of a path would be read. It
 * answers a question about the machine, so "no" is no failure.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"

/* 1 and the GPU of this ordinal, or 0 past the last one. */
static int find_gpu(int ordinal, struct hr_device_info *ret_info)
{
    char name[32];
    struct hr_error err;
    snprintf(name, sizeof name, "cuda:%d", ordinal);
    return device_find(name, ret_info, &err) == 0;
}

/* `storage`: NULL without a path. */
static void print_json(const struct hr_capability *capabilities, size_t count, const char *storage)
{
    struct hr_device_info info;
    struct json json = {0};
    json_open(&json, NULL, '{');
    json_text(&json, "version", hr_version());
    json_open(&json, "capabilities", '[');
    for (size_t i = 0; i < count; i++) {
        json_open(&json, NULL, '{');
        json_string(&json, "name", capabilities[i].name, strlen(capabilities[i].name));
        json_bool(&json, "usable", capabilities[i].usable);
        json_string(&json, "detail", capabilities[i].detail, strlen(capabilities[i].detail));
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_open(&json, "devices", '[');
    for (int i = 0; find_gpu(i, &info); i++)
        json_device(&json, NULL, &info);
    json_close(&json, ']');
    if (storage)
        json_string(&json, "storage", storage, strlen(storage));
    json_close(&json, '}');
    json_end(&json);
}

static void print_text(const struct hr_capability *capabilities, size_t count, const char *storage)
{
    struct table table;
    struct hr_device_info info;
    char memory[32];
    table_init(&table, "lll");
    for (size_t i = 0; i < count; i++) {
        table_addf(&table, "%s", capabilities[i].name);
        table_addf(&table, "%s", capabilities[i].usable ? "yes" : "no");
        table_add(&table, escape(capabilities[i].detail, strlen(capabilities[i].detail)));
    }
    for (int i = 0; find_gpu(i, &info); i++) {
        table_addf(&table, "cuda:%d", i);
        table_addf(&table, "yes");
        table_addf(&table, "%s, %s, compute capability %u.%u, %u copy engines, %s, %s", info.name,
                   human_bytes(memory, info.memory_bytes), info.compute_major, info.compute_minor,
                   info.copy_engine_count, info.pci, info.uuid);
    }
    if (storage) {
        table_addf(&table, "storage");
        table_addf(&table, "%s", "");
        table_add(&table, escape(storage, strlen(storage)));
    }
    printf("headrace %s\n", hr_version());
    table_print(&table, stdout);
}

static void print(int as_json, const char *storage)
{
    size_t count = hr_capabilities(NULL, 0);
    struct hr_capability *capabilities = allocate(count, sizeof *capabilities);
    size_t found = hr_capabilities(capabilities, count);
    if (found < count)
        count = found;
    if (as_json)
        print_json(capabilities, count, storage);
    else
        print_text(capabilities, count, storage);
    free(capabilities);
}

int doctor_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct text_list operands;
    struct hr_error err;
    char storage[320];
    int as_json = 0, code;
    const struct option options[] = {JSON_OPTION(as_json), {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){0, 1}, &operands, &code))
        return code;
    code = EXIT_YES;
    if (operands.count && hr_storage_describe(operands.texts[0], storage, sizeof storage, &err) < 0)
        code = load_error_report(verb->name, as_json, &err);
    else
        print(as_json, operands.count ? storage : NULL);
    text_list_release(&operands);
    return code;
}
