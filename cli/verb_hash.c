/*
 * verb_hash.c: XXH3-128 of each item's bytes where the load has put them, read back from there where that is a GPU.
 * Tensors are hashed by a few threads as they become ready, dropped at once, and printed in the order of their names at
 * the end: so a window bounds the memory, and the output depends neither on threads nor on the order of files.
 */
#include <headrace/headrace.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cli_device.h"
#include "consume.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "request.h"

static const uint64_t window_bytes_default = 1ull << 30;

struct digest {
    const struct hr_tensor *tensor;
    uint64_t *shape; /* of the slice, or NULL: the tensor's */
    uint64_t bytes;
    uint32_t dtype; /* in memory */
    XXH128_canonical_t hash;
};

/* Of one thread. */
struct hasher {
    XXH3_state_t state;
    struct read_back read_back;
};

/* Each item is handed to one consumer, which alone writes its digest. */
struct hashing {
    struct hr_load *load;
    struct digest *digests; /* one per item */
    struct progress progress;
    struct hasher hashers[CONSUMER_MAX];
};

static int hash_bytes(struct hashing *hashing, size_t item, uint64_t bytes, struct hasher *hasher, struct hr_error *err)
{
    struct byte_piece piece;
    XXH3_128bits_reset(&hasher->state);
    for (uint64_t offset = 0; offset < bytes; offset += piece.size) {
        int code = read_back_piece(&hasher->read_back, hashing->load, item, offset, bytes - offset, &piece, err);
        if (code < 0)
            return code;
        XXH3_128bits_update(&hasher->state, piece.bytes, piece.size);
    }
    XXH128_canonicalFromHash(&hashing->digests[item].hash, XXH3_128bits_digest(&hasher->state));
    return 0;
}

static int hash_item(void *context, size_t consumer, size_t item, struct hr_error *err)
{
    struct hashing *hashing = context;
    struct digest *digest = &hashing->digests[item];
    struct hr_view view = {.size = sizeof view};
    int code = hr_load_view(hashing->load, item, &view, err);
    if (code == 0)
        code = hash_bytes(hashing, item, view.bytes, &hashing->hashers[consumer], err);
    if (code < 0)
        return code;
    digest->bytes = view.bytes;
    digest->dtype = view.dtype;
    digest->shape = allocate(view.rank, sizeof *digest->shape);
    for (uint32_t i = 0; i < view.rank; i++)
        digest->shape[i] = view.shape[i];
    return 0;
}

static int load_and_hash(const struct job *job, uint64_t window_bytes, struct digest *digests, struct hr_error *err)
{
    struct hashing hashing = {.digests = digests};
    struct hr_load_options options = {.size = sizeof options, .window_bytes = window_bytes};
    progress_init(&hashing.progress);
    if (hashing.progress.is_enabled) {
        options.progress = progress_draw;
        options.progress_context = &hashing.progress;
    }
    int code = hr_load_start(job->loader, job->checkpoint, job->request.items, job->request.item_count, &options,
                             &hashing.load, err);
    if (code < 0)
        return code;
    interrupt_watch(hashing.load, NULL);
    code = consume_ready(hashing.load, hash_item, &hashing, err);
    interrupt_watch(NULL, NULL);
    hr_load_free(hashing.load);
    progress_erase(&hashing.progress);
    for (size_t i = 0; i < CONSUMER_MAX; i++)
        read_back_release(&hashing.hashers[i].read_back);
    return code;
}

/* ---------------------------------------------------------------------------------------------- output */

static int compare_names(const void *a, const void *b)
{
    const struct hr_tensor *x = ((const struct digest *)a)->tensor, *y = ((const struct digest *)b)->tensor;
    int order = memcmp(x->name, y->name, x->name_size < y->name_size ? x->name_size : y->name_size);
    return order ? order : (x->name_size > y->name_size) - (x->name_size < y->name_size);
}

static void hex(char out[33], const XXH128_canonical_t *hash)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof hash->digest; i++) {
        out[2 * i] = digits[hash->digest[i] >> 4];
        out[2 * i + 1] = digits[hash->digest[i] & 15];
    }
    out[32] = '\0';
}

static void print_json(const struct device_list *devices, const struct digest *digests, size_t count)
{
    struct json json = {0};
    char text[33], *names = devices_names(devices);
    json_open(&json, NULL, '{');
    json_text(&json, "algorithm", "xxh3-128");
    json_text(&json, "device", names);
    free(names);
    json_open(&json, "tensors", '[');
    for (size_t i = 0; i < count; i++) {
        const struct hr_tensor *tensor = digests[i].tensor;
        hex(text, &digests[i].hash);
        json_open(&json, NULL, '{');
        json_string(&json, "name", tensor->name, tensor->name_size);
        json_text(&json, "hash", text);
        json_text(&json, "dtype", hr_dtype_name(digests[i].dtype));
        json_shape(&json, "shape", digests[i].shape, tensor->rank);
        json_u64(&json, "bytes", digests[i].bytes);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
    json_end(&json);
}

/* The devices go to stderr, so that what stands on stdout can be compared whatever they are. */
static void print_text(const struct device_list *devices, const struct digest *digests, size_t count)
{
    char text[33], *title = devices_title(devices);
    for (size_t i = 0; i < count; i++) {
        hex(text, &digests[i].hash);
        printf("%s  ", text);
        print_escaped(stdout, digests[i].tensor->name, digests[i].tensor->name_size);
        putchar('\n');
    }
    if (devices_have_gpu(devices))
        complain("hash", "read back from %s", title);
    free(title);
}

static int hash_paths(const struct request_options *options, const struct text_list *paths, int as_json,
                      struct hr_error *err)
{
    struct job job;
    int code = job_open(options, paths, &job, err);
    if (code < 0)
        return code;
    size_t count = job.request.item_count;
    struct digest *digests = allocate(count, sizeof *digests);
    for (size_t i = 0; i < count; i++)
        digests[i].tensor = hr_checkpoint_at(job.checkpoint, job.request.items[i].tensor_index);
    code = load_and_hash(&job, options->tuning.window_bytes, digests, err);
    if (code == 0) {
        qsort(digests, count, sizeof *digests, compare_names);
        if (as_json)
            print_json(&job.devices, digests, count);
        else
            print_text(&job.devices, digests, count);
    }
    for (size_t i = 0; i < count; i++)
        free(digests[i].shape);
    free(digests);
    job_close(&job);
    return code;
}

int hash_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct request_options request = {.tuning.window_bytes = window_bytes_default};
    struct text_list paths;
    struct hr_error err;
    int as_json = 0, code;
    const struct option options[] = {
        DEVICE_OPTIONS(request),      MATCH_OPTION(request.matches), SLICE_OPTION(request.slices),
        SHARD_OPTION(request.shards), DTYPE_OPTION(request.dtypes),  TUNING_OPTIONS(request.tuning),
        OPEN_OPTIONS(request.open),   JSON_OPTION(as_json),          {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){1, SIZE_MAX}, &paths, &code)) {
        request_options_release(&request);
        return code;
    }
    interrupt_start();
    code = hash_paths(&request, &paths, as_json, &err) < 0 ? load_error_report(verb->name, as_json, &err) : EXIT_YES;
    request_options_release(&request);
    text_list_release(&paths);
    return code;
}
