/*
 * json_number.c: numbers, with the reference's idea of which are out of range. It keeps the digits that fit 64
 * bits, multiplies once by a power of ten, and refuses an infinite product. So 1.7976931348623158e308 is refused
 * though a correctly rounding reader takes it: verdicts must agree. The steps below are those of serde_json.
 */
#include "format/json.h"

#include <math.h>

#define POWER_MAX 308           /* the largest power of ten in a double */
#define EXPONENT_MAX 0x7fffffff /* beyond it an exponent's digits are only passed over */

#define TEN_POWERS(tens)                                                                                    \
    1e##tens##0, 1e##tens##1, 1e##tens##2, 1e##tens##3, 1e##tens##4, 1e##tens##5, 1e##tens##6, 1e##tens##7, \
        1e##tens##8, 1e##tens##9
static const double powers[] = {
    TEN_POWERS(0),  TEN_POWERS(1),  TEN_POWERS(2),  TEN_POWERS(3),  TEN_POWERS(4),  TEN_POWERS(5),  TEN_POWERS(6),
    TEN_POWERS(7),  TEN_POWERS(8),  TEN_POWERS(9),  TEN_POWERS(10), TEN_POWERS(11), TEN_POWERS(12), TEN_POWERS(13),
    TEN_POWERS(14), TEN_POWERS(15), TEN_POWERS(16), TEN_POWERS(17), TEN_POWERS(18), TEN_POWERS(19), TEN_POWERS(20),
    TEN_POWERS(21), TEN_POWERS(22), TEN_POWERS(23), TEN_POWERS(24), TEN_POWERS(25), TEN_POWERS(26), TEN_POWERS(27),
    TEN_POWERS(28), TEN_POWERS(29), 1e300,          1e301,          1e302,          1e303,          1e304,
    1e305,          1e306,          1e307,          1e308};

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Appends a digit; 0 when 64 bits do not hold it. */
static int digit_append(uint64_t *value, char digit)
{
    uint64_t grown;
    if (__builtin_mul_overflow(*value, (uint64_t)10, &grown))
        return 0;
    return !__builtin_add_overflow(grown, (uint64_t)(digit - '0'), &grown) && (*value = grown, 1);
}

static void digits_pass(struct hr_json *json)
{
    while (is_digit(*json->at))
        json->at++;
}

/* significand x 10^exponent, or infinity. */
static double scale(uint64_t significand, int64_t exponent)
{
    double value = (double)significand;
    for (; exponent < -POWER_MAX && value != 0.0; exponent += POWER_MAX)
        value /= powers[POWER_MAX];
    if (value == 0.0)
        return value;
    if (exponent > POWER_MAX)
        return INFINITY;
    return exponent < 0 ? value / powers[-exponent] : value * powers[exponent];
}

/* The digits before the point. Those that no longer fit raise the exponent instead. */
static int integer_part(struct hr_json *json, uint64_t *significand, int64_t *exponent)
{
    if (!is_digit(*json->at))
        return hr_json_fail(json, json->at, "a number without digits");
    if (json->at[0] == '0' && is_digit(json->at[1]))
        return hr_json_fail(json, json->at, "a number with a leading zero");
    while (is_digit(*json->at) && digit_append(significand, *json->at))
        json->at++;
    const char *fitting = json->at;
    digits_pass(json);
    *exponent = json->at - fitting;
    return 0;
}

static int fraction_part(struct hr_json *json, uint64_t *significand, int64_t *exponent)
{
    if (!is_digit(*++json->at))
        return hr_json_fail(json, json->at, "a number without digits behind its point");
    for (; is_digit(*json->at) && digit_append(significand, *json->at); json->at++)
        --*exponent;
    digits_pass(json);
    return 0;
}

static int exponent_part(struct hr_json *json, int64_t *exponent)
{
    int is_negative = *++json->at == '-';
    if (*json->at == '-' || *json->at == '+')
        json->at++;
    if (!is_digit(*json->at))
        return hr_json_fail(json, json->at, "a number without digits in its exponent");
    int64_t written = 0;
    for (; is_digit(*json->at) && written <= EXPONENT_MAX; json->at++)
        written = written * 10 + (*json->at - '0');
    digits_pass(json);
    *exponent += is_negative ? -written : written;
    return 0;
}

int hr_json_number(struct hr_json *json, struct hr_json_number *ret_number)
{
    hr_json_peek(json);
    const char *start = json->at;
    uint64_t significand = 0;
    int64_t exponent = 0;
    int is_negative = *start == '-';
    json->at += is_negative;
    int result = integer_part(json, &significand, &exponent);
    int is_integer = !is_negative && exponent == 0 && *json->at != '.' && (*json->at | 0x20) != 'e';
    if (!result && *json->at == '.')
        result = fraction_part(json, &significand, &exponent);
    if (!result && (*json->at | 0x20) == 'e')
        result = exponent_part(json, &exponent);
    if (result)
        return result;
    double value = scale(significand, exponent);
    if (isinf(value))
        return hr_json_fail(json, start, "a number out of range");
    *ret_number = (struct hr_json_number){is_negative ? -value : value, significand, is_integer};
    return 0;
}

int hr_json_unsigned(struct hr_json *json, uint64_t *ret_value)
{
    struct hr_json_number number;
    char next = hr_json_peek(json);
    const char *start = json->at;
    if (!is_digit(next))
        return hr_json_fail(json, start, "an unsigned integer must stand here");
    int result = hr_json_number(json, &number);
    if (result)
        return result;
    if (!number.is_integer)
        return hr_json_fail(json, start,
                            "an unsigned integer of at most 64 bits must stand here, without fraction or "
                            "exponent");
    *ret_value = number.integer;
    return 0;
}
