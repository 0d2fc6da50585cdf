/*
 * compare.h: what a load holds, read back from where it is and compared with the files.
 */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include <headrace/headrace.h>

struct compared {
    uint64_t items, bytes;
};

/*
 * The load's items must be all tensors of the checkpoint, in its order, converted or not. Compares some bytes of some tensors, with `all`
 * all bytes of all. Dies where they differ.
 */
struct compared compare_load(struct hr_load *load, const struct hr_checkpoint *checkpoint, int all);

#endif
