/*
 * staging.c: blocks of slots, a list of free slots, and a count of slots that exist or are being made.
 *
 * Invariants: slot_count never exceeds slot_max, nor that slot_limit; a slot is either in the free list or in somebody's
 * hands; early_max() of them at most are taken early.
 */
#include "engine/staging.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"

/* One block: its slots' memory, then their tables of moves. */
struct staging_piece {
    struct hr_staging_block block;
    struct staging_piece *next;
    size_t slot_count, free_count;
    struct hr_staging_slot slots[];
};

struct hr_staging {
    struct hr_device *device; /* holds a reference */
    uint64_t slot_bytes;
    size_t slot_limit; /* that its bytes allow */
    int node;          /* that its memory comes from, or -1 */
    pthread_mutex_t lock;
    pthread_cond_t given;
    struct staging_piece *pieces;
    struct hr_staging_slot *free_slots;
    size_t slot_count; /* that exist or are being made, */
    size_t to_come;    /*   of these: that are being made */
    size_t slot_max;   /* slot_limit, or what there was when memory ran short */
    size_t early_count;
    uint64_t bytes;
    _Atomic uint64_t serial_last; /* of slots; pieces are made without the lock */
    uint32_t kind;                /* the worst of its blocks */
    char detail[120];
};

#define TABLE_BYTES (HR_STAGING_MOVES_MAX * sizeof(struct hr_move))

int hr_staging_new(struct hr_device *device, uint64_t slot_bytes, uint64_t bytes, int node,
                   struct hr_staging **ret_staging, struct hr_error *err)
{
    struct hr_staging *staging = hr_alloc(sizeof *staging);
    if (!staging)
        return hr_fail_memory(err, sizeof *staging, "a staging ring");
    staging->slot_bytes = (slot_bytes + HR_CUT_ALIGNMENT - 1) / HR_CUT_ALIGNMENT * HR_CUT_ALIGNMENT; /* tables behind */
    staging->slot_limit = bytes / (staging->slot_bytes + TABLE_BYTES);
    if (staging->slot_limit == 0)
        staging->slot_limit = 1;
    staging->slot_max = staging->slot_limit;
    staging->node = node;
    staging->device = device;
    hr_device_ref(device);
    pthread_mutex_init(&staging->lock, NULL);
    pthread_cond_init(&staging->given, NULL);
    *ret_staging = staging;
    return 0;
}

void hr_staging_free(struct hr_staging *staging)
{
    if (!staging)
        return;
    hr_staging_trim(staging);
    hr_device_unref(staging->device);
    pthread_cond_destroy(&staging->given);
    pthread_mutex_destroy(&staging->lock);
    hr_free(staging);
}

void hr_staging_forget(struct hr_staging *staging)
{
    if (!staging)
        return;
    for (struct staging_piece *piece = staging->pieces, *next; piece; piece = next) {
        next = piece->next;
        hr_free(piece);
    }
    hr_free(staging);
}

/* ----------------------------------------------------------------------------------------- growing */

static uint64_t piece_bytes(const struct hr_staging *staging, size_t slot_count)
{
    return slot_count * (staging->slot_bytes + TABLE_BYTES);
}

/* Where a block is not of the best kind, one of a single slot may be: takes that instead, and its `detail`. */
static void prefer_smaller(struct hr_staging *staging, struct hr_staging_block *block, size_t *slot_count, char *detail)
{
    struct hr_staging_block smaller;
    char said[sizeof staging->detail];
    if (hr_staging_block_make(staging->device, piece_bytes(staging, 1), staging->node, &smaller, said, sizeof said,
                              NULL) < 0)
        return;
    if (smaller.kind == HR_STAGING_REGISTERED) {
        struct hr_staging_block larger = *block;
        *block = smaller;
        smaller = larger;
        *slot_count = 1;
        memcpy(detail, said, sizeof said);
    }
    hr_staging_block_free(staging->device, &smaller);
}

