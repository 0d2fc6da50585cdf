/*
 * fuzz_support.c: checks and inputs that the targets share.
 */
#include "fuzz.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"

#define MARK 0x5a

_Noreturn void fuzz_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: broken: %s\n", file, line, condition);
    abort();
}

/* Terminated, UTF-8 by jansson's opinion, and without anything that breaks a line. */
static void check_line(const char *text, size_t capacity)
{
    size_t size = strnlen(text, capacity);
    FUZZ_CHECK(size < capacity);
    json_t *valid = json_stringn(text, size);
    FUZZ_CHECK(valid);
    json_decref(valid);
    for (size_t i = 0; i < size; i++)
        FUZZ_CHECK((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
}

void fuzz_check_error(const struct hr_error *err, int code, uint64_t offset_max)
{
    FUZZ_CHECK(code < 0 && err->code == code);
    FUZZ_CHECK(strcmp(hr_error_kind(code), "Unknown") != 0);
    FUZZ_CHECK(err->message[0] != '\0');
    check_line(err->message, sizeof err->message);
    check_line(err->tensor, sizeof err->tensor);
    check_line(err->file, sizeof err->file);
    FUZZ_CHECK(err->offset == HR_NO_OFFSET || err->offset <= offset_max);
}

void fuzz_mark(void *output, size_t size)
{
    memset(output, MARK, size);
}

void fuzz_check_marked(const void *output, size_t size)
{
    const unsigned char *bytes = output;
    for (size_t i = 0; i < size; i++)
        FUZZ_CHECK(bytes[i] == MARK);
}

uint8_t fuzz_byte(struct fuzz_feed *feed)
{
    if (feed->size == 0)
        return 0;
    feed->size--;
    return *feed->data++;
}

uint64_t fuzz_number(struct fuzz_feed *feed)
{
    uint8_t first = fuzz_byte(feed);
    uint64_t value = 0;
    if (first < 0xf8)
        return first;
    for (unsigned i = 0; i <= first - 0xf8u; i++)
        value |= (uint64_t)fuzz_byte(feed) << (8 * i);
    return value;
}

char *fuzz_rest(const struct fuzz_feed *feed)
{
    char *copy = hr_alloc(feed->size + 1);
    FUZZ_CHECK(copy);
    if (feed->size)
        memcpy(copy, feed->data, feed->size);
    copy[feed->size] = '\0';
    return copy;
}
