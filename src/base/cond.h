/*
 * cond.h: condition variables by the clock of the library (hr_sys.clock_ns), which is monotonic.
 */
#ifndef HR_BASE_COND_H
#define HR_BASE_COND_H

#include <pthread.h>
#include <stdint.h>

void hr_cond_init(pthread_cond_t *cond);
/* As pthread_cond_wait, at most until the clock is at `until_ns` (UINT64_MAX: no bound): 1 when it is, else 0. */
int hr_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);

#endif
