/*
 * device_map.h: which devices the items of a request go to, by --device-map and --device.
 */
#ifndef CLI_DEVICE_MAP_H
#define CLI_DEVICE_MAP_H

#include <headrace/headrace.h>

#include "options.h"
#include "request.h"

/*
 * Fills the devices that the items use, in the order of the items, and each item's index of its own. Texts are
 * KEY=DEVICE, where KEY is a tensor's name, a pattern, or a module's name, which covers all that is in it ("" covers
 * everything). An exact name goes first, then patterns in their order, then the longest module. What no entry covers
 * goes to `fallback`; where that is NULL it is HR_EINVALID_ARGUMENT. HR_ETENSOR_NOT_FOUND when a pattern matches nothing
 * in the checkpoint; a module may have no tensors.
 */
int device_map_apply(const struct hr_checkpoint *checkpoint, const struct text_list *texts, const char *fallback,
                     struct request *request, struct device_list *ret_devices, struct hr_error *err);

#endif
