/*
 * group.h: what ranks of a process group tell each other: once before a load, and a word with every window of it. It
 * knows neither plans nor devices.
 */
#ifndef HR_ENGINE_GROUP_H
#define HR_ENGINE_GROUP_H

#include <headrace/headrace.h>

/* 1 and the group when the options have one of several ranks; 0 when not; HR_EINVALID_ARGUMENT when it is not valid. */
int hr_group_of(const struct hr_load_options *options, struct hr_group *ret_group, struct hr_error *err);

/* What must be alike on all ranks, apart from each other so that an error can say which is not. */
struct hr_group_digests {
    uint64_t table, items, windows;
};

struct hr_group_meeting {
    uint64_t magic;           /* that all ranks get, and no other load of theirs */
    uint32_t neighbour_count; /* ranks on the same processors as this one, which counts */
};

/*
 * Tells the other ranks that this one is ready (`cause` NULL), or why it cannot start, and hears the same of them. Blocks
 * for them. HR_EGROUP_ERROR, which names the ranks, when some rank cannot start, when ranks differ, or when the exchange
 * fails. With `cause` its code, and *err is untouched. `processors`: as of hr_topology_processors().
 */
int hr_group_meet(const struct hr_group *group, const struct hr_group_digests *digests, uint64_t processors,
                  const struct hr_error *cause, struct hr_group_meeting *ret_meeting, struct hr_error *err);

/* HR_EGROUP_ERROR with what the transport says. `what` could not be done. */
int hr_group_fail(const struct hr_group *group, const char *what, struct hr_error *err);

/* A rank's word in a window: HR_SPREAD_STATUS_BYTES in all. */
struct hr_group_status {
    uint64_t magic, window;
    int32_t code; /* 0, or that of the error that ends its load */
    uint32_t rank;
    char text[232];
};

/* `cause` NULL: all is well. */
void hr_group_status_fill(struct hr_group_status *status, uint64_t magic, uint64_t window, uint32_t rank,
                          const struct hr_error *cause);
/* 0, or HR_EGROUP_ERROR with what rank `rank` said, or that it said nothing that belongs here. */
int hr_group_status_check(const struct hr_group_status *status, uint64_t magic, uint64_t window, uint32_t rank,
                          struct hr_error *err);

#endif
