/*
 * spreader.h: the thread of a load that takes part in the collectives of its process group. Window by window of the plan
 * (plan/spread.h) it waits for what this rank has read (feed.h) and for the destinations, has the caller's transport
 * spread it, and brings what came into place.
 *
 * The rule that keeps ranks together: every rank issues the windows in their order, and at most `depth` that it has not
 * seen the end of. A rank that cannot go on says so in its next window. Who sees the end of window e, in which some rank
 * said so, knows that others may have issued up to e + depth - 1, but nobody more: so all issue up to that one, and stop.
 *
 * The thread blocks for nothing but the ends of collectives while some of its own are in flight, and allocates nothing.
 * Device memory is made by waiting threads only while none is in flight: a driver may wait for the device there.
 */
#ifndef HR_ENGINE_SPREADER_H
#define HR_ENGINE_SPREADER_H

#include "engine/load.h"

struct hr_spreader;

/*
 * Makes all that is needed to spread, and starts the thread and the feed's readers, which wait for the ranks to meet.
 * For a load that spreads something. On failure nothing is left.
 */
int hr_spreader_new(struct hr_load *load, struct hr_spreader **ret_spreader, struct hr_error *err);
/* The ranks have met, and `magic` is this load's; so many readers may read. Before the load's own readers begin. */
void hr_spreader_go(struct hr_spreader *spreader, uint64_t magic, uint32_t reader_limit);
/* The load is stopping: wakes what waits. Any thread; the load's lock is not held. */
void hr_spreader_stop(struct hr_spreader *spreader);
/* Waits for the collectives that this rank takes part in, and frees all. The load is stopping. NULL is allowed. */
void hr_spreader_free(struct hr_spreader *spreader);
/* In a forked child: frees memory of the process alone. NULL is allowed. */
void hr_spreader_forget(struct hr_spreader *spreader);

/* What is brought into place from now on comes after what `stream` holds now. Any thread. */
int hr_spreader_follow(struct hr_spreader *spreader, void *stream, struct hr_error *err);
/*
 * Between these two, device memory may be allocated: no collective is in flight. Any threads; they do not nest. Another
 * rank that is late is waited for, and what is due meanwhile, deadline and progress, is done. Negative, when the load has
 * failed: then nothing is paused.
 */
int hr_spreader_pause(struct hr_spreader *spreader, struct hr_error *err);
void hr_spreader_resume(struct hr_spreader *spreader);

/* The load that reads for it, and the memory for sending and receiving. */
const struct hr_load *hr_spreader_feed(const struct hr_spreader *spreader);
uint64_t hr_spreader_bytes(const struct hr_spreader *spreader);

#endif
