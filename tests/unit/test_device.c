/*
 * test_device.c: devices by their names, their memory, reading back, and staging of each kind with the reasons. On the
 * fake driver and on a real one; what needs refusals needs the fake.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/gpu_scene.h"
#include "support/make_files.h"
#include "support/test_model.h"

#define SEED 3

static int find(const char *name, struct hr_device_info *ret_info, struct hr_error *err)
{
    *err = (struct hr_error){0};
    memset(ret_info, 0, sizeof *ret_info);
    ret_info->size = sizeof *ret_info;
    return hr_device_find(name, ret_info, err);
}

static void assert_refused(const char *name, int code, const char *text)
{
    struct hr_device *untouched = (struct hr_device *)1, *device = untouched;
    struct hr_device_info info;
    struct hr_error err;
    assert_int_equal(find(name, &info, &err), code);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, text))
        fail_msg("'%s': \"%s\" does not say \"%s\"", name, err.message, text);
    assert_int_equal(hr_device_open(name, &device, NULL), code);
    assert_ptr_equal(device, untouched);
}

/* The driver starts anew when it did not before: this one comes first. */
static void test_no_gpu(void **state)
{
    struct hr_device_info info;
    struct hr_error err;
    (void)state;
    scene_need_fake("driver=none");
    assert_refused("cuda", HR_EDEVICE_UNAVAILABLE, "CUDA_ERROR_NO_DEVICE");
    assert_refused("cuda:0", HR_EDEVICE_UNAVAILABLE, "CUDA_VISIBLE_DEVICES");
    scene_need_fake("driver=803");
    assert_refused("cuda", HR_EDEVICE_UNAVAILABLE, "different versions");
    assert_int_equal(find("auto", &info, &err), 0);
    assert_int_equal(info.type, HR_DEVICE_CPU);
    scene_need_fake("");
    assert_int_equal(find("cuda", &info, &err), 0);
    assert_int_equal(find("auto", &info, &err), 0);
    assert_int_equal(info.type, HR_DEVICE_CUDA);
}

static void test_cpu(void **state)
{
    struct hr_device *device;
    struct hr_device_info info;
    struct hr_error err;
    void *memory;
    char copy[100];
    uint64_t free_bytes = 1, total = 1;
    (void)state;
    assert_int_equal(find("cpu", &info, &err), 0);
    assert_int_equal(info.type, HR_DEVICE_CPU);
    assert_string_equal(info.name, "cpu");
    assert_string_equal(info.uuid, "");
    assert_ok(hr_device_open("cpu", &device, &err), err);
    assert_true(hr_device_is_host(device));
    assert_ok(hr_device_alloc(device, sizeof copy, &memory, &err), err);
    memset(memory, 7, sizeof copy);
    assert_ok(hr_device_read(device, copy, memory, sizeof copy, &err), err);
    assert_memory_equal(copy, memory, sizeof copy);
    hr_device_memory(device, &free_bytes, &total);
    assert_int_equal(total, 0);
    hr_device_free_later(device, memory, sizeof copy);
    hr_device_free(device, NULL, 0);
    hr_device_reap(device);
    hr_device_unref(device);
    hr_device_unref(NULL);
}

static void test_names(void **state)
{
    struct hr_device_info first, same;
    struct hr_error err;
    char text[64];
    (void)state;
    scene_driver();
    assert_ok(find("cuda", &first, &err), err);
    assert_int_equal(first.type, HR_DEVICE_CUDA);
    assert_int_equal(first.ordinal, 0);
    assert_true(first.name[0] && first.memory_bytes && first.compute_major >= 3);
    assert_int_equal(strlen(first.pci), strlen("0000:1b:00.0"));
    assert_int_equal(strlen(first.uuid), strlen("GPU-01234567-0123-0123-0123-0123456789ab"));
    const char *names[] = {"cuda:0", "auto", first.pci, first.uuid};
    for (size_t i = 0; i < 4; i++) {
        assert_ok(find(names[i], &same, &err), err);
        assert_memory_equal(&first, &same, sizeof same);
    }
    snprintf(text, sizeof text, "%s", first.pci);
    for (char *c = text; *c; c++)
        *c = (char)(*c >= 'a' && *c <= 'f' ? *c - 32 : *c);
    assert_ok(find(text, &same, &err), err); /* as the driver and nvidia-smi write it */
    assert_int_equal(same.ordinal, 0);
}

