/*
 * test_simulator.c: thousands of random loads, to host memory and GPUs, over a disk that misbehaves. Whatever happens, an item that is said to
 * be ready holds the bytes of the file as it was opened, everything else is an error that the scenario can explain,
 * nothing is left behind, and the next load works.
 *
 *   test_simulator               the seeds of every day, fewer where a sanitizer makes them slow
 *   test_simulator SEED          one again, as a failure names it
 *   test_simulator FIRST COUNT   more of them
 *
 * A seed fixes the scenario and each draw of the disk; which thread meets which draw is up to the scheduler, so a
 * seed that failed may need several runs until it fails again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/faults.h"
#include "support/gpu.h"
#include "support/simulation.h"

#define DEFAULT_COUNT 3200
#define DEFAULT_SECONDS 40
#define LEAST_COUNT 100 /* however slow the machine is */
#define HANG_SECONDS 60
#define SETTLING_COUNT 50 /* after one of so many loads no thread is about to end */
#define KEPT_MAX 6

static uint64_t first_seed = 1, seed_count = DEFAULT_COUNT, seed_now;
static int time_bounded = 1;
static unsigned long ended_well, ended_early, stopped;

/* The members that versioned and legacy DLPack tensors both let us find. */
struct legacy_tensor {
    void *data;
    int32_t device[2], ndim;
    uint32_t dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct legacy_tensor *self);
};

struct run {
    struct sim sim;
    struct hr_loader *loader;
    struct hr_load *load;
    uint8_t dropped[SIM_ITEM_MAX];
    struct legacy_tensor *kept[KEPT_MAX];
    size_t kept_items[KEPT_MAX], kept_count, handed_out;
};

/* ------------------------------------------------------------------------------------------- items */

static const struct test_tensor *item_tensor(const struct run *run, size_t item_index)
{
    return &run->sim.model->tensors[run->sim.items[item_index].tensor_index];
}

/* A copy of what a GPU holds of an item, with what its strides leave between. */
static void *read_back(const struct run *run, size_t item_index, const struct hr_view *view)
{
    const struct sim_item *part = &run->sim.parts[item_index];
    struct hr_error err = {0};
    char *copy = malloc((part->buffer ? part->buffer_bytes : view->bytes) + 1);
    assert_non_null(copy);
    if (part->buffer && part->buffer_bytes)
        gpu_read(copy, part->buffer + SIM_GUARD_BYTES, part->buffer_bytes);
    else
        assert_ok(hr_load_read(run->load, item_index, 0, view->bytes, copy, &err), err);
    return copy;
}

/* Checks the item if it is ready; whether it is. */
static int check_if_ready(struct run *run, size_t item_index)
{
    struct hr_view view = {.size = sizeof view};
    void *copy = NULL;
    if (hr_load_view(run->load, item_index, &view, NULL) < 0)
        return 0;
    assert_int_equal(view.device_type == HR_DEVICE_CUDA, sim_on_gpu(&run->sim, view.device_index));
    if (view.device_type == HR_DEVICE_CUDA)
        view.data = copy = read_back(run, item_index, &view);
    check_view(item_tensor(run, item_index), run->sim.items[item_index].ranges, &view);
    free(copy);
    return 1;
}

/* Takes a tensor that must outlive the load; dtypes that DLPack lacks are refused. */
static void keep(struct run *run, size_t item_index)
{
    void *tensor = NULL;
    if (run->kept_count == KEPT_MAX || run->sim.items[item_index].into || run->sim.items[item_index].ranges)
        return;
    int code = hr_load_take(run->load, item_index, 0, &tensor, NULL);
    if (code < 0) {
        assert_null(tensor);
        assert_true(code == HR_EUNSUPPORTED || run->sim.causes & SIM_ANY_CALL);
        return;
    }
    run->kept_items[run->kept_count] = item_index;
    run->kept[run->kept_count++] = tensor;
}

static void check_kept(struct run *run)
{
    for (size_t i = 0; i < run->kept_count; i++) {
        struct legacy_tensor *kept = run->kept[i];
        const struct test_tensor *tensor = item_tensor(run, run->kept_items[i]);
        size_t bytes = (size_t)test_tensor_bytes(tensor);
        char *data = (char *)kept->data + kept->byte_offset, *copy = malloc(bytes + 1);
        if (bytes && kept->device[0] == HR_DEVICE_CUDA) {
            gpu_read(copy, data, bytes);
            data = copy;
        }
        if (bytes)
            assert_int_equal(test_tensor_mismatch(tensor, data, 0, bytes), bytes);
        free(copy);
        kept->deleter(kept);
    }
}

