/*
 * describe.h: a plan as text, for people and for programs. Pure: what a plan does not know (the route, threads)
 * comes as plain facts from the engine.
 */
#ifndef HR_PLAN_DESCRIBE_H
#define HR_PLAN_DESCRIBE_H

#include "plan/plan.h"

/* What the engine would do with the plan. Texts are borrowed during the call. */
struct hr_plan_facts {
    const char *route;        /* "pread" */
    const char *route_reason; /* one line */
    uint32_t thread_count, queue_depth;
    uint64_t staging_bytes;     /* of all bounce buffers, and of pinned memory at most */
    const char *placement;      /* one line; NULL without GPUs */
    const char *const *devices; /* the names of the plan's devices; NULL: not told */
};

/*
 * `format` is enum hr_plan_format. The text belongs to the caller, who frees it with hr_string_free(). JSON holds
 * every file, group, chunk and piece; text is a summary of a few lines and one line a file.
 */
int hr_plan_to_text(const struct hr_plan *plan, const struct hr_tensor *tensors, const struct hr_file *files,
                    const struct hr_plan_facts *facts, uint32_t format, char **ret_text, struct hr_error *err);

#endif
