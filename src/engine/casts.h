/*
 * casts.h: which of a load's devices convert by themselves. Where one cannot, readers do it (send_converted.c); for a
 * route whose bytes never come to the host there is nobody else.
 */
#ifndef HR_ENGINE_CASTS_H
#define HR_ENGINE_CASTS_H

#include "engine/load.h"

/* Has the devices that will convert load what they need for it, since that would wait for their work later. */
void hr_casts_prepare(struct hr_load *load);
/* Whether all of them can convert what is in their memory already; else `detail` says why not. */
int hr_casts_on_device(const struct hr_load *load, char *detail, size_t capacity);
/* Who converts, as hr_stats.conversion. */
void hr_casts_describe(const struct hr_load *load, char *text, size_t capacity);

#endif
