/*
 * group.c: records of ranks, compared. Whatever a rank does wrong or cannot do, the others learn it here by name instead
 * of waiting for it.
 */
#include "engine/group.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/option_struct.h"
#include "base/sys.h"
#include "base/text.h"
#include "plan/spread.h"

_Static_assert(sizeof(struct hr_group_status) == HR_SPREAD_STATUS_BYTES, "a status has its place behind every part");

/* What says that a rank speaks as this version does. */
#define RECORD_MAGIC UINT64_C(0x3270756f72477248)
/* Records that lie on the stack when memory is short: a rank that cannot even hear must not keep others waiting. */
#define RECORDS_ON_STACK 16

struct record {
    uint64_t magic;
    uint32_t rank, world;
    int32_t code;
    uint32_t reserved;
    uint64_t nonce; /* differs from load to load */
    struct hr_group_digests digests;
    uint64_t processors; /* of hr_topology_processors() */
    char text[224];
};

/* ------------------------------------------------------------------------------------- the struct */

static int check(const struct hr_group *group, struct hr_error *err)
{
    if (group->world == 0 || group->world > HR_GROUP_WORLD_MAX || group->rank >= group->world)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "hr_group: rank %u of %u; a group has 1 to %u ranks, counted from 0",
                       group->rank, group->world, HR_GROUP_WORLD_MAX);
    if (!group->exchange || !group->all_gather || !group->scatter)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "hr_group: exchange, all_gather and scatter must be given");
    if (!group->alloc != !group->free)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "hr_group: give both of alloc and free, or none");
    return 0;
}

static int copy(const struct hr_group *given, struct hr_group *ret_group, struct hr_error *err)
{
    int code = hr_options_copy(ret_group, sizeof *ret_group, given, "hr_group", err);
    return code ? code : check(ret_group, err);
}

int hr_group_of(const struct hr_load_options *options, struct hr_group *ret_group, struct hr_error *err)
{
    struct hr_load_options known;
    int code = hr_options_copy(&known, sizeof known, options, "hr_load_options", err);
    if (code == 0 && known.group)
        code = copy(known.group, ret_group, err);
    return code ? code : known.group && ret_group->world > 1;
}

/* ------------------------------------------------------------------------------------- what is said */

/* "file: message", cut: there is not much room. */
static void say(char *text, size_t capacity, const struct hr_error *cause)
{
    char line[sizeof cause->file + sizeof cause->message + sizeof "; file "];
    snprintf(line, sizeof line, "%s%s%s", cause->message, cause->file[0] ? "; file " : "", cause->file);
    hr_escape(text, capacity, line, strlen(line));
}

int hr_group_fail(const struct hr_group *group, const char *what, struct hr_error *err)
{
    const char *why = group->failure ? group->failure(group->context) : NULL;
    return hr_fail(err, HR_EGROUP_ERROR, "%s failed%s%s", what, why ? ": " : "; the transport gives no reason",
                   why ? why : "");
}

/* ---------------------------------------------------------------------------------------- the meeting */

/* The ranks of which `differs` is true, as "rank 1" or "ranks 1, 3, 4, ...". */
static void list_ranks(char *text, size_t capacity, const struct record *records, uint32_t world,
                       int (*differs)(const struct record *first, const struct record *other))
{
    size_t used = 0, count = 0;
    text[0] = '\0';
    for (uint32_t r = 1; r < world; r++) {
        if (!differs(&records[0], &records[r]))
            continue;
        if (count++ < 8)
            used += (size_t)snprintf(text + used, capacity - used, "%s%u", count > 1 ? ", " : "", r);
    }
    if (count > 8)
        snprintf(text + used, capacity - used, " and %zu more", count - 8);
}

static int other_table(const struct record *first, const struct record *other)
{
    return first->digests.table != other->digests.table;
}

static int other_items(const struct record *first, const struct record *other)
{
    return first->digests.items != other->digests.items;
}

static int other_windows(const struct record *first, const struct record *other)
{
    return first->digests.windows != other->digests.windows;
}

/* The first difference that explains the others. */
static int compare(const struct record *records, uint32_t world, struct hr_error *err)
{
    static const struct {
        int (*differs)(const struct record *first, const struct record *other);
        const char *what;
    } tests[] = {
        {other_table, "the checkpoint: names, dtypes, shapes, offsets or sizes of files; let all ranks open the same"},
        {other_items,
         "the items: tensors, ranges, dtypes, shard_dim, shard_world, their order, or a shard_rank that is "
         "not the rank's own; give all ranks the same"},
        {other_windows, "the sizes of windows: give all ranks the same group_bytes and the same kind of device"},
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        char ranks[128];
        list_ranks(ranks, sizeof ranks, records, world, tests[i].differs);
        if (ranks[0])
            return hr_fail(err, HR_EGROUP_ERROR, "rank(s) %s differ from rank 0 in %s", ranks, tests[i].what);
    }
    return 0;
}

