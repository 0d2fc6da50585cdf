/*
 * fork.h: whether an object was made on the other side of a fork, without asking the system each time: tensors are
 * handed out by the ten thousand, and every such call has to know.
 */
#ifndef HR_BASE_FORK_H
#define HR_BASE_FORK_H

#include <stdint.h>

#include "base/error.h"

/* A number that differs between a process and the children that it forks after the first call. Thread-safe. */
int hr_fork_generation(void);

/*
 * Whether this process forks while something goes on: hr_fork_since() is 1 when a fork is or was under way at
 * hr_fork_mark() or later; it may be 1 without one. What a drive writes meanwhile may be lost: the first of both processes
 * that writes to such a page gets a copy (Linux before 6.5, whose reads did not pin pages). Thread-safe.
 */
uint64_t hr_fork_mark(void);
int hr_fork_since(uint64_t mark);

/*
 * HR_EFORKED in a child of the process that made an object, when hr_fork_generation() was `generation_made`. `what` the
 * object is, for the message.
 */
int hr_fork_check(int generation_made, const char *what, struct hr_error *err);

#endif
