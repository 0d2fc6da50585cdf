/*
 * slice.c: numpy's slice notation as ranges. The text is read three times: once to check its form and to count its
 * entries, once to resolve them against the shape, and once more to write, so that outputs stay untouched until
 * nothing can fail.
 *
 * Rules are those of numpy's basic indexing without newaxis, negative steps and masks: an integer must lie within
 * its dimension, slices are clamped, an ellipsis stands for the dimensions that are left, missing ones are whole.
 */
#include <headrace/headrace.h>

#include <string.h>

#include "base/error.h"

/* A number of the text. Numbers over 64 bits are kept as the largest one, which clamps alike and fits no dimension. */
struct number {
    int is_given, is_negative;
    int is_beyond; /* 64 bits: `magnitude` is the largest there is, which an extent can be too */
    uint64_t magnitude;
};

enum entry_kind { ENTRY_INTEGER, ENTRY_SLICE, ENTRY_ELLIPSIS };

struct entry {
    enum entry_kind kind;
    size_t position; /* in the text */
    size_t step_position;
    struct number start, stop, step; /* an integer is its start */
};

struct cursor {
    const char *text;
    size_t at;
    int is_bracketed;
    struct hr_error *err;
};

static void skip_space(struct cursor *cursor)
{
    while (cursor->text[cursor->at] && strchr(" \t\r\n", cursor->text[cursor->at]))
        cursor->at++;
}

/* Takes `token` and the white space behind it, if it stands here. */
static int take(struct cursor *cursor, const char *token)
{
    if (strncmp(cursor->text + cursor->at, token, strlen(token)))
        return 0;
    cursor->at += strlen(token);
    skip_space(cursor);
    return 1;
}

