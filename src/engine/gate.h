/*
 * gate.h: up to which group the chunks of a load may go on to their places. Loads of the caller have all of it open; a
 * feed (feed.h) opens it as slots become free. What is behind the gate is read as far as it goes through pinned memory,
 * and held there for whichever reader comes by when it is open: the one that read it may be busy then.
 */
#ifndef HR_ENGINE_GATE_H
#define HR_ENGINE_GATE_H

#include "engine/load.h"

/* Room for as many chunks as may be read ahead: `chunk_count`, 0: none. Before the load's readers start. */
int hr_gate_make(struct hr_load *load, size_t chunk_count, struct hr_error *err);
/* Gives back what is held; there are no readers any more. */
void hr_gate_release(struct hr_load *load);

/* Whether the chunk's places are in use by others now. It is never shut again. */
int hr_gate_is_shut(const struct hr_load *load, const struct hr_plan_chunk *chunk);
/* Whether there is room behind the gate for all of a group. The lock is held. */
int hr_gate_has_room(const struct hr_load *load, size_t group_index);
/* Opens it for the groups before `end`. */
void hr_gate_open(struct hr_load *load, size_t end);

/* Hands over a chunk that was read early, with its staging slot. */
void hr_gate_hold(struct hr_load *load, const struct held_chunk *held);
/* Takes the first chunk that was held and is to be held no more: 1, or 0 when there is none. The lock is held. */
int hr_gate_pass(struct hr_load *load, struct held_chunk *ret_held);
/* Waits until it is open for the chunk, or for one that is held, or the load is stopping. The lock is not held. */
void hr_gate_wait(struct hr_load *load, const struct hr_plan_chunk *chunk, uint32_t reader_index);

#endif
