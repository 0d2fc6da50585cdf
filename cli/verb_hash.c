/*
 * verb_hash.c: XXH3-128 of each item's bytes where the load has put them, read back from there where that is a GPU.
 * Tensors are hashed by a few threads as they become ready, dropped at once, and printed in the order of their names at
 * the end: so a window bounds the memory, and the output depends neither on threads nor on the order of files.
 */
#include <headrace/headrace.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cli_device.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "request.h"

enum { HASHER_MAX = 4 };
static const uint64_t window_bytes_default = 1ull << 30;

struct digest {
    const struct hr_tensor *tensor;
    uint64_t *shape; /* of the slice, or NULL: the tensor's */
    uint64_t bytes;
    uint32_t dtype; /* in memory */
    XXH128_canonical_t hash;
};

/* What the hashing threads share. Each item is handed to one of them, which alone writes its digest. */
struct hashing {
    struct hr_load *load;
    const struct hr_device_info *device;
    struct digest *digests; /* one per item */
    struct progress progress;
    pthread_mutex_t lock;
    int code; /* the first failure, with its error; guarded by `lock` */
    struct hr_error err;
};

/* Of one thread. */
struct hasher {
    XXH3_state_t state;
    struct read_back read_back;
};

static void fail(struct hashing *hashing, const struct hr_error *err)
{
    pthread_mutex_lock(&hashing->lock);
    if (hashing->code == 0) {
        hashing->code = err->code;
        hashing->err = *err;
    }
    pthread_mutex_unlock(&hashing->lock);
    hr_load_cancel(hashing->load);
}

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

static int hash_item(struct hashing *hashing, size_t item, struct hasher *hasher, struct hr_error *err)
{
    struct digest *digest = &hashing->digests[item];
    struct hr_view view = {.size = sizeof view};
    int code = hr_load_view(hashing->load, item, &view, err);
    if (code == 0)
        code = hash_bytes(hashing, item, view.bytes, hasher, err);
    if (code < 0)
        return code;
    digest->bytes = view.bytes;
    digest->dtype = view.dtype;
    digest->shape = allocate(view.rank, sizeof *digest->shape);
    for (uint32_t i = 0; i < view.rank; i++)
        digest->shape[i] = view.shape[i];
    return hr_load_drop(hashing->load, item, err);
}

static void *hash_ready_items(void *context)
{
    struct hashing *hashing = context;
    struct hasher hasher;
    struct hr_error err;
    size_t item;
    int code;
    read_back_init(&hasher.read_back, hashing->device);
    while ((code = hr_load_next(hashing->load, &item, &err)) == 0) {
        if ((code = hash_item(hashing, item, &hasher, &err)) < 0)
            break;
    }
    if (code != HR_EEND)
        fail(hashing, &err);
    read_back_release(&hasher.read_back);
    return NULL;
}

/* The calling thread hashes too, so no thread but it is needed. */
static void hash_all(struct hashing *hashing)
{
    pthread_t threads[HASHER_MAX - 1];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = 0;
    while (count < HASHER_MAX - 1 && count + 1 < cores &&
           pthread_create(&threads[count], NULL, hash_ready_items, hashing) == 0)
        count++;
    hash_ready_items(hashing);
    while (count > 0)
        pthread_join(threads[--count], NULL);
}

static int load_and_hash(const struct job *job, uint64_t window_bytes, struct digest *digests, struct hr_error *err)
{
    struct hashing hashing = {.device = &job->device, .digests = digests, .lock = PTHREAD_MUTEX_INITIALIZER};
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
    hash_all(&hashing);
    interrupt_watch(NULL, NULL);
    hr_load_free(hashing.load);
    progress_erase(&hashing.progress);
    if (hashing.code < 0)
        *err = hashing.err;
    return hashing.code;
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

static void print_json(const struct hr_device_info *device, const struct digest *digests, size_t count)
{
    struct json json = {0};
    char text[33], name[32];
    json_open(&json, NULL, '{');
    json_text(&json, "algorithm", "xxh3-128");
    json_text(&json, "device", device_name(name, device));
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

/* The device goes to stderr, so that what stands on stdout can be compared whatever the device. */
static void print_text(const struct hr_device_info *device, const struct digest *digests, size_t count)
{
    char text[33], title[192];
    for (size_t i = 0; i < count; i++) {
        hex(text, &digests[i].hash);
        printf("%s  ", text);
        print_escaped(stdout, digests[i].tensor->name, digests[i].tensor->name_size);
        putchar('\n');
    }
    if (device->type != HR_DEVICE_CPU)
        complain("hash", "read back from %s", device_title(title, device));
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
            print_json(&job.device, digests, count);
        else
            print_text(&job.device, digests, count);
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
    const struct option options[] = {DEVICE_OPTION(request.device),  MATCH_OPTION(request.matches),
                                     SLICE_OPTION(request.slices),   DTYPE_OPTION(request.dtypes),
                                     TUNING_OPTIONS(request.tuning), OPEN_OPTIONS(request.open),
                                     JSON_OPTION(as_json),           {0}};
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