static void item_came(struct run *run, size_t item_index)
{
    run->handed_out++;
    if (run->dropped[item_index])
        return;
    assert_true(check_if_ready(run, item_index));
    if (run->handed_out % 5 == 1)
        keep(run, item_index);
    if (run->handed_out % 7 == 3) {
        run->dropped[item_index] = 1;
        assert_int_equal(hr_load_drop(run->load, item_index, NULL), 0);
        assert_false(check_if_ready(run, item_index));
    }
}

/* ------------------------------------------------------------------------------------------ waiting */

/* One call that waits; 0, HR_EEND when everything has come, or the load's error. */
static int wait_once(struct run *run, size_t step, struct hr_error *err)
{
    size_t index = SIZE_MAX;
    int code, by_index = run->sim.order == SIM_WAIT_IN_ORDER || run->sim.order == SIM_WAIT_SHUFFLED;
    if (run->sim.order == SIM_WAIT_ALL) {
        code = hr_load_wait_all(run->load, err);
        return code ? code : HR_EEND;
    }
    if (by_index && step == run->sim.item_count)
        return HR_EEND;
    if (by_index || (run->sim.order == SIM_MIXED && step % 3 == 0 && step < run->sim.item_count)) {
        index = run->sim.wait_order[step];
        code = hr_load_wait(run->load, index, err);
    } else {
        code = hr_load_next(run->load, &index, err);
        assert_true(code == 0 || index == SIZE_MAX);
    }
    if (code == 0)
        item_came(run, index);
    return code;
}

static void *helper_main(void *argument)
{
    struct run *run = argument;
    for (size_t i = run->sim.item_count; i-- > 0;)
        if (hr_load_wait(run->load, run->sim.wait_order[i], NULL) < 0)
            break;
    return NULL;
}

static int consume(struct run *run, struct hr_error *err)
{
    for (size_t step = 0;; step++) {
        if (run->sim.stop != SIM_STOP_NOT && step == run->sim.stop_after) {
            hr_load_cancel(run->load);
            if (run->sim.stop == SIM_STOP_FREE)
                return HR_ECANCELLED;
        }
        int code = wait_once(run, step, err);
        if (code < 0)
            return code == HR_EEND ? 0 : code;
    }
}

/* ------------------------------------------------------------------------------------------ judging */

/* An error names what is concerned: whoever reads it has to find the file, the tensor and the place. */
static void check_error(const struct run *run, int code, const struct hr_error *err)
{
    if (!sim_allows(&run->sim, code))
        fail_msg("nothing explains %s: %s", hr_error_kind(code), err->message);
    if (code == 0 || (run->sim.stop == SIM_STOP_FREE && code == HR_ECANCELLED))
        return;
    assert_int_equal(err->code, code);
    assert_true(err->message[0]);
    if (run->sim.causes & SIM_ANY_CALL)
        return;
    if (code == HR_EIO_ERROR || code == HR_EFILE_CHANGED || code == HR_ESHORT_READ) {
        assert_true(err->file[0]);
        assert_non_null(hr_checkpoint_find(run->sim.model->checkpoint, err->tensor, strlen(err->tensor)));
        if (run->sim.loader_options.route != HR_ROUTE_MMAP)
            assert_true(err->offset != HR_NO_OFFSET);
    }
}

/* Every item that is said to be ready, also after a failure; all of them are after a success. */
static void check_items(struct run *run, int code)
{
    for (size_t i = 0; i < run->sim.item_count; i++)
        if (!run->dropped[i] && !check_if_ready(run, i) && code == 0)
            fail_msg("item %zu is not ready, but nothing failed", i);
}

static int load_and_judge(struct run *run, struct hr_error *err)
{
    pthread_t helper;
    int code = hr_load_start(run->loader, run->sim.model->checkpoint, run->sim.items, run->sim.item_count,
                             &run->sim.load_options, &run->load, err);
    if (code < 0) {
        assert_null(run->load);
        return code;
    }
    if (run->sim.helper)
        assert_int_equal(pthread_create(&helper, NULL, helper_main, run), 0);
    code = consume(run, err);
    if (run->sim.helper)
        pthread_join(helper, NULL);
    if (run->sim.stop != SIM_STOP_FREE || code != HR_ECANCELLED)
        check_items(run, code);
    hr_load_free(run->load);
    return code;
}

