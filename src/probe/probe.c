/*
 * probe.c: hr_probe(): checks its arguments, measures the host and then the device, and hands the figures out. Scratch
 * memory is gone before staging is made, so that the two never add up.
 */
#include <string.h>

#include "base/error.h"
#include "base/option_struct.h"
#include "base/sys.h"
#include "device/host.h"
#include "probe/probe.h"

#define BUDGET_DEFAULT_NS UINT64_C(5000000000)
#define SCRATCH_BYTES_MIN (16 * HR_PROBE_MIB)
#define SCRATCH_BYTES_MAX (256 * HR_PROBE_MIB)
/* Touching memory takes time too: about a fifth of the budget at 1.6 GB/s, one thread and small pages. */
#define SCRATCH_BYTES_PER_NS_INVERSE 8

uint64_t hr_probe_power(uint64_t value)
{
    return UINT64_C(1) << (63 - __builtin_clzll(value));
}

static int check(const struct hr_probe_options *options, const struct hr_limits *ret_limits, struct hr_error *err)
{
    if (!ret_limits || ret_limits->size < sizeof ret_limits->size)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the figures must be given, with its member 'size' set");
    if (options->thread_count > HR_READER_MAX)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "thread_count is %u; it must be at most %d", options->thread_count,
                       HR_READER_MAX);
    return hr_options_check_reserved(options->reserved, "hr_probe_options", err);
}

static void run_init(struct hr_probe_run *run, const struct hr_probe_options *options)
{
    uint32_t cores = hr_sys->core_count();
    memset(run, 0, sizeof *run);
    run->path = options->path;
    run->thread_count = cores < HR_READER_DEFAULT_MAX ? cores : HR_READER_DEFAULT_MAX;
    if (options->thread_count)
        run->thread_count = options->thread_count;
    run->share_ns = (options->budget_ns ? options->budget_ns : BUDGET_DEFAULT_NS) / HR_PROBE_SHARE_COUNT;
    run->limits.time = hr_sys->date();
    run->limits.core_count = cores;
}

static uint64_t scratch_size(const struct hr_probe_run *run)
{
    uint64_t bytes = run->share_ns * HR_PROBE_SHARE_COUNT / SCRATCH_BYTES_PER_NS_INVERSE;
    if (bytes < SCRATCH_BYTES_MIN)
        return SCRATCH_BYTES_MIN;
    return bytes < SCRATCH_BYTES_MAX ? hr_probe_power(bytes) : SCRATCH_BYTES_MAX;
}

static int measure_host(struct hr_probe_run *run, struct hr_error *err)
{
    void *scratch;
    uint64_t bytes = scratch_size(run);
    if (hr_host_alloc(bytes, &scratch) < 0)
        return hr_fail_memory(err, bytes, "memory to read into");
    memset(scratch, 1, bytes);
    hr_probe_memory(run, scratch, bytes);
    hr_probe_storage(run, scratch, bytes);
    hr_probe_page_cache(run, scratch, bytes);
    hr_host_free(scratch, bytes);
    return 0;
}

static int measure(struct hr_probe_run *run, struct hr_device *device, struct hr_error *err)
{
    run->limits.device = *hr_device_info(device);
    hr_probe_file_open(run);
    int code = measure_host(run, err);
    if (code == 0)
        code = hr_probe_device(run, device, err);
    hr_probe_file_close(run);
    return code;
}

int hr_probe(const struct hr_probe_options *options, struct hr_limits *ret_limits, struct hr_error *err)
{
    struct hr_probe_options known;
    struct hr_probe_run run;
    struct hr_device *device;
    int code = hr_options_copy(&known, sizeof known, options, "hr_probe_options", err);
    if (code == 0)
        code = check(&known, ret_limits, err);
    if (code == 0)
        code = hr_device_open(known.device ? known.device : "auto", &device, err);
    if (code < 0)
        return code;
    run_init(&run, &known);
    code = measure(&run, device, err);
    hr_device_unref(device);
    if (code < 0)
        return code;
    size_t size = ret_limits->size < sizeof run.limits ? ret_limits->size : sizeof run.limits;
    run.limits.size = ret_limits->size;
    memcpy(ret_limits, &run.limits, size);
    return 0;
}
