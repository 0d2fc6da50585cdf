/*
 * json.c: the scanner. The NUL behind the text is no JSON token, so single bytes are read without a bounds
 * check; only the wide steps of the string scan look at the end. Positions only grow.
 */
#include "format/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/limits.h"

void hr_json_init(struct hr_json *json, char *text, size_t size, uint64_t base, int code, struct hr_error *err)
{
    *json = (struct hr_json){.text = text, .at = text, .end = text + size, .base = base, .code = code, .err = err};
    text[size] = '\0';
}

int hr_json_fail(struct hr_json *json, const char *at, const char *format, ...)
{
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return hr_fail_at(json->err, json->code, json->base + (uint64_t)(at - json->text), "%s", reason);
}

/* What stands at the scanner, for messages. */
static int fail_unexpected(struct hr_json *json, const char *expected)
{
    if (json->at == json->end)
        return hr_json_fail(json, json->at, "the JSON ends where %s must follow", expected);
    char found[16];
    hr_escape(found, sizeof found, json->at, 1);
    return hr_json_fail(json, json->at, "found '%s' where %s must stand", found, expected);
}

char hr_json_peek(struct hr_json *json)
{
    while (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' || *json->at == '\r')
        json->at++;
    return *json->at;
}

int hr_json_enter(struct hr_json *json, char bracket, const char *what)
{
    if (hr_json_peek(json) != bracket)
        return fail_unexpected(json, what);
    if (++json->depth > HR_JSON_DEPTH_MAX)
        return hr_json_fail(json, json->at, "nested deeper than %d levels", HR_JSON_DEPTH_MAX);
    json->at++;
    json->is_first = 1;
    return 0;
}

int hr_json_more(struct hr_json *json, char closing_bracket)
{
    int is_first = json->is_first;
    json->is_first = 0;
    char next = hr_json_peek(json);
    if (next == closing_bracket) {
        json->at++;
        json->depth--;
        return 0;
    }
    if (is_first)
        return 1;
    if (next != ',')
        return fail_unexpected(json, closing_bracket == '}' ? "',' or '}'" : "',' or ']'");
    json->at++;
    if (hr_json_peek(json) == closing_bracket)
        return hr_json_fail(json, json->at, "a comma before the closing bracket");
    return 1;
}

/* The first quote, backslash or control character at or after `at`; the NUL at the end is one. */
static char *string_stop(char *at, const char *end)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i stops = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        stops = _mm_or_si128(stops, _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes));
        int mask = _mm_movemask_epi8(stops);
        if (mask)
            return at + __builtin_ctz((unsigned)mask);
    }
#else
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;
    for (; end - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        uint64_t quote = word ^ (ones * '"'), backslash = word ^ (ones * '\\');
        uint64_t stops = ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((word - ones * 0x20) & ~word);
        if (stops & highs)
            break;
    }