static void test_wrong_names(void **state)
{
    static const char *const nonsense[] = {"",       "gpu",     "cuda:", "cuda:x", "cuda:-1", "cuda:0x", "cuda: 1",
                                           "CUDA:0", "cuda:1 ", "cuda0", "cpu:0",  "rocm",    "::",      "1b"};
    (void)state;
    scene_driver();
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++)
        assert_refused(nonsense[i], HR_EINVALID_ARGUMENT, "names no device");
    assert_refused(NULL, HR_EINVALID_ARGUMENT, "NULL");
    assert_refused("cuda:64", HR_EDEVICE_UNAVAILABLE, "there is no cuda:64");
    assert_refused("cuda:99999999999999999999", HR_EDEVICE_UNAVAILABLE, "there is no cuda:");
    assert_refused("ffff:fe:1f.0", HR_EDEVICE_UNAVAILABLE, "ffff:fe:1f.0");
    assert_refused("GPU-00000000-dead-beef-dead-00000000beef", HR_EDEVICE_UNAVAILABLE, "UUID");
}

static void test_second_device(void **state)
{
    struct hr_device *device;
    struct hr_device_info first, second;
    struct hr_error err;
    (void)state;
    scene_need_fake("devices=2");
    assert_ok(find("cuda:0", &first, &err), err);
    assert_ok(find("cuda:1", &second, &err), err);
    assert_string_not_equal(first.pci, second.pci);
    assert_string_not_equal(first.uuid, second.uuid);
    assert_ok(hr_device_open(second.uuid, &device, &err), err);
    assert_int_equal(hr_device_info(device)->ordinal, 1);
    hr_device_unref(device);
    assert_refused("cuda:2", HR_EDEVICE_UNAVAILABLE, "2 GPUs");
    scene_need_fake("devices=1,mig=1");
    assert_ok(find("cuda", &second, &err), err);
    assert_memory_equal(second.uuid, "MIG-", 4);
    scene_assert_nothing_live();
}

static void test_finding_leaves_no_trace(void **state)
{
    struct hr_device_info info;
    struct hr_error err;
    struct fake_cuda_live live;
    (void)state;
    const struct scene_fake *fake = scene_need_fake("");
    assert_ok(find("cuda:1", &info, &err), err);
    fake->live(&live);
    assert_int_equal(live.retain_count, 0);
    scene_assert_nothing_live();
}

static void test_memory(void **state)
{
    struct hr_device *device;
    struct hr_error err = {0};
    uint64_t free_bytes, total, less;
    void *memory[4];
    (void)state;
    scene_driver();
    assert_ok(hr_device_open("cuda", &device, &err), err);
    assert_false(hr_device_is_host(device));
    hr_device_memory(device, &free_bytes, &total);
    assert_true(free_bytes && free_bytes <= total);
    for (size_t i = 0; i < 4; i++) {
        assert_ok(hr_device_alloc(device, 1 + (i << 23), &memory[i], &err), err);
        assert_int_equal((uintptr_t)memory[i] % 256, 0);
    }
    hr_device_memory(device, &less, &total);
    assert_true(less <= free_bytes - (48u << 20));
    for (size_t i = 0; i < 4; i++)
        hr_device_free(device, memory[i], 1 + (i << 23));
    hr_device_free(device, NULL, 0);
    hr_device_unref(device);
    scene_assert_nothing_live();
}

static void test_out_of_memory(void **state)
{
    struct hr_device *device;
    struct hr_error err = {0};
    void *memory = &memory;
    char text[32];
    (void)state;
    scene_driver();
    assert_ok(hr_device_open("cuda", &device, &err), err);
    uint64_t needed = 4 * hr_device_info(device)->memory_bytes;
    assert_int_equal(hr_device_alloc(device, needed, &memory, &err), HR_EOUT_OF_MEMORY);
    assert_ptr_equal(memory, &memory);
    assert_int_equal(err.driver_code, 2);
    snprintf(text, sizeof text, "%llu", (unsigned long long)needed);
    assert_non_null(strstr(err.message, text));
    assert_non_null(strstr(err.message, "free"));
    assert_ok(hr_device_alloc(device, 4096, &memory, &err), err);
    hr_device_free(device, memory, 4096);
    hr_device_unref(device);
}

