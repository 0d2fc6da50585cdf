/*
 * plan.c: a request checked, ordered and grouped. Every error of a request is found here or in geometry.c; what
 * comes after can only run out of memory.
 *
 * Time and memory are linear in items, chunks and pieces; dims, shapes and strides of all items lie in one pool.
 */
#include "plan/plan.h"

#include <assert.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/sys.h"
#include "plan/chunk.h"
#include "plan/geometry.h"
#include "plan/plan_request.h"
#include "plan/spread.h"

const struct hr_item *hr_request_item(const struct hr_request *request, size_t index)
{
    return (const struct hr_item *)((const char *)request->items + index * request->items->size);
}

int hr_plan_is_remote(const struct hr_plan *plan, uint32_t device_index)
{
    return (int)(plan->options.remote_devices >> device_index & 1);
}

int hr_plan_is_cast(const struct hr_plan_item *item)
{
    return item->dtype != item->source_dtype;
}

uint64_t hr_plan_target_bytes(const struct hr_plan_item *item, uint64_t bytes)
{
    return item->source_unit == item->target_unit ? bytes : bytes / item->source_unit * item->target_unit;
}

void hr_plan_release(struct hr_plan *plan)
{
    if (!plan)
        return;
    hr_free(plan->items);
    hr_free(plan->order);
    hr_free(plan->groups);
    hr_free(plan->chunks);
    hr_free(plan->pieces);
    hr_free(plan->pool);
    hr_spread_free(plan->spread);
    *plan = (struct hr_plan){0};
}

static int check_item_size(const struct hr_request *request, size_t index, struct hr_error *err)
{
    size_t known = sizeof(struct hr_item);
    size_t size = request->items->size;
    if (index == 0 && (size < known || size % alignof(struct hr_item)))
        return hr_fail(err, HR_EINVALID_ARGUMENT, "item 0: its size is %zu; set it to sizeof(struct hr_item), %zu here",
                       size, known);
    const struct hr_item *item = hr_request_item(request, index);
    if (item->size != size)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: its size is %zu, that of item 0 is %zu; all must be equal",
                       index, item->size, size);
    for (size_t i = known; i < size; i++)
        if (((const char *)item)[i])
            return hr_fail(
                err, HR_EINVALID_ARGUMENT,
                "item %zu: byte %zu is set, but this library knows only %zu bytes of an item; clear the rest", index, i,
                known);
    return 0;
}

#define DTYPE_NAMES_BYTES 256

/* ", or as BF16, F16, ..." with all that `from` converts to. */
static void list_conversions(uint32_t from, char ret_text[DTYPE_NAMES_BYTES])
{
    size_t used = 0;
    ret_text[0] = '\0';
    for (uint32_t to = 1; to < HR_DTYPE_COUNT && used < DTYPE_NAMES_BYTES; to++)
        if (hr_dtype_converts(from, to))
            used += (size_t)snprintf(ret_text + used, DTYPE_NAMES_BYTES - used, "%s%s", used ? ", " : ", or as ",
                                     hr_dtype_name(to));
}

static int check_dtype(const struct hr_item *item, const struct hr_tensor *tensor, struct hr_error *err)
{
    char name[200], asked[32], others[DTYPE_NAMES_BYTES];
    if (item->dtype == HR_DTYPE_NONE || item->dtype == tensor->dtype || hr_dtype_converts(tensor->dtype, item->dtype))
        return 0;
    snprintf(asked, sizeof asked, "dtype %u, which is none", item->dtype);
    list_conversions(tensor->dtype, others);
    return hr_fail(err, HR_EUNSUPPORTED,
                   "tensor '%s' is stored as %s and cannot be converted to %s; load it as it is stored%s",
                   hr_escape(name, sizeof name, tensor->name, tensor->name_size), hr_dtype_name(tensor->dtype),
                   hr_dtype_name(item->dtype) ? hr_dtype_name(item->dtype) : asked, others);
}

