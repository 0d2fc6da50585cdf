/*
 * reader.h: moves chunks. A reader is one thread's io context with as many slots as reads may be in flight;
 * hr_reader_main() is a thread of its own, hr_reader_step() is for a waiting thread that reads by itself.
 */
#ifndef HR_ENGINE_READER_H
#define HR_ENGINE_READER_H

#include "engine/load.h"

struct hr_reader;

/* `index`: among the load's readers; `depth`: reads in flight. */
int hr_reader_new(struct hr_load *load, uint32_t index, uint32_t depth, struct hr_reader **ret_reader,
                  struct hr_error *err);
/* Nothing may be in flight. NULL is allowed. */
void hr_reader_free(struct hr_reader *reader);

/* A thread's main function; the argument is a reader, which it frees. Ends when the load stops. */
void *hr_reader_main(void *argument);

/* Moves one chunk that is queued: 1, or 0 when none is. Errors go to the load. */
int hr_reader_step(struct hr_reader *reader);

#endif
