/*
 * test_spread_scarce.c: groups on a GPU where slots of the ring are scarce: memory is short, another load has them, or a
 * rank that is late keeps them waiting. All loads come to their end, which can be to be stopped, or to be freed, in a
 * forked child too, and no reader spins in the meantime. For the fake driver, and the fake cuFile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/loader.h"
#include "engine/staging.h"
#include "fake_cufile/fake_cufile.h"
#include "support/faults.h"
#include "support/gpu.h"
#include "support/gpu_scene.h"
#include "support/spread_scene.h"

#define WORLD 2u
#define SLOT_MAX 64u
#define FORK_COUNT 20
#define SECOND UINT64_C(1000000000)
#define WATCH_NS (SECOND * 3 / 10)

static struct test_model mixed, small;
static struct scene_of_ranks scene;

static int setup(void **state)
{
    (void)state;
    model_mixed(&mixed, "scarce", 20);
    write_small(&small, "scarce-small");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&mixed);
    model_close(&small);
    return 0;
}

/* Every rank wants every tensor whole: all of the load goes through the group. */
static void want_whole(struct job *job)
{
    for (size_t i = 0; i < job->model->count; i++) {
        job->items[i].shard_dim = job->items[i].shard_rank = job->items[i].shard_world = 0;
        for (uint32_t d = 0; d < job->model->tensors[i].rank; d++)
            job->ranges[i][d] = (struct hr_range){0, job->model->tensors[i].shape[d], 1};
    }
}

/* Two ranks on one GPU, with slots of 64 KiB. */
static void begin(const struct test_model *model, uint64_t group_bytes, struct hr_loader_options options)
{
    static const char *const names[WORLD] = {"cuda:0", "cuda:0"};
    scene_need_fake("devices=1,delay_us=5");
    options.chunk_bytes = 64 * KIB;
    ranks_begin(&scene, model, WORLD, names, options);
    for (uint32_t r = 0; r < WORLD; r++) {
        want_whole(&scene.jobs[r]);
        scene.jobs[r].options.group_bytes = group_bytes;
        scene.jobs[r].options.deadline_ns = 8 * SECOND;
    }
}

static void begin_small(void (*rank_main)(struct thread_rank *rank), uint64_t staging_bytes)
{
    begin(&small, 72 * KIB,
          (struct hr_loader_options){.thread_count = 2, .staging_bytes = staging_bytes, .route = HR_ROUTE_PREAD});
    for (uint32_t r = 0; r < WORLD; r++)
        scene.group.ranks[r].main = rank_main;
}

/* All ranks have all of it, and all of it went through the group. */
static void check_whole(void)
{
    for (uint32_t r = 0; r < WORLD; r++) {
        const struct job *job = &scene.jobs[r];
        assert_ok(job->code, job->err);
        assert_int_equal(job->stats.bytes_spread, job->stats.bytes_needed);
        check_rank(&scene, r);
    }
}

/* What hangs for good is ended by the alarm. */
static void run(void)
{
    alarm(20);
    thread_group_run(&scene.group);
    alarm(0);
}

static void end(void)
{
    ranks_end(&scene);
    scene_assert_nothing_live();
}

static void start(struct job *job, const struct hr_group *group)
{
    job->options.size = sizeof job->options;
    job->options.group = group;
    job->code = hr_load_start(job->loader, job->checkpoint, job->items, job->model->count, &job->options, &job->load,
                              &job->err);
}

static void sleep_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)}, NULL);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------------------------- scarce slots */

/* So many slots free, and no memory for more. */
static void shrink_ring(struct hr_staging *ring, size_t slot_count)
{
    struct hr_staging_slot *slots[SLOT_MAX];
    uint64_t grown = 0;
    struct hr_error err = {0};
    for (size_t i = 0; i < slot_count; i++)
        assert_int_equal(hr_staging_take(ring, 1, 0, &slots[i], &grown, &err), 0);
    faults_install();
    faults_fail_from(FAULT_MEMORY | FAULT_MAP, 1, 0);
    assert_int_equal(hr_staging_take(ring, 1, 0, &slots[slot_count], &grown, &err), 1);
    faults_fail(0, 0, 0);
    faults_remove();
    while (slot_count-- > 0)
        hr_staging_give(ring, slots[slot_count]);
}

