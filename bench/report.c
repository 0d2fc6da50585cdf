/*
 * report.c: see report.h.
 */
#include "report.h"

#include <string.h>

#include "measure.h"

struct spread spread_of(const double *values, size_t count)
{
    double sorted[TRIALS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    double median = median_of(sorted, count);
    return (struct spread){sorted[0], median, sorted[count - 1]};
}

double gb_s(uint64_t bytes, double seconds)
{
    return (double)bytes / seconds / 1e9;
}

void json_string(FILE *json, const char *key, const char *text)
{
    fprintf(json, "\"%s\": \"", key);
    for (; *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20)
            fprintf(json, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, json);
    fputs("\", ", json);
}

void json_values(FILE *json, const char *key, const double *values, size_t count)
{
    fprintf(json, "\"%s\": [", key);
    for (size_t i = 0; i < count; i++)
        fprintf(json, "%s%.5f", i ? ", " : "", values[i]);
    fputs("], ", json);
}

void json_ratios(FILE *json, const double *ratios, size_t count)
{
    struct spread spread = spread_of(ratios, count);
    fprintf(json, "\"ratio_median\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f, ", spread.median, spread.least,
            spread.most);
    json_values(json, "ratios", ratios, count);
}
