/*
 * deliver.c: ready items described, exported and given up.
 */
#include "engine/load.h"

#include <string.h>

#include "base/error.h"
#include "engine/dlpack.h"

/* The item, which must be ready and not dropped; takes the lock and keeps it on success. */
static int lock_ready(struct hr_load *load, size_t item_index, struct load_item **ret_item, struct hr_error *err)
{
    int code = hr_load_check_item(load, item_index, err);
    if (code)
        return code;
    pthread_mutex_lock(&load->lock);
    struct load_item *item = &load->items[item_index];
    if (item->status == ITEM_READY && !item->dropped) {
        *ret_item = item;
        return 0;
    }
    int dropped = item->dropped;
    pthread_mutex_unlock(&load->lock);
    return hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu %s", item_index,
                   dropped ? "was dropped" : "is not ready: wait for it first");
}

static void fill_view(const struct hr_load *load, size_t item_index, struct hr_view *view)
{
    const struct hr_plan_item *planned = &load->plan.items[item_index];
    *view = (struct hr_view){
        .size = sizeof *view,
        .data = load->items[item_index].data,
        .bytes = planned->target_bytes,
        .dtype = planned->dtype,
        .rank = planned->rank,
        .shape = planned->shape,
        .strides = planned->strides,
        .device_index = planned->device_index,
        .device_type = hr_device_info(load->loader->devices[planned->device_index].device)->type,
        .device_ordinal = hr_device_info(load->loader->devices[planned->device_index].device)->ordinal,
    };
}

int hr_load_view(struct hr_load *load, size_t item_index, struct hr_view *ret_view, struct hr_error *err)
{
    struct load_item *item = NULL;
    struct hr_view view;
    if (!ret_view)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the view must be given; ret_view is NULL");
    size_t size = ret_view->size;
    if (size < sizeof ret_view->size)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "hr_view: the member 'size' is %zu; set it to sizeof the struct",
                       size);
    int code = lock_ready(load, item_index, &item, err);
    if (code)
        return code;
    fill_view(load, item_index, &view);
    pthread_mutex_unlock(&load->lock);
    view.size = size;
    memcpy(ret_view, &view, size < sizeof view ? size : sizeof view);
    return 0;
}

int hr_load_take(struct hr_load *load, size_t item_index, uint32_t dlpack_major, void **ret_managed_tensor,
                 struct hr_error *err)
{
    struct load_item *item = NULL;
    struct hr_view view;
    if (!ret_managed_tensor)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the tensor must be given; ret_managed_tensor is NULL");
    int code = lock_ready(load, item_index, &item, err);
    if (code)
        return code;
    fill_view(load, item_index, &view);
    struct hr_block *block = item->block;
    if (block)
        hr_block_ref(block); /* against a drop on another thread */
    pthread_mutex_unlock(&load->lock);
    code = hr_dlpack_export(&view, block, dlpack_major, ret_managed_tensor, err);
    hr_block_unref(block);
    if (code < 0) {
        const struct hr_tensor *tensor = &load->checkpoint->tensors[load->plan.items[item_index].tensor_index];
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    }
    return code;
}

int hr_load_drop(struct hr_load *load, size_t item_index, struct hr_error *err)
{
    struct load_item *item = NULL;
    int code = lock_ready(load, item_index, &item, err);
    if (code)
        return code;
    struct hr_block *block = item->block;
    item->block = NULL;
    item->dropped = 1;
    pthread_mutex_unlock(&load->lock);
    hr_block_unref(block);
    return 0;
}

int hr_load_read(struct hr_load *load, size_t item_index, uint64_t offset, uint64_t bytes, void *ret_bytes,
                 struct hr_error *err)
{
    struct load_item *item = NULL;
    struct hr_view view;
    int code = lock_ready(load, item_index, &item, err);
    if (code)
        return code;
    fill_view(load, item_index, &view);
    struct hr_block *block = item->block;
    if (block)
        hr_block_ref(block); /* against a drop on another thread */
    pthread_mutex_unlock(&load->lock);
    if (offset > view.bytes || bytes > view.bytes - offset)
        code =
            hr_fail(err, HR_EINVALID_ARGUMENT, "item %zu: bytes %llu to %llu were asked for; it has %llu", item_index,
                    (unsigned long long)offset, (unsigned long long)(offset + bytes), (unsigned long long)view.bytes);
    else if (bytes && !ret_bytes)
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "where to put the bytes must be given; ret_bytes is NULL");
    else if (bytes)
        code = hr_device_read(load->loader->devices[view.device_index].device, ret_bytes,
                              (const char *)view.data + offset, bytes, err);
    hr_block_unref(block);
    if (code < 0) {
        const struct hr_plan_item *planned = &load->plan.items[item_index];
        const struct hr_tensor *tensor = &load->checkpoint->tensors[planned->tensor_index];
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
        hr_error_in_file(err, load->checkpoint->files[tensor->file_index].path);
    }
    return code;
}
