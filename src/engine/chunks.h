/*
 * chunks.h: the chunks of a running load: which one is next, and what it means that one has landed or failed. It knows
 * the load's queues and items; nothing of how chunks are moved.
 */
#ifndef HR_ENGINE_CHUNKS_H
#define HR_ENGINE_CHUNKS_H

#include "engine/load.h"

/*
 * Takes the next chunk that nobody took, those of items that somebody waits for first. Before all of them come those that
 * were held at the gate and may go on: then NULL, and *ret_held has one (else its `chunk` is NULL). NULL and none when
 * there is nothing; with `block`, only once the load is stopping, or does not want this reader.
 */
const struct hr_plan_chunk *hr_chunk_take(struct hr_load *load, uint32_t reader_index, int block,
                                          struct held_chunk *ret_held);

/*
 * Puts back what was taken and cannot be begun now: it is the first that is taken again, by whichever reader can. Readers
 * that kept it would let others read what comes behind it.
 */
void hr_chunk_leave(struct hr_load *load, const struct hr_plan_chunk *chunk);

/* What was taken has been read, or will never be. */
void hr_chunk_end(struct hr_load *load, const struct hr_plan_chunk *chunk);

/* The device that a chunk's items are for. */
struct loader_device *hr_chunk_device(const struct hr_load *load, const struct hr_plan_chunk *chunk);

/* Every byte of the chunk is in its place: counts them for its items; those that are complete become ready. */
void hr_chunk_landed(struct hr_load *load, const struct hr_plan_chunk *chunk);

/* Adds to an error where it happened: the file, the offset, and the tensor whose bytes lie there or are the next ones. */
void hr_chunk_locate(const struct hr_load *load, const struct hr_plan_chunk *chunk, uint64_t offset,
                     struct hr_error *err);

#endif
