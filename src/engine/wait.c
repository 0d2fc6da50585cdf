/*
 * wait.c: the calls that block. Every waiting thread sleeps on `done` until something changed, calls the progress
 * callback in between, and minds the deadline; with a sequential load it reads the next chunk itself instead.
 */
#include "engine/load.h"

#include <stdio.h>

#include "base/cond.h"
#include "base/error.h"
#include "base/sys.h"
#include "engine/reader.h"

static uint64_t time_after(uint64_t from_ns, uint64_t ns)
{
    return ns < UINT64_MAX - from_ns ? from_ns + ns : UINT64_MAX;
}

/* What one waiting call keeps over its sleeps. */
struct waiter {
    struct hr_load *load;
    uint64_t from_ns;
    struct hr_reader *reader; /* sequential loads */
};

static int waiter_begin(struct waiter *waiter, struct hr_load *load, struct hr_error *err)
{
    *waiter = (struct waiter){.load = load, .from_ns = hr_sys->clock_ns()};
    if (!load->options.sequential)
        return 0;
    pthread_mutex_lock(&load->lock);
    waiter->reader = load->spare_reader;
    load->spare_reader = NULL;
    pthread_mutex_unlock(&load->lock);
    return waiter->reader ? 0 : hr_reader_new(load, 0, 1, &waiter->reader, err);
}

static void waiter_end(struct waiter *waiter)
{
    struct hr_load *load = waiter->load;
    load->wait_ns += hr_sys->clock_ns() - waiter->from_ns;
    if (!waiter->reader)
        return;
    pthread_mutex_lock(&load->lock);
    struct hr_reader *surplus = load->spare_reader;
    load->spare_reader = waiter->reader;
    pthread_mutex_unlock(&load->lock);
    hr_reader_free(surplus);
}

/* Calls the caller's progress function; the lock is not held. */
static void report_progress(struct hr_load *load)
{
    struct hr_progress progress = {.bytes_done = load->bytes_landed,
                                   .bytes_total = load->plan.bytes,
                                   .item_count = load->plan.item_count,
                                   .elapsed_ns = hr_sys->clock_ns() - load->start_ns};
    pthread_mutex_lock(&load->lock);
    progress.item_done = load->items_ready;
    pthread_mutex_unlock(&load->lock);
    if (load->options.progress(load->options.progress_context, &progress))
        hr_load_cancel(load);
}

/* A read that takes this long is not slow, it hangs. */
#define HANGING_NS UINT64_C(1000000000)

/* Says which reads do not come back, the oldest by name; adds nothing when there are none. */
static void describe_hanging(const struct hr_load *load, char *text, size_t capacity, struct hr_error *err)
{
    const struct reader_activity *oldest = NULL;
    uint64_t now = hr_sys->clock_ns(), oldest_ns = now;
    unsigned count = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < load->activity_count; i++) {
        uint64_t since = load->activities[i].since_ns;
        if (since == 0 || now - since < HANGING_NS)
            continue;
        count++;
        if (since < oldest_ns) {
            oldest_ns = since;
            oldest = &load->activities[i];
        }
    }
    if (!oldest)
        return;
    snprintf(text, capacity, "; %u reader(s) wait for storage that does not answer, the longest for %.1f s", count,
             (double)(now - oldest_ns) / 1e9);
    hr_error_in_file(err, load->checkpoint->files[oldest->file_index].path);
    err->offset = oldest->offset;
}

static void fail_deadline(struct hr_load *load)
{
    struct hr_error error, place = {.offset = HR_NO_OFFSET};
    char hanging[120];
    describe_hanging(load, hanging, sizeof hanging, &place);
    hr_fail(&error, HR_EDEADLINE_EXCEEDED, "the load did not finish within %.3f s: %llu of %llu bytes have arrived%s",
            (double)load->options.deadline_ns / 1e9, (unsigned long long)load->bytes_landed,
            (unsigned long long)load->plan.bytes, hanging);
    if (place.file[0]) {
        hr_error_in_file(&error, place.file);
        error.offset = place.offset;
    }
    hr_load_fail(load, &error);
}

/* Reports progress if that is due: 1 when the lock, held before and after, was given up for it. */
static int report_due(struct hr_load *load)
{
    if (!load->options.progress)
        return 0;
    uint64_t now = hr_sys->clock_ns();
    if (now < load->progress_next_ns)
        return 0;
    load->progress_next_ns = time_after(now, load->options.progress_ns);
    pthread_mutex_unlock(&load->lock);
    report_progress(load);
    pthread_mutex_lock(&load->lock);
    return 1;
}

