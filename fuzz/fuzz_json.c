/*
 * fuzz_json.c: any text through the scanner, against jansson: what is UTF-8, what is JSON, and what its
 * strings and numbers are.
 */
#include "fuzz.h"

#include <math.h>
#include <string.h>

#include "base/sys.h"
#include "base/utf8.h"
#include "format/json.h"
#include "pieces.h"

#define CODE HR_EINDEX_INVALID
#define LOAD_FLAGS (JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL)

static void check_string(const struct hr_json_string *text, const json_t *twin)
{
    FUZZ_CHECK(text->size == json_string_length(twin));
    FUZZ_CHECK(memcmp(text->bytes, json_string_value(twin), text->size + 1) == 0);
}

/* The scanner multiplies once by a power of ten, which may be off in the last places. */
static void check_number(const struct hr_json_number *number, const json_t *twin)
{
    double expected = json_real_value(twin);
    FUZZ_CHECK(fabs(number->value - expected) <= fabs(expected) * 1e-15 || fabs(expected) < 1e-307);
    if (number->is_integer)
        FUZZ_CHECK((double)number->integer == expected);
}

/* A value that both take, member by member. In an object of jansson the last of equal keys stands. */
static void compare(struct hr_json *json, const json_t *twin)
{
    struct hr_json_string text;
    struct hr_json_number number;
    size_t count = 0;
    char next = hr_json_peek(json);
    if (json_is_array(twin)) {
        FUZZ_CHECK(hr_json_enter(json, '[', "an array") == 0);
        while (hr_json_more(json, ']') > 0)
            compare(json, json_array_get(twin, count++));
        FUZZ_CHECK(count == json_array_size(twin));
    } else if (json_is_object(twin)) {
        FUZZ_CHECK(hr_json_enter(json, '{', "an object") == 0);
        for (; hr_json_more(json, '}') > 0; count++) {
            FUZZ_CHECK(hr_json_key(json, &text) == 0 && json_object_getn(twin, text.bytes, text.size));
            FUZZ_CHECK(hr_json_skip(json) == 0);
        }
        FUZZ_CHECK(count >= json_object_size(twin));
    } else if (json_is_string(twin)) {
        FUZZ_CHECK(hr_json_text(json, &text, "a string") == 0);
        check_string(&text, twin);
    } else if (json_is_number(twin)) {
        FUZZ_CHECK(hr_json_number(json, &number) == 0);
        check_number(&number, twin);
    } else {
        FUZZ_CHECK(next == (json_is_true(twin) ? 't' : json_is_false(twin) ? 'f' : 'n'));
        FUZZ_CHECK(hr_json_skip(json) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct fuzz_feed feed = {data, size};
    struct hr_json json;
    struct hr_error err;
    json_error_t error;
    char *text = fuzz_rest(&feed), *scanned = fuzz_rest(&feed), *compared = fuzz_rest(&feed);
    json_t *twin = json_loadb(text, size, LOAD_FLAGS, &error);
    int is_utf8 = pieces_are_utf8(text, size);
    FUZZ_CHECK((hr_utf8_valid_prefix((const unsigned char *)text, size) == size) == is_utf8);
    if (is_utf8) {
        hr_json_init(&json, scanned, size, 100, CODE, &err);
        int code = hr_json_skip(&json);
        if (!code)
            code = hr_json_finish(&json);
        if (code)
            fuzz_check_error(&err, CODE, 100 + size);
        int expected = twin && pieces_depth(text, size) <= 127 && !memchr(text, '\0', size) ? 0 : CODE;
        int may_differ = !twin && json_error_code(&error) == json_error_null_byte_in_key;
        FUZZ_CHECK(code == expected || may_differ || pieces_at_the_edge(text));
        if (!code && twin) {
            hr_json_init(&json, compared, size, 0, CODE, NULL);
            compare(&json, twin);
            FUZZ_CHECK(hr_json_finish(&json) == 0 && json.depth == 0);
        }
    }
    json_decref(twin);
    hr_free(text);
    hr_free(scanned);
    hr_free(compared);
    return 0;
}
