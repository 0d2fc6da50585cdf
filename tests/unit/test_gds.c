/*
 * test_gds.c: device memory as a source: moves between memories of a device, with the placing kernel and without; and
 * what is called direct transfers, on whole machines given as data.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "device/gds.h"
#include "device/gds_ring.h"
#include "support/gpu.h"
#include "support/gpu_scene.h"
#include "support/test_model.h"

/* ------------------------------------------------------------------------------------------ spread */

static struct scene scene;

static void begin(void)
{
    scene_driver(); /* or skip */
}

static void end(void)
{
    scene_assert_nothing_live();
}

/* Bytes that are on the device already, in the first MiB of the target, and moves from there to the rest. */
static void spread_moves(const struct hr_move *offsets, size_t count, const char *settings)
{
    struct hr_error err = {0};
    if (scene_fake())
        scene_need_fake(settings);
    scene_open(&scene);
    scene_move(&scene, 0, 0, SCENE_SOURCE_BYTES, 1, 0, 0);
    scene_place(&scene);
    scene_check(&scene);
    for (size_t i = 0; i < count; i++) {
        const struct hr_move *move = &offsets[i];
        scene_move(&scene, move->source, SCENE_SOURCE_BYTES + move->target, move->bytes, move->rows, move->source_pitch,
                   move->target_pitch);
        scene.moves[i].source += (uintptr_t)scene.target - (uintptr_t)scene.source;
    }
    struct hr_place_counts counts = {0};
    assert_ok(hr_lane_spread(scene.lane, &scene.block, scene.moves, scene.move_count, &counts, &err), err);
    assert_ok(hr_fence_put(scene.fence, scene.lane, &err), err);
    scene_check(&scene);
    assert_int_equal(counts.bytes_sent, 0);
    assert_true(counts.copy_count + counts.kernel_count > 0);
    if (strstr(settings, "no_kernel"))
        assert_int_equal(counts.kernel_count, 0);
    scene.move_count = 0;
    scene_close(&scene);
}

static void test_spread(void **state)
{
    static const char *const settings[] = {"", "confidential=1", "no_kernel=1", "register=refuse,pinned=refuse"};
    const struct hr_move moves[] = {
        {.source = 64, .target = 0, .bytes = 300000, .rows = 1},
        {.source = 300064, .target = 300000, .bytes = 1000, .rows = 1}, /* goes on where that ends */
        {.source = 500001, .target = 600003, .bytes = 7, .rows = 1},
        {.source = 510000, .target = 700000, .bytes = 33, .rows = 900, .source_pitch = 100, .target_pitch = 40},
        {.source = 610000, .target = 900000, .bytes = 64, .rows = 100, .source_pitch = 64, .target_pitch = -128},
        {.source = 700000, .target = 1000000, .bytes = 4096, .rows = 64, .source_pitch = 4100, .target_pitch = 8192},
    };
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        spread_moves(moves, sizeof moves / sizeof moves[0], settings[i]);
        spread_moves(moves, 1, settings[i]);
        spread_moves(moves + 3, 1, settings[i]);
    }
}

/* -------------------------------------------------------------------------------- direct transfers */

/* A machine: what its system calls say. Texts are those of Linux. */
struct machine {
    int has_nvidia_fs, device_error;
    const char *mounts;
    const char *link; /* of /sys/dev/block/259:2 */
};

static const struct machine *machine;
static struct hr_sys table;

static int machine_stat(const char *path, struct stat *ret_stat)
{
    if (strcmp(path, "/proc/driver/nvidia-fs") == 0)
        return machine->has_nvidia_fs ? 0 : -ENOENT;
    return hr_sys_real.stat(path, ret_stat);
}

static int machine_open(const char *path, int flags)
{
    if (strcmp(path, "/dev/nvidia-fs0") == 0)
        return machine->device_error ? -machine->device_error : hr_sys_real.open("/dev/null", flags);
    if (strcmp(path, "/proc/self/mountinfo") == 0) {
        const char *file = test_path("mountinfo");
        test_raw_write(file, machine->mounts, strlen(machine->mounts));
        return hr_sys_real.open(file, flags);
    }
    return hr_sys_real.open(path, flags);
}

static ssize_t machine_link(const char *path, char *ret_target, size_t capacity)
{
    if (strcmp(path, "/sys/dev/block/259:2") != 0 || !machine->link)
        return -ENOENT;
    assert_true(strlen(machine->link) <= capacity);
    memcpy(ret_target, machine->link, strlen(machine->link));
    return (ssize_t)strlen(machine->link);
}

