/*
 * test_device_faults.c: each call of the driver fails in turn, with an ordinary error and with one that destroys the
 * context; so does each call of the operating system. The error is named, nothing is left behind, and where the device
 * lives on it works afterwards. Needs the fake driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "support/faults.h"
#include "support/gpu_scene.h"
#include "support/make_files.h"
#include "support/test_model.h"

#define BYTES 400000u
#define ROUND_MAX 400
#define ORDINARY 999
#define STICKY 719

/* What one use of a device has made so far. */
struct use {
    struct hr_device *device;
    struct hr_staging_block block;
    struct hr_lane *lane;
    struct hr_fence *fence;
    void *target, *later;
};

/* Two long ranges and small ones, each to where it comes from in the block. */
static size_t fill_moves(const struct use *use, struct hr_move *moves)
{
    size_t count = 0;
    for (size_t at = 0; at < 100000; at += 1000)
        moves[count++] =
            (struct hr_move){(uintptr_t)use->block.memory + at, (uintptr_t)use->target + at, 900, 1, 0, 0, 0};
    moves[count++] = (struct hr_move){
        (uintptr_t)use->block.memory + 100000, (uintptr_t)use->target + 100000, BYTES - 100000, 1, 0, 0, 0};
    return count;
}

static void check_bytes(const unsigned char *found)
{
    for (size_t i = 0; i < BYTES; i++)
        if ((i >= 100000 || i % 1000 < 900) && found[i] != test_byte(5, i))
            fail_msg("byte %zu is %#x, though all calls succeeded", i, found[i]);
}

static int make_all(struct use *use, struct hr_error *err)
{
    char detail[160];
    int code = hr_device_open("cuda", &use->device, err);
    if (!code)
        code = hr_staging_block_make(use->device, BYTES + 65536, -1, &use->block, detail, sizeof detail, err);
    if (!code)
        code = hr_lane_open(use->device, &use->lane, err);
    if (!code)
        code = hr_fence_new(use->device, &use->fence, err);
    if (!code)
        code = hr_device_alloc(use->device, BYTES, &use->target, err);
    if (!code)
        code = hr_device_alloc(use->device, 1000, &use->later, err);
    return code;
}

static int move_all(struct use *use, struct hr_error *err)
{
    static unsigned char found[BYTES];
    struct hr_place_counts counts = {0};
    struct hr_move *moves = (struct hr_move *)(use->block.memory + BYTES);
    test_fill(use->block.memory, 5, 0, BYTES);
    int code = hr_lane_follow(use->lane, NULL, err);
    if (!code)
        code = hr_lane_place(use->lane, &use->block, moves, fill_moves(use, moves), &counts, err);
    if (!code)
        code = hr_fence_put(use->fence, use->lane, err);
    if (!code && (code = hr_fence_poll(use->fence, err)) >= 0)
        code = hr_fence_wait(use->fence, err);
    if (!code)
        code = hr_device_read(use->device, found, use->target, BYTES, err);
    if (!code)
        check_bytes(found);
    return code;
}

/* Lanes are closed first, as whoever wants to free a staging block has to wait for its copies. */
static void end_all(struct use *use)
{
    hr_lane_close(use->lane);
    hr_fence_free(use->fence);
    if (use->device) {
        hr_staging_block_free(use->device, &use->block);
        hr_device_free(use->device, use->target, BYTES);
        hr_device_free_later(use->device, use->later, 1000);
        hr_device_reap(use->device);
    }
    hr_device_unref(use->device);
}

/* A fault scenario. */
static int use_device(void *context, struct hr_error *err)
{
    struct use use = {0};
    (void)context;
    int code = make_all(&use, err);
    if (!code)
        code = move_all(&use, err);
    end_all(&use);
    scene_assert_nothing_live();
    return code;
}

static void assert_named(int code, int driver_code, const struct hr_error *err)
{
    if (code != HR_EDEVICE_ERROR && code != HR_EDEVICE_UNAVAILABLE && code != HR_EOUT_OF_MEMORY)
        fail_msg("%s: %s", hr_error_kind(code), err->message);
    assert_int_equal(err->code, code);
    if (err->driver_code != driver_code || !strstr(err->message, "CUDA_ERROR_"))
        fail_msg("driver code %d, \"%s\"", err->driver_code, err->message);
}

/* Fails the n-th call for n = 1, 2, 3 ... until none is left to fail. */
static void sweep(const char *settings, int driver_code)
{
    const struct scene_fake *fake = scene_need_fake(settings);
    struct hr_error err = {0};
    unsigned long n, failed_count = 0;
    assert_ok(use_device(NULL, &err), err);
    for (n = 1; n < ROUND_MAX; n++) {
        err = (struct hr_error){0};
        fake->fail_nth(n, driver_code);
        int code = use_device(NULL, &err);
        unsigned long fired = fake->fired();
        if (code)
            assert_named(code, driver_code, &err);
        if (!fired)
            break;
        failed_count += code != 0;
        fake->reset();
        assert_int_equal(fake->configure(settings), 0);
        err = (struct hr_error){0};
        assert_ok(use_device(NULL, &err), err);
    }
    assert_in_range(n, 20, ROUND_MAX - 1);
    assert_in_range(failed_count, 8, n);
}

