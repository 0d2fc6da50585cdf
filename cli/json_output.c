/*
 * json_output.c: JSON without a tree. What is not UTF-8 becomes U+FFFD, since JSON has no bytes.
 */
#include <inttypes.h>
#include <string.h>

#include "output.h"
#include "characters.h"

static FILE *file_of(const struct json *json)
{
    return json->file ? json->file : stdout;
}

static void quote(FILE *file, const char *value, size_t size)
{
    putc('"', file);
    for (size_t i = 0; i < size;) {
        unsigned char c = (unsigned char)value[i];
        size_t length = utf8_char_size(value + i, size - i);
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(file, "\\u%04x", c);
        else if (length == 0)
            fputs("\xef\xbf\xbd", file);
        else
            fwrite(value + i, 1, length, file);
        i += length ? length : 1;
    }
    putc('"', file);
}

static void begin_value(struct json *json, const char *key, size_t key_size)
{
    if (json->need_comma)
        putc(',', file_of(json));
    if (key) {
        quote(file_of(json), key, key_size);
        putc(':', file_of(json));
    }
    json->need_comma = 1;
}

static void begin(struct json *json, const char *key)
{
    begin_value(json, key, key ? strlen(key) : 0);
}

void json_open(struct json *json, const char *key, char bracket)
{
    begin(json, key);
    putc(bracket, file_of(json));
    json->need_comma = 0;
}

void json_close(struct json *json, char bracket)
{
    putc(bracket, file_of(json));
    json->need_comma = 1;
}

void json_pair(struct json *json, const char *key, size_t key_size, const char *value, size_t value_size)
{
    begin_value(json, key, key_size);
    quote(file_of(json), value, value_size);
}

void json_string(struct json *json, const char *key, const char *value, size_t value_size)
{
    begin(json, key);
    quote(file_of(json), value, value_size);
}

void json_text(struct json *json, const char *key, const char *value)
{
    begin(json, key);
    if (value && *value)
        quote(file_of(json), value, strlen(value));
    else
        fputs("null", file_of(json));
}

void json_u64(struct json *json, const char *key, uint64_t value)
{
    begin(json, key);
    fprintf(file_of(json), "%" PRIu64, value);
}

void json_i64(struct json *json, const char *key, int64_t value)
{
    begin(json, key);
    fprintf(file_of(json), "%" PRId64, value);
}

void json_real(struct json *json, const char *key, double value, int decimals)
{
    begin(json, key);
    fprintf(file_of(json), "%.*f", decimals, value);
}

void json_bool(struct json *json, const char *key, int value)
{
    begin(json, key);
    fputs(value ? "true" : "false", file_of(json));
}

void json_shape(struct json *json, const char *key, const uint64_t *shape, uint32_t rank)
{
    json_open(json, key, '[');
    for (uint32_t i = 0; i < rank; i++)
        json_u64(json, NULL, shape[i]);
    json_close(json, ']');
}

void json_offset(struct json *json, const char *key, uint64_t offset)
{
    if (offset == HR_NO_OFFSET)
        json_text(json, key, NULL);
    else
        json_u64(json, key, offset);
}

void json_end(struct json *json)
{
    putc('\n', file_of(json));
    json->need_comma = 0;
}
