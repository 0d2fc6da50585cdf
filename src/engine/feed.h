/*
 * feed.h: what this rank reads for its process group: a load of its own, of the same loader, over byte ranges of the same
 * files. Its items go into the slots of a ring, a part of a window to each; a part goes there when its slot is free, and
 * for GPUs is read into pinned memory before (gate.h). It knows windows and slots; not what is done with them.
 */
#ifndef HR_ENGINE_FEED_H
#define HR_ENGINE_FEED_H

#include "engine/load.h"
#include "plan/spread.h"

struct hr_feed;

/*
 * Plans the reading of what `load` spreads, and starts its readers, which find nothing to do yet. `slots`: slot_count of
 * them, of the load's device.
 */
int hr_feed_new(struct hr_load *load, const struct hr_feed_slots *slots, struct hr_feed **ret_feed,
                struct hr_error *err);
/* Joins its readers. NULL is allowed. */
void hr_feed_free(struct hr_feed *feed);
/* Stops reading; who waits gets HR_ECANCELLED. Any thread. */
void hr_feed_stop(struct hr_feed *feed);

/* So many of its readers read, the others end. Before anything is open. */
void hr_feed_limit(struct hr_feed *feed, uint32_t reader_count);
/*
 * The slots of windows before `end` are free, or will be taken in their turn: their parts may go there, for GPUs behind
 * what the slot's lane waits for. One thread.
 */
void hr_feed_open(struct hr_feed *feed, size_t end);
/* The lanes of those slots wait for nothing more. One thread. */
void hr_feed_clear(struct hr_feed *feed, size_t end);
/* What ended the reading, also after all parts were read; or 0. Errors name the tensor of the load. */
int hr_feed_check(struct hr_feed *feed, struct hr_error *err);
/* Whether this rank's part of a window has been read, for GPUs: is in its slot's lane, or will never be. */
int hr_feed_is_ready(struct hr_feed *feed, size_t window_index);
/* Waits until the clock is at `until_ns`, or that has come to be so. */
void hr_feed_watch(struct hr_feed *feed, size_t window_index, uint64_t until_ns);
/* Waits for it. Errors name the tensor of the load. One thread. */
int hr_feed_wait(struct hr_feed *feed, size_t window_index, struct hr_error *err);

/* For the statistics. */
const struct hr_load *hr_feed_load(const struct hr_feed *feed);

#endif
