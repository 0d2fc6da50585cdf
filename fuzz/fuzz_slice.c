/*
 * fuzz_slice.c: slice expressions against numpy's rules in their plainest form: the text is split at its commas and
 * colons, bounds are computed as slice.indices() does, in numbers that cannot overflow.
 *
 * Input: the rank, its extents, then the text. Leading zeros are allowed here, unlike in Python.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"

#define RANK_MAX 9
#define SPACE " \t\r\n"

/* A part of the text without the white space around it. */
struct part {
    const char *begin, *end;
};

static struct part trim(const char *begin, const char *end)
{
    while (begin < end && strchr(SPACE, *begin))
        begin++;
    while (begin < end && strchr(SPACE, end[-1]))
        end--;
    return (struct part){begin, end};
}

static int is_ellipsis(struct part part)
{
    return part.end - part.begin == 3 && memcmp(part.begin, "...", 3) == 0;
}

/* A sign, white space, digits: 1; nothing: 0; anything else: -1. Saturates far beyond 64 bits. */
static int read_integer(struct part part, __int128 *ret_value)
{
    const char *at = part.begin;
    if (at == part.end)
        return 0;
    int has_sign = *at == '-' || *at == '+', is_negative = *at == '-';
    part = trim(at + has_sign, part.end);
    if (part.begin == part.end)
        return -1;
    *ret_value = 0;
    for (at = part.begin; at < part.end; at++) {
        if (*at < '0' || *at > '9')
            return -1;
        if (*ret_value < (__int128)1 << 100)
            *ret_value = *ret_value * 10 + (*at - '0');
    }
    if (is_negative)
        *ret_value = -*ret_value;
    return 1;
}

static __int128 clamp(__int128 value, uint64_t extent)
{
    if (value < 0)
        value += extent;
    return value < 0 ? 0 : value > (__int128)extent ? (__int128)extent : value;
}

/* One entry for one dimension; 0 or -1. */
static int read_entry(struct part part, uint64_t extent, struct hr_range *ret_range)
{
    __int128 bounds[3] = {0, extent, 1};
    int given[3] = {0}, count = 0;
    const char *begin = part.begin;
    for (const char *at = part.begin; at <= part.end; at++) {
        if (at < part.end && *at != ':')
            continue;
        if (count == 3 || (given[count] = read_integer(trim(begin, at), &bounds[count])) < 0)
            return -1;
        count++;
        begin = at + 1;
    }
    if (count == 1) {
        __int128 index = bounds[0] < 0 ? bounds[0] + extent : bounds[0];
        if (!given[0] || index < 0 || index >= (__int128)extent)
            return -1;
        *ret_range = (struct hr_range){(uint64_t)index, (uint64_t)index + 1, 1};
        return 0;
    }
    __int128 start = clamp(bounds[0], extent), stop = clamp(bounds[1], extent);
    if (bounds[2] <= 0)
        return -1;
    *ret_range = (struct hr_range){(uint64_t)start, (uint64_t)(stop < start ? start : stop),
                                   bounds[2] > UINT64_MAX ? UINT64_MAX : (uint64_t)bounds[2]};
    return 0;
}

/* The text without its brackets as parts between commas; the number of parts or -1. One comma may end the text. */
static int split(const char *text, struct part parts[RANK_MAX + 2])
{
    struct part whole = trim(text, text + strlen(text));
    int count = 0;
    if (whole.begin < whole.end && *whole.begin == '[') {
        if (whole.end - whole.begin < 2 || whole.end[-1] != ']')
            return -1;
        whole = trim(whole.begin + 1, whole.end - 1);
    }
    if (whole.begin == whole.end)
        return -1;
    const char *begin = whole.begin;
    for (const char *at = whole.begin; at <= whole.end; at++) {
        if (at < whole.end && *at != ',')
            continue;
        if (at == whole.end && begin == at && count > 0)
            break;
        if (count == RANK_MAX + 2)
            return -1;
        parts[count++] = trim(begin, at);
        begin = at + 1;
    }
    return count;
}

static int model_parse(const char *text, const struct hr_tensor *tensor, struct hr_range *ret_ranges)
{
    struct part parts[RANK_MAX + 2];
    int count = split(text, parts), ellipsis_at = -1;
    for (int i = 0; i < count; i++) {
        if (is_ellipsis(parts[i]) && ellipsis_at >= 0)
            return -1;
        ellipsis_at = is_ellipsis(parts[i]) ? i : ellipsis_at;
    }
    int named = count - (ellipsis_at >= 0);
    int left_out = (int)tensor->rank - named;
    if (count < 0 || left_out < 0)
        return -1;
    uint32_t d = 0;
    for (uint32_t i = 0; i < tensor->rank; i++)
        ret_ranges[i] = (struct hr_range){0, tensor->shape[i], 1};
    for (int i = 0; i < count; i++) {
        if (i != ellipsis_at && read_entry(parts[i], tensor->shape[d], &ret_ranges[d]))
            return -1;
        d += i == ellipsis_at ? (uint32_t)left_out : 1;
    }
    return 0;
}

/* The ranges written out again mean the same. */
static void check_round_trip(const struct hr_tensor *tensor, const struct hr_range *ranges)
{
    char text[RANK_MAX * 72 + 8];
    struct hr_range again[RANK_MAX];
    int used = snprintf(text, sizeof text, "[...");
    for (uint32_t d = 0; d < tensor->rank; d++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, ",%llu:%llu:%llu", (unsigned long long)ranges[d].start,
                     (unsigned long long)ranges[d].stop, (unsigned long long)ranges[d].step);
    snprintf(text + used, sizeof text - (size_t)used, "]");
    FUZZ_CHECK(hr_slice_parse(text, tensor, again, NULL) == 0);
    for (uint32_t d = 0; d < tensor->rank; d++)
        FUZZ_CHECK(again[d].start == ranges[d].start && again[d].stop == ranges[d].stop &&
                   again[d].step == ranges[d].step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_feed feed = {data, size};
    uint64_t shape[RANK_MAX] = {0};
    struct hr_range ranges[RANK_MAX + 1], expected[RANK_MAX] = {{0}};
    struct hr_tensor tensor = {.name = "w", .name_size = 1, .dtype = HR_DTYPE_U8, .shape = shape};
    struct hr_error err;
    tensor.rank = fuzz_byte(&feed) % (RANK_MAX + 1);
    for (uint32_t d = 0; d < tensor.rank; d++)
        shape[d] = fuzz_number(&feed);
    char *text = fuzz_rest(&feed);
    fuzz_mark(ranges, sizeof ranges);
    int code = hr_slice_parse(text, &tensor, ranges, &err);
    FUZZ_CHECK(code == (model_parse(text, &tensor, expected) ? HR_EINVALID_ARGUMENT : 0));
    fuzz_check_marked(&ranges[code ? 0 : tensor.rank], (RANK_MAX + 1 - (code ? 0 : tensor.rank)) * sizeof *ranges);
    if (code)
        fuzz_check_error(&err, code, 0);
    for (uint32_t d = 0; !code && d < tensor.rank; d++) {
        FUZZ_CHECK(ranges[d].start <= ranges[d].stop && ranges[d].stop <= shape[d] && ranges[d].step > 0);
        FUZZ_CHECK(ranges[d].start == expected[d].start && ranges[d].stop == expected[d].stop &&
                   ranges[d].step == expected[d].step);
    }
    if (!code)
        check_round_trip(&tensor, ranges);
    hr_free(text);
    return 0;
}
