/*
 * spreader.c: the loop over windows. What a window consists of: spreader_moves.c.
 */
#include "engine/spreader_state.h"

#include "base/error.h"
#include "base/sys.h"

/* ------------------------------------------------------------------------- collectives and memory */

/*
 * Whether a collective may begin now. Who wants memory comes first: 0 while collectives are in flight whose end it waits
 * for; where none is, waits for it.
 */
static int begin_collective(struct hr_spreader *s)
{
    int may_begin = 1;
    pthread_mutex_lock(&s->lock);
    if (s->allocating_count && s->flying_count)
        may_begin = 0;
    while (may_begin && s->allocating_count)
        pthread_cond_wait(&s->turn, &s->lock);
    s->flying_count += (unsigned)may_begin;
    pthread_mutex_unlock(&s->lock);
    return may_begin;
}

static void end_collective(struct hr_spreader *s)
{
    pthread_mutex_lock(&s->lock);
    s->flying_count--;
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->lock);
}

void hr_spreader_pause(struct hr_spreader *s)
{
    if (!s->lane)
        return;
    pthread_mutex_lock(&s->lock);
    s->allocating_count++;
    while (s->flying_count)
        pthread_cond_wait(&s->turn, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void hr_spreader_resume(struct hr_spreader *s)
{
    if (!s->lane)
        return;
    pthread_mutex_lock(&s->lock);
    s->allocating_count--;
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->lock);
}

int hr_spreader_follow(struct hr_spreader *s, void *stream, struct hr_error *err)
{
    return s->lane ? hr_lane_follow(s->lane, stream, err) : 0;
}

/* ------------------------------------------------------------------------------- what is waited for */

static int is_stopping(struct hr_spreader *s)
{
    pthread_mutex_lock(&s->load->lock);
    int stopping = s->load->stopping;
    pthread_mutex_unlock(&s->load->lock);
    return stopping;
}

/*
 * The first group with items of the window whose destinations do not exist, or SIZE_MAX. The load's lock is held.
 */
static size_t group_lacking(const struct hr_spreader *s, const struct hr_spread_window *window)
{
    const struct hr_spread *spread = s->spread;
    size_t first = hr_spread_first(spread, s->item_first, window->begin);
    for (size_t i = first; i < spread->item_count && spread->items[i].begin < window->end; i++) {
        const struct hr_plan_item *planned = &s->load->plan.items[spread->items[i].item_index];
        if (planned->bytes && s->load->groups[planned->group_index].status != GROUP_ADMITTED)
            return planned->group_index;
    }
    return SIZE_MAX;
}

static void wait_for_destinations(struct hr_spreader *s, const struct hr_spread_window *window)
{
    struct hr_load *load = s->load;
    pthread_mutex_lock(&load->lock);
    while (!load->stopping && (load->needed_group = group_lacking(s, window)) != SIZE_MAX) {
        load->event_count++;
        pthread_cond_broadcast(&load->done);
        pthread_cond_wait(&load->work, &load->lock);
    }
    load->needed_group = SIZE_MAX;
    pthread_mutex_unlock(&load->lock);
}

/* Where a window is in flight. */
static struct flight *flight_of(struct hr_spreader *s, size_t window_index)
{
    return &s->flights[window_index % s->spread->depth];
}

/*
 * The window in flight that has the buffer of this one, or NULL. Both ends of it must be known to come before: what it
 * brought is in place, and what it sent has been read.
 */
static struct flight *flight_before(struct hr_spreader *s, size_t window_index)
{
    size_t buffer_count = s->spread->buffer_count;
    return window_index >= s->finished + buffer_count ? flight_of(s, window_index - buffer_count) : NULL;
}

/* Whether the window can be issued without waiting for anything but other ranks. */
static int can_issue(struct hr_spreader *s, size_t window_index)
{
    struct hr_spread_window window = hr_spread_window_at(s->spread, window_index);
    const struct flight *before = flight_before(s, window_index);
    if (before && !before->has_end)
        return 0;
    pthread_mutex_lock(&s->load->lock);
    int is_stopping = s->load->stopping, is_lacking = group_lacking(s, &window) != SIZE_MAX;
    pthread_mutex_unlock(&s->load->lock);
    return is_stopping || (!is_lacking && hr_feed_is_ready(s->feed, window_index));
}

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

/* Slots are free, or will be, for the windows before `end`: their statuses go ahead, their parts are read. */
static void open_windows(struct hr_spreader *s, size_t end)
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

/* ------------------------------------------------------------------------------------------ windows */

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
    const struct flight *before = flight_before(s, flight->window.index);
    return before ? hr_lane_await(spreader_slot_lane(s, flight->window.index), before->fence, err) : 0;
}