/* `retry`: a smaller piece is better than one of a lesser kind. `detail` is as large as the ring's. */
static int piece_make(struct hr_staging *staging, size_t slot_count, int retry, struct staging_piece **ret_piece,
                      char *detail, struct hr_error *err)
{
    size_t bytes = sizeof(struct staging_piece) + slot_count * sizeof(struct hr_staging_slot);
    struct staging_piece *piece = hr_alloc(bytes);
    if (!piece)
        return hr_fail_memory(err, bytes, "a piece of the staging ring");
    int code = hr_staging_block_make(staging->device, piece_bytes(staging, slot_count), staging->node, &piece->block,
                                     detail, sizeof staging->detail, err);
    if (code < 0) {
        hr_free(piece);
        return code;
    }
    /* pages that stay pinned would be copied for each child of a fork */
    hr_sys->advise(piece->block.memory, piece->block.bytes, MADV_DONTFORK);
    if (retry && slot_count > 1 && piece->block.kind != HR_STAGING_REGISTERED)
        prefer_smaller(staging, &piece->block, &slot_count, detail);
    piece->slot_count = slot_count;
    for (size_t i = 0; i < slot_count; i++) {
        struct hr_staging_slot *slot = &piece->slots[i];
        slot->memory = piece->block.memory + i * staging->slot_bytes;
        slot->buffer = (struct hr_io_buffer){slot->memory, staging->slot_bytes, staging, ++staging->serial_last};
        slot->moves = (struct hr_move *)(piece->block.memory + slot_count * staging->slot_bytes + i * TABLE_BYTES);
        slot->move_capacity = HR_STAGING_MOVES_MAX;
        slot->block = &piece->block;
        slot->piece = piece;
    }
    *ret_piece = piece;
    return 0;
}

static void piece_free(struct hr_staging *staging, struct staging_piece *piece)
{
    hr_staging_block_free(staging->device, &piece->block);
    hr_free(piece);
}

static void push_free(struct hr_staging *staging, struct hr_staging_slot *slot)
{
    slot->piece->free_count++;
    slot->next = staging->free_slots;
    staging->free_slots = slot;
}

static struct hr_staging_slot *pop_free(struct hr_staging *staging)
{
    struct hr_staging_slot *slot = staging->free_slots;
    if (slot) {
        staging->free_slots = slot->next;
        slot->piece->free_count--;
    }
    return slot;
}

/* The lock is held, or nobody knows the ring yet. All of a new piece's slots become free. */
static void piece_add(struct hr_staging *staging, struct staging_piece *piece, const char *detail)
{
    piece->next = staging->pieces;
    staging->pieces = piece;
    staging->bytes += piece->block.bytes;
    if (piece->block.kind >= staging->kind) {
        staging->kind = piece->block.kind;
        snprintf(staging->detail, sizeof staging->detail, "%s", detail);
    }
    for (size_t i = piece->slot_count; i-- > 0;)
        push_free(staging, &piece->slots[i]);
}

/* Makes a piece of slots that were counted already; the lock is held on entry and on return. */
static int grow(struct hr_staging *staging, size_t slot_count, uint64_t *ret_grown, struct hr_error *err)
{
    struct staging_piece *piece = NULL;
    char detail[sizeof staging->detail] = "";
    int retry = staging->kind == HR_STAGING_REGISTERED; /* else it has been tried */
    staging->to_come += slot_count;
    pthread_mutex_unlock(&staging->lock);
    int code = piece_make(staging, slot_count, retry, &piece, detail, err);
    pthread_mutex_lock(&staging->lock);
    staging->to_come -= slot_count;
    if (code == 0) {
        piece_add(staging, piece, detail);
        staging->slot_count -= slot_count - piece->slot_count;
        *ret_grown = piece->block.bytes;
    } else {
        staging->slot_count -= slot_count;
    }
    pthread_cond_broadcast(&staging->given); /* slots, or room to try again */
    return code;
}

int hr_staging_new_on_device(struct hr_device *device, struct hr_gds *gds, struct hr_staging **ret_staging,
                             struct hr_error *err)
{
    uint32_t slot_count = hr_gds_slot_count(gds);
    struct hr_staging *staging = NULL;
    struct staging_piece *piece = NULL;
    char detail[sizeof staging->detail];
    int code = hr_staging_new(device, 0, slot_count * TABLE_BYTES, -1, &staging, err);
    if (code < 0)
        return code;
    code = piece_make(staging, slot_count, 0, &piece, detail, err);
    if (code < 0) {
        hr_staging_free(staging);
        return code;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        piece->slots[i].memory = hr_gds_slot(gds, i);
        piece->slots[i].gds = gds;
        piece->slots[i].gds_index = i;
    }
    staging->slot_count = slot_count;
    piece_add(staging, piece, detail);
    *ret_staging = staging;
    return 0;
}

/* ------------------------------------------------------------------------------------------- slots */

static size_t early_max(size_t slot_count)
{
    size_t others = 1 + slot_count / 8;
    return slot_count > others ? slot_count - others : 0;
}

