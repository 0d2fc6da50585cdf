/*
 * send_converted.h: conversions on the host for a device that cannot do them itself.
 */
#ifndef HR_ENGINE_SEND_CONVERTED_H
#define HR_ENGINE_SEND_CONVERTED_H

#include "engine/send.h"

/*
 * Converts a piece on this thread, through *scratch (as of hr_chunk_send()), and has it copied from there, a part at a
 * time. Blocks for the copies.
 */
int hr_send_converted(struct hr_sender *sender, const struct load_item *item, const struct hr_plan_item *planned,
                      const struct hr_plan_piece *piece, struct hr_send_source *source, char **scratch,
                      struct hr_error *err);

#endif