/*
 * After a failure nothing is known of the order of the device: the host waits until the window has its buffer for itself.
 * Else its collective would write over what the one before has brought, and what the ranks said with that.
 */
static int wait_for_buffer(struct hr_spreader *s, const struct flight *flight, struct hr_error *err)
{
    const struct flight *before = flight_before(s, flight->window.index);
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
    open_windows(s, window_index + 1 + s->spread->slot_count);
}

static void wait_for_part(struct hr_spreader *s, size_t window_index)
{
    struct hr_error error;
    int code = hr_feed_wait(s->feed, window_index, &error);
    if (code == 0)
        code = hr_feed_check(s->feed, &error);
    if (code < 0 && !is_stopping(s))
        hr_load_fail(s->load, &error);
}

/* Calls a window's collective; 0 when one in flight has to end first, since somebody wants memory. */
static int issue(struct hr_spreader *s, size_t window_index)
{
    struct flight *flight = flight_of(s, window_index);
    struct hr_error error;
    flight->window = hr_spread_window_at(s->spread, window_index);
    flight->receive = s->buffers + window_index % s->spread->buffer_count * s->spread->buffer_bytes;
    flight->is_placed = flight->has_end = 0;
    wait_for_part(s, window_index);
    wait_for_destinations(s, &flight->window);
    if (!begin_collective(s))
        return 0;
    s->item_first = hr_spread_first(s->spread, s->item_first, flight->window.begin);
    if (prepare_sending(s, flight, &error) < 0 || collect(s, flight, &error) < 0) {
        break_off(s, &error);
        return 1;
    }
    place(s, flight);
    if (s->lane)
        pass_on_slot(s, window_index);
    return 1;
}

/* What a window brought may not be in place. */
static void has_failed(struct hr_spreader *s, struct flight *flight, const struct hr_error *error)
{
    hr_load_fail(s->load, error);
    flight->is_placed = 0;
}

/* While a window's end is waited for: looks at it, at first without a pause, since ranks are close together, then naps. */
#define POLL_NS 5000u
#define NAP_NS_MAX 1000000u

/*
 * Waits for the end of the oldest window in flight, or until the next one can be issued, whichever comes first: 1, or 0 for
 * the latter.
 */
static int oldest_ends_first(struct hr_spreader *s, size_t next)
{
    struct flight *oldest = flight_of(s, s->finished);
    uint64_t from = hr_sys->clock_ns(), waited = 0;
    struct hr_error error;
    int code = 0, can_go_on = 0;
    while (oldest->has_end && (code = hr_fence_poll_for(oldest->fence, POLL_NS, &error)) == 0) {
        if ((can_go_on = can_issue(s, next)))
            break;
        uint64_t now = hr_sys->clock_ns(), nap = waited / 8;
        waited = now - from;
        if (waited > HR_FENCE_SPIN_NS)
            hr_feed_watch(s->feed, next, now + (nap < NAP_NS_MAX ? nap : NAP_NS_MAX));
    }
    s->load->group_wait_ns += hr_sys->clock_ns() - from;
    if (code < 0)
        has_failed(s, oldest, &error);
    return !can_go_on;
}

