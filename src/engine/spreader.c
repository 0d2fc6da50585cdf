/*
 * spreader.c: the loop over windows, what it waits for, and its thread. What becomes of a window: spreader_window.c.
 */
#include "engine/spreader_state.h"

#include "base/cond.h"
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

int hr_spreader_pause(struct hr_spreader *s, struct hr_error *err)
{
    uint64_t until;
    int code = 0;
    if (!s->lane)
        return 0;
    pthread_mutex_lock(&s->lock);
    s->allocating_count++;
    while (code == 0 && s->flying_count) {
        pthread_mutex_unlock(&s->lock);
        code = hr_load_do_due(s->load, &until, err);
        pthread_mutex_lock(&s->lock);
        if (code == 0 && s->flying_count && !s->is_stopping)
            hr_cond_wait_until(&s->turn, &s->lock, until);
    }
    pthread_mutex_unlock(&s->lock);
    if (code < 0)
        hr_spreader_resume(s);
    return code;
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

/* Whether the window can be issued without waiting for anything but other ranks. */
static int can_issue(struct hr_spreader *s, size_t window_index)
{
    struct hr_spread_window window = hr_spread_window_at(s->spread, window_index);
    const struct flight *before = spreader_flight_before(s, window_index);
    if (before && !before->has_end)
        return 0;
    pthread_mutex_lock(&s->load->lock);
    int is_stopping = s->load->stopping, is_lacking = group_lacking(s, &window) != SIZE_MAX;
    pthread_mutex_unlock(&s->load->lock);
    return is_stopping || (!is_lacking && hr_feed_is_ready(s->feed, window_index));
}

/* ------------------------------------------------------------------------------------------ windows */

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
    struct flight *flight = spreader_flight(s, window_index);
    flight->window = hr_spread_window_at(s->spread, window_index);
    flight->receive = s->buffers + window_index % s->spread->buffer_count * s->spread->buffer_bytes;
    flight->is_placed = flight->has_end = 0;
    wait_for_part(s, window_index);
    wait_for_destinations(s, &flight->window);
    if (!begin_collective(s))
        return 0;
    s->item_first = hr_spread_first(s->spread, s->item_first, flight->window.begin);
    hr_spreader_send(s, flight);
    return 1;
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
    struct flight *oldest = spreader_flight(s, s->finished);
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
        hr_spreader_fail(s, oldest, &error);
    return !can_go_on;
}

/* The end of a window: 1 when all ranks go on, else 0. */
static int finish(struct hr_spreader *s, size_t window_index)
{
    struct flight *flight = spreader_flight(s, window_index);
    if (s->lane)
        hr_spreader_wait(s, flight);
    end_collective(s);
    return hr_spreader_take(s, flight);
}

static void run(struct hr_spreader *s)
{
    size_t issued = 0, end = s->spread->window_count, depth = s->spread->depth;
    hr_spreader_open(s, s->spread->slot_count);
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
    pthread_mutex_lock(&s->lock);
    s->is_stopping = 1;
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->lock);
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
    hr_cond_init(&s->turn);
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