static void machine_use(const struct machine *used)
{
    machine = used;
    table = hr_sys_real;
    table.stat = machine_stat;
    table.open = machine_open;
    table.link_read = machine_link;
    hr_sys = &table;
}

#define DRIVE_LINK "../../devices/pci0000:00/0000:00:04.0/0000:03:00.0/nvme/nvme0/nvme0n1/nvme0n1p2"
#define MOUNTS                                                                       \
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"                        \
    "35 22 259:2 /data /data rw,noatime shared:2 master:1 - xfs /dev/nvme0n1p2 rw\n" \
    "40 22 0:52 / /net rw - nfs4 server:/x rw,vers=4.2,proto=rdma,port=20049\n"      \
    "41 22 0:53 / /slow rw - nfs4 server:/y rw,vers=4.2,proto=tcp\n"                 \
    "42 22 0:54 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw\n"                        \
    "43 22 0:55 / /tmp rw - tmpfs tmpfs rw\n"

static void check_direct(struct machine used, unsigned version, unsigned control, unsigned storage,
                         unsigned major_number, unsigned minor_number, int expected, const char *said)
{
    struct hr_gds gds = {
        .properties.nvfs = {.major_version = version, .dcontrolflags = control, .dstatusflags = storage}};
    char detail[120];
    machine_use(&used);
    int is_direct = hr_gds_is_direct(&gds, makedev(major_number, minor_number), detail, sizeof detail);
    hr_sys = &hr_sys_real;
    if (is_direct != expected || !strstr(detail, said))
        fail_msg("%d, \"%s\", not %d, \"%s\"", is_direct, detail, expected, said);
}

static void test_direct(void **state)
{
    const struct machine whole = {1, 0, MOUNTS, DRIVE_LINK};
    const unsigned nvme = 1u << 4, nfs = 1u << 2, lustre = 1u << 0, all = ~0u;
    (void)state;
    check_direct(whole, 2, 0, nvme, 259, 2, 1, "xfs");
    check_direct(whole, 2, 1u << 1, nvme, 259, 2, 1, "xfs"); /* it may fall back, but need not */
    check_direct(whole, 2, 0, nfs, 0, 52, 1, "nfs4");
    check_direct(whole, 2, 0, lustre, 0, 54, 1, "lustre");
    check_direct(whole, 2, 0, all & ~nvme, 259, 2, 0, "no support for xfs");
    check_direct(whole, 2, 0, all & ~nfs, 0, 52, 0, "no support for nfs4");
    check_direct(whole, 2, 0, all, 0, 53, 0, "nfs4 without proto=rdma");
    check_direct(whole, 2, 0, all, 8, 1, 0, "ext4 without a local NVMe drive");
    check_direct(whole, 2, 0, all, 0, 55, 0, "tmpfs has no direct transfers");
    check_direct(whole, 2, 0, all, 0, 99, 0, "not known");
    check_direct(whole, 0, 0, all, 259, 2, 0, "has not found nvidia-fs");
    check_direct(whole, 2, 1u << 2, all, 259, 2, 0, "POSIX");
    check_direct((struct machine){0, 0, MOUNTS, DRIVE_LINK}, 2, 0, all, 259, 2, 0, "not loaded");
    check_direct((struct machine){1, EACCES, MOUNTS, DRIVE_LINK}, 2, 0, all, 259, 2, 0,
                 "/dev/nvidia-fs0 cannot be opened");
    check_direct((struct machine){1, 0, MOUNTS, "../../devices/virtual/block/md0"}, 2, 0, all, 259, 2, 0, "NVMe");
    check_direct((struct machine){1, 0, MOUNTS, "../../devices/virtual/nvme-fabrics/ctl/nvme1/nvme1n1"}, 2, 0, all, 259,
                 2, 0, "NVMe");
    check_direct((struct machine){1, 0, "nonsense\n1 2 3\n - \n259:2 - xfs", DRIVE_LINK}, 2, 0, all, 259, 2, 0,
                 "not known");
    check_direct((struct machine){1, 0, "", DRIVE_LINK}, 2, 0, all, 259, 2, 0, "not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {SCENE_TEST(test_spread), cmocka_unit_test(test_direct)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
