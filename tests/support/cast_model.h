/*
 * cast_model.h: a checkpoint whose tensors convert, requests that convert them in every way, and what must come out:
 * element by element, by the bits (convert/convert_parts.h), without plans, runs and moves. Whatever is wrong ends the
 * running cmocka test.
 */
#ifndef TESTS_SUPPORT_CAST_MODEL_H
#define TESTS_SUPPORT_CAST_MODEL_H

#include "support/test_model.h"

/* Floats and integers of all widths, odd extents, a scalar, no elements, and bytes that begin at an odd offset. */
void cast_model_open(struct test_model *model, const char *name);

/* Requests, with what they point to. */
struct cast_request {
    struct hr_item *items;
    size_t count;
    struct hr_range (*ranges)[4];
    int64_t (*strides)[4];
    size_t into_bytes; /* of one item's `into` at most */
    char *into;        /* host memory of count * into_bytes; an item's is at its index */
};

/* Whole tensors, each in every dtype that there is for it, and as it is. */
struct cast_request cast_request_all(const struct test_model *model);
/* `count` random ones: slices with steps, shards, destinations of the caller's with strides in any order and sign. */
struct cast_request cast_request_random(const struct test_model *model, size_t count, uint64_t seed);
void cast_request_free(struct cast_request *request);

/* Checks an item that lies in host memory. */
void cast_check_view(const struct test_model *model, const struct hr_item *item, const struct hr_view *view);
/*
 * Checks ready items on whichever device they are. `into`: where the request's `into` lies now, in host memory, when it
 * was on a device; else NULL.
 */
void cast_check(struct hr_load *load, const struct test_model *model, const struct cast_request *request,
                const char *into);

#endif
