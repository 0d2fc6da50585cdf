/*
 * gate.h: up to which group the chunks of a load may go on to their places. What is behind the gate may be read as far as
 * it goes through pinned memory, and is held there. Loads of the caller have all of it open; a feed (feed.h) opens it as
 * slots become free. It knows groups; not what is read or sent.
 */
#ifndef HR_ENGINE_GATE_H
#define HR_ENGINE_GATE_H

#include "engine/load.h"

/* Whether the chunk's places are in use by others now. It is never shut again. */
int hr_gate_is_shut(const struct hr_load *load, const struct hr_plan_chunk *chunk);
/* Waits until it is open for the chunk, or the load is stopping, or for so long (0: no bound). The lock is not held. */
void hr_gate_wait(struct hr_load *load, const struct hr_plan_chunk *chunk, uint64_t wait_ns, uint32_t reader_index);
/* Opens it for the groups before `end`, and wakes who waits for one of those, nobody else: it is opened often. */
void hr_gate_open(struct hr_load *load, size_t end);
/* Wakes all: the load is stopping. The load's lock is held. */
void hr_gate_wake(struct hr_load *load);

#endif
