/*
 * chunk.h: items become chunks and pieces. Owns the choice of the way and every rule about where a chunk ends;
 * knows nothing of how items were checked and grouped.
 */
#ifndef HR_PLAN_CHUNK_H
#define HR_PLAN_CHUNK_H

#include "plan/plan.h"

/* enum hr_way of an item whose geometry is known. */
uint32_t hr_way_choose(const struct hr_plan_item *item);

/* How many bytes of an item's stream lie before `offset` in the file: those of a range of the file are one piece. */
uint64_t hr_stream_before(const struct hr_plan_item *item, uint64_t offset);

/*
 * Makes all chunks and pieces of a plan whose items, order and groups are made, and counts its read_bytes and
 * staged_bytes_max. On failure the plan holds what was made, for hr_plan_release().
 */
int hr_chunks_make(struct hr_plan *plan, struct hr_error *err);

#endif