static void test_every_call_fails(void **state)
{
    (void)state;
    sweep("", ORDINARY);
    sweep("", 2);
    sweep("register=refuse", ORDINARY);
    sweep("confidential=1", ORDINARY);
    sweep("no_kernel=1", ORDINARY);
    sweep("register=refuse,pinned=refuse", ORDINARY);
}

static void test_every_call_destroys_the_context(void **state)
{
    (void)state;
    sweep("", STICKY);
    sweep("register=refuse", STICKY);
    sweep("confidential=1", STICKY);
}

/* In each way that a thread can fail to get at the device once, when all is given back: nothing stays behind. */
static void sweep_end(const char *settings, const char *name)
{
    struct fake_cuda_live live;
    struct hr_error err = {0};
    char text[80];
    unsigned long n, fired = 1;
    for (n = 1; fired && n < ROUND_MAX; n++) {
        const struct scene_fake *fake = scene_need_fake(settings);
        struct use use = {0};
        assert_ok(make_all(&use, &err), err);
        assert_ok(move_all(&use, &err), err);
        snprintf(text, sizeof text, "fail_call=%s:%lu:%d", name, n, ORDINARY);
        assert_int_equal(fake->configure(text), 0);
        end_all(&use);
        scene_assert_nothing_live();
        fired = fake->fired();
        fake->live(&live);
        if (live.abandoned_count)
            fail_msg("%s, %s: %ld things stayed", settings, text, live.abandoned_count);
    }
    assert_in_range(n, 6, ROUND_MAX - 1);
}

static void test_end_tries_again(void **state)
{
    static const char *const settings[] = {"", "register=refuse", "confidential=1"};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        sweep_end(settings[i], "cuCtxPushCurrent");
        sweep_end(settings[i], "cuThreadExchangeStreamCaptureMode");
    }
}

static void test_system_calls_fail(void **state)
{
    struct hr_error err = {0};
    (void)state;
    scene_need_fake("");
    assert_ok(use_device(NULL, &err), err);
    assert_true(faults_sweep(FAULT_MEMORY | FAULT_MAP, 0, use_device, NULL) > 2);
    assert_true(faults_sweep(FAULT_THREAD, 0, use_device, NULL) > 0);
}

static void assert_poisoned(int code, const struct hr_error *err)
{
    assert_int_equal(code, HR_EDEVICE_ERROR);
    assert_int_equal(err->driver_code, STICKY);
    if (!strstr(err->message, "cannot use the device any more"))
        fail_msg("\"%s\"", err->message);
}

/* After a fault every call fails at once, names it, and does not ask the driver. */
static void test_after_a_fault(void **state)
{
    const struct scene_fake *fake = scene_need_fake("");
    struct hr_error err = {0};
    struct hr_staging_block block;
    struct hr_lane *lane;
    struct hr_fence *fence;
    struct use use = {0};
    uint64_t free_bytes, total;
    char text[240];
    void *memory;
    (void)state;
    assert_ok(make_all(&use, &err), err);
    fake->fail_nth(2, STICKY);
    assert_true(hr_fence_put(use.fence, use.lane, &err) < 0);
    unsigned long calls = fake->calls();
    assert_poisoned(hr_fence_put(use.fence, use.lane, &err), &err);
    assert_poisoned(hr_fence_poll(use.fence, &err), &err);
    assert_poisoned(hr_fence_wait(use.fence, &err), &err);
    assert_poisoned(hr_fence_new(use.device, &fence, &err), &err);
    assert_poisoned(hr_lane_open(use.device, &lane, &err), &err);
    assert_poisoned(hr_lane_follow(use.lane, NULL, &err), &err);
    assert_poisoned(hr_device_alloc(use.device, 100, &memory, &err), &err);
    assert_poisoned(hr_device_read(use.device, text, use.target, 100, &err), &err);
    assert_poisoned(hr_staging_block_make(use.device, 100, -1, &block, text, sizeof text, &err), &err);
    hr_device_memory(use.device, &free_bytes, &total);
    assert_int_equal(total, 0);
    assert_int_equal(hr_device_kernel(use.device, text, sizeof text), 0);
    assert_non_null(strstr(text, "cannot use the device any more"));
    assert_int_equal(fake->calls(), calls);
    end_all(&use);
    scene_assert_nothing_live();
}

/* A kernel or copy that faults long after it was put into the lane shows at the fence. */
static void test_fault_at_the_fence(void **state)
{
    struct hr_error err = {0};
    struct use use = {0};
    struct hr_place_counts counts = {0};
    (void)state;
    scene_need_fake("");
    assert_ok(make_all(&use, &err), err);
    struct hr_move *moves = (struct hr_move *)(use.block.memory + BYTES);
    size_t count = fill_moves(&use, moves);
    moves[3].target += BYTES; /* behind the end: the kernel writes there */
    assert_ok(hr_lane_place(use.lane, &use.block, moves, count, &counts, &err), err);
    assert_int_equal(counts.kernel_count, 1);
    int code = hr_fence_put(use.fence, use.lane, &err);
    if (!code)
        code = hr_fence_wait(use.fence, &err);
    assert_int_equal(code, HR_EDEVICE_ERROR);
    assert_int_equal(err.driver_code, 700);
    end_all(&use);
    scene_assert_nothing_live();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails),   cmocka_unit_test(test_every_call_destroys_the_context),
        cmocka_unit_test(test_system_calls_fail),  cmocka_unit_test(test_after_a_fault),
        cmocka_unit_test(test_fault_at_the_fence), cmocka_unit_test(test_end_tries_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
