/*
 * gate.h: up to which group the chunks of a load may go on to their places. Loads of the caller have all of it open; a
 * feed (feed.h) opens it as slots become free. What is behind the gate is read as far as it goes through pinned memory,
 * and held there for whichever reader comes by when it is open: the one that read it may be busy then.
 *
 * Early is a chunk whose copies would be held up: behind the gate, or before it by a lane that waits for a collective. Of
 * other ranks depends how long, so early chunks never take all of the ring (staging.h), and are begun in the order of the
 * plan, when nothing is left that is not early: then whoever waits with one waits for no chunk that nobody has begun.
 */
#ifndef HR_ENGINE_GATE_H
#define HR_ENGINE_GATE_H

#include "engine/load.h"

/* Shuts it, with room for as many chunks as may be early: `chunk_count`, 0: none. Before the load's readers start. */
int hr_gate_make(struct hr_load *load, size_t chunk_count, struct hr_error *err);
/* Gives back what is held; there are no readers any more. Not in a forked child. */
void hr_gate_release(struct hr_load *load);

/* Whether the chunk's places are in use by others now. It is never shut again. */
int hr_gate_is_shut(const struct hr_load *load, const struct hr_plan_chunk *chunk);
int hr_gate_is_early(const struct hr_load *load, const struct hr_plan_chunk *chunk);
/* Whether a group is not early, or may be read early besides those before it. The lock is held. */
int hr_gate_has_room(const struct hr_load *load, size_t group_index);
/* Opens it for the groups before `end`. */
void hr_gate_open(struct hr_load *load, size_t end);
/* The groups before `end` are early no more. */
void hr_gate_clear(struct hr_load *load, size_t end);

/* Hands over a chunk that was read early, with its staging slot. */
void hr_gate_hold(struct hr_load *load, const struct held_chunk *held);
/* Takes the first chunk that was held and is to be held no more: 1, or 0 when there is none. The lock is held. */
int hr_gate_pass(struct hr_load *load, struct held_chunk *ret_held);
/* Waits until the chunk is early no more, one that is held may go on, or the load is stopping. The lock is not held. */
void hr_gate_wait(struct hr_load *load, const struct hr_plan_chunk *chunk, uint32_t reader_index);

#endif
