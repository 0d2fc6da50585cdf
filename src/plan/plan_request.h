/*
 * plan_request.h: a request as it came: the table, and items that may be longer than the struct that we know.
 */
#ifndef HR_PLAN_PLAN_REQUEST_H
#define HR_PLAN_PLAN_REQUEST_H

#include <headrace/headrace.h>

struct hr_request {
    const struct hr_tensor *tensors;
    size_t tensor_count, file_count;
    const struct hr_item *items;
    size_t item_count;
};

const struct hr_item *hr_request_item(const struct hr_request *request, size_t index);

#endif
