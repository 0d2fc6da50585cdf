/*
 * text.c: a growing buffer and a JSON writer without a tree.
 */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/sys.h"
#include "base/utf8.h"

void hr_text_release(struct hr_text *text)
{
    hr_free(text->bytes);
    *text = (struct hr_text){0};
}

/* Room for `size` more bytes and the final NUL; 0 when there is none. */
static int text_reserve(struct hr_text *text, size_t size)
{
    if (text->failed)
        return 0;
    if (text->capacity - text->size > size)
        return 1;
    size_t capacity = text->capacity * 2 + size + 64;
    char *bytes = hr_sys->resize(text->bytes, capacity);
    if (!bytes) {
        text->failed = 1;
        return 0;
    }
    text->bytes = bytes;
    text->capacity = capacity;
    return 1;
}

void hr_text_add(struct hr_text *text, const char *bytes, size_t size)
{
    if (!text_reserve(text, size))
        return;
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = '\0';
}

void hr_text_printf(struct hr_text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, arguments);
    if (size < 0)
        text->failed = 1;
    else if (text_reserve(text, (size_t)size)) {
        vsnprintf(text->bytes + text->size, (size_t)size + 1, format, again);
        text->size += (size_t)size;
    }
    va_end(again);
    va_end(arguments);
}

char *hr_text_take(struct hr_text *text)
{
    hr_text_add(text, "", 0);
    char *bytes = text->bytes;
    if (text->failed) {
        hr_text_release(text);
        return NULL;
    }
    *text = (struct hr_text){0};
    return bytes;
}

/* Bytes at the start of `value` that stand for themselves in JSON. */
static size_t json_plain_prefix(const char *value, size_t size)
{
    size_t i = 0;
    while (i < size) {
        unsigned char c = (unsigned char)value[i];
        size_t length = hr_utf8_char_size((const unsigned char *)value + i, size - i);
        if (length == 0 || c == '"' || c == '\\' || c < 0x20 || c == 0x7f)
            break;
        i += length;
    }
    return i;
}

/* What is not UTF-8 becomes U+FFFD, byte by byte. */
static void json_escape(struct hr_text *text, unsigned char c)
{
    if (c == '"' || c == '\\')
        hr_text_printf(text, "\\%c", c);
    else if (c < 0x80)
        hr_text_printf(text, "\\u%04x", c);
    else
        hr_text_add(text, "\xef\xbf\xbd", 3);
}

static void json_quote(struct hr_text *text, const char *value, size_t size)
{
    hr_text_add(text, "\"", 1);
    while (size > 0) {
        size_t plain = json_plain_prefix(value, size);
        hr_text_add(text, value, plain);
        if (plain < size)
            json_escape(text, (unsigned char)value[plain++]);
        value += plain;
        size -= plain;
    }
    hr_text_add(text, "\"", 1);
}

static void json_key(struct hr_text *text, const char *key)
{
    if (text->need_comma)
        hr_text_add(text, ",", 1);
    if (key) {
        json_quote(text, key, strlen(key));
        hr_text_add(text, ":", 1);
    }
    text->need_comma = 1;
}

void hr_json_open(struct hr_text *text, const char *key, char bracket)
{
    json_key(text, key);
    hr_text_add(text, &bracket, 1);
    text->need_comma = 0;
}

void hr_json_close(struct hr_text *text, char bracket)
{
    hr_text_add(text, &bracket, 1);
    text->need_comma = 1;
}

void hr_json_string(struct hr_text *text, const char *key, const char *value, size_t value_size)
{
    json_key(text, key);
    json_quote(text, value, value_size);
}

void hr_json_u64(struct hr_text *text, const char *key, uint64_t value)
{
    json_key(text, key);
    hr_text_printf(text, "%llu", (unsigned long long)value);
}

void hr_json_i64(struct hr_text *text, const char *key, int64_t value)
{
    json_key(text, key);
    hr_text_printf(text, "%lld", (long long)value);
}

void hr_json_bool(struct hr_text *text, const char *key, int value)
{
    json_key(text, key);
    hr_text_printf(text, "%s", value ? "true" : "false");
}

void hr_json_null(struct hr_text *text, const char *key)
{
    json_key(text, key);
    hr_text_add(text, "null", 4);
}
