/*
 * probe_team.c: threads that repeat a step until the time is over, and the rate at which bytes moved. The calling thread
 * is worker 0, so a trial with one thread starts none and a system without threads still gives a figure.
 *
 * Invariant: the first failure is kept, by whoever exchanges `failed` first, and ends the trial for all; it is read
 * after the threads were joined.
 */
#include <pthread.h>

#include "base/sys.h"
#include "probe/probe.h"

#define TRIAL_COUNT 3
#define SWEEP_PASS_COUNT 2

struct trial {
    const struct hr_probe_team *team;
    uint64_t deadline_ns;
    atomic_int failed; /* whoever makes it 1 fills `code` and `err` */
    int code;
    struct hr_error err;
};

struct worker {
    struct trial *trial;
    pthread_t thread;
    uint32_t index;
    uint64_t bytes;
};

static void keep_failure(struct trial *trial, int code, const struct hr_error *err)
{
    if (atomic_exchange(&trial->failed, 1))
        return;
    trial->code = code;
    trial->err = *err;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct trial *trial = worker->trial;
    const struct hr_probe_team *team = trial->team;
    struct hr_error err = {0};
    int64_t moved;
    do {
        moved = team->step(team->context, worker->index, &err);
        worker->bytes += moved > 0 ? (uint64_t)moved : 0;
    } while (moved > 0 && !atomic_load(&trial->failed) && hr_sys->clock_ns() < trial->deadline_ns);
    if (moved >= 0 && team->end)
        moved = team->end(team->context, worker->index, &err);
    if (moved < 0)
        keep_failure(trial, (int)moved, &err);
    return NULL;
}

/* Returns how many work, this thread among them; what could not be started is left out. */
static uint32_t workers_run(struct trial *trial, struct worker *workers, uint32_t wanted)
{
    uint32_t count = 1;
    for (; count < wanted; count++) {
        workers[count] = (struct worker){.trial = trial, .index = count};
        if (hr_sys->thread_start(&workers[count].thread, worker_main, &workers[count]))
            break;
    }
    workers[0] = (struct worker){.trial = trial};
    worker_main(&workers[0]);
    for (uint32_t i = 1; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    return count;
}

static int trial_run(const struct hr_probe_team *team, uint32_t thread_count, uint64_t duration_ns,
                     struct hr_probe_rate *best, struct hr_error *err)
{
    struct worker workers[HR_READER_MAX];
    struct trial trial = {.team = team};
    int code = team->begin ? team->begin(team->context, thread_count, err) : 0;
    if (code < 0)
        return code;
    uint64_t begin_ns = hr_sys->clock_ns();
    trial.deadline_ns = begin_ns + duration_ns;
    uint32_t count = workers_run(&trial, workers, thread_count);
    uint64_t elapsed_ns = hr_sys->clock_ns() - begin_ns;
    if (atomic_load(&trial.failed)) {
        *err = trial.err;
        return trial.code;
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += workers[i].bytes;
    uint64_t rate = (uint64_t)((double)bytes * 1e9 / (double)(elapsed_ns ? elapsed_ns : 1));
    if (rate > best->bytes_per_second)
        *best = (struct hr_probe_rate){rate, count};
    return 0;
}

int hr_probe_team_run(const struct hr_probe_team *team, uint32_t thread_count, uint64_t duration_ns,
                      struct hr_probe_rate *best, struct hr_error *err)
{
    uint64_t deadline_ns = hr_sys->clock_ns() + duration_ns;
    int code, trial = 0;
    do
        code = trial_run(team, thread_count, duration_ns / TRIAL_COUNT, best, err);
    while (code == 0 && ++trial < TRIAL_COUNT && hr_sys->clock_ns() < deadline_ns);
    return code;
}

int hr_probe_team_sweep(const struct hr_probe_team *team, uint32_t thread_count, uint64_t duration_ns,
                        struct hr_probe_rate *best, struct hr_error *err)
{
    uint64_t deadline_ns = hr_sys->clock_ns() + duration_ns;
    uint32_t trial_count = 0;
    int code = 0, pass = 0;
    for (uint32_t count = thread_count; count; count /= 2)
        trial_count += SWEEP_PASS_COUNT;
    do
        for (uint32_t count = thread_count; count && code == 0; count /= 2)
            code = trial_run(team, count, duration_ns / trial_count, best, err);
    while (code == 0 && ++pass < SWEEP_PASS_COUNT && hr_sys->clock_ns() < deadline_ns);
    return code;
}