/* Everything but ranges and strides. */
static int check_item(const struct hr_request *request, size_t index, uint32_t device_count, struct hr_error *err)
{
    int code = check_item_size(request, index, err);
    if (code)
        return code;
    const struct hr_item *item = hr_request_item(request, index);
    if (item->tensor_index >= request->tensor_count)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: its tensor index is %zu, but there are %zu tensors", index,
                       item->tensor_index, request->tensor_count);
    const struct hr_tensor *tensor = &request->tensors[item->tensor_index];
    assert(tensor->file_index < request->file_count);
    if (item->reserved)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: its reserved field must be 0", index);
    else if (item->device_index >= device_count)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: its device index is %u, but the loader has %u device(s)",
                       index, item->device_index, device_count);
    else
        code = check_dtype(item, tensor, err);
    if (code)
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    return code;
}

static int check_request(const struct hr_request *request, uint32_t device_count, size_t *ret_pool_words,
                         struct hr_error *err)
{
    size_t words = 0;
    if (request->item_count && !request->items)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "there are %zu items, but their array is NULL", request->item_count);
    for (size_t i = 0; i < request->item_count; i++) {
        int code = check_item(request, i, device_count, err);
        if (code)
            return code;
        const struct hr_item *item = hr_request_item(request, i);
        if (__builtin_add_overflow(words, hr_geometry_words(&request->tensors[item->tensor_index], item), &words))
            return hr_fail_memory(err, UINT64_MAX, "the shapes of a plan");
    }
    *ret_pool_words = words;
    return 0;
}

static int items_make(struct hr_plan *plan, const struct hr_request *request, struct hr_error *err)
{
    uint64_t *pool = plan->pool;
    for (size_t i = 0; i < request->item_count; i++) {
        const struct hr_item *item = hr_request_item(request, i);
        const struct hr_tensor *tensor = &request->tensors[item->tensor_index];
        struct hr_plan_item *made = &plan->items[i];
        int code = hr_geometry_make(tensor, item, i, &pool, made, err);
        if (code) {
            hr_error_in_tensor(err, tensor->name, tensor->name_size);
            return code;
        }
        made->tensor_index = item->tensor_index;
        made->file_index = tensor->file_index;
        made->into = item->into;
        made->device_index = item->device_index;
        made->way = hr_way_choose(made);
        plan->cast_bytes += hr_plan_is_cast(made) ? made->bytes : 0;
        if (__builtin_add_overflow(plan->bytes, made->bytes, &plan->bytes) || plan->bytes > INT64_MAX ||
            __builtin_add_overflow(plan->target_bytes, made->target_bytes, &plan->target_bytes) ||
            plan->target_bytes > INT64_MAX)
            return hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: with it the request exceeds 63 bits of bytes", i);
    }
    return 0;
}

/* Groups follow their keys; within them, and without keys, items follow the files. */
static struct hr_sort_key order_key(const struct hr_plan *plan, size_t index)
{
    const struct hr_plan_item *item = &plan->items[index];
    uint64_t key = plan->options.group_keys ? plan->options.group_keys[index] : 0;
    return (struct hr_sort_key){key * plan->file_count + item->file_index, item->source_offset, index};
}

static int order_make(struct hr_plan *plan, struct hr_error *err)
{
    size_t count = plan->item_count;
    int is_sorted = 1; /* most requests name tensors in the order of the checkpoint */
    for (size_t i = 0; i < count; i++)
        plan->order[i] = i;
    for (size_t i = 1; i < count && is_sorted; i++) {
        struct hr_sort_key a = order_key(plan, i - 1), b = order_key(plan, i);
        is_sorted = a.major < b.major || (a.major == b.major && a.minor <= b.minor);
    }
    if (is_sorted)
        return 0;
    struct hr_sort_key *keys = hr_alloc_array(count, 2 * sizeof *keys);
    if (!keys)
        return hr_fail_memory(err, (uint64_t)count * 2 * sizeof *keys, "the order of a plan");
    for (size_t i = 0; i < count; i++)
        keys[i] = order_key(plan, i);
    const struct hr_sort_key *sorted = hr_sort_keys(keys, count);
    for (size_t i = 0; i < count; i++)
        plan->order[i] = sorted[i].index;
    hr_free(keys);
    return 0;
}

/* Most bytes of a group of more than one item: four groups fit a window, so that reading and handing out overlap. */
static uint64_t group_limit(const struct hr_plan_options *options)
{
    uint64_t limit = options->arena_bytes;
    if (options->window_bytes) {
        uint64_t quarter = options->window_bytes / 4 ? options->window_bytes / 4 : 1;
        limit = quarter < limit ? quarter : limit;
    }
    return limit;
}

