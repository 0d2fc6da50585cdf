/*
 * consume.h: a few threads that take the tensors of a load as they become ready, so that what is done with them keeps
 * up with reading, and under a window memory stays bounded.
 */
#ifndef CLI_CONSUME_H
#define CLI_CONSUME_H

#include <headrace/headrace.h>
#include <stddef.h>

enum { CONSUMER_MAX = 4 };

/* Called for each item once, by consumer 0 to CONSUMER_MAX - 1, which is one thread. The item is dropped afterwards. */
typedef int consume_item(void *context, size_t consumer, size_t item, struct hr_error *err);

/* Until all items are consumed, or one could not be: then the load is cancelled, and the first error is returned. */
int consume_ready(struct hr_load *load, consume_item *consume, void *context, struct hr_error *err);

#endif
