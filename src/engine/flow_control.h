/*
 * flow_control.h: how many bytes to keep in flight towards storage, found by trying. Pure: no lock, no clock, no
 * memory; time comes in as an argument.
 *
 * Too little in flight leaves a drive idle between operations; too much only makes each operation wait longer, and some
 * storage becomes slower by it. The right amount is bandwidth times latency, of which neither is known and both change.
 * So the controller measures the rate of delivery at some of a fixed ladder of *levels*, from two operations to the
 * maximum, a quarter apart, and remembers them as a curve of rate against bytes in flight.
 *
 *   rule:   work at the lowest level whose rate is within a few percent of the best on the curve
 *   climb:  at first, and when all has changed, levels double for as long as the rate grows; where the first doubling
 *           gains nothing, they halve for as long as the rule likes that
 *   hold:   then the rule decides after each window; now and then one window is spent on another level: a step lower
 *           or higher in turn, and sometimes twice as high
 *   forget: what was not measured for a while leaves the curve; when the rate at the present level is another one
 *           twice in a row (other users, another file system), all of it goes, and climbing begins again
 *
 * Twice as high is looked at since one step may gain less than the rule sees, again and again. Growing and shrinking
 * are one rule, and its tolerance is what keeps latency low: more in flight that does not deliver more is given up.
 *
 * A *window* is one measurement: bytes that ended against time. It begins when an operation that began after the last
 * change of level has ended, so that it sees that level alone, and ends with a round: a round is over when an operation
 * that began in it has ended, so that storage that answers in bursts is not cut in the middle of one; after a long time
 * it does not wait for that. A window in which the budget was not used, or an operation failed, says nothing.
 *
 * Invariants: bytes in flight exceed neither the limit at the time of admission nor the maximum, but for a single
 * operation, which is always allowed; the limit is one of the levels.
 */
#ifndef HR_ENGINE_FLOW_CONTROL_H
#define HR_ENGINE_FLOW_CONTROL_H

#include <stdint.h>

#include "base/limits.h"

struct hr_flow_level {
    uint64_t bytes;
    double rate;     /* bytes a nanosecond, averaged */
    uint64_t window; /* the number of the window that measured it last */
    uint32_t count;  /* measurements in the average; 0: not on the curve */
};

struct hr_flow_control {
    uint64_t bytes_max;
    uint64_t operation_bytes; /* the largest seen: what levels are made of */
    struct hr_flow_level levels[HR_FLOW_LEVEL_COUNT_MAX];
    uint32_t level_count;
    uint32_t level;  /* the limit now */
    uint32_t home;   /* where the rule or the climb wants to be; another than `level` while looking around */
    int climb;       /* 1: doubling, -1: halving, 0: holding */
    int has_climbed; /* a doubling has gained */
    uint32_t held_count, look_count; /* windows since the last look; looks so far */
    int differed;                    /* the last window from the curve: 1 higher, -1 lower */
    uint32_t differed_level;         /* where that was */
    uint64_t window_count;
    uint64_t in_flight;

    /* the window under way */
    int is_measuring; /* 0: waits for an operation that began at begin_ns or later */
    int is_spoiled;
    uint64_t begin_ns, round_ns; /* of the window (before: of the level), of the round */
    uint32_t round_count, operation_count;
    uint64_t bytes_ended;
    double byte_ns;     /* bytes in flight, summed over time */
    uint64_t summed_ns; /* up to when */
};

/* All of `control` is overwritten. bytes_max > 0. */
void hr_flow_control_init(struct hr_flow_control *control, uint64_t bytes_max, uint64_t now_ns);
/* The maximum changes; what is in flight stays. */
void hr_flow_control_bound(struct hr_flow_control *control, uint64_t bytes_max, uint64_t now_ns);

/* 1: the operation may start and is counted. `now_ns` of all calls: never much before that of an earlier one. */
int hr_flow_control_begin(struct hr_flow_control *control, uint64_t bytes, uint64_t now_ns);
void hr_flow_control_end(struct hr_flow_control *control, uint64_t bytes, uint64_t started_ns, uint64_t now_ns,
                         int succeeded);

uint64_t hr_flow_control_limit(const struct hr_flow_control *control);

#endif