/* Waits for a window's end. A call that fails once is made again. */
static void wait_for_end(struct hr_spreader *s, struct flight *flight)
{
    struct hr_error error;
    uint64_t from = hr_sys->clock_ns();
    int code = flight->has_end ? 0 : put_behind_again(s, flight, &error);
    if (code == 0 && hr_fence_wait_soon(flight->fence, &error) < 0) {
        has_failed(s, flight, &error);
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

/* The end of a window: 1 when all ranks go on, else 0. */
static int finish(struct hr_spreader *s, size_t window_index)
{
    struct flight *flight = flight_of(s, window_index);
    struct hr_error error;
    if (s->lane)
        wait_for_end(s, flight);
    end_collective(s);
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
        open_windows(s, window_index + 1 + s->spread->slot_count);
    hr_feed_clear(s->feed, window_index + 1 + s->spread->slot_count);
    return 1;
}

static void run(struct hr_spreader *s)
{
    size_t issued = 0, end = s->spread->window_count, depth = s->spread->depth;
    open_windows(s, s->spread->slot_count);
    hr_feed_clear(s->feed, s->spread->slot_count);
    while (s->finished < end && !s->is_broken) {
        int has_room = issued < end && issued - s->finished < depth;
        int may_issue = has_room && (issued == s->finished || can_issue(s, issued));
        if (may_issue && issue(s, issued)) {
            issued++;
            continue;
        }
        if (has_room && !may_issue && !oldest_ends_first(s, issued))
            continue;
        if (!finish(s, s->finished) && s->finished + depth < end)
            end = s->finished + depth; /* others may have come so far */
        s->finished++;
    }
}

/* ------------------------------------------------------------------------------------- start and end */

/* 1 once the ranks have met; 0 when the load ends before. */
static int wait_for_ranks(struct hr_spreader *s)
{
    struct hr_load *load = s->load;
    pthread_mutex_lock(&load->lock);
    while (load->unmet && !load->stopping)
        pthread_cond_wait(&load->work, &load->lock);
    int have_met = !load->unmet;
    pthread_mutex_unlock(&load->lock);
    return have_met;
}

static void *spreader_main(void *argument)
{
    struct hr_spreader *s = argument;
    if (wait_for_ranks(s))
        run(s);
    while (s->flying_count) /* broken off */
        end_collective(s);
    pthread_mutex_lock(&s->load->lock);
    s->load->spread_is_over = 1;
    s->load->event_count++;
    pthread_cond_broadcast(&s->load->done);
    pthread_mutex_unlock(&s->load->lock);
    return NULL;
}

/* The load's lock, under which its ranks have met, orders this. */
void hr_spreader_go(struct hr_spreader *s, uint64_t magic, uint32_t reader_limit)
{
    s->magic = magic;
    hr_feed_limit(s->feed, reader_limit);
}

void hr_spreader_stop(struct hr_spreader *s)
{
    hr_feed_stop(s->feed);
}

static int start(struct hr_spreader *s, struct hr_error *err)
{
    int code = hr_feed_new(s->load, &(struct hr_feed_slots){s->memory, s->slot_lanes}, &s->feed, err);
    if (code < 0)
        return code;
    code = hr_sys->thread_start(&s->thread, spreader_main, s);
    if (code < 0)
        return hr_fail_sys(err, HR_EOUT_OF_MEMORY, -code,
                           "cannot start a thread for collectives; raise the limit of processes or of memory");
    s->has_thread = 1;
    return 0;
}

int hr_spreader_new(struct hr_load *load, struct hr_spreader **ret_spreader, struct hr_error *err)
{
    struct hr_spreader *s = hr_alloc(sizeof *s);
    if (!s)
        return hr_fail_memory(err, sizeof *s, "what takes part in a process group");
    s->load = load;
    s->spread = load->plan.spread;
    s->group = &load->group;
    s->device = load->loader->devices[load->plan.items[0].device_index].device;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->turn, NULL);
    int code = hr_spreader_make_all(s, err);
    if (code == 0)
        code = start(s, err);
    if (code < 0) {
        hr_spreader_free(s);
        return code;
    }
    *ret_spreader = s;
    return 0;
}

void hr_spreader_free(struct hr_spreader *s)
{
    if (!s)
        return;
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    hr_feed_free(s->feed);
    hr_spreader_release_all(s);
    pthread_cond_destroy(&s->turn);
    pthread_mutex_destroy(&s->lock);
    hr_free(s);
}

void hr_spreader_forget(struct hr_spreader *s)
{
    if (!s)
        return;
    hr_feed_free(s->feed);
    hr_free(s->slot_lanes);
    hr_free(s->scratch);
    hr_free(s);
}

const struct hr_load *hr_spreader_feed(const struct hr_spreader *s)
{
    return hr_feed_load(s->feed);
}

uint64_t hr_spreader_bytes(const struct hr_spreader *s)
{
    return s->memory_bytes;
}
