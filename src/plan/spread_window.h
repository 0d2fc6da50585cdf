/*
 * spread_window.h: the stream of a process group cut into windows, and what is compared between ranks. For spread.c.
 */
#ifndef HR_PLAN_SPREAD_WINDOW_H
#define HR_PLAN_SPREAD_WINDOW_H

#include "plan/spread.h"

/* Cuts a stream that is laid out into windows whose buffers fit into `group_bytes`, and finds what each is. */
int hr_spread_cut(struct hr_spread *spread, uint64_t group_bytes, uint64_t *scratch, struct hr_error *err);

/* Digests of what all ranks must have alike; `request` as it came. */
void hr_spread_digest(struct hr_spread *spread, const struct hr_request *request);

#endif