#endif
    while (*at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
        at++;
    return at;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits at `at`, or -1. The NUL at the end stops it. */
static int hex4(const char *at)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static char *utf8_put(char *out, unsigned character)
{
    if (character < 0x80) {
        *out++ = (char)character;
        return out;
    }
    if (character < 0x800) {
        *out++ = (char)(0xc0 | character >> 6);
    } else {
        if (character < 0x10000) {
            *out++ = (char)(0xe0 | character >> 12);
        } else {
            *out++ = (char)(0xf0 | character >> 18);
            *out++ = (char)(0x80 | (character >> 12 & 0x3f));
        }
        *out++ = (char)(0x80 | (character >> 6 & 0x3f));
    }
    *out++ = (char)(0x80 | (character & 0x3f));
    return out;
}

/* \uXXXX or a pair of them; json->at is at the 'u' and moves behind. */
static int unescape_unicode(struct hr_json *json, char **out)
{
    const char *start = json->at - 1;
    int high = hex4(json->at + 1);
    if (high < 0)
        return hr_json_fail(json, start, "a \\u escape needs four hexadecimal digits");
    json->at += 5;
    unsigned character = (unsigned)high;
    if (high >= 0xd800 && high <= 0xdfff) {
        int low = high < 0xdc00 && json->at[0] == '\\' && json->at[1] == 'u' ? hex4(json->at + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return hr_json_fail(json, start, "a surrogate escape without its other half");
        character = 0x10000 + (((unsigned)high & 0x3ff) << 10 | ((unsigned)low & 0x3ff));
        json->at += 6;
    }
    *out = utf8_put(*out, character);
    return 0;
}

/* One escape; json->at is at the backslash and moves behind. What it stands for is never longer than it. */
static int unescape(struct hr_json *json, char **out)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char letter = *++json->at;
    if (letter == 'u')
        return unescape_unicode(json, out);
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (!found)
        return hr_json_fail(json, json->at - 1, "an unknown escape in a string");
    *(*out)++ = meanings[found - letters];
    json->at++;
    return 0;
}

/* The rest of a string that has an escape: json->at is at its backslash. Moves the text together. */
static int string_rest(struct hr_json *json, char *out, char **ret_end)
{
    for (;;) {
        if (*json->at == '\\') {
            int result = unescape(json, &out);
            if (result)
                return result;
        }
        char *stop = string_stop(json->at, json->end);
        memmove(out, json->at, (size_t)(stop - json->at));
        out += stop - json->at;
        json->at = stop;
        if (*stop == '"') {
            *ret_end = out;
            return 0;
        }
        if (*stop != '\\')
            return stop == json->end ? hr_json_fail(json, stop, "the JSON ends within a string")
                                     : hr_json_fail(json, stop, "a raw control character in a string");
    }
}

int hr_json_text(struct hr_json *json, struct hr_json_string *ret_text, const char *what)
{
    if (hr_json_peek(json) != '"')
        return fail_unexpected(json, what);
    char *start = json->at + 1;
    char *stop = string_stop(start, json->end);
    json->at = stop;
    if (*stop != '"') {
        int result = string_rest(json, stop, &stop);
        if (result)
            return result;
    }
    json->at++;
    *stop = '\0';
    *ret_text = (struct hr_json_string){start, (size_t)(stop - start)};
    return 0;
}

int hr_json_key(struct hr_json *json, struct hr_json_string *ret_key)
{
    int result = hr_json_text(json, ret_key, "a key in double quotes");
    if (result)
        return result;
    if (hr_json_peek(json) != ':')
        return fail_unexpected(json, "':'");
    json->at++;
    return 0;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int hr_json_null_value(struct hr_json *json)
{
    hr_json_peek(json);
    if (strncmp(json->at, "null", 4))
        return fail_unexpected(json, "null");
    json->at += 4;
    return 0;
}

static int skip_scalar(struct hr_json *json)
{
    struct hr_json_string text;
    struct hr_json_number number;
    char next = hr_json_peek(json);
    if (next == '"')
        return hr_json_text(json, &text, "a string");
    if (next == '-' || is_digit(next))
        return hr_json_number(json, &number);
    static const char *const literals[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof literals / sizeof literals[0]; i++) {
        size_t size = strlen(literals[i]);
        if (strncmp(json->at, literals[i], size) == 0) {
            json->at += size;
            return 0;
        }
    }
    return fail_unexpected(json, "a value");
}

/* Containers that are open are remembered as one bit each: set for objects. */
int hr_json_skip(struct hr_json *json)
{
    uint64_t objects[HR_JSON_DEPTH_MAX / 64 + 1] = {0};
    unsigned outer = json->depth;
    struct hr_json_string key;
    for (;;) {
        char next = hr_json_peek(json);
        int result = next == '{' || next == '[' ? hr_json_enter(json, next, "a value") : skip_scalar(json);
        if (result)
            return result;
        uint64_t bit = UINT64_C(1) << (json->depth % 64);
        if (next == '{')
            objects[json->depth / 64] |= bit;
        else if (next == '[')
            objects[json->depth / 64] &= ~bit;
        for (;;) {
            if (json->depth == outer)
                return 0;
            int is_object = objects[json->depth / 64] >> (json->depth % 64) & 1;
            int more = hr_json_more(json, is_object ? '}' : ']');
            if (more > 0 && is_object && (result = hr_json_key(json, &key)))
                return result;
            if (more < 0)
                return more;
            if (more > 0)
                break;
        }
    }
}

int hr_json_finish(struct hr_json *json)
{
    hr_json_peek(json);
    return json->at == json->end ? 0 : fail_unexpected(json, "the end of the JSON");
}
