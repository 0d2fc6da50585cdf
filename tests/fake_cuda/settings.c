/*
 * settings.c: what the fake driver was told to be and which calls were told to fail. Guarded by fake_lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_state.h"

#define NAME_MAX_BYTES 64

struct fake_settings fake_settings;

static unsigned long call_count, fired_count;
/* Calls to come until the one that fails, counting it; 0: none. */
static unsigned long fail_in, named_fail_in;
static int fail_code, named_fail_code;
static char fail_name[NAME_MAX_BYTES];

static const struct fake_settings defaults = {
    .device_count = 2, .memory_bytes = 1L << 30, .version = 13000, .register_limit = -1, .delay_us = 50, .seed = 1};

struct setting {
    const char *key;
    long *value;
};

static const struct setting numbers[] = {
    {"devices", &fake_settings.device_count},
    {"memory", &fake_settings.memory_bytes},
    {"version", &fake_settings.version},
    {"mig", &fake_settings.mig},
    {"confidential", &fake_settings.confidential},
    {"no_kernel", &fake_settings.no_kernel},
    {"no_batch", &fake_settings.no_batch},
    {"capture", &fake_settings.capture_refusals},
    {"delay_us", &fake_settings.delay_us},
    {"seed", &fake_settings.seed},
    {"abort", &fake_settings.abort},
};

static int parse_long(const char *text, long *ret_value)
{
    char *end;
    long value = strtol(text, &end, 0);
    if (end == text || *end || value < 0)
        return -1;
    *ret_value = value;
    return 0;
}

static int apply_word(const char *key, const char *value)
{
    if (!strcmp(key, "register") && !strcmp(value, "refuse"))
        return (int)(fake_settings.register_limit = 0);
    if (!strcmp(key, "register") && !strncmp(value, "limit:", 6))
        return parse_long(value + 6, &fake_settings.register_limit);
    if (!strcmp(key, "pinned"))
        return strcmp(value, "refuse") ? -1 : !(fake_settings.pinned_refused = 1);
    if (!strcmp(key, "driver") && !strcmp(value, "none"))
        return !(fake_settings.init_code = CUDA_ERROR_NO_DEVICE);
    if (!strcmp(key, "driver"))
        return parse_long(value, &fake_settings.init_code);
    return -1;
}

static int apply_failure(const char *key, const char *value)
{
    char name[NAME_MAX_BYTES];
    unsigned long n;
    int code, end = 0;
    if (!strcmp(key, "fail") && sscanf(value, "%lu:%d%n", &n, &code, &end) == 2 && !value[end]) {
        fail_in = n;
        fail_code = code;
        return 0;
    }
    if (!strcmp(key, "fail_call") && sscanf(value, "%63[^:]:%lu:%d%n", name, &n, &code, &end) == 3 && !value[end]) {
        memcpy(fail_name, name, sizeof name);
        named_fail_in = n;
        named_fail_code = code;
        return 0;
    }
    return -1;
}

static int apply_one(char *setting)
{
    char *value = strchr(setting, '=');
    if (!value)
        return -1;
    *value++ = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(setting, numbers[i].key))
            return parse_long(value, numbers[i].value);
    return apply_word(setting, value) && apply_failure(setting, value) ? -1 : 0;
}

int fake_settings_apply(const char *text)
{
    char *copy = strdup(text), *rest;
    int result = copy ? 0 : -1;
    for (char *word = copy ? strtok_r(copy, ", ", &rest) : NULL; word; word = strtok_r(NULL, ", ", &rest))
        result |= apply_one(word);
    free(copy);
    if (fake_settings.device_count > FAKE_DEVICE_MAX)
        fake_settings.device_count = FAKE_DEVICE_MAX;
    return result;
}

void fake_settings_reset(void)
{
    fake_settings = defaults;
    fail_in = named_fail_in = fired_count = 0;
    const char *text = getenv("FAKE_CUDA");
    if (text && fake_settings_apply(text)) {
        fprintf(stderr, "fake libcuda: FAKE_CUDA=%s is not understood\n", text);
        abort();
    }
}

/* The name without the version that the binary interface puts behind it. */
static int is_named(const char *name)
{
    size_t size = strlen(fail_name);
    return !strncmp(name, fail_name, size) && (!name[size] || !strncmp(name + size, "_v", 2));
}

int fake_must_fail(const char *name, int counted)
{
    int code = 0;
    call_count += (unsigned long)counted;
    if (counted && fail_in && !--fail_in)
        code = fail_code;
    if (named_fail_in && is_named(name) && !--named_fail_in)
        code = named_fail_code;
    fired_count += code != 0;
    return code;
}

/* CUDA_VISIBLE_DEVICES as a list of ordinals, up to the first that is none. */
static int visible(int *ret_devices)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!text) {
        for (; count < fake_settings.device_count; count++)
            ret_devices[count] = count;
        return count;
    }
    for (char *end; count < FAKE_DEVICE_MAX; text = end + (*end == ',')) {
        long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= fake_settings.device_count)
            break;
        ret_devices[count++] = (int)device;
    }
    return count;
}

int fake_visible_count(void)
{
    int devices[FAKE_DEVICE_MAX];
    return visible(devices);
}

int fake_visible_device(int ordinal)
{
    int devices[FAKE_DEVICE_MAX];
    return ordinal >= 0 && ordinal < visible(devices) ? devices[ordinal] : -1;
}

CUDA_API int fake_cuda_configure(const char *settings)
{
    pthread_mutex_lock(&fake_lock);
    int result = fake_settings_apply(settings);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

CUDA_API void fake_cuda_fail_nth(unsigned long n, int code)
{
    pthread_mutex_lock(&fake_lock);
    fail_in = n;
    fail_code = code;
    fired_count = 0;
    pthread_mutex_unlock(&fake_lock);
}

static unsigned long read_locked(const unsigned long *count)
{
    pthread_mutex_lock(&fake_lock);
    unsigned long value = *count;
    pthread_mutex_unlock(&fake_lock);
    return value;
}

CUDA_API unsigned long fake_cuda_fired(void)
{
    return read_locked(&fired_count);
}

CUDA_API unsigned long fake_cuda_calls(void)
{
    return read_locked(&call_count);
}
