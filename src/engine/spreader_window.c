/*
 * spreader_window.c: one window: what this rank sends and says with it, its collective, and what the ranks have said at
 * its end. The moves that it consists of: spreader_moves.c.
 */
#include "engine/spreader_state.h"

#include "base/error.h"
#include "base/sys.h"

/* ----------------------------------------------------------------------------------------- statuses */

/*
 * Writes this rank's status behind what it sends at `part`; on a GPU in the slot's lane. With a cause the slot has one
 * already, which may be under way there.
 */
static int put_status(struct hr_spreader *s, size_t window_index, char *part, const struct hr_error *cause,
                      struct hr_error *err)
{
    struct hr_spread_window window = hr_spread_window_at(s->spread, window_index);
    char *target = part + window.part_bytes;
    struct hr_lane *lane = spreader_slot_lane(s, window_index);
    size_t index = window_index % (SLOT_ROUNDS * s->spread->slot_count);
    struct hr_group_status *status = lane ? &s->slot_statuses[index] : (struct hr_group_status *)target;
    int code = cause && lane ? hr_fence_put(s->status_fence, lane, err) : 0;
    if (code == 0 && cause && lane)
        code = hr_fence_wait(s->status_fence, err);
    if (code < 0)
        return code;
    hr_group_status_fill(status, s->magic, window_index, s->spread->rank, cause);
    if (!lane)
        return 0;
    struct hr_move *move = &s->slot_moves[index];
    *move = (struct hr_move){.source = (uintptr_t)status,
                             .target = (uintptr_t)target,
                             .bytes = sizeof *status,
                             .rows = 1,
                             .source_pitch = sizeof *status,
                             .target_pitch = sizeof *status};
    return hr_lane_place(lane, &s->block, move, 1, &s->counts, err);
}

void hr_spreader_open(struct hr_spreader *s, size_t end)
{
    struct hr_error error;
    size_t count = s->spread->window_count;
    if (s->is_shut)
        return;
    for (; s->opened < end && s->opened < count; s->opened++)
        if (put_status(s, s->opened, spreader_slot(s, s->opened), NULL, &error) < 0)
            hr_load_fail(s->load, &error);
    hr_feed_open(s->feed, end);
}

/* ------------------------------------------------------------------------------------------- a call */

/* What this rank has to say with a window: 0, or the code of what ends its load. */
static int own_cause(struct hr_spreader *s, struct hr_error *ret_cause)
{
    struct hr_load *load = s->load;
    pthread_mutex_lock(&load->lock);
    *ret_cause = load->error;
    if (load->stopping && !load->error.code)
        hr_fail(ret_cause, HR_ECANCELLED, "the load was freed");
    pthread_mutex_unlock(&load->lock);
    return ret_cause->code;
}

/* No collective may be called any more. */
static void break_off(struct hr_spreader *s, const struct hr_error *error)
{
    s->is_broken = 1;
    hr_load_fail(s->load, error);
}

static int scatter(struct hr_spreader *s, const struct flight *flight)
{
    const struct hr_group *group = s->group;
    uint64_t bytes = flight->window.segment_bytes + HR_SPREAD_STATUS_BYTES;
    int failed = 0;
    for (uint32_t root = 0; root < group->world && !failed; root++) {
        const char *send = root == group->rank ? flight->send : NULL;
        s->load->collective_count++;
        failed = group->scatter(group->context, send, flight->receive + root * bytes, bytes, root);
    }
    return failed;
}

static int all_gather(struct hr_spreader *s, const struct flight *flight)
{
    s->load->collective_count++;
    return s->group->all_gather(s->group->context, flight->send, flight->receive,
                                flight->window.part_bytes + HR_SPREAD_STATUS_BYTES);
}

/* In the order of the device, the window has its buffer for itself. */
static int take_buffer(struct hr_spreader *s, const struct flight *flight, struct hr_error *err)
{
    const struct flight *before = spreader_flight_before(s, flight->window.index);
    return before ? hr_lane_await(spreader_slot_lane(s, flight->window.index), before->fence, err) : 0;
}

/*
 * After a failure nothing is known of the order of the device: the host waits until the window has its buffer for itself.
 * Else its collective would write over what the one before has brought, and what the ranks said with that.
 */
static int wait_for_buffer(struct hr_spreader *s, const struct flight *flight, struct hr_error *err)
{
    const struct flight *before = spreader_flight_before(s, flight->window.index);
    return before ? hr_fence_wait(before->fence, err) : 0;
}

static int collect(struct hr_spreader *s, const struct flight *flight, struct hr_error *err)
{
    uint64_t from = hr_sys->clock_ns();
    int failed = flight->window.segment_bytes ? scatter(s, flight) : all_gather(s, flight);
    if (!s->lane)
        s->load->group_wait_ns += hr_sys->clock_ns() - from;
    return failed ? hr_group_fail(s->group, "a collective of the group", err) : 0;
}

/*
 * What the collective sends is complete: this rank's part, or what is packed of it, and what the rank has to say. Where
 * that cannot be had, memory is sent that has no status of this rank for this window, which the other ranks recognise:
 * the next slot, or what earlier windows have brought. Negative: the collective must not be called.
 */
