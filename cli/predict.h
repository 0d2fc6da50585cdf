/*
 * predict.h: how long a load should take by what `probe` measured on this machine, and how near it came.
 */
#ifndef CLI_PREDICT_H
#define CLI_PREDICT_H

#include <headrace/headrace.h>

#include "output.h"

struct prediction {
    double seconds;         /* 0: unknown */
    const char *ceiling;    /* the slowest one that the load crosses; static storage */
    uint64_t ceiling_bytes; /* bytes a second */
    int64_t time;           /* when it was measured, seconds since 1970; 0: never */
    char reason[2200];      /* why it is unknown */
};

/*
 * Before a load of `bytes` to `device`, of whose files the page cache holds `cached` (a share, or negative when it is
 * not known). `route` is what was asked for.
 */
void predict(const struct hr_checkpoint *checkpoint, const struct hr_device_info *device, uint64_t bytes, double cached,
             uint32_t route, struct prediction *ret_prediction);

/* Rows and members that say what was predicted, and of a load that took so long, which share of the ceiling it reached. */
void prediction_rows(struct table *table, const struct prediction *prediction);
void prediction_share_row(struct table *table, const struct prediction *prediction, uint64_t total_ns);
void json_prediction(struct json *json, const struct prediction *prediction, uint64_t total_ns);

#endif