/* A free slot, if the taker may have it. The lock is held. */
static struct hr_staging_slot *pop_allowed(struct hr_staging *staging, int is_early)
{
    if (is_early && staging->early_count >= early_max(staging->slot_count - staging->to_come))
        return NULL;
    struct hr_staging_slot *slot = pop_free(staging);
    if (slot)
        slot->is_early = (uint8_t)is_early;
    staging->early_count += slot && is_early;
    return slot;
}

int hr_staging_take(struct hr_staging *staging, size_t grow_count, int is_early, struct hr_staging_slot **ret_slot,
                    uint64_t *ret_grown, struct hr_error *err)
{
    int code = 0;
    pthread_mutex_lock(&staging->lock);
    struct hr_staging_slot *slot = pop_allowed(staging, is_early);
    size_t room = staging->slot_max - staging->slot_count;
    if (!slot && room) {
        size_t slot_count = grow_count < room ? grow_count : room;
        staging->slot_count += slot_count;
        code = grow(staging, slot_count, ret_grown, err);
        slot = pop_allowed(staging, is_early);
    }
    if (slot)
        *ret_slot = slot;
    if (code < 0 && staging->slot_count) {
        staging->slot_max = staging->slot_count; /* memory is short: go on with what there is */
        code = 0;
    }
    pthread_mutex_unlock(&staging->lock);
    return slot ? 0 : code < 0 ? code : 1;
}

void hr_staging_give(struct hr_staging *staging, struct hr_staging_slot *slot)
{
    pthread_mutex_lock(&staging->lock);
    staging->early_count -= slot->is_early;
    push_free(staging, slot);
    pthread_cond_broadcast(&staging->given); /* to all: who is woken may find that its load has failed, and take none */
    pthread_mutex_unlock(&staging->lock);
}

void hr_staging_wait(struct hr_staging *staging)
{
    pthread_mutex_lock(&staging->lock);
    while (!staging->free_slots && staging->slot_count == staging->slot_max)
        pthread_cond_wait(&staging->given, &staging->lock);
    pthread_mutex_unlock(&staging->lock);
}

/* Takes a piece's slots out of the list of free ones; all of them are in it. The lock is held. */
static void unlist_slots(struct hr_staging *staging, const struct staging_piece *piece)
{
    struct hr_staging_slot **at = &staging->free_slots;
    while (*at) {
        if ((*at)->piece == piece)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
}

/* Nothing is left of the ring: what was refused to it once may be granted now. The lock is held. */
static void begin_anew(struct hr_staging *staging)
{
    staging->slot_max = staging->slot_limit;
    staging->kind = HR_STAGING_REGISTERED;
    staging->detail[0] = '\0';
}

uint64_t hr_staging_trim(struct hr_staging *staging)
{
    struct staging_piece *unused = NULL;
    uint64_t bytes = 0;
    pthread_mutex_lock(&staging->lock);
    for (struct staging_piece **at = &staging->pieces; *at;) {
        struct staging_piece *piece = *at;
        if (piece->free_count < piece->slot_count ||
            early_max(staging->slot_count - staging->to_come - piece->slot_count) < staging->early_count) {
            at = &piece->next;
            continue;
        }
        unlist_slots(staging, piece);
        *at = piece->next;
        piece->next = unused;
        unused = piece;
        staging->slot_count -= piece->slot_count;
        bytes += piece->block.bytes;
    }
    staging->bytes -= bytes;
    if (staging->slot_count == 0)
        begin_anew(staging);
    pthread_mutex_unlock(&staging->lock);
    for (struct staging_piece *next; unused; unused = next) {
        next = unused->next;
        piece_free(staging, unused);
    }
    return bytes;
}

size_t hr_staging_early_max(const struct hr_staging *staging)
{
    return early_max(staging->slot_limit);
}

uint64_t hr_staging_bytes_max(const struct hr_staging *staging)
{
    return piece_bytes(staging, staging->slot_limit);
}

uint64_t hr_staging_describe(struct hr_staging *staging, char *text, size_t capacity)
{
    static const char *const kinds[] = {"registered huge pages", "pinned memory of the driver", "pageable memory"};
    pthread_mutex_lock(&staging->lock);
    uint64_t bytes = staging->bytes;
    snprintf(text, capacity, "%s%s%s", kinds[staging->kind], staging->detail[0] ? ": " : "", staging->detail);
    pthread_mutex_unlock(&staging->lock);
    return bytes;
}
