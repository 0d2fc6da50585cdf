/*
 * casts.h: whether the GPUs of a load convert by themselves. Where one cannot, readers do it (send_converted.c); for a
 * route whose bytes never come to the host there is nobody else.
 */
#ifndef HR_ENGINE_CASTS_H
#define HR_ENGINE_CASTS_H

#include "engine/load.h"

/* Asks them once, and has them load what they need for it, since later that would wait for their work. */
void hr_casts_prepare(struct hr_load *load);
/* Who converts, as hr_stats.conversion. */
void hr_casts_describe(const struct hr_load *load, char *text, size_t capacity);

#endif
