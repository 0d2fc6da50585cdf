/*
 * interrupt.c: one lock guards which loads are watched, which signal came and which file goes with the process.
 */
#include "interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "output.h"

static struct {
    pthread_mutex_t lock;
    struct hr_load *loads[2];
    int received;           /* the signal, or 0 */
    const char *unfinished; /* borrowed; NULL: none */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* hr_load_cancel() does not block, so the lock may be held; it keeps the loads from being freed meanwhile. */
static void receive(int number)
{
    pthread_mutex_lock(&state.lock);
    if (!state.loads[0] || state.received) {
        if (state.unfinished)
            unlink(state.unfinished);
        _exit(128 + number);
    }
    state.received = number;
    hr_load_cancel(state.loads[0]);
    if (state.loads[1])
        hr_load_cancel(state.loads[1]);
    pthread_mutex_unlock(&state.lock);
}

static void *wait_for_signals(void *context)
{
    const sigset_t *signals = context;
    int number;
    while (sigwait(signals, &number) == 0)
        receive(number);
    return NULL;
}

/* What the parent had ignored (nohup, a shell's background) stays ignored. */
static void add_unless_ignored(sigset_t *signals, int number)
{
    struct sigaction action;
    if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
        sigaddset(signals, number);
}

void interrupt_start(void)
{
    static sigset_t signals;
    pthread_t thread;
    sigemptyset(&signals);
    add_unless_ignored(&signals, SIGINT);
    add_unless_ignored(&signals, SIGTERM);
    add_unless_ignored(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (pthread_create(&thread, NULL, wait_for_signals, &signals) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL); /* without the thread the signals end the process */
}

void interrupt_watch(struct hr_load *first, struct hr_load *second)
{
    pthread_mutex_lock(&state.lock);
    state.loads[0] = first;
    state.loads[1] = second;
    pthread_mutex_unlock(&state.lock);
}

void interrupt_unfinished(const char *path)
{
    pthread_mutex_lock(&state.lock);
    state.unfinished = path;
    pthread_mutex_unlock(&state.lock);
}

static int interrupt_exit_code(void)
{
    pthread_mutex_lock(&state.lock);
    int code = state.received ? 128 + state.received : 0;
    pthread_mutex_unlock(&state.lock);
    return code;
}

int interrupt_check(struct hr_error *err)
{
    if (interrupt_exit_code() == 0)
        return 0;
    memset(err, 0, sizeof *err);
    err->offset = HR_NO_OFFSET;
    return err->code = HR_ECANCELLED;
}

int load_error_report(const char *verb, int as_json, const struct hr_error *err)
{
    int code = interrupt_exit_code();
    if (code == 0 || err->code != HR_ECANCELLED)
        return error_report(verb, as_json, err);
    complain(verb, "interrupted");
    return code;
}