static int fail_here(const struct cursor *cursor, const char *expected)
{
    char found[40];
    const char *rest = cursor->text + cursor->at;
    if (*rest == '\0')
        return hr_fail(cursor->err, HR_EINVALID_ARGUMENT, "slice: the text ends at position %zu, where %s must stand",
                       cursor->at, expected);
    return hr_fail(cursor->err, HR_EINVALID_ARGUMENT, "slice: at position %zu stands '%s', where %s must stand",
                   cursor->at, hr_escape(found, sizeof found, rest, strlen(rest)), expected);
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* An optional number. */
static int read_number(struct cursor *cursor, struct number *ret_number)
{
    struct number number = {0};
    char c = cursor->text[cursor->at];
    if (c == '-' || c == '+') {
        number.is_negative = c == '-';
        cursor->at++;
        skip_space(cursor);
        if (!is_digit(cursor->text[cursor->at]))
            return fail_here(cursor, "a digit");
    }
    for (; is_digit(cursor->text[cursor->at]); cursor->at++) {
        unsigned digit = (unsigned)(cursor->text[cursor->at] - '0');
        number.is_given = 1;
        if (__builtin_mul_overflow(number.magnitude, 10u, &number.magnitude) ||
            __builtin_add_overflow(number.magnitude, digit, &number.magnitude))
            number.is_beyond = 1;
        if (number.is_beyond)
            number.magnitude = UINT64_MAX;
    }
    number.is_negative &= number.magnitude != 0; /* -0 is 0: it does not count from the end */
    skip_space(cursor);
    *ret_number = number;
    return 0;
}

static int read_step(struct cursor *cursor, struct entry *entry)
{
    entry->step_position = cursor->at;
    int code = read_number(cursor, &entry->step);
    if (code || !entry->step.is_given)
        return code;
    if (entry->step.is_negative || entry->step.magnitude == 0)
        return hr_fail(cursor->err, HR_EINVALID_ARGUMENT,
                       "slice: the step at position %zu is %s; steps of 1 or more are supported", entry->step_position,
                       entry->step.magnitude ? "negative" : "zero");
    return 0;
}

/* An integer, a slice or an ellipsis. */
static int read_entry(struct cursor *cursor, struct entry *ret_entry)
{
    struct entry entry = {.kind = ENTRY_INTEGER, .position = cursor->at};
    int code = 0;
    if (take(cursor, "...")) {
        entry.kind = ENTRY_ELLIPSIS;
        *ret_entry = entry;
        return 0;
    }
    code = read_number(cursor, &entry.start);
    if (!code && take(cursor, ":")) {
        entry.kind = ENTRY_SLICE;
        code = read_number(cursor, &entry.stop);
        if (!code && take(cursor, ":"))
            code = read_step(cursor, &entry);
    }
    if (!code && entry.kind == ENTRY_INTEGER && !entry.start.is_given)
        code = fail_here(cursor, "an integer, a slice or '...'");
    if (!code)
        *ret_entry = entry;
    return code;
}

/* The next entry, with the comma behind it: 1, or 0 at the end, or a negative code. */
static int next_entry(struct cursor *cursor, struct entry *ret_entry)
{
    const char *close = cursor->is_bracketed ? "]" : "";
    char c = cursor->text[cursor->at];
    if (c == close[0])
        return 0;
    int code = read_entry(cursor, ret_entry);
    if (code)
        return code;
    c = cursor->text[cursor->at];
    if (c != close[0] && !take(cursor, ","))
        return fail_here(cursor, cursor->is_bracketed ? "',', ':' or ']'" : "',' or ':'");
    return 1;
}

static void cursor_start(struct cursor *cursor)
{
    cursor->at = 0;
    skip_space(cursor);
    cursor->is_bracketed = take(cursor, "[");
}

/* The form of the text: how many entries name a dimension, and that nothing else stands there. */
static int count_entries(struct cursor *cursor, const struct hr_tensor *tensor, uint32_t *ret_count)
{
    struct entry entry = {0};
    uint32_t count = 0, ellipsis_count = 0;
    int more;
    cursor_start(cursor);
    size_t first = cursor->at;
    while ((more = next_entry(cursor, &entry)) > 0) {
        ellipsis_count += entry.kind == ENTRY_ELLIPSIS;
        count += entry.kind != ENTRY_ELLIPSIS;
        if (ellipsis_count > 1)
            return hr_fail(cursor->err, HR_EINVALID_ARGUMENT,
                           "slice: a second '...' stands at position %zu; one is allowed", entry.position);
        if (count > tensor->rank)
            return hr_fail(cursor->err, HR_EINVALID_ARGUMENT,
                           "slice: the entry at position %zu is one too many; the tensor has %u dimension(s)",
                           entry.position, tensor->rank);
    }
    if (more < 0)
        return more;
    if (cursor->at == first)
        return fail_here(cursor, "an integer, a slice or '...'");
    if (cursor->is_bracketed)
        take(cursor, "]");
    if (cursor->text[cursor->at])
        return fail_here(cursor, "the end");
    *ret_count = count;
    return 0;
}

/* A bound of a slice, clamped to the dimension. */
static uint64_t clamp(const struct number *number, uint64_t extent, uint64_t otherwise)
{
    if (!number->is_given)
        return otherwise;
    if (number->is_negative)
        return number->magnitude < extent ? extent - number->magnitude : 0;
    return number->magnitude < extent ? number->magnitude : extent;
}

static int resolve(const struct cursor *cursor, const struct entry *entry, uint32_t dimension, uint64_t extent,
                   struct hr_range *ret_range)
{
    const struct number *start = &entry->start;
    if (entry->kind == ENTRY_SLICE) {
        uint64_t begin = clamp(start, extent, 0);
        uint64_t end = clamp(&entry->stop, extent, extent);
        *ret_range =
            (struct hr_range){begin, end < begin ? begin : end, entry->step.is_given ? entry->step.magnitude : 1};
        return 0;
    }
    if (start->is_beyond || (start->is_negative ? start->magnitude > extent : start->magnitude >= extent))
        return hr_fail(cursor->err, HR_EINVALID_ARGUMENT,
                       "slice: the integer at position %zu is out of range: dimension %u has %llu element(s)",
                       entry->position, dimension, (unsigned long long)extent);
    uint64_t index = start->is_negative ? extent - start->magnitude : start->magnitude;
    *ret_range = (struct hr_range){index, index + 1, 1};
    return 0;
}

/* Resolves all entries; writes them unless `ret_ranges` is NULL. The form was checked. */
static int resolve_all(struct cursor *cursor, const struct hr_tensor *tensor, uint32_t entry_count,
                       struct hr_range *ret_ranges)
{
    struct entry entry = {0};
    uint32_t left_out = tensor->rank - entry_count;
    uint32_t d = 0;
    cursor_start(cursor);
    for (int more = 1; more;) {
        more = next_entry(cursor, &entry);
        if (!more || entry.kind == ENTRY_ELLIPSIS) {
            for (; left_out > 0; left_out--, d++)
                if (ret_ranges)
                    ret_ranges[d] = (struct hr_range){0, tensor->shape[d], 1};
            continue;
        }
        struct hr_range range;
        int code = resolve(cursor, &entry, d, tensor->shape[d], &range);
        if (code)
            return code;
        if (ret_ranges)
            ret_ranges[d] = range;
        d++;
    }
    return 0;
}

int hr_slice_parse(const char *text, const struct hr_tensor *tensor, struct hr_range *ret_ranges, struct hr_error *err)
{
    if (!text || !tensor || (!ret_ranges && tensor->rank))
        return hr_fail(err, HR_EINVALID_ARGUMENT, "slice: text, tensor and ranges must not be NULL");
    struct cursor cursor = {.text = text, .err = err};
    uint32_t entry_count = 0;
    int code = count_entries(&cursor, tensor, &entry_count);
    if (!code)
        code = resolve_all(&cursor, tensor, entry_count, NULL);
    if (!code)
        code = resolve_all(&cursor, tensor, entry_count, ret_ranges);
    if (code)
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    return code;
}
