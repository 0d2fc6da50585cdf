/*
 * output.c: text, errors and exit codes. JSON and tables stand in json_output.c and table.c.
 */
#include "output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "characters.h"
#include "verbs.h"

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        fprintf(stderr, "headrace: out of memory\n");
        exit(EXIT_FAULT);
    }
    return memory;
}

char *escape(const char *text, size_t size)
{
    char *out = allocate(size + 1, 4);
    size_t used = 0;
    for (size_t i = 0; i < size;) {
        unsigned char c = (unsigned char)text[i];
        size_t length = utf8_char_size(text + i, size - i);
        if (length == 0 || c < 0x20 || c == 0x7f) {
            used += (size_t)sprintf(out + used, "\\x%02x", c);
            length = 1;
        } else {
            memcpy(out + used, text + i, length);
            used += length;
        }
        i += length;
    }
    return out;
}

void print_escaped(FILE *file, const char *text, size_t size)
{
    char *escaped = escape(text, size);
    fputs(escaped, file);
    free(escaped);
}

char *human_bytes(char out[32], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(out, 32, "%llu byte%s", (unsigned long long)bytes, bytes == 1 ? "" : "s");
    else
        snprintf(out, 32, "%.1f %s", value, units[unit]);
    return out;
}

char *human_count(char out[64], uint64_t count, const char *noun)
{
    snprintf(out, 64, "%llu %s%s", (unsigned long long)count, noun, count == 1 ? "" : "s");
    return out;
}

char *shape_text(const uint64_t *shape, uint32_t rank)
{
    char *out = allocate((size_t)rank + 1, 24);
    size_t used = 1;
    out[0] = '[';
    for (uint32_t i = 0; i < rank; i++)
        used += (size_t)sprintf(out + used, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
    out[used] = ']';
    return out;
}

double gigabytes_per_second(uint64_t bytes, uint64_t elapsed_ns)
{
    return elapsed_ns ? (double)bytes / (double)elapsed_ns : 0.0;
}

void complain(const char *verb, const char *format, ...)
{
    va_list arguments;
    char text[1024];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout); /* so that both streams of a terminal or a common pipe stand in order */
    fprintf(stderr, "headrace%s%s: ", *verb ? " " : "", verb);
    print_escaped(stderr, text, strlen(text));
    fputc('\n', stderr);
}

int error_set(struct hr_error *err, int code, const char *format, ...)
{
    va_list arguments;
    char text[sizeof err->message];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    *err = (struct hr_error){.code = code, .offset = HR_NO_OFFSET};
    char *escaped = escape(text, strlen(text));
    snprintf(err->message, sizeof err->message, "%s", escaped);
    free(escaped);
    return code;
}

int error_exit_code(const struct hr_error *err)
{
    switch (err->code) {
    case HR_OK:
        return EXIT_YES;
    case HR_EINVALID_ARGUMENT:
    case HR_EUNSUPPORTED: /* what was asked for is what options say */
        return EXIT_USAGE;
    case HR_EIO_ERROR:
        return err->sys_errno == ENOENT || err->sys_errno == ENOTDIR ? EXIT_NO : EXIT_FAULT;
    case HR_EFILE_CHANGED:
    case HR_ESHORT_READ:
    case HR_EOUT_OF_MEMORY:
    case HR_EDEVICE_ERROR:
    case HR_EDEVICE_UNAVAILABLE:
    case HR_ECANCELLED:
    case HR_EFORKED:
    case HR_EDEADLINE_EXCEEDED:
        return EXIT_FAULT;
    default:
        return EXIT_NO;
    }
}

static int message_names_tensor(const struct hr_error *err)
{
    char text[sizeof err->tensor + sizeof "tensor ''"];
    snprintf(text, sizeof text, "tensor '%s'", err->tensor);
    return strstr(err->message, text) != NULL;
}

void error_print_place(FILE *file, const struct hr_error *err)
{
    int names_tensor = *err->tensor && !message_names_tensor(err);
    if (!names_tensor && err->offset == HR_NO_OFFSET)
        return;
    fputs(" (", file);
    if (names_tensor)
        fprintf(file, "tensor '%s'%s", err->tensor, err->offset == HR_NO_OFFSET ? "" : ", ");
    if (err->offset != HR_NO_OFFSET)
        fprintf(file, "offset %llu", (unsigned long long)err->offset);
    fputc(')', file);
}

static void report_json(const struct hr_error *err)
{
    struct json json = {0};
    json_open(&json, NULL, '{');
    json_open(&json, "error", '{');
    json_text(&json, "kind", hr_error_kind(err->code));
    json_i64(&json, "code", err->code);
    json_text(&json, "file", err->file);
    json_text(&json, "tensor", err->tensor);
    json_offset(&json, "offset", err->offset);
    json_string(&json, "message", err->message, strlen(err->message));
    json_close(&json, '}');
    json_close(&json, '}');
    json_end(&json);
}

int complain_of_usage(const char *verb, int as_json, const char *format, ...)
{
    struct hr_error err;
    va_list arguments;
    char text[1024];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error_set(&err, HR_EINVALID_ARGUMENT, "%s", text);
    if (as_json)
        report_json(&err);
    complain(verb, "%s", text);
    return EXIT_USAGE;
}

int message_names_file(const struct hr_error *err)
{
    return strpbrk(err->file, "/.") && strstr(err->message, err->file);
}

int error_report(const char *verb, int as_json, const struct hr_error *err)
{
    if (as_json)
        report_json(err);
    fflush(stdout);
    fprintf(stderr, "headrace %s: ", verb);
    if (*err->file && !message_names_file(err))
        fprintf(stderr, "%s: ", err->file);
    fprintf(stderr, "%s: %s", hr_error_kind(err->code), err->message);
    error_print_place(stderr, err);
    fputc('\n', stderr);
    return error_exit_code(err);
}

int output_finish(const char *verb, int code)
{
    errno = 0;
    int failed = fflush(stdout) != 0;
    int reason = errno;
    if (!failed && !ferror(stdout))
        return code;
    if (reason != EPIPE) /* who closed the pipe knows */
        complain(verb, "cannot write the output%s%s", reason ? ": " : "", reason ? strerror(reason) : "");
    return EXIT_FAULT;
}