/* Does what is due now, deadline and progress: 1 when the lock, held before and after, was given up for it. */
static int do_due(struct hr_load *load)
{
    if (load->options.deadline_ns && hr_sys->clock_ns() - load->start_ns >= load->options.deadline_ns) {
        pthread_mutex_unlock(&load->lock);
        fail_deadline(load);
        pthread_mutex_lock(&load->lock);
        return 1;
    }
    return report_due(load);
}

/* When something is due. The lock is held. */
static uint64_t next_due_ns(const struct hr_load *load)
{
    uint64_t until = UINT64_MAX;
    if (load->options.deadline_ns)
        until = time_after(load->start_ns, load->options.deadline_ns);
    if (load->options.progress && load->progress_next_ns < until)
        until = load->progress_next_ns;
    return until;
}

int hr_load_do_due(struct hr_load *load, uint64_t *ret_next_ns, struct hr_error *err)
{
    pthread_mutex_lock(&load->lock);
    do_due(load);
    *ret_next_ns = next_due_ns(load);
    int code = hr_load_error(load, err);
    pthread_mutex_unlock(&load->lock);
    return code;
}

/* Sleeps until something changed or is due. The lock is held. */
static void sleep_some(struct hr_load *load)
{
    hr_cond_wait_until(&load->done, &load->lock, next_due_ns(load));
}

/*
 * Makes the destinations that the spreader waits for, though the window may have no room for them: 1 when it did. Without
 * them nothing that is waited for here comes, and neither does what other ranks wait for. The lock is held before and
 * after.
 */
static int make_needed(struct hr_load *load)
{
    size_t group_index = load->needed_group;
    if (group_index == SIZE_MAX || load->groups[group_index].status != GROUP_PLANNED || load->error.code)
        return 0;
    pthread_mutex_unlock(&load->lock);
    hr_load_admit_group(load, group_index);
    pthread_mutex_lock(&load->lock);
    return 1;
}

/*
 * One step towards what is waited for; may return early. Sleeps only if nothing has happened since the caller, who may
 * have given up the lock meanwhile, saw `events_seen`. The lock is held before and after.
 */
static void wait_some(struct waiter *waiter, uint64_t events_seen)
{
    struct hr_load *load = waiter->load;
    int looked_away = do_due(load);
    /* what is due may be due again by now: the load has to go on nevertheless */
    if (waiter->reader && !load->error.code) {
        pthread_mutex_unlock(&load->lock);
        int moved = hr_reader_step(waiter->reader);
        pthread_mutex_lock(&load->lock);
        if (moved)
            return;
    }
    if (!looked_away && load->event_count == events_seen && !load->error.code && !make_needed(load))
        sleep_some(load);
}

/* The item leaves the window; 1 when the last item of its group has, so that there is room. The lock is held. */
static int hand_out(struct hr_load *load, size_t item_index)
{
    size_t group_index = load->plan.items[item_index].group_index;
    struct load_item *item = &load->items[item_index];
    if (item->handed_out)
        return 0;
    item->handed_out = 1;
    load->items_handed_out++;
    int has_room = --load->groups[group_index].items_left == 0;
    if (has_room) {
        load->window_bytes -= load->plan.groups[group_index].window_bytes;
        load->event_count++;
    }
    /* others in hr_load_next() are at the end, or with a sequential load it may be they who have to go on */
    if (load->items_handed_out == load->plan.item_count || load->options.sequential)
        pthread_cond_broadcast(&load->done);
    return has_room;
}

/* After a group has left the window: what it has room for now is made while the consumer works. */
static void open_window(struct hr_load *load)
{
    if (!load->options.sequential)
        hr_load_admit_window(load); /* a failure is the load's and comes out of the next call */
}

/* Makes sure that the item's chunks are among the next ones. The lock is held before and after. */
static void promote(struct hr_load *load, size_t item_index)
{
    struct load_item *item = &load->items[item_index];
    if (item->status == ITEM_PLANNED) {
        pthread_mutex_unlock(&load->lock);
        hr_load_admit_group(load, load->plan.items[item_index].group_index);
        pthread_mutex_lock(&load->lock);
    }
    if (item->status == ITEM_ADMITTED && !item->urgent) {
        item->urgent = 1;
        hr_queue_push(&load->urgent, item_index);
        pthread_cond_broadcast(&load->work);
    }
}