/* Another load, that has all slots of a ring but two, and gives them back after a while. */
struct other_load {
    struct hr_staging *ring;
    struct hr_staging_slot *slots[SLOT_MAX];
    size_t count;
    pthread_t thread;
};

static void *give_later(void *argument)
{
    struct other_load *other = argument;
    sleep_ns(SECOND / 5);
    while (other->count)
        hr_staging_give(other->ring, other->slots[--other->count]);
    return NULL;
}

static void other_begin(struct other_load *other, struct hr_staging *ring)
{
    uint64_t grown = 0;
    *other = (struct other_load){.ring = ring};
    while (hr_staging_take(ring, 1, 0, &other->slots[other->count], &grown, NULL) == 0) {
        other->count++;
        assert_true(other->count < SLOT_MAX);
    }
    for (int i = 0; i < 2; i++)
        hr_staging_give(ring, other->slots[--other->count]);
    assert_int_equal(pthread_create(&other->thread, NULL, give_later, other), 0);
}

/* -------------------------------------------------------------------------- what the machine is like */

/* Files on Lustre with nvidia-fs, none of them cached; or, without, one that is cached, and half of each other. */
static struct {
    struct hr_sys sys;
    const struct test_model *model;
    int is_direct;
    const char *mounts; /* a file */
} machine;

static int machine_stat(const char *path, struct stat *ret_stat)
{
    if (strcmp(path, "/proc/driver/nvidia-fs") == 0)
        return machine.is_direct ? 0 : -ENOENT;
    return hr_sys_real.stat(path, ret_stat);
}

static int machine_open(const char *path, int flags)
{
    if (machine.is_direct && strcmp(path, "/dev/nvidia-fs0") == 0)
        path = "/dev/null";
    if (machine.is_direct && strcmp(path, "/proc/self/mountinfo") == 0)
        path = machine.mounts;
    return hr_sys_real.open(path, flags);
}

static int machine_cachestat(int fd, uint64_t offset, uint64_t size, uint64_t *ret_page_count)
{
    struct stat file, first;
    *ret_page_count = 0;
    if (machine.is_direct)
        return 0;
    if (fstat(fd, &file) || stat(machine.model->paths[0], &first))
        return -errno;
    uint64_t cached = file.st_ino == first.st_ino ? UINT64_MAX : (uint64_t)file.st_size / 2 / 4096 * 4096;
    uint64_t last = offset + size < cached ? offset + size : cached;
    if (last > offset)
        *ret_page_count = (last - offset + 4095) / 4096;
    return 0;
}

static void machine_begin(const struct test_model *model, int is_direct)
{
    char mount[100];
    struct stat file;
    assert_int_equal(stat(model->paths[0], &file), 0);
    snprintf(mount, sizeof mount, "42 22 %u:%u / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw\n", major(file.st_dev),
             minor(file.st_dev));
    machine.mounts = test_path("mountinfo");
    test_raw_write(machine.mounts, mount, strlen(mount));
    machine.model = model;
    machine.is_direct = is_direct;
    machine.sys = hr_sys_real;
    machine.sys.stat = machine_stat;
    machine.sys.open = machine_open;
    machine.sys.cachestat = machine_cachestat;
    hr_sys = &machine.sys;
}

static void machine_end(void)
{
    hr_sys = &hr_sys_real;
}

/* --------------------------------------------------------------------------------- whole loads */

static void cufile_live(struct fake_cufile_live *ret_live)
{
    void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "fake_cufile_live") : NULL;
    __typeof__(&fake_cufile_live) live;
    if (!symbol) {
        print_message("skipped: this needs the fake cuFile\n");
        skip();
    }
    memcpy(&live, &symbol, sizeof live);
    live(ret_live);
}

/* A rank has nothing to read but for the group, and what it reads for that goes past host memory. */
static void test_gds_for_group_alone(void **state)
{
    struct fake_cufile_live before, after;
    (void)state;
    scene_need_fake("");
    cufile_live(&before);
    machine_begin(&mixed, 1);
    begin(&mixed, 600 * KIB, (struct hr_loader_options){.thread_count = 4});
    run();
    check_whole();
    end();
    machine_end();
    cufile_live(&after);
    assert_true(after.read_count > before.read_count);
    assert_true(after.open_count == 0 && after.handle_count == 0 && after.buffer_count == 0);
    assert_int_equal(after.violation_count, 0);
}

