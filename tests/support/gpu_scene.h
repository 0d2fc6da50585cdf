/*
 * gpu_scene.h: a device with all that placing needs, a model of what its memory must hold, the few entry points of the
 * driver that tests call themselves, and the fake driver's functions. Whatever fails here ends the running cmocka test.
 */
#ifndef TESTS_SUPPORT_GPU_SCENE_H
#define TESTS_SUPPORT_GPU_SCENE_H

#include <stdint.h>

#include "device/device.h"
#include "fake_cuda/cuda_abi.h"
#include "fake_cuda/fake_cuda.h"

/* clang-format off */
#define SCENE_DRIVER_LIST(X)                                                                                    \
    X(cuCtxGetCurrent) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuDevicePrimaryCtxRetain)                 \
    X(cuDevicePrimaryCtxRelease_v2) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize)              \
    X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuGraphDestroy) X(cuLaunchHostFunc)                      \
    X(cuThreadExchangeStreamCaptureMode) X(cuMemsetD8Async) X(cuMemAlloc_v2) X(cuMemFree_v2)                    \
    X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoH_v2)
/* clang-format on */

struct scene_driver {
#define SCENE_MEMBER(name) __typeof__(&name) name;
    SCENE_DRIVER_LIST(SCENE_MEMBER)
#undef SCENE_MEMBER
};

/* The functions of fake_cuda.h. */
struct scene_fake {
    int (*configure)(const char *settings);
    void (*reset)(void);
    void (*fail_nth)(unsigned long n, int code);
    unsigned long (*fired)(void);
    unsigned long (*calls)(void);
    void (*live)(struct fake_cuda_live *ret_live);
};

/* Of the driver that is loaded; skips the running test, with the reason, where there is none. */
const struct scene_driver *scene_driver(void);
/* The same; NULL when the driver is a real one. */
const struct scene_fake *scene_fake(void);
/* The fake driver, reset and with these settings on top; skips the test where the driver is real. */
const struct scene_fake *scene_need_fake(const char *settings);
/* Fails the test when the fake driver has anything alive; nothing with a real one. */
void scene_assert_nothing_live(void);

#define SCENE_SOURCE_BYTES (1u << 20)
#define SCENE_TARGET_BYTES (3u << 20)
#define SCENE_MOVE_MAX 12000u
#define SCENE_GUARD 0x5a

/* Source bytes follow a seed; the target's are SCENE_GUARD until something is placed there. */
struct scene {
    struct hr_device *device;
    struct hr_staging_block block;
    struct hr_lane *lane;
    struct hr_fence *fence;
    char *target;            /* device memory of SCENE_TARGET_BYTES */
    unsigned char *source;   /* in the block, SCENE_SOURCE_BYTES */
    unsigned char *expected; /* of the target */
    struct hr_move *moves;   /* in the block */
    size_t move_count;
    struct hr_place_counts counts;
    char detail[240]; /* of the staging */
};

/* Opens "cuda" and makes everything. */
void scene_open(struct scene *scene);
void scene_close(struct scene *scene);
/* The target is SCENE_GUARD all over again. */
void scene_clear(struct scene *scene);
/* Adds a move, by offsets into source and target, and does it in the model. */
void scene_move(struct scene *scene, size_t source, size_t target, size_t bytes, size_t rows, long source_pitch,
                long target_pitch);
/* Puts the moves into the lane, and a fence after them. */
void scene_place(struct scene *scene);
/* Waits for the fence and holds the whole target against the model. */
void scene_check(struct scene *scene);

/* A stream of the test's own that is busy until it is told to go on; one at a time. */
struct scene_busy {
    CUstream stream;
};
void scene_busy_start(struct scene_busy *busy, unsigned flags);
void scene_busy_go(void);
/* Goes on if need be, waits, and ends it. */
void scene_busy_end(struct scene_busy *busy);

/* The primary context becomes current on this thread, and is retained, until the pop. */
void scene_context_push(void);
void scene_context_pop(void);

/* A test that begins and ends with functions of its file; not by fixtures of cmocka, in which nothing can be skipped. */
struct scene_body {
    void (*begin)(void);
    void (*run)(void **state);
    void (*end)(void);
};
void scene_run(void **state);
/* clang-format off */
#define SCENE_TEST(name) {#name, scene_run, NULL, NULL, &(struct scene_body){begin, name, end}}
/* clang-format on */

#endif