static int prepare_sending(struct hr_spreader *s, struct flight *flight, struct hr_error *err)
{
    struct hr_error cause, error;
    size_t index = flight->window.index;
    int code = 0;
    flight->is_wanted = own_cause(s, &cause) == 0;
    flight->part = flight->is_wanted || !s->spread->spare_slots ? spreader_slot(s, index) : spreader_spare(s);
    flight->send = flight->window.segment_bytes ? hr_spreader_packed(s, flight) : flight->part;
    if (!flight->is_wanted)
        code = put_status(s, index, flight->part, &cause, &error);
    if (code == 0)
        code = take_buffer(s, flight, &error);
    if (code == 0 && flight->window.segment_bytes)
        code = hr_spreader_pack(s, flight, &error);
    if (code == 0 && s->lane)
        code = hr_lane_lead(spreader_slot_lane(s, index), s->group->stream, &error);
    if (code == 0)
        return 0;
    hr_load_fail(s->load, &error);
    flight->is_wanted = 0;
    flight->send = flight->window.segment_bytes ? flight->receive : spreader_slot(s, index + 1);
    return wait_for_buffer(s, flight, err);
}

/* What the collective brings goes into place behind it, and the statuses to the host; the fence stands for all of it. */
static int put_behind(struct hr_spreader *s, struct flight *flight, struct hr_error *err)
{
    int code = hr_lane_follow(s->lane, s->group->stream, err);
    if (code == 0)
        code = hr_spreader_place(s, flight, err);
    if (code == 0)
        code = hr_lane_fetch(s->lane, flight->statuses, flight->gathered,
                             (uint64_t)s->spread->world * HR_SPREAD_STATUS_BYTES, err);
    if (code == 0)
        code = hr_fence_put(flight->fence, s->lane, err);
    flight->has_end = code == 0;
    return code;
}

/* After a failure: the statuses alone, since what other ranks said must not be missed. */
static int put_behind_again(struct hr_spreader *s, struct flight *flight, struct hr_error *err)
{
    flight->is_wanted = flight->is_placed = 0;
    int code = hr_fence_put(flight->fence, s->lane, err);
    if (code == 0)
        code = hr_fence_wait(flight->fence, err); /* the table may be in use */
    return code < 0 ? code : put_behind(s, flight, err);
}

static void place(struct hr_spreader *s, struct flight *flight)
{
    struct hr_error error;
    int code = s->lane ? put_behind(s, flight, &error) : hr_spreader_place(s, flight, &error);
    flight->is_placed = code == 0 && flight->is_wanted;
    if (code < 0)
        hr_load_fail(s->load, &error);
}

/*
 * GPUs: the slot's next part may be sent as soon as the collective has read this one. That is waited for by the slot's
 * lane, not by readers, who would learn of it later.
 */
static void pass_on_slot(struct hr_spreader *s, size_t window_index)
{
    struct hr_error error;
    if (hr_lane_follow(spreader_slot_lane(s, window_index), s->group->stream, &error) < 0) {
        s->is_shut = 1;
        hr_load_fail(s->load, &error);
    }
    hr_spreader_open(s, window_index + 1 + s->spread->slot_count);
}

void hr_spreader_send(struct hr_spreader *s, struct flight *flight)
{
    struct hr_error error;
    if (prepare_sending(s, flight, &error) < 0 || collect(s, flight, &error) < 0) {
        break_off(s, &error);
        return;
    }
    place(s, flight);
    if (s->lane)
        pass_on_slot(s, flight->window.index);
}

/* ----------------------------------------------------------------------------------------- its end */

void hr_spreader_fail(struct hr_spreader *s, struct flight *flight, const struct hr_error *error)
{
    hr_load_fail(s->load, error);
    flight->is_placed = 0;
}

void hr_spreader_wait(struct hr_spreader *s, struct flight *flight)
{
    struct hr_error error;
    uint64_t from = hr_sys->clock_ns();
    int code = flight->has_end ? 0 : put_behind_again(s, flight, &error);
    if (code == 0 && hr_fence_wait_soon(flight->fence, &error) < 0) {
        hr_spreader_fail(s, flight, &error);
        code = hr_fence_wait(flight->fence, &error);
    }
    s->load->group_wait_ns += hr_sys->clock_ns() - from;
    if (code < 0)
        break_off(s, &error);
}

/* 0, or what some rank said instead of that all is well. */
static int check_statuses(struct hr_spreader *s, const struct flight *flight, struct hr_error *err)
{
    int code = 0;
    for (uint32_t rank = 0; code == 0 && rank < s->spread->world; rank++) {
        const struct hr_group_status *status = (const struct hr_group_status *)hr_spreader_status(flight, rank);
        if (s->lane)
            status = &flight->statuses[rank];
        code = hr_group_status_check(status, s->magic, flight->window.index, rank, err);
    }
    return code;
}

static void add_counts(struct hr_spreader *s, const struct flight *flight)
{
    uint64_t share = flight->window.segment_bytes ? flight->window.segment_bytes : flight->window.part_bytes;
    s->load->bytes_received += s->spread->world * share;
    s->load->bytes_sent += s->counts.bytes_sent;
    s->load->copy_count += s->counts.copy_count;
    s->load->kernel_count += s->counts.kernel_count;
    s->counts = (struct hr_place_counts){0};
}

int hr_spreader_take(struct hr_spreader *s, struct flight *flight)
{
    size_t end = flight->window.index + 1 + s->spread->slot_count;
    struct hr_error error;
    const char *why = s->group->failure ? s->group->failure(s->group->context) : NULL;
    if (why) {
        hr_fail(&error, HR_EGROUP_ERROR, "the collectives of the group failed: %s", why);
        break_off(s, &error);
    }
    if (s->is_broken)
        return 0;
    if (check_statuses(s, flight, &error) < 0) {
        hr_load_fail(s->load, &error);
        return 0;
    }
    add_counts(s, flight);
    if (flight->is_placed)
        hr_spreader_landed(s, flight);
    if (!s->lane)
        hr_spreader_open(s, end);
    hr_feed_clear(s->feed, end);
    return 1;
}