enum scarcity { AMPLE, SHORT_MEMORY, OTHER_LOAD };

/* Readers of what is cached and of what is not want slots at once. */
static void run_half_cached(enum scarcity scarcity, uint32_t thread_count)
{
    static struct other_load others[WORLD];
    scene_need_fake("");
    machine_begin(&small, 0);
    begin(&small, 72 * KIB, (struct hr_loader_options){.thread_count = thread_count});
    for (uint32_t r = 0; r < WORLD; r++) {
        if (scarcity == SHORT_MEMORY)
            shrink_ring(scene.jobs[r].loader->staging, 4);
        if (scarcity == OTHER_LOAD)
            other_begin(&others[r], scene.jobs[r].loader->staging);
    }
    run();
    for (uint32_t r = 0; r < WORLD && scarcity == OTHER_LOAD; r++)
        pthread_join(others[r].thread, NULL);
    check_whole();
    end();
    machine_end();
}

static void test_half_cached(void **state)
{
    (void)state;
    for (enum scarcity scarcity = AMPLE; scarcity <= OTHER_LOAD; scarcity++)
        for (uint32_t thread_count = 1; thread_count <= 2; thread_count++)
            run_half_cached(scarcity, thread_count);
}

/* --------------------------------------------------------------------------------- loads that end early */

/* Of each rank, from when its load is over in all but name: processor time of the process, and how long freeing took. */
static struct {
    uint64_t burnt_ns, free_ns;
} costs[WORLD];

static void watch_and_free(struct thread_rank *rank)
{
    struct job *job = rank->context;
    uint64_t begin_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    sleep_ns(WATCH_NS);
    costs[rank->rank].burnt_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_ns;
    begin_ns = clock_ns(CLOCK_MONOTONIC);
    hr_load_free(job->load);
    job->load = NULL;
    costs[rank->rank].free_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
}

static void check_costs(void)
{
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_in_range(costs[r].burnt_ns, 0, WATCH_NS / 3);
        assert_in_range(costs[r].free_ns, 0, 2 * SECOND);
    }
}

/* Starts a load that comes to a stand: nobody takes what its window has room for. */
static int start_and_stall(struct thread_rank *rank)
{
    struct job *job = rank->context;
    struct hr_group group = thread_group_of(rank);
    job->options.window_bytes = 1;
    start(job, &group);
    if (job->code == 0)
        sleep_ns(SECOND / 5);
    return job->code;
}

/* Stopped while readers wait for room in the window, or for a slot, which nobody will make. */
static void stop_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    if (start_and_stall(rank))
        return;
    hr_load_cancel(job->load);
    watch_and_free(rank);
}

static void run_stop(size_t slot_count)
{
    begin_small(stop_main, 0);
    for (uint32_t r = 0; r < WORLD && slot_count; r++)
        shrink_ring(scene.jobs[r].loader->staging, slot_count);
    run();
    for (uint32_t r = 0; r < WORLD; r++)
        assert_ok(scene.jobs[r].code, scene.jobs[r].err);
    check_costs();
    end();
}

static void test_stop(void **state)
{
    (void)state;
    run_stop(0);
    run_stop(4);
}

static void lost_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    struct hr_group group = thread_group_of(rank);
    start(job, &group);
    if (job->code)
        return;
    job->code = hr_load_wait_all(job->load, &job->err);
    watch_and_free(rank);
}

/* The transport fails once every slot is taken. */
static void test_lost(void **state)
{
    (void)state;
    begin_small(lost_main, 0);
    for (uint32_t r = 0; r < WORLD; r++)
        shrink_ring(scene.jobs[r].loader->staging, 4);
    scene.group.ranks[0].late_at = scene.group.ranks[0].fail_at = 2;
    run();
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_code(scene.jobs[r].code, HR_EGROUP_ERROR);
        assert_non_null(strstr(scene.jobs[r].err.message, "rank 0 lost its connection"));
    }
    check_costs();
    end();
}

/* ------------------------------------------------------------------------------ loads beside the group's */