/* Puts an item behind the others of its group, if that stays within `limit`; 0 when it does not fit. */
static int group_add(struct hr_plan_group *group, struct hr_plan_item *item, size_t key, uint64_t limit,
                     uint32_t ownership)
{
    uint64_t bytes = item->into ? 0 : item->target_bytes;
    uint64_t begin = group->window_bytes;
    if (ownership == HR_OWN_ARENA)
        begin = (begin + HR_TENSOR_ALIGNMENT - 1) / HR_TENSOR_ALIGNMENT * HR_TENSOR_ALIGNMENT;
    if (group->item_count &&
        (group->device_index != item->device_index || group->key != key || (bytes && begin + bytes > limit)))
        return 0;
    group->key = key;
    if (bytes)
        group->window_bytes = begin + bytes;
    if (bytes && ownership == HR_OWN_ARENA)
        item->target_offset = begin;
    group->arena_bytes = ownership == HR_OWN_ARENA ? group->window_bytes : 0;
    group->device_index = item->device_index;
    group->item_count++;
    return 1;
}

/* Fills `groups`, or with NULL only counts them. Items get the same places each time. */
static size_t groups_fill(struct hr_plan *plan, struct hr_plan_group *groups)
{
    uint64_t limit = group_limit(&plan->options);
    struct hr_plan_group group = {0};
    size_t count = 0;
    for (size_t i = 0; i < plan->item_count; i++) {
        struct hr_plan_item *item = &plan->items[plan->order[i]];
        size_t key = plan->options.group_keys ? plan->options.group_keys[plan->order[i]] : 0;
        if (count == 0 || !group_add(&group, item, key, limit, plan->options.ownership)) {
            group = (struct hr_plan_group){.order_first = i};
            group_add(&group, item, key, limit, plan->options.ownership);
            count++;
        }
        item->group_index = count - 1;
        if (groups)
            groups[count - 1] = group;
    }
    return count;
}

static int groups_make(struct hr_plan *plan, struct hr_error *err)
{
    size_t count = groups_fill(plan, NULL);
    plan->groups = hr_alloc_array(count, sizeof *plan->groups);
    if (!plan->groups)
        return hr_fail_memory(err, (uint64_t)count * sizeof *plan->groups, "the groups of a plan");
    plan->group_count = groups_fill(plan, plan->groups);
    return 0;
}

/* What the plan's chunks have at most. */
static uint64_t chunk_bytes(const struct hr_plan *plan)
{
    uint64_t most = plan->options.chunk_bytes;
    int is_short = plan->bytes / most < (uint64_t)HR_CHUNK_SHORT_COUNT * plan->options.reader_count;
    return is_short && most > HR_CHUNK_BYTES_SHORT ? HR_CHUNK_BYTES_SHORT : most;
}

int hr_plan_make(const struct hr_tensor *tensors, size_t tensor_count, size_t file_count, const struct hr_item *items,
                 size_t item_count, const struct hr_plan_options *options, struct hr_plan *ret_plan,
                 struct hr_error *err)
{
    assert(options->chunk_bytes > 0 && options->chunk_bytes <= HR_CHUNK_BYTES_MAX);
    struct hr_request request = {tensors, tensor_count, file_count, items, item_count};
    struct hr_plan plan = {.item_count = item_count, .file_count = file_count, .options = *options};
    size_t pool_words = 0;
    int code = check_request(&request, options->device_count, &pool_words, err);
    if (code)
        return code;
    plan.items = hr_alloc_array(item_count, sizeof *plan.items);
    plan.order = hr_alloc_array(item_count, sizeof *plan.order);
    plan.pool = hr_alloc_array(pool_words, sizeof(uint64_t));
    if (!plan.items || !plan.order || !plan.pool)
        code = hr_fail_memory(err, (uint64_t)item_count * sizeof *plan.items, "the items of a plan");
    if (!code)
        code = items_make(&plan, &request, err);
    plan.options.chunk_bytes = chunk_bytes(&plan);
    if (!code)
        code = order_make(&plan, err);
    if (!code)
        code = groups_make(&plan, err);
    if (!code && options->group_world > 1)
        code = hr_spread_make(&plan, &request, err);
    if (!code)
        code = hr_chunks_make(&plan, err);
    if (code) {
        hr_plan_release(&plan);
        return code;
    }
    plan.options.group_keys = NULL;
    *ret_plan = plan;
    return 0;
}
