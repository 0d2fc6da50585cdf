/*
 * cached.h: how much of a checkpoint's files the page cache holds.
 */
#ifndef CLI_CACHED_H
#define CLI_CACHED_H

#include <headrace/headrace.h>

/* A share from 0 to 1 of sampled pages, or -1 when it cannot be told. */
double cached_share(const struct hr_checkpoint *checkpoint);

#endif