static int judge(const struct hr_group *group, const struct record *records, struct hr_error *err)
{
    for (uint32_t r = 0; r < group->world; r++) {
        const struct record *record = &records[r];
        if (record->magic != RECORD_MAGIC)
            return hr_fail(err, HR_EGROUP_ERROR,
                           "rank %u speaks as another version of the library does, or the exchange "
                           "mixed up what was sent",
                           r);
        if (record->rank != r || record->world != group->world)
            return hr_fail(err, HR_EGROUP_ERROR, "what came from rank %u of %u says that it is rank %u of %u", r,
                           group->world, record->rank, record->world);
    }
    for (uint32_t r = 0; r < group->world; r++)
        if (records[r].code)
            return hr_fail(err, HR_EGROUP_ERROR, "rank %u cannot start: %s: %.*s", r, hr_error_kind(records[r].code),
                           (int)sizeof records[r].text - 1, records[r].text);
    return compare(records, group->world, err);
}

static struct record record_of(const struct hr_group *group, const struct hr_error *cause)
{
    struct record own = {.magic = RECORD_MAGIC, .rank = group->rank, .world = group->world};
    own.nonce = hr_sys->clock_ns() ^ (uint64_t)(uintptr_t)&own << 24; /* of threads that begin at once, too */
    if (cause) {
        own.code = cause->code;
        say(own.text, sizeof own.text, cause);
    }
    return own;
}

/* Where the records of all ranks go: `few` when memory is short; NULL when that is too small. */
static struct record *make_records(const struct hr_group *group, struct record *few, struct hr_error *err)
{
    struct record *records = hr_alloc_array(group->world, sizeof *records);
    if (records)
        return records;
    hr_fail_memory(err, group->world * sizeof *records, "records of ranks");
    memset(few, 0, RECORDS_ON_STACK * sizeof *few);
    return group->world <= RECORDS_ON_STACK ? few : NULL;
}

static int tell(const struct hr_group *group, const struct record *own, struct record *records, struct hr_error *err)
{
    if (group->exchange(group->context, own, records, sizeof *own))
        return hr_group_fail(group, "the exchange with the other ranks", err);
    return 0;
}

static struct hr_group_meeting meeting_of(const struct hr_group *group, const struct record *records)
{
    uint64_t processors = records[group->rank].processors;
    struct hr_group_meeting meeting = {XXH3_64bits(records, group->world * sizeof *records), 0};
    for (uint32_t r = 0; r < group->world; r++)
        meeting.neighbour_count += r == group->rank || (processors && records[r].processors == processors);
    return meeting;
}

int hr_group_meet(const struct hr_group *group, const struct hr_group_digests *digests, uint64_t processors,
                  const struct hr_error *cause, struct hr_group_meeting *ret_meeting, struct hr_error *err)
{
    struct record few[RECORDS_ON_STACK];
    struct hr_error memory = {0};
    struct record *records = make_records(group, few, &memory);
    const struct hr_error *own_cause = cause ? cause : memory.code ? &memory : NULL;
    struct record own = record_of(group, own_cause);
    own.digests = *digests;
    own.processors = processors;
    int code = records ? tell(group, &own, records, own_cause ? NULL : err) : 0;
    if (code == 0 && !own_cause)
        code = judge(group, records, err);
    if (code == 0 && !own_cause)
        *ret_meeting = meeting_of(group, records);
    if (records != few)
        hr_free(records);
    if (!cause && own_cause && err)
        *err = memory;
    return own_cause ? own_cause->code : code;
}

int hr_group_decline(const struct hr_group *group, const struct hr_error *cause, struct hr_error *err)
{
    struct hr_group known;
    struct record few[RECORDS_ON_STACK];
    if (!group || !cause || !cause->code)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "a group and the error that is the cause must be given");
    int code = copy(group, &known, err);
    if (code || known.world == 1)
        return code;
    struct record *records = make_records(&known, few, err);
    if (!records)
        return HR_EOUT_OF_MEMORY;
    struct record own = record_of(&known, cause);
    code = tell(&known, &own, records, err);
    if (records != few)
        hr_free(records);
    return code;
}

/* ---------------------------------------------------------------------------------------- statuses */

void hr_group_status_fill(struct hr_group_status *status, uint64_t magic, uint64_t window, uint32_t rank,
                          const struct hr_error *cause)
{
    *status = (struct hr_group_status){.magic = magic, .window = window, .rank = rank};
    if (!cause)
        return;
    status->code = cause->code;
    say(status->text, sizeof status->text, cause);
}

int hr_group_status_check(const struct hr_group_status *status, uint64_t magic, uint64_t window, uint32_t rank,
                          struct hr_error *err)
{
    if (status->magic != magic || status->window != window || status->rank != rank)
        return hr_fail(err, HR_EGROUP_ERROR,
                       "rank %u sent nothing that belongs to this load, or its collective was aborted", rank);
    if (status->code == HR_ECANCELLED)
        return hr_fail(err, HR_EGROUP_ERROR, "rank %u stopped early", rank);
    if (status->code)
        return hr_fail(err, HR_EGROUP_ERROR, "rank %u: %s: %.*s", rank, hr_error_kind(status->code),
                       (int)sizeof status->text - 1, status->text);
    return 0;
}
