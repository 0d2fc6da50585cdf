/*
 * fork.c: counts that handlers of fork() raise, in the child and around it. They are the library's only state that is not
 * an object's: fork() has no other way to tell.
 */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_handler; /* constant after `once` */
static atomic_int generation;
static _Atomic uint64_t begun, ended;

static void fork_begin(void)
{
    begun++;
}

static void fork_end(void)
{
    ended++;
}

static void child_begin(void)
{
    generation++;
    ended++;
}

static void handler_install(void)
{
    has_handler = pthread_atfork(fork_begin, fork_end, child_begin) == 0;
}

int hr_fork_generation(void)
{
    pthread_once(&once, handler_install);
    return has_handler ? generation : (int)getpid();
}

/* A fork that goes on at the mark has begun more often than ended. */
uint64_t hr_fork_mark(void)
{
    return ended;
}

int hr_fork_since(uint64_t mark)
{
    pthread_once(&once, handler_install);
    return !has_handler || begun != mark;
}

int hr_fork_check(int generation_made, const char *what, struct hr_error *err)
{
    if (generation_made == hr_fork_generation())
        return 0;
    return hr_fail(err, HR_EFORKED, "this %s was made before a fork and has no threads in this process; make a new one",
                   what);
}
