/*
 * request.h: from options and paths to an open checkpoint, the items that --match, --slice and --dtype choose, and a
 * loader.
 * The verbs that load share these options, so that what `plan` prints is what `load` does.
 */
#ifndef CLI_REQUEST_H
#define CLI_REQUEST_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

struct open_flags {
    int compat;
    int allow_trailing;
};

struct tuning {
    uint32_t route, thread_count, queue_depth, lane_count;
    uint64_t chunk_bytes, window_bytes, staging_bytes;
    int no_numa, keep_cache;
};

struct request_options {
    struct open_flags open;
    struct text_list matches, slices, dtypes;
    struct tuning tuning;
    const char *device; /* NULL: what request_loader() takes */
};

/* Rows of a table of options, for the verbs that share them. */
#define OPEN_OPTIONS(flags)                                                                                   \
    OPTION("compat", NULL, OPTION_FLAG, &(flags).compat, NULL, "say exactly what the reference reader says"), \
        OPTION("allow-trailing", NULL, OPTION_FLAG, &(flags).allow_trailing, NULL,                            \
               "allow bytes after the last tensor")

#define MATCH_OPTION(list) \
    OPTION("match", "GLOB", OPTION_LIST, &(list), NULL, "only tensors whose name matches; may be given again")

#define SLICE_OPTION(list)                                        \
    OPTION("slice", "NAME=[a:b,...]", OPTION_LIST, &(list), NULL, \
           "only this range of the tensors that NAME is or matches; may be given again")

#define DTYPE_OPTION(list)                               \
    OPTION("dtype", "DTYPE", OPTION_LIST, &(list), NULL, \
           "convert tensors of floats, or with GLOB=DTYPE what GLOB matches; may be given again")

#define TUNING_OPTIONS(tuning)                                                                                    \
    OPTION("route", "ROUTE", OPTION_ROUTE, &(tuning).route, "HEADRACE_ROUTE", "auto, pread, uring, mmap or gds"), \
        OPTION("threads", "N", OPTION_COUNT, &(tuning).thread_count, "HEADRACE_THREADS",                          \
               "reader threads; 0: by the number of cores"),                                                      \
        OPTION("window", "SIZE", OPTION_SIZE, &(tuning).window_bytes, "HEADRACE_WINDOW_BYTES",                    \
               "most bytes in memory that were not consumed yet"),                                                \
        OPTION("chunk", "SIZE", OPTION_SIZE, &(tuning).chunk_bytes, "HEADRACE_CHUNK_BYTES", "the grid of reads"), \
        OPTION("queue-depth", "N", OPTION_COUNT, &(tuning).queue_depth, "HEADRACE_QUEUE_DEPTH",                   \
               "reads in flight per thread, with io_uring"),                                                      \
        OPTION("staging-bytes", "SIZE", OPTION_SIZE, &(tuning).staging_bytes, "HEADRACE_STAGING_BYTES",           \
               "most pinned memory, for GPUs"),                                                                   \
        OPTION("keep-cache", NULL, OPTION_FLAG, &(tuning).keep_cache, "HEADRACE_KEEP_CACHE",                      \
               "leave what storage delivers in the page cache"),                                                  \
        OPTION("lanes", "N", OPTION_COUNT, &(tuning).lane_count, "HEADRACE_LANES", "streams a GPU"),              \
        OPTION("no-numa", NULL, OPTION_FLAG, &(tuning).no_numa, NULL, "bind nothing to the GPU's NUMA node")

#define DEVICE_OPTION(device)                                \
    OPTION("device", "DEVICE", OPTION_TEXT, &(device), NULL, \
           "auto (the first GPU, else cpu), cpu, cuda:N, a PCI address or a UUID")

/* Items of a checkpoint. The arrays are for request_release(). */
struct request {
    struct hr_item *items;
    struct hr_range **ranges; /* one per item, NULL for whole tensors */
    size_t item_count;
};

/* What a verb that loads holds. */
struct job {
    struct hr_checkpoint *checkpoint;
    struct hr_loader *loader;
    struct hr_device_info device; /* the loader's only one */
    struct request request;
};

int checkpoint_open(const char *const *paths, size_t path_count, const struct open_flags *flags,
                    struct hr_checkpoint **ret_checkpoint, struct hr_error *err);

/*
 * The tensors that one of `matches` matches (all without any), in the checkpoint's order, with the ranges that `slices`
 * give them and the dtypes that `dtypes` do; of several of a tensor the last counts, but a dtype without a name or pattern
 * comes before those with one, and is for tensors of floats only. HR_ETENSOR_NOT_FOUND when one of them matches nothing.
 */
int request_make(const struct hr_checkpoint *checkpoint, const struct text_list *matches,
                 const struct text_list *slices, const struct text_list *dtypes, struct request *ret_request,
                 struct hr_error *err);
void request_release(struct request *request);

/* A loader for the one device of this name; NULL means "auto", with the mmap route "cpu". */
int request_loader(const struct tuning *tuning, const char *device, struct hr_loader **ret_loader,
                   struct hr_device_info *ret_device, struct hr_error *err);

int job_open(const struct request_options *options, const struct text_list *paths, struct job *ret_job,
             struct hr_error *err);
void job_close(struct job *job);
void request_options_release(struct request_options *options);

#endif
