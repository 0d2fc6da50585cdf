/*
 * plan_model.h: the planner's naive twin. Lists, byte by byte, where each element of a request comes from and goes
 * to, and holds a plan against that list: every byte once, to its place, within bounds, by the partition rule.
 */
#ifndef HR_TESTS_PLAN_MODEL_H
#define HR_TESTS_PLAN_MODEL_H

#include "plan/plan.h"

/* A table of tensors and a request over it. Streams hold for each byte of an item its file and target offsets. */
struct plan_case {
    const struct hr_tensor *tensors;
    size_t tensor_count, file_count;
    const struct hr_item *items;
    size_t item_count;
    struct hr_plan_options options;
};

/* Fills size and shape-dependent fields of a tensor at `offset`, compact, and returns the offset behind it. */
uint64_t model_tensor(struct hr_tensor *tensor, uint32_t dtype, uint32_t rank, const uint64_t *shape, size_t file_index,
                      uint64_t offset);

/* What an item must give: 0, HR_EUNSUPPORTED (bits inside a byte) or HR_EINVALID_ARGUMENT (bytes written twice). */
int model_item(const struct hr_tensor *tensor, const struct hr_item *item);

/* Plans, holds the plan against the model, plans chunks again with every item direct, and so once more. */
void model_check(const struct plan_case *tested);

/* Holds a finished plan against the model. */
void model_check_plan(const struct plan_case *tested, const struct hr_plan *plan);

/* xorshift; *state is not 0. */
uint64_t model_random(uint64_t *state, uint64_t below);

#endif
