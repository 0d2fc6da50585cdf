/*
 * stream_group.h: the collectives of a thread_group on fake GPUs in the order of streams, as NCCL's are: a call returns
 * once it is in the stream, and there ranks wait for each other, so many windows are in flight at once and a rank can be
 * late on its device alone.
 */
#ifndef TESTS_SUPPORT_STREAM_GROUP_H
#define TESTS_SUPPORT_STREAM_GROUP_H

#include "support/thread_group.h"

/* 0, or 1: the call could not be put into the stream. `is_late`: the rank comes 0.5 s late, on its device. */
int stream_all_gather(struct thread_rank *rank, const void *send, void *receive, uint64_t bytes, int is_late);
int stream_scatter(struct thread_rank *rank, const void *send, void *receive, uint64_t bytes, uint32_t root,
                   int is_late);
/* Frees what the calls needed; the stream has ended. */
void stream_group_end(struct thread_rank *rank);

#endif