static struct {
    int (*all_gather)(void *context, const void *send, void *receive, uint64_t bytes); /* of the transport */
    atomic_int is_held, may_end;
    int code; /* of the plain load */
    struct hr_error err;
} behind;

static void hold_stream(void *unused)
{
    (void)unused;
    while (!behind.may_end)
        sleep_ns(SECOND / 1000);
}

/* The first one of rank 0 has begun, but does not end until it is told to. */
static int long_all_gather(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct thread_rank *rank = context;
    int code = behind.all_gather(context, send, receive, bytes);
    if (rank->rank || behind.is_held || code)
        return code;
    behind.is_held = 1;
    scene_context_push();
    code = scene_driver()->cuLaunchHostFunc((CUstream)thread_group_of(rank).stream, hold_stream, NULL) != 0;
    scene_context_pop();
    return code;
}

static void load_first_item(const struct job *job)
{
    struct hr_load *load = NULL;
    struct hr_load_options options = {.size = sizeof options, .deadline_ns = 3 * SECOND};
    behind.code = hr_load_start(job->loader, job->checkpoint, job->items, 1, &options, &load, &behind.err);
    if (behind.code == 0)
        behind.code = hr_load_wait_all(load, &behind.err);
    behind.may_end = 1;
    hr_load_free(load);
}

static void behind_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    struct hr_group group = thread_group_of(rank);
    group.all_gather = long_all_gather;
    start(job, &group);
    if (rank->rank == 0) {
        sleep_ns(SECOND / 5);
        load_first_item(job);
    }
    if (job->code == 0)
        job->code = hr_load_wait_all(job->load, &job->err);
}

/* A ring of one slot: what waits for a rank that is late must not keep it from another load of the loader. */
static void test_behind_late_rank(void **state)
{
    (void)state;
    memset(&behind, 0, sizeof behind);
    begin_small(behind_main, 64 * KIB);
    behind.all_gather = thread_group_of(&scene.group.ranks[0]).all_gather;
    run();
    assert_true(behind.is_held);
    assert_ok(behind.code, behind.err);
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_ok(scene.jobs[r].code, scene.jobs[r].err);
        check_rank(&scene, r);
    }
    end();
}

/* ---------------------------------------------------------------- ended while another rank is late */

enum ending { AT_DEADLINE, FROM_PROGRESS, FROM_OTHER_THREAD };

#define LATE_NS_MAX (3 * SECOND)
#define DEADLINE_NS (SECOND / 2)
#define REPORT_COUNT 10u

/* Rank 0 wants to make a destination beside its first collective, to which rank 1 comes only once rank 0 is back. */
static struct {
    enum ending ending;
    int (*all_gather)(void *context, const void *send, void *receive, uint64_t bytes); /* of the transport */
    atomic_int is_called, is_waiting, is_back;
    atomic_uint report_count;
    uint64_t wait_ns;
} late;

static int called_all_gather(void *context, const void *send, void *receive, uint64_t bytes)
{
    late.is_called = 1;
    return late.all_gather(context, send, receive, bytes);
}

static int report(void *context, const struct hr_progress *progress)
{
    (void)context;
    (void)progress;
    return ++late.report_count == REPORT_COUNT && late.ending == FROM_PROGRESS;
}

static void await(atomic_int *flag)
{
    for (uint64_t from = clock_ns(CLOCK_MONOTONIC); !*flag && clock_ns(CLOCK_MONOTONIC) - from < LATE_NS_MAX;)
        sleep_ns(SECOND / 1000);
}

static int wait_by(struct job *job)
{
    return job->by == BY_ALL ? hr_load_wait_all(job->load, &job->err)
                             : hr_load_wait(job->load, job->model->count - 1, &job->err);
}

static void prompt_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    struct hr_group group = thread_group_of(rank);
    group.all_gather = called_all_gather;
    start(job, &group);
    if (job->code)
        return;
    await(&late.is_called);
    late.is_waiting = 1;
    uint64_t from = clock_ns(CLOCK_MONOTONIC);
    job->code = wait_by(job);
    late.wait_ns = clock_ns(CLOCK_MONOTONIC) - from;
    late.is_back = 1;
}

