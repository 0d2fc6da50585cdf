/*
 * spreader_make.c: what a spreader needs, made before the ranks meet: from then on nothing is allocated.
 */
#include "engine/spreader_state.h"

#include "base/error.h"
#include "base/sys.h"

/* The placing kernel may read a little on either side. */
#define SLACK_BYTES HR_TENSOR_ALIGNMENT
_Static_assert(SLACK_BYTES >= HR_PLACE_SLACK, "what the placing kernel may read lies in the allocation");

static int is_host(const struct hr_spreader *s)
{
    return hr_device_is_host(s->device);
}

static uint64_t statuses_bytes(const struct hr_spreader *s)
{
    return (uint64_t)s->spread->world * HR_SPREAD_STATUS_BYTES;
}

static int make_memory(struct hr_spreader *s, struct hr_error *err)
{
    const struct hr_spread *spread = s->spread;
    int code = 0;
    s->memory_bytes = hr_spread_memory(spread) + 2 * SLACK_BYTES;
    if (!s->group->alloc)
        code = hr_device_alloc(s->device, s->memory_bytes, &s->base, err);
    else if (!(s->base = s->group->alloc(s->group->context, s->memory_bytes)))
        code = hr_fail_memory(err, s->memory_bytes, "sending and receiving, by the group's alloc");
    if (code < 0)
        return code;
    s->memory = (char *)s->base + SLACK_BYTES;
    s->buffers = s->memory + (spread->slot_count + spread->spare_slots) * spread->slot_bytes;
    char *statuses = s->buffers + spread->buffer_count * spread->buffer_bytes;
    for (uint32_t f = 0; f < spread->depth; f++)
        s->flights[f].gathered = statuses + f * statuses_bytes(s);
    return 0;
}

/* One pinned block: statuses that are sent, statuses that came, tables. */
static int make_block(struct hr_spreader *s, struct hr_error *err)
{
    const struct hr_spread *spread = s->spread;
    size_t status_count = SLOT_ROUNDS * spread->slot_count;
    uint64_t slots = status_count * (HR_SPREAD_STATUS_BYTES + sizeof(struct hr_move));
    uint64_t table = HR_GROUP_MOVES_MAX * sizeof(struct hr_move);
    char detail[1];
    int code = hr_staging_block_make(s->device, slots + spread->depth * (statuses_bytes(s) + 2 * table),
                                     s->load->loader->placement.node, &s->block, detail, sizeof detail, err);
    if (code < 0)
        return code;
    char *next = s->block.memory + slots;
    s->slot_statuses = (struct hr_group_status *)s->block.memory;
    s->slot_moves = (struct hr_move *)(s->slot_statuses + status_count);
    for (uint32_t f = 0; f < spread->depth; f++, next += statuses_bytes(s) + 2 * table) {
        s->flights[f].statuses = (struct hr_group_status *)next;
        s->flights[f].moves = (struct hr_move *)(next + statuses_bytes(s));
        s->flights[f].pack_moves = s->flights[f].moves + HR_GROUP_MOVES_MAX;
    }
    return 0;
}

static int make_fences(struct hr_spreader *s, struct hr_error *err)
{
    int code = hr_fence_new(s->device, &s->status_fence, err);
    for (uint32_t f = 0; code == 0 && f < s->spread->depth; f++) {
        code = hr_fence_new(s->device, &s->flights[f].fence, err);
        if (code == 0)
            code = hr_fence_new(s->device, &s->flights[f].pack_fence, err);
    }
    return code;
}

static int make_lanes(struct hr_spreader *s, struct hr_error *err)
{
    s->slot_lanes = hr_alloc_array(s->spread->slot_count, sizeof s->slot_lanes[0]);
    if (!s->slot_lanes)
        return hr_fail_memory(err, s->spread->slot_count * sizeof s->slot_lanes[0], "the lanes of a group");
    int code = hr_lane_open(s->device, &s->lane, err);
    for (size_t i = 0; code == 0 && i < s->spread->slot_count; i++)
        code = hr_lane_open(s->device, &s->slot_lanes[i], err);
    return code;
}

int hr_spreader_make_all(struct hr_spreader *s, struct hr_error *err)
{
    s->scratch = hr_alloc_array(s->spread->scratch_words, sizeof *s->scratch);
    int code = s->scratch ? make_memory(s, err)
                          : hr_fail_memory(err, s->spread->scratch_words * sizeof *s->scratch, "the parts of a group");
    if (code == 0 && !is_host(s))
        code = make_lanes(s, err);
    if (code == 0 && !is_host(s))
        code = make_fences(s, err);
    if (code == 0 && !is_host(s))
        code = make_block(s, err);
    return code;
}

static void free_fences(struct hr_spreader *s)
{
    hr_fence_free(s->status_fence);
    for (uint32_t f = 0; f < s->spread->depth; f++) {
        hr_fence_free(s->flights[f].fence);
        hr_fence_free(s->flights[f].pack_fence);
    }
}

/* Lanes first: closing them waits for what uses the rest. */
void hr_spreader_release_all(struct hr_spreader *s)
{
    for (size_t i = 0; s->slot_lanes && i < s->spread->slot_count; i++)
        hr_lane_close(s->slot_lanes[i]);
    hr_free(s->slot_lanes);
    hr_lane_close(s->lane);
    free_fences(s);
    if (s->block.memory)
        hr_staging_block_free(s->device, &s->block);
    if (s->base && s->group->free)
        s->group->free(s->group->context, s->base);
    else if (s->base)
        hr_device_free(s->device, s->base, s->memory_bytes);
    hr_free(s->scratch);
}