/* The scenario under its tables; returns how it ended. */
static int simulate(struct run *run)
{
    struct hr_error err = {0};
    faults_install();
    fake_storage_install(&run->sim.storage);
    faults_fail(run->sim.fault_classes, run->sim.fault_at, 0);
    if (run->sim.mutate_first)
        sim_mutate(&run->sim.mutation);
    int code = hr_loader_new(&run->sim.loader_options, &run->loader, &err);
    if (code == 0)
        code = load_and_judge(run, &err);
    check_error(run, code, &err);
    check_kept(run);
    hr_loader_free(run->loader);
    if (run->sim.device_count)
        gpu_reap(); /* its thread uses the tables */
    sim_check_guards(&run->sim);
    assert_false(atomic_load(&run->sim.progress_wrong));
    assert_int_equal(atomic_load(&run->sim.counting.live_count), 0);
    fake_storage_remove();
    faults_assert_nothing_live();
    faults_remove();
    return code;
}

static void load_plainly(const struct test_model *model)
{
    struct hr_error err = {0};
    struct hr_loader *loader = loader_make(NULL);
    struct hr_load *load = load_model(loader, model, NULL);
    assert_ok(hr_load_wait_all(load, &err), err);
    check_all_items(load, model);
    hr_load_free(load);
    hr_loader_free(loader);
}

/* ---------------------------------------------------------------------------------------- the seeds */

static void run_seed(struct test_model *model, uint64_t seed)
{
    static struct run run;
    memset(&run, 0, sizeof run);
    sim_init(&run.sim, seed, model);
    int code = simulate(&run);
    ended_well += code == 0;
    ended_early += code < 0 && run.sim.stop == SIM_STOP_NOT;
    stopped += code < 0 && run.sim.stop != SIM_STOP_NOT;
    if (run.sim.mutate) {
        model_close(model);
        sim_model_make(model, seed);
    }
    if (code < 0)
        load_plainly(model);
    sim_release(&run.sim);
}

static size_t entry_count(const char *path)
{
    size_t count = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void say_replay(void)
{
    char text[120];
    int size = snprintf(text, sizeof text, "\nseed %llu failed; again: test_simulator %llu\n",
                        (unsigned long long)seed_now, (unsigned long long)seed_now);
    if (write(STDERR_FILENO, text, (size_t)size) < 0)
        return;
}

static void on_alarm(int number)
{
    (void)number;
    say_replay();
    abort();
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Threads of devices are detached: the last of them may be about to vanish. */
static void assert_thread_count(size_t count)
{
    for (int i = 0; i < 2000 && entry_count("/proc/self/task") > count; i++)
        usleep(1000);
    assert_int_equal(entry_count("/proc/self/task"), count);
}

static int out_of_time(time_t from, uint64_t done)
{
    return time_bounded && done >= LEAST_COUNT && time(NULL) - from >= DEFAULT_SECONDS;
}

static void test_seeds(void **state)
{
    struct test_model model = {0};
    time_t from = time(NULL);
    size_t descriptors = 0, threads = SIZE_MAX;
    uint64_t done = 0;
    (void)state;
    signal(SIGALRM, on_alarm);
    if (gpu_name()) /* its driver starts, and has the threads that it keeps */
        gpu_free(gpu_alloc(1, 0), 1);
    for (; done < seed_count && !out_of_time(from, done); done++) {
        seed_now = first_seed + done;
        alarm(HANG_SECONDS);
        if (done == 0 || seed_now % SIM_SEEDS_PER_MODEL == 0) {
            model_close(&model);
            sim_model_make(&model, seed_now);
        }
        run_seed(&model, seed_now);
        if (done == 0)
            descriptors = entry_count("/proc/self/fd");
        if (done < SETTLING_COUNT)
            threads = least(threads, entry_count("/proc/self/task"));
    }
    alarm(0);
    model_close(&model);
    assert_int_equal(entry_count("/proc/self/fd"), descriptors);
    assert_thread_count(threads);
    seed_now = 0;
    print_message("%llu loads in %ld s: %lu complete, %lu ended by a fault, %lu stopped\n", (unsigned long long)done,
                  (long)(time(NULL) - from), ended_well, ended_early, stopped);
    if (done > 1000) /* else it would not be what it is meant to be */
        assert_true(ended_well > done / 4 && ended_early > done / 10 && stopped > done / 50);
}

static int teardown(void **state)
{
    (void)state;
    if (seed_now)
        say_replay();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_seeds, teardown)};
    if (argc > 1) {
        first_seed = strtoull(argv[1], NULL, 10);
        seed_count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
        time_bounded = 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
