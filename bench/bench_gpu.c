/*
 * bench_gpu.c: page-cache-hot checkpoints into a GPU, headrace against the fastest of a sweep of bare programs
 * (ruler.h), interleaved in one run.
 *
 * usage: bench_gpu [OPTION]... CHECKPOINT...
 *
 *   --subject MEMORY,LOADER[,THREADS[,DTYPE]]
 *                        what of headrace is measured, any number of times (arena,kept): memory arena, each (one
 *                        allocation a tensor) or into (the caller's); loader kept or new; readers asked for; what
 *                        tensors are converted to, in arenas, compared with the same subject without
 *   --pairs N            rounds of one ruler and every subject, 7 unless given, 5 at least
 *   --cpus LIST          use these cores only; taskset does as well
 *   --ruler-threads LIST thread counts of the ruler's sweep, instead of those that suit the cores
 *   --gpu N              the device (0)
 *   --limits             also measure what the ruler is made of, each alone
 *   --verify             compare all bytes on the device with the files after the timed part, not a sample
 *   --json FILE          write all of it there
 *
 * The ruler reads the first CHECKPOINT; every subject loads each of them, and rates are compared. Exit status 77: there
 * is no device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_bare.h"
#include "gpu_report.h"
#include "measure.h"

enum { SUBJECTS_MAX = 32, TARGETS_MAX = 8, NO_DEVICE = 77 };

struct arguments {
    const char *subjects[SUBJECTS_MAX], *paths[TARGETS_MAX];
    size_t subject_count, path_count, pairs, ruler_thread_count;
    unsigned ruler_threads[SUBJECTS_MAX];
    const char *json_path, *cores;
    int gpu, verify, limits;
};

static void read_option(struct arguments *arguments, const char *name, const char *value)
{
    if (strcmp(name, "--subject") == 0 && arguments->subject_count < SUBJECTS_MAX)
        arguments->subjects[arguments->subject_count++] = value;
    else if (strcmp(name, "--pairs") == 0)
        arguments->pairs = strtoul(value, NULL, 10);
    else if (strcmp(name, "--cpus") == 0)
        arguments->cores = value;
    else if (strcmp(name, "--ruler-threads") == 0)
        arguments->ruler_thread_count = parse_list(value, arguments->ruler_threads, SUBJECTS_MAX);
    else if (strcmp(name, "--gpu") == 0)
        arguments->gpu = atoi(value);
    else if (strcmp(name, "--json") == 0)
        arguments->json_path = value;
    else
        die("no such option, or too often", name);
}

static struct arguments read_arguments(int argc, char **argv)
{
    struct arguments arguments = {.pairs = 7};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verify") == 0)
            arguments.verify = 1;
        else if (strcmp(argv[i], "--limits") == 0)
            arguments.limits = 1;
        else if (strncmp(argv[i], "--", 2) == 0 && i + 1 < argc) {
            read_option(&arguments, argv[i], argv[i + 1]);
            i++;
        } else if (arguments.path_count < TARGETS_MAX)
            arguments.paths[arguments.path_count++] = argv[i];
    }
    if (!arguments.path_count || arguments.pairs < 5 || arguments.pairs > TRIALS_MAX)
        die("usage", "bench_gpu [OPTION]... CHECKPOINT... (5 pairs at least; options: see bench/bench_gpu.c)");
    if (!arguments.subject_count)
        arguments.subjects[arguments.subject_count++] = "arena,kept";
    return arguments;
}

static void ruler_round(struct report *report, struct ruler *ruler, size_t round)
{
    cuda_settle();
    double cpu = cpu_seconds();
    report->ruler_seconds[round] = ruler_trial(ruler, &report->ruler_setting);
    report->ruler_cpu[round] = cpu_seconds() - cpu;
}

/* In every other round the ruler comes last and the subjects run backwards: none always inherits the same state. */
static void run_round(struct report *report, struct ruler *ruler, size_t round)
{
    if (round % 2 == 0)
        ruler_round(report, ruler, round);
    for (size_t i = 0; i < report->subject_count; i++)
        subject_trial(&report->subjects[round % 2 ? report->subject_count - 1 - i : i]);
    if (round % 2)
        ruler_round(report, ruler, round);
    for (size_t i = 0; i < report->subject_count; i++) {
        struct subject *subject = &report->subjects[i];
        double rate = (double)subject->target->bytes / subject->seconds[round];
        subject->ratio[round] = rate / ((double)report->ruler_bytes / report->ruler_seconds[round]);
    }
}

static size_t make_subjects(const struct arguments *arguments, struct target *targets, const char *device,
                            struct subject *subjects)
{
    size_t count = 0;
    for (size_t t = 0; t < arguments->path_count; t++)
        for (size_t i = 0; i < arguments->subject_count; i++, count++) {
            subject_parse(&subjects[count], arguments->subjects[i]);
            subjects[count].target = &targets[t];
            subjects[count].device = device;
            subjects[count].verify_all = arguments->verify;
        }
    return count;
}

static void measure(struct report *report, const struct arguments *arguments, struct ruler *ruler)
{
    report->ruler_bytes = ruler_bytes(ruler);
    if (arguments->limits)
        report->limits = ruler_measure_limits(ruler);
    report->has_limits = arguments->limits;
    report->ruler_setting = ruler_sweep(ruler, arguments->ruler_threads, arguments->ruler_thread_count);
    for (size_t i = 0; i < report->subject_count; i++)
        subject_begin(&report->subjects[i]);
    for (size_t round = 0; round < report->pairs; round++)
        run_round(report, ruler, round);
    for (size_t i = 0; i < report->subject_count; i++) {
        subject_verify(&report->subjects[i]);
        subject_end(&report->subjects[i]);
    }
}

int main(int argc, char **argv)
{
    static struct subject subjects[SUBJECTS_MAX * TARGETS_MAX];
    static struct report report;
    struct target targets[TARGETS_MAX] = {0};
    struct arguments arguments = read_arguments(argc, argv);
    const char *reason;
    char device[16];
    if (arguments.cores)
        use_cores(arguments.cores);
    if (cuda_open(arguments.gpu, &reason) < 0) {
        fprintf(stderr, "bench_gpu: no device: %s\n", reason);
        return NO_DEVICE;
    }
    snprintf(device, sizeof device, "cuda:%d", arguments.gpu);
    for (size_t i = 0; i < arguments.path_count; i++)
        target_open(&targets[i], arguments.paths[i]);
    report.subjects = subjects;
    report.subject_count = make_subjects(&arguments, targets, device, subjects);
    report.cores = core_count();
    report.pairs = arguments.pairs;
    cuda_name(arguments.gpu, report.device, sizeof report.device);
    CUDA(driver_version, &report.driver_version);
    measure(&report, &arguments, ruler_new(targets[0].checkpoint));
    report_print(&report);
    if (arguments.json_path)
        report_write(&report, arguments.json_path);
    for (size_t i = 0; i < arguments.path_count; i++)
        hr_checkpoint_close(targets[i].checkpoint);
    return 0;
}