/* Whole, in pieces, to memory that is pinned and to memory that is not. */
static void test_read_back(void **state)
{
    struct scene scene;
    struct hr_error err = {0};
    (void)state;
    scene_open(&scene);
    scene_move(&scene, 0, 12345, 100000, 1, 0, 0);
    scene_place(&scene);
    scene_check(&scene);
    unsigned char found[1000];
    assert_ok(hr_device_read(scene.device, found, scene.target + 12345 + 777, sizeof found, &err), err);
    assert_memory_equal(found, scene.source + 777, sizeof found);
    assert_ok(hr_device_read(scene.device, scene.source, scene.target + 12345 + 50000, 1000, &err), err);
    assert_memory_equal(scene.source, scene.source + 50000, 1000);
    assert_ok(hr_device_read(scene.device, found, scene.target, 0, &err), err);
    scene_close(&scene);
    scene_assert_nothing_live();
}

static void check_staging(const char *settings, uint32_t kind, const char *detail)
{
    struct scene scene;
    scene_need_fake(settings);
    scene_open(&scene);
    assert_int_equal(scene.block.kind, kind);
    assert_int_equal((uintptr_t)scene.block.memory % 4096, 0);
    if (detail ? !strstr(scene.detail, detail) : scene.detail[0] != '\0')
        fail_msg("with %s: \"%s\"", settings, scene.detail);
    scene_close(&scene);
    assert_null(scene.block.memory);
    scene_assert_nothing_live();
}

static void test_staging_kinds(void **state)
{
    (void)state;
    check_staging("", HR_STAGING_REGISTERED, NULL);
    check_staging("register=refuse", HR_STAGING_PINNED, "cuMemHostRegister: CUDA_ERROR_OPERATING_SYSTEM (304)");
    check_staging("register=limit:65536", HR_STAGING_PINNED, "CUDA_ERROR_OUT_OF_MEMORY");
    check_staging("register=refuse,pinned=refuse", HR_STAGING_PAGEABLE, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
    check_staging("register=refuse,pinned=refuse", HR_STAGING_PAGEABLE, "cuMemHostRegister");
    check_staging("confidential=1", HR_STAGING_PINNED, "confidential");
}

/* A block that one device made serves another one: it is pinned for all. */
static void test_staging_of_another_device(void **state)
{
    struct scene scene;
    struct hr_device *other;
    struct hr_staging_block block;
    struct hr_error err = {0};
    char detail[160];
    (void)state;
    scene_need_fake("devices=2");
    scene_open(&scene);
    assert_ok(hr_device_open("cuda:1", &other, &err), err);
    assert_ok(hr_staging_block_make(other, scene.block.bytes, -1, &block, detail, sizeof detail, &err), err);
    struct hr_staging_block own = scene.block;
    memcpy(block.memory, own.memory, own.bytes);
    scene.block = block;
    scene.source = (unsigned char *)block.memory;
    scene.moves = (struct hr_move *)(block.memory + SCENE_SOURCE_BYTES);
    for (size_t i = 0; i < 50; i++)
        scene_move(&scene, i * 300, 5 + i * 200, 150, 1, 0, 0);
    scene_move(&scene, 1, 500000, 500000, 1, 0, 0);
    scene_place(&scene);
    scene_check(&scene);
    hr_staging_block_free(other, &block);
    hr_device_unref(other);
    scene.block = own;
    scene_close(&scene);
    scene_assert_nothing_live();
}

static void test_no_kernel_says_why(void **state)
{
    struct hr_device *device;
    struct hr_error err = {0};
    char detail[240];
    (void)state;
    scene_need_fake("no_kernel=1");
    assert_ok(hr_device_open("cuda", &device, &err), err);
    assert_int_equal(hr_device_kernel(device, detail, sizeof detail), 0);
    assert_non_null(strstr(detail, "CUDA_ERROR_NO_BINARY_FOR_GPU"));
    hr_device_unref(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_gpu),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_wrong_names),
        cmocka_unit_test(test_second_device),
        cmocka_unit_test(test_finding_leaves_no_trace),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_read_back),
        cmocka_unit_test(test_staging_kinds),
        cmocka_unit_test(test_staging_of_another_device),
        cmocka_unit_test(test_no_kernel_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
