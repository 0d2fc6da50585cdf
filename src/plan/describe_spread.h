/*
 * describe_spread.h: what a plan spreads over a process group, as part of its description (describe.c). Nothing is written
 * for a plan without a group.
 */
#ifndef HR_PLAN_DESCRIBE_SPREAD_H
#define HR_PLAN_DESCRIBE_SPREAD_H

#include "base/text.h"
#include "plan/plan.h"

void hr_json_spread(struct hr_text *text, const struct hr_plan *plan, const struct hr_tensor *tensors);
void hr_text_spread(struct hr_text *text, const struct hr_plan *plan);

/* describe.c: "3.2 MiB"; exact below 1 KiB. */
void hr_text_bytes(struct hr_text *text, uint64_t bytes);

#endif
