/*
 * flow_control.c: counting, measuring, and the rule of flow_control.h.
 */
#include "engine/flow_control.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------ levels */

static uint32_t level_at_most(const struct hr_flow_control *control, uint64_t bytes)
{
    uint32_t level = 0;
    while (level + 1 < control->level_count && control->levels[level + 1].bytes <= bytes)
        level++;
    return level;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* From two operations up, at least an operation apart, to the maximum, which is always the last. */
static void make_levels(struct hr_flow_control *control)
{
    uint64_t step = control->operation_bytes;
    uint64_t bytes = HR_FLOW_OPERATION_COUNT_MIN * step;
    uint32_t count = 0;
    memset(control->levels, 0, sizeof control->levels);
    while (bytes < control->bytes_max && count < HR_FLOW_LEVEL_COUNT_MAX - 1) {
        control->levels[count++].bytes = bytes;
        uint64_t next = (uint64_t)((double)bytes * HR_FLOW_LEVEL_STEP) / step * step;
        bytes = larger(next, bytes + step);
    }
    control->levels[count++].bytes = control->bytes_max;
    control->level_count = count;
}

static void forget(struct hr_flow_control *control)
{
    for (uint32_t i = 0; i < control->level_count; i++)
        control->levels[i].count = 0;
    control->climb = 1;
    control->has_climbed = 0;
    control->differed = 0;
}

/* Measuring begins anew, once operations end that have begun at this level. */
static void set_level(struct hr_flow_control *control, uint32_t level, uint64_t now_ns)
{
    control->level = level;
    control->is_measuring = 0;
    control->begin_ns = now_ns;
}

static void rebuild(struct hr_flow_control *control, uint64_t limit, uint64_t now_ns)
{
    make_levels(control);
    forget(control);
    control->home = level_at_most(control, limit);
    set_level(control, control->home, now_ns);
}

void hr_flow_control_init(struct hr_flow_control *control, uint64_t bytes_max, uint64_t now_ns)
{
    memset(control, 0, sizeof *control);
    control->bytes_max = bytes_max;
    control->operation_bytes = HR_CHUNK_BYTES_MIN;
    control->summed_ns = now_ns;
    rebuild(control, HR_FLOW_BYTES_START, now_ns);
}

void hr_flow_control_bound(struct hr_flow_control *control, uint64_t bytes_max, uint64_t now_ns)
{
    uint64_t limit = hr_flow_control_limit(control);
    if (bytes_max == control->bytes_max)
        return;
    control->bytes_max = bytes_max;
    rebuild(control, limit, now_ns);
}

uint64_t hr_flow_control_limit(const struct hr_flow_control *control)
{
    return control->levels[control->level].bytes;
}

/* ---------------------------------------------------------------------------------------- the rule */

static int on_curve(const struct hr_flow_control *control, uint32_t level)
{
    const struct hr_flow_level *it = &control->levels[level];
    return it->count && control->window_count - it->window < HR_FLOW_AGE_WINDOW_COUNT;
}

/* 1: higher, -1: lower than what is known of the present level by more than measurements differ; else 0. */
static int difference(const struct hr_flow_control *control, double rate)
{
    const struct hr_flow_level *it = &control->levels[control->level];
    if (!on_curve(control, control->level))
        return 0;
    return (rate > it->rate * HR_FLOW_CHANGED) - (rate * HR_FLOW_CHANGED < it->rate);
}

static void add_to_curve(struct hr_flow_control *control, double rate)
{
    struct hr_flow_level *it = &control->levels[control->level];
    if (!on_curve(control, control->level) || difference(control, rate))
        it->count = 0;
    if (it->count < HR_FLOW_AVERAGE_COUNT)
        it->count++;
    it->rate += (rate - it->rate) / it->count;
    it->window = control->window_count;
}

static uint32_t lowest_good_level(const struct hr_flow_control *control)
{
    double best = 0;
    for (uint32_t i = 0; i < control->level_count; i++)
        if (on_curve(control, i) && control->levels[i].rate > best)
            best = control->levels[i].rate;
    for (uint32_t i = 0; i < control->level_count; i++)
        if (on_curve(control, i) && control->levels[i].rate >= best * HR_FLOW_GOOD_ENOUGH)
            return i;
    return control->home;
}

/*
 * 1 or -1 when what was measured tells of a faster or slower drive than the curve, twice in a row: differs from what
 * was known for sure, and then again, or agrees with that first difference. Once is enough when hardly anything comes.
 */
static int change(struct hr_flow_control *control, double rate)
{
    int first = control->differed, direction = difference(control, rate);
    int is_same_level = control->level == control->differed_level;
    const struct hr_flow_level *it = &control->levels[control->level];
    control->differed = it->count == HR_FLOW_AVERAGE_COUNT ? direction : 0;
    control->differed_level = control->level;
    if (control->differed < 0 && rate * HR_FLOW_BROKEN_DOWN < it->rate)
        return -1;
    return first && (direction == first || (direction == 0 && is_same_level)) ? first : 0;
}

static uint32_t level_to_look_at(struct hr_flow_control *control)
{
    uint32_t home = control->home, up = home + 1 < control->level_count ? home + 1 : home;
    uint32_t down = home ? home - 1 : home, turn = control->look_count++ % 6;
    if (turn == 0)
        return level_at_most(control, 2 * control->levels[home].bytes);
    return turn % 2 ? down : up;
}

static uint32_t end_climb(struct hr_flow_control *control)
{
    control->climb = 0;
    control->held_count = HR_FLOW_HOLD_WINDOW_COUNT - 2; /* doublings are coarse: look a step lower and higher soon */
    control->look_count = 1;
    control->home = lowest_good_level(control);
    return control->home;
}

/* The next level while doubling; when the first doubling has not gained, halving may cost nothing or even gain. */
static uint32_t climb_up(struct hr_flow_control *control, int is_told, double rate)
{
    int is_first = control->level == control->home;
    uint32_t above = level_at_most(control, 2 * control->levels[control->level].bytes);
    int gains = is_told && (is_first || rate > control->levels[control->home].rate * HR_FLOW_CLIMB_GAIN);
    if (gains && above != control->level) {
        control->has_climbed = !is_first;
        control->home = control->level;
        return above;
    }
    if (gains || control->has_climbed || !control->home)
        return end_climb(control);
    control->climb = -1;
    return level_at_most(control, control->levels[control->home].bytes / 2);
}

static uint32_t climb_down(struct hr_flow_control *control, int is_told)
{
    if (!is_told || lowest_good_level(control) != control->level || !control->level)
        return end_climb(control);
    control->home = control->level;
    return level_at_most(control, control->levels[control->level].bytes / 2);
}

static uint32_t hold(struct hr_flow_control *control)
{
    uint32_t home = lowest_good_level(control);
    int looked = control->level != control->home;
    if (looked)
        control->held_count = 0;
    if (looked && home == control->level) { /* what is better in this direction may be better still further on */
        control->held_count = HR_FLOW_HOLD_WINDOW_COUNT - 2;
        control->look_count--;
    }
    control->home = home;
    if (control->level != home || ++control->held_count < HR_FLOW_HOLD_WINDOW_COUNT)
        return home;
    return level_to_look_at(control);
}

/* Another drive, or the same with other users. A slower one may have far too much to do now: as at first, at most. */
static void start_again(struct hr_flow_control *control, int direction)
{
    uint32_t start = level_at_most(control, HR_FLOW_BYTES_START);
    forget(control);
    control->home = control->level;
    if (direction < 0 && start < control->level)
        control->home = start;
}

/* A window is over; without `is_told` it says nothing of the drive. */
static void decide(struct hr_flow_control *control, int is_told, double rate, uint64_t now_ns)
{
    uint32_t level;
    int direction = is_told ? change(control, rate) : 0;
    control->window_count += is_told ? 1 : 0;
    if (direction) {
        start_again(control, direction);
        if (control->home != control->level) {
            set_level(control, control->home, now_ns);
            return;
        }
    }
    if (is_told)
        add_to_curve(control, rate);
    if (!is_told && control->level == control->home)
        return;
    if (control->climb)
        level = control->climb > 0 ? climb_up(control, is_told, rate) : climb_down(control, is_told);
    else
        level = is_told ? hold(control) : control->home;
    if (level != control->level)
        set_level(control, level, now_ns);
}

/* --------------------------------------------------------------------------------------- measuring */

static void window_begin(struct hr_flow_control *control, uint64_t now_ns)
{
    control->is_measuring = 1;
    control->is_spoiled = 0;
    control->begin_ns = control->round_ns = now_ns;
    control->round_count = control->operation_count = 0;
    control->bytes_ended = 0;
    control->byte_ns = 0;
}

static int window_is_over(const struct hr_flow_control *control, uint64_t now_ns)
{
    uint64_t ns = now_ns - control->begin_ns;
    if (ns >= HR_FLOW_WINDOW_LONG_NS && control->operation_count >= HR_FLOW_WINDOW_LONG_OPERATION_COUNT)
        return 1;
    return ns >= HR_FLOW_WINDOW_NS && control->round_count >= HR_FLOW_WINDOW_ROUND_COUNT &&
           control->operation_count >= HR_FLOW_WINDOW_OPERATION_COUNT;
}

static void window_end(struct hr_flow_control *control, uint64_t now_ns)
{
    double ns = (double)(now_ns - control->begin_ns);
    uint64_t limit = hr_flow_control_limit(control), operation = control->operation_bytes;
    double usable = limit > operation ? (double)(limit - operation) : (double)limit;
    int is_told = !control->is_spoiled && control->byte_ns >= HR_FLOW_USED_MIN * usable * ns;
    double rate = (double)control->bytes_ended / ns;
    window_begin(control, now_ns);
    decide(control, is_told, rate, now_ns);
}

/* An operation that began at started_ns has ended. */
static void measure(struct hr_flow_control *control, uint64_t bytes, uint64_t started_ns, uint64_t now_ns)
{
    if (!control->is_measuring) {
        if (started_ns >= control->begin_ns)
            window_begin(control, now_ns);
        return;
    }
    control->bytes_ended += bytes;
    control->operation_count++;
    if (started_ns >= control->round_ns) {
        control->round_count++;
        control->round_ns = now_ns;
    } else if (now_ns - control->begin_ns < HR_FLOW_WINDOW_LONG_NS) {
        return;
    }
    if (window_is_over(control, now_ns))
        window_end(control, now_ns);
}

/* ---------------------------------------------------------------------------------------- counting */

/* Clocks are read outside of the caller's lock, so time may seem to go back a little. */
static uint64_t sum_up(struct hr_flow_control *control, uint64_t now_ns)
{
    if (now_ns <= control->summed_ns)
        return control->summed_ns;
    control->byte_ns += (double)control->in_flight * (double)(now_ns - control->summed_ns);
    control->summed_ns = now_ns;
    return now_ns;
}

int hr_flow_control_begin(struct hr_flow_control *control, uint64_t bytes, uint64_t now_ns)
{
    now_ns = sum_up(control, now_ns);
    if (bytes > control->operation_bytes && control->operation_bytes < control->bytes_max) {
        control->operation_bytes = bytes < control->bytes_max ? bytes : control->bytes_max;
        rebuild(control, larger(hr_flow_control_limit(control), HR_FLOW_BYTES_START), now_ns);
    }
    uint64_t limit = hr_flow_control_limit(control);
    if (control->in_flight && (bytes > limit || control->in_flight > limit - bytes))
        return 0;
    control->in_flight += bytes;
    return 1;
}

void hr_flow_control_end(struct hr_flow_control *control, uint64_t bytes, uint64_t started_ns, uint64_t now_ns,
                         int succeeded)
{
    now_ns = sum_up(control, now_ns);
    control->in_flight -= bytes;
    if (!succeeded)
        control->is_spoiled = 1;
    measure(control, bytes, started_ns, now_ns);
}