static void late_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    struct hr_group group = thread_group_of(rank);
    start(job, &group);
    if (job->code)
        return;
    await(&late.is_waiting);
    if (late.ending == FROM_OTHER_THREAD) {
        sleep_ns(SECOND / 10);
        hr_load_cancel(scene.jobs[0].load);
    }
    await(&late.is_back);
    job->code = hr_load_wait_all(job->load, &job->err);
}

static void run_late(enum ending ending, enum wait_by by)
{
    memset(&late, 0, sizeof late);
    late.ending = ending;
    begin_small(prompt_main, 0);
    late.all_gather = thread_group_of(&scene.group.ranks[0]).all_gather;
    scene.group.ranks[1].main = late_main;
    for (uint32_t r = 0; r < WORLD; r++) {
        struct hr_load_options *options = &scene.jobs[r].options;
        options->ownership = HR_OWN_EACH;
        options->window_bytes = r ? 1 : 100 * KIB;
    }
    scene.jobs[0].by = by;
    scene.jobs[0].options.progress = ending == FROM_OTHER_THREAD ? NULL : report;
    scene.jobs[0].options.progress_ns = SECOND / 100;
    if (ending == AT_DEADLINE)
        scene.jobs[0].options.deadline_ns = DEADLINE_NS;
    run();
    assert_code(scene.jobs[0].code, ending == AT_DEADLINE ? HR_EDEADLINE_EXCEEDED : HR_ECANCELLED);
    assert_in_range(late.wait_ns, 0, DEADLINE_NS + SECOND);
    assert_true(late.is_called);
    assert_true(ending == FROM_OTHER_THREAD || late.report_count > 2);
    assert_code(scene.jobs[1].code, HR_EGROUP_ERROR);
    assert_non_null(strstr(scene.jobs[1].err.message, "rank 0"));
    end();
}

/* Who waits to make a destination minds its deadline, is told to stop, and reports meanwhile. */
static void test_prompt_while_rank_is_late(void **state)
{
    (void)state;
    for (enum ending ending = AT_DEADLINE; ending <= FROM_OTHER_THREAD; ending++) {
        run_late(ending, BY_ALL);
        run_late(ending, BY_BACKWARDS);
    }
}

/* ------------------------------------------------------------------------------------ forked children */

static atomic_int use_goes_on;
static int hung_count;

static void *use_ring(void *ring)
{
    struct hr_staging_slot *slot;
    uint64_t grown;
    while (use_goes_on)
        if (hr_staging_take(ring, 1, 0, &slot, &grown, NULL) == 0)
            hr_staging_give(ring, slot);
    return NULL;
}

/* Children that free the load while who knows which thread of the parent has the ring's lock. */
static void fork_children(struct job *job)
{
    pthread_t users[2];
    use_goes_on = 1;
    for (int i = 0; i < 2; i++)
        pthread_create(&users[i], NULL, use_ring, job->loader->staging);
    for (int i = 0; i < FORK_COUNT && hung_count == 0; i++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            alarm(5);
            hr_load_free(job->load);
            _exit(0);
        }
        hung_count += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    use_goes_on = 0;
    for (int i = 0; i < 2; i++)
        pthread_join(users[i], NULL);
}

static void fork_main(struct thread_rank *rank)
{
    struct job *job = rank->context;
    if (start_and_stall(rank))
        return;
    if (rank->rank == 0)
        fork_children(job);
    hr_load_cancel(job->load);
    hr_load_free(job->load);
    job->load = NULL;
}

static void test_fork(void **state)
{
    (void)state;
#ifdef HEADRACE_TSAN
    skip(); /* its runtime takes the parent's threads for running in the child */
#endif
    hung_count = 0;
    begin_small(fork_main, 0);
    run();
    for (uint32_t r = 0; r < WORLD; r++)
        assert_ok(scene.jobs[r].code, scene.jobs[r].err);
    assert_int_equal(hung_count, 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gds_for_group_alone),
        cmocka_unit_test(test_half_cached),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_behind_late_rank),
        cmocka_unit_test(test_prompt_while_rank_is_late),
        cmocka_unit_test(test_fork),
    };
    return gpu_name() ? cmocka_run_group_tests(tests, setup, teardown) : 0;
}
