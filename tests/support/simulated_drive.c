/*
 * simulated_drive.c: a pipe, a latency, and a heap of what is in flight.
 */
#include "support/simulated_drive.h"

#include <assert.h>
#include <string.h>

double drive_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ (x >> 31)) >> 11) / (double)(UINT64_C(1) << 53);
}

void drive_init(struct simulated_drive *drive, const struct drive_model *model, uint64_t seed)
{
    memset(drive, 0, sizeof *drive);
    drive->model = *model;
    drive->random = seed;
}

static int ends_before(const struct drive_operation *a, const struct drive_operation *b)
{
    return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->serial < b->serial;
}

static void push(struct simulated_drive *drive, struct drive_operation operation)
{
    uint32_t at = drive->count++;
    assert(drive->count <= DRIVE_OPERATION_MAX);
    for (; at && ends_before(&operation, &drive->heap[(at - 1) / 2]); at = (at - 1) / 2)
        drive->heap[at] = drive->heap[(at - 1) / 2];
    drive->heap[at] = operation;
}

static struct drive_operation pop(struct simulated_drive *drive)
{
    struct drive_operation top = drive->heap[0], last = drive->heap[--drive->count];
    uint32_t at = 0;
    for (uint32_t child = 1; child < drive->count; child = 2 * at + 1) {
        if (child + 1 < drive->count && ends_before(&drive->heap[child + 1], &drive->heap[child]))
            child++;
        if (!ends_before(&drive->heap[child], &last))
            break;
        drive->heap[at] = drive->heap[child];
        at = child;
    }
    drive->heap[at] = last;
    return top;
}

static double latency(struct simulated_drive *drive)
{
    const struct drive_model *model = &drive->model;
    double ns = model->latency_ns * (1 + model->jitter * (2 * drive_random(&drive->random) - 1));
    return drive_random(&drive->random) < model->tail ? ns * model->tail_factor : ns;
}

void drive_begin(struct simulated_drive *drive, uint64_t bytes, uint64_t now_ns)
{
    const struct drive_model *model = &drive->model;
    double bandwidth = model->bandwidth;
    drive->in_flight += bytes;
    if (model->harm > 0 && (double)drive->in_flight > model->optimum_bytes)
        bandwidth /= 1 + model->harm * ((double)drive->in_flight / model->optimum_bytes - 1);
    if (drive->free_ns < (double)now_ns)
        drive->free_ns = (double)now_ns;
    drive->free_ns += (double)bytes / bandwidth;
    push(drive, (struct drive_operation){.bytes = bytes,
                                         .begin_ns = now_ns,
                                         .end_ns = (uint64_t)(drive->free_ns + latency(drive)),
                                         .serial = drive->serial++});
}

struct drive_operation drive_end_next(struct simulated_drive *drive)
{
    assert(drive->count);
    struct drive_operation ended = pop(drive);
    drive->in_flight -= ended.bytes;
    return ended;
}
