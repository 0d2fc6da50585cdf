/*
 * reaper.c: frees device memory for threads that must not block: freeing waits for the device's kernels, and a graph
 * capture may forbid it for a while.
 *
 * Invariants: what is on the list is freed exactly once, by whoever takes it off. The thread holds a reference to the
 * device and ends when the list is empty; without a thread (it could not be started) the list waits for the next one,
 * for a drain, or for the device's end. The lock is never held across a driver call. After a drain no thread of the
 * reaper runs any more, unless it got new work.
 */
#include <pthread.h>
#include <time.h>

#include "base/sys.h"
#include "device/cuda_device.h"

/* A capture lasts milliseconds to seconds. */
#define RETRY_NS_MAX 50000000

int hr_reaper_init(struct hr_reaper *reaper)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes))
        return -1;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int result = pthread_cond_init(&reaper->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (result)
        return -1;
    pthread_mutex_init(&reaper->lock, NULL);
    return 0;
}

void hr_reaper_release(struct hr_reaper *reaper)
{
    pthread_cond_destroy(&reaper->changed);
    pthread_mutex_destroy(&reaper->lock);
}

/* Sleeps; nobody has to wake it. */
static void pause_for(struct hr_reaper *reaper, long duration_ns)
{
    uint64_t end_ns = hr_sys->clock_ns() + (uint64_t)duration_ns;
    struct timespec until = {(time_t)(end_ns / 1000000000u), (long)(end_ns % 1000000000u)};
    pthread_mutex_lock(&reaper->lock);
    while (pthread_cond_timedwait(&reaper->changed, &reaper->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&reaper->lock);
}

static void free_one(struct hr_device *device, struct hr_reaped *reaped)
{
    long pause_ns = 1000000;
    while (!hr_cuda_free(device, reaped->memory)) {
        pause_for(&device->reaper, pause_ns);
        pause_ns = pause_ns < RETRY_NS_MAX / 2 ? pause_ns * 2 : RETRY_NS_MAX;
    }
    hr_free(reaped);
}

/* Under the lock, which is dropped while memory is freed. */
static void free_list(struct hr_device *device)
{
    struct hr_reaper *reaper = &device->reaper;
    while (reaper->list) {
        struct hr_reaped *reaped = reaper->list;
        reaper->list = reaped->next;
        reaper->freeing_count++;
        pthread_mutex_unlock(&reaper->lock);
        free_one(device, reaped);
        pthread_mutex_lock(&reaper->lock);
        reaper->freeing_count--;
        pthread_cond_broadcast(&reaper->changed);
    }
}

/* The reference goes under the lock, so that whoever drains and lets go afterwards is the last. */
static void *reaper_main(void *argument)
{
    struct hr_device *device = argument;
    struct hr_reaper *reaper = &device->reaper;
    pthread_mutex_lock(&reaper->lock);
    free_list(device);
    int is_last = !hr_cuda_unref_unless_last(device);
    reaper->has_thread = 0;
    pthread_cond_broadcast(&reaper->changed);
    pthread_mutex_unlock(&reaper->lock); /* if it is not the last, the device may be gone from here on */
    if (is_last)
        hr_cuda_unref(device);
    return NULL;
}

void hr_reaper_drain(struct hr_device *device)
{
    struct hr_reaper *reaper = &device->reaper;
    pthread_mutex_lock(&reaper->lock);
    free_list(device);
    while (reaper->freeing_count || reaper->has_thread)
        pthread_cond_wait(&reaper->changed, &reaper->lock);
    pthread_mutex_unlock(&reaper->lock);
}

void hr_reaper_add(struct hr_device *device, void *memory, uint64_t bytes)
{
    struct hr_reaper *reaper = &device->reaper;
    pthread_t thread;
    struct hr_reaped *reaped = hr_alloc(sizeof *reaped);
    if (!reaped) { /* better late than never */
        hr_device_free(device, memory, bytes);
        return;
    }
    *reaped = (struct hr_reaped){.memory = memory, .bytes = bytes};
    pthread_mutex_lock(&reaper->lock);
    reaped->next = reaper->list;
    reaper->list = reaped;
    int starts = !reaper->has_thread;
    reaper->has_thread = 1;
    pthread_mutex_unlock(&reaper->lock);
    if (!starts)
        return;
    hr_device_ref(device);
    if (hr_sys->thread_start(&thread, reaper_main, device) == 0) {
        pthread_detach(thread);
        return;
    }
    pthread_mutex_lock(&reaper->lock);
    reaper->has_thread = 0;
    pthread_cond_broadcast(&reaper->changed);
    pthread_mutex_unlock(&reaper->lock);
    hr_device_unref(device);
}
