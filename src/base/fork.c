/*
 * fork.c: a count that a handler of fork() raises in the child. It is the library's only state that is not an
 * object's: fork() has no other way to tell.
 */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_handler; /* constant after `once` */
static atomic_int generation;

static void child_begin(void)
{
    generation++;
}

static void handler_install(void)
{
    has_handler = pthread_atfork(NULL, NULL, child_begin) == 0;
}

int hr_fork_generation(void)
{
    pthread_once(&once, handler_install);
    return has_handler ? generation : (int)getpid();
}

int hr_fork_check(int generation_made, const char *what, struct hr_error *err)
{
    if (generation_made == hr_fork_generation())
        return 0;
    return hr_fail(err, HR_EFORKED, "this %s was made before a fork and has no threads in this process; make a new one",
                   what);
}
