/*
 * fork.h: whether an object was made on the other side of a fork, without asking the system each time: tensors are
 * handed out by the ten thousand, and every such call has to know.
 */
#ifndef HR_BASE_FORK_H
#define HR_BASE_FORK_H

#include "base/error.h"

/* A number that differs between a process and the children that it forks after the first call. Thread-safe. */
int hr_fork_generation(void);

/*
 * HR_EFORKED in a child of the process that made an object, when hr_fork_generation() was `generation_made`. `what` the
 * object is, for the message.
 */
int hr_fork_check(int generation_made, const char *what, struct hr_error *err);

#endif
