/*
 * dlpack.h: tensors for other libraries, by the DLPack protocol, in both forms: DLManagedTensor (what JAX takes) and
 * DLManagedTensorVersioned (1.x). The layout of the structs is the protocol's ABI, declared here anew from its
 * specification (dmlc/dlpack, version 1.0); only what headrace fills is named.
 */
#ifndef HR_ENGINE_DLPACK_H
#define HR_ENGINE_DLPACK_H

#include <headrace/headrace.h>

#include "engine/block.h"

/*
 * Exports a view. `block` is what keeps its memory alive and gets a reference, or NULL for the caller's memory.
 * *ret_managed_tensor is a DLManagedTensor * (major 0) or a DLManagedTensorVersioned * (major 1); its deleter may
 * be called on any thread. F4 leaves with two elements a lane pair and half the last dimension.
 */
int hr_dlpack_export(const struct hr_view *view, struct hr_block *block, uint32_t major, void **ret_managed_tensor,
                     struct hr_error *err);

#endif
