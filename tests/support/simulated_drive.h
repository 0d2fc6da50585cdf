/*
 * simulated_drive.h: storage in virtual time. An operation waits for its turn at a pipe of some bandwidth, takes its
 * share of it, and is delayed by a latency on top, in which others may use the pipe. Pure and deterministic: events in
 * the order of time, no threads, no clock; what is random follows from the seed.
 */
#ifndef TESTS_SUPPORT_SIMULATED_DRIVE_H
#define TESTS_SUPPORT_SIMULATED_DRIVE_H

#include <stdint.h>

#define DRIVE_OPERATION_MAX 8192

/* What a drive is like. May be changed while it runs; what was begun keeps its time. */
struct drive_model {
    double latency_ns;
    double bandwidth; /* bytes a ns, which is GB/s */
    double jitter;    /* latency is anything from 1 - jitter to 1 + jitter times latency_ns; 0 to 1 */
    double tail;      /* this part of operations takes tail_factor times the latency; 0 to 1 */
    double tail_factor;
    double optimum_bytes; /* with more than that in flight the bandwidth falls: at twice that to 1 / (1 + harm) */
    double harm;
};

struct drive_operation {
    uint64_t bytes, begin_ns, end_ns, serial;
};

struct simulated_drive {
    struct drive_model model;
    uint64_t random;
    double free_ns; /* when the pipe has done what was given to it */
    uint64_t in_flight, serial;
    uint32_t count;
    struct drive_operation heap[DRIVE_OPERATION_MAX]; /* the one that ends first is on top */
};

void drive_init(struct simulated_drive *drive, const struct drive_model *model, uint64_t seed);
void drive_begin(struct simulated_drive *drive, uint64_t bytes, uint64_t now_ns);
/* The operation that ends next, which is at its end_ns; something is in flight. */
struct drive_operation drive_end_next(struct simulated_drive *drive);
/* From 0 to below 1. */
double drive_random(uint64_t *state);

#endif
