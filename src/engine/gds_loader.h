/*
 * gds_loader.h: the rings of device memory of a loader, and whether a load should be read into them. What is read is
 * gds_read.h's business.
 */
#ifndef HR_ENGINE_GDS_LOADER_H
#define HR_ENGINE_GDS_LOADER_H

#include "engine/load.h"

/*
 * A ring for each GPU of the loader. Where the route was not asked for, only if nvidia-fs is there, and what fails is no
 * error then: the loader goes on without. The loader's chunk size is known.
 */
int hr_loader_open_gds(struct hr_loader *loader, struct hr_error *err);
/* In a forked child (`is_child`) only memory is freed. */
void hr_loader_close_gds(struct hr_loader *loader, int is_child);

/*
 * 1 when all of the load's bytes would come by direct transfers; `reason` says what was found, or begins with
 * "compatibility mode".
 */
int hr_load_is_direct(const struct hr_load *load, char *reason, size_t capacity);
/* What the rings are, for the statistics. */
void hr_loader_describe_gds(const struct hr_loader *loader, char *text, size_t capacity);

#endif
