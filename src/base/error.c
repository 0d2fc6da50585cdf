/*
 * error.c: the texts of the error list, and the one way to fill an error object.
 */
#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

struct code_text {
    int code;
    const char *kind;
    const char *text;
};

static const struct code_text code_texts[] = {{0, "Ok", "no error"},
#define CODE_TEXT(name, number, kind, text) {-(number), kind, text},
                                              HR_ERROR_LIST(CODE_TEXT)
#undef CODE_TEXT
};

static const struct code_text *code_text_find(int code)
{
    for (size_t i = 0; i < sizeof code_texts / sizeof code_texts[0]; i++)
        if (code_texts[i].code == code)
            return &code_texts[i];
    return NULL;
}

const char *hr_strerror(int code)
{
    const struct code_text *found = code_text_find(code);
    return found ? found->text : "unknown error";
}

const char *hr_error_kind(int code)
{
    const struct code_text *found = code_text_find(code);
    return found ? found->kind : "Unknown";
}

/*
 * The arguments may be parts of *err, so everything is formatted before anything is overwritten. `suffix` always
 * stays: a long path must not push the reason out.
 */
static void error_set(struct hr_error *err, int code, uint64_t offset, const char *suffix, const char *format,
                      va_list arguments)
{
    char text[2 * sizeof err->message];
    size_t suffix_size = strlen(suffix);
    vsnprintf(text, sizeof text, format, arguments);
    hr_escape(err->message, sizeof err->message - suffix_size, text, strlen(text));
    memcpy(err->message + strlen(err->message), suffix, suffix_size + 1);
    err->code = code;
    err->sys_errno = 0;
    err->driver_code = 0;
    err->reserved = 0;
    err->offset = offset;
    err->tensor[0] = '\0';
    err->file[0] = '\0';
}

int hr_fail(struct hr_error *err, int code, const char *format, ...)
{
    va_list arguments;
    if (err) {
        va_start(arguments, format);
        error_set(err, code, HR_NO_OFFSET, "", format, arguments);
        va_end(arguments);
    }
    return code;
}

int hr_fail_at(struct hr_error *err, int code, uint64_t offset, const char *format, ...)
{
    va_list arguments;
    if (err) {
        va_start(arguments, format);
        error_set(err, code, offset, "", format, arguments);
        va_end(arguments);
    }
    return code;
}

int hr_fail_sys(struct hr_error *err, int code, int sys_errno, const char *format, ...)
{
    char text[128], suffix[192];
    va_list arguments;
    if (!err)
        return code;
    const char *reason = strerror_r(sys_errno, text, sizeof text); /* the GNU variant: thread-safe */
    snprintf(suffix, sizeof suffix, ": %s (errno %d)", reason, sys_errno);
    va_start(arguments, format);
    error_set(err, code, HR_NO_OFFSET, suffix, format, arguments);
    va_end(arguments);
    err->sys_errno = sys_errno;
    return code;
}

int hr_fail_driver(struct hr_error *err, int code, int driver_code, const char *driver_name, const char *format, ...)
{
    char suffix[192];
    va_list arguments;
    if (!err)
        return code;
    snprintf(suffix, sizeof suffix, ": %.100s (%d)", driver_name, driver_code);
    va_start(arguments, format);
    error_set(err, code, HR_NO_OFFSET, suffix, format, arguments);
    va_end(arguments);
    err->driver_code = driver_code;
    return code;
}

int hr_fail_memory(struct hr_error *err, uint64_t bytes, const char *what)
{
    return hr_fail(err, HR_EOUT_OF_MEMORY, "out of memory: %llu bytes for %s", (unsigned long long)bytes, what);
}

void hr_error_in_file(struct hr_error *err, const char *path)
{
    if (err && err->file[0] == '\0')
        hr_escape(err->file, sizeof err->file, path, strlen(path));
}

void hr_error_in_tensor(struct hr_error *err, const char *name, size_t name_size)
{
    if (err && err->tensor[0] == '\0')
        hr_escape(err->tensor, sizeof err->tensor, name, name_size);
}

/* C0, DEL, and C1 (U+0080 to U+009F), with which terminals can be steered as well. */
static int is_control(const unsigned char *text, size_t length)
{
    return text[0] < 0x20 || text[0] == 0x7f || (length == 2 && text[0] == 0xc2 && text[1] < 0xa0);
}

/* Bytes of the unit at `text` once escaped: a whole UTF-8 character as it is, or \xNN for one byte. */
static size_t escape_unit(char unit[5], const unsigned char *text, size_t size, size_t *advance)
{
    size_t length = hr_utf8_char_size(text, size);
    if (length == 0 || is_control(text, length)) {
        *advance = 1;
        return (size_t)snprintf(unit, 5, "\\x%02x", text[0]);
    }
    memcpy(unit, text, length);
    *advance = length;
    return length;
}

char *hr_escape(char *out, size_t capacity, const char *text, size_t size)
{
    assert(capacity >= sizeof "...");
    size_t used = 0;
    size_t cut = 0; /* the last length after which "..." still fits */
    for (size_t i = 0, advance; i < size; i += advance) {
        char unit[5];
        size_t length = escape_unit(unit, (const unsigned char *)text + i, size - i, &advance);
        if (used + length + 1 > capacity) {
            memcpy(out + cut, "...", 4);
            return out;
        }
        memcpy(out + used, unit, length);
        used += length;
        if (used + 4 <= capacity)
            cut = used;
    }
    out[used] = '\0';
    return out;
}