int hr_load_wait(struct hr_load *load, size_t item_index, struct hr_error *err)
{
    struct waiter waiter;
    int has_room = 0;
    int code = hr_load_check_item(load, item_index, err);
    if (code == 0)
        code = waiter_begin(&waiter, load, err);
    if (code < 0)
        return code;
    pthread_mutex_lock(&load->lock);
    report_due(load);
    while (load->items[item_index].status != ITEM_READY && !load->error.code) {
        uint64_t events_seen = load->event_count;
        promote(load, item_index);
        if (load->items[item_index].status != ITEM_READY && !load->error.code)
            wait_some(&waiter, events_seen);
    }
    if (load->items[item_index].status == ITEM_READY)
        has_room = hand_out(load, item_index);
    else
        code = hr_load_error(load, err);
    pthread_mutex_unlock(&load->lock);
    waiter_end(&waiter);
    if (has_room)
        open_window(load);
    return code;
}

/*
 * All items are ready, and other ranks still need what this one reads: a load that ended now would be one that stopped
 * early, to them. The lock is held.
 */
static int is_serving(const struct hr_load *load)
{
    return load->spreader && !load->unmet && !load->spread_is_over && !load->error.code && !load->stopping &&
           load->items_ready == load->plan.item_count;
}

void hr_load_serve(struct hr_load *load)
{
    uint64_t until = load->options.deadline_ns ? time_after(load->start_ns, load->options.deadline_ns) : UINT64_MAX;
    pthread_mutex_lock(&load->lock);
    while (is_serving(load) && hr_sys->clock_ns() < until)
        hr_cond_wait_until(&load->done, &load->lock, until);
    pthread_mutex_unlock(&load->lock);
}

/* The next ready item that was not handed out, or SIZE_MAX. The lock is held. */
static size_t pop_ready(struct hr_load *load)
{
    while (load->ready.count) {
        size_t item_index = hr_queue_pop(&load->ready);
        if (!load->items[item_index].handed_out)
            return item_index;
    }
    return SIZE_MAX;
}

/* Waits until an item is ready to be returned. 0, HR_EEND, or the load's error. The lock is held. */
static int next_ready(struct waiter *waiter, size_t *ret_item_index, struct hr_error *err)
{
    struct hr_load *load = waiter->load;
    for (;;) {
        uint64_t events_seen = load->event_count;
        *ret_item_index = pop_ready(load);
        if (*ret_item_index != SIZE_MAX)
            return 0;
        if (load->items_handed_out == load->plan.item_count && !is_serving(load))
            return HR_EEND;
        if (load->error.code)
            return hr_load_error(load, err);
        if (load->options.sequential) {
            pthread_mutex_unlock(&load->lock);
            hr_load_admit_window(load);
            pthread_mutex_lock(&load->lock);
        }
        wait_some(waiter, events_seen);
    }
}

int hr_load_next(struct hr_load *load, size_t *ret_item_index, struct hr_error *err)
{
    struct waiter waiter;
    size_t item_index;
    int has_room = 0;
    int code = hr_load_check(load, err);
    if (code == 0 && !ret_item_index)
        code =
            hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the item's index must be given; ret_item_index is NULL");
    if (code == 0)
        code = waiter_begin(&waiter, load, err);
    if (code < 0)
        return code;
    pthread_mutex_lock(&load->lock);
    report_due(load);
    code = next_ready(&waiter, &item_index, err);
    if (code == 0) {
        has_room = hand_out(load, item_index);
        *ret_item_index = item_index;
    }
    pthread_mutex_unlock(&load->lock);
    waiter_end(&waiter);
    if (has_room)
        open_window(load);
    else if (code == HR_EEND)
        hr_fail(err, HR_EEND, "all %zu items were handed out", load->plan.item_count);
    return code;
}

int hr_load_wait_all(struct hr_load *load, struct hr_error *err)
{
    struct waiter waiter;
    int code = hr_load_check(load, err);
    if (code == 0)
        code = waiter_begin(&waiter, load, err);
    if (code < 0)
        return code;
    for (size_t i = 0; i < load->plan.group_count; i++)
        if (hr_load_admit_group(load, i) < 0)
            break;
    pthread_mutex_lock(&load->lock);
    while ((load->items_ready < load->plan.item_count && !load->error.code) || is_serving(load))
        wait_some(&waiter, load->event_count);
    if (load->items_ready < load->plan.item_count)
        code = hr_load_error(load, err);
    pthread_mutex_unlock(&load->lock);
    waiter_end(&waiter);
    return code;
}
