/*
 * test_arguments.c: arguments that no correct caller gives: NULL where none is allowed, reserved members that are set,
 * values outside their lists. Each is refused by name, and what the call would have filled stays as it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test_model.h"

static struct test_model equal;
static struct hr_loader *loader;
static struct hr_load *load;

static int setup(void **state)
{
    (void)state;
    model_equal(&equal, "equal", 2, 1000, 2);
    loader = loader_make(NULL);
    load = load_model(loader, &equal, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hr_load_free(load);
    hr_loader_free(loader);
    model_close(&equal);
    return 0;
}

/* The call of `code` filled `err`, which names what is wrong. */
#define assert_refused(call, text)                                 \
    do {                                                           \
        struct hr_error err = {0};                                 \
        assert_code(call, HR_EINVALID_ARGUMENT);                   \
        assert_int_equal(err.code, HR_EINVALID_ARGUMENT);          \
        if (!strstr(err.message, text))                            \
            fail_msg("'%s' does not say '%s'", err.message, text); \
    } while (0)

static void test_no_load(void **state)
{
    (void)state;
    struct hr_view view = {.size = sizeof view};
    struct hr_stats stats = {.size = sizeof stats};
    size_t index = 77;
    void *tensor = &view;
    assert_refused(hr_load_wait(NULL, 0, &err), "load is NULL");
    assert_refused(hr_load_next(NULL, &index, &err), "load is NULL");
    assert_refused(hr_load_wait_all(NULL, &err), "load is NULL");
    assert_refused(hr_load_view(NULL, 0, &view, &err), "load is NULL");
    assert_refused(hr_load_take(NULL, 0, 1, &tensor, &err), "load is NULL");
    assert_refused(hr_load_drop(NULL, 0, &err), "load is NULL");
    char byte = 5;
    assert_refused(hr_load_read(NULL, 0, 0, 1, &byte, &err), "load is NULL");
    assert_int_equal(byte, 5);
    assert_code(hr_load_stats(NULL, &stats), HR_EINVALID_ARGUMENT);
    assert_int_equal(index, 77);
    assert_ptr_equal(tensor, &view);
    hr_load_cancel(NULL);
    hr_load_free(NULL);
    hr_loader_free(NULL);
    hr_checkpoint_close(NULL);
}

static void test_no_output(void **state)
{
    (void)state;
    struct hr_item item = {.size = sizeof item};
    const char *text;
    size_t size;
    assert_refused(hr_loader_new(NULL, NULL, &err), "ret_loader");
    assert_refused(hr_load_start(loader, equal.checkpoint, &item, 1, NULL, NULL, &err), "ret_load");
    assert_refused(hr_plan_describe(loader, equal.checkpoint, &item, 1, NULL, HR_PLAN_JSON, NULL, &err), "ret_text");
    assert_refused(hr_load_next(load, NULL, &err), "ret_item_index");
    assert_int_equal(hr_load_wait(load, 0, NULL), 0);
    assert_refused(hr_load_view(load, 0, NULL, &err), "ret_view");
    assert_refused(hr_load_take(load, 0, 1, NULL, &err), "ret_managed_tensor");
    assert_refused(hr_load_read(load, 0, 0, 1, NULL, &err), "ret_bytes");
    assert_int_equal(hr_load_read(load, 0, 0, 0, NULL, NULL), 0);
    assert_code(hr_load_stats(load, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_loader_device(loader, 0, NULL), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_metadata(equal.checkpoint, 0, 0, NULL, &size, &text, &size), HR_EINVALID_ARGUMENT);
    assert_code(hr_checkpoint_metadata(equal.checkpoint, 0, 0, &text, &size, NULL, &size), HR_EINVALID_ARGUMENT);
}

static void test_no_input(void **state)
{
    (void)state;
    struct hr_item item = {.size = sizeof item};
    struct hr_load *started = NULL;
    assert_refused(hr_load_start(NULL, equal.checkpoint, &item, 1, NULL, &started, &err), "NULL");
    assert_refused(hr_load_start(loader, NULL, &item, 1, NULL, &started, &err), "NULL");
    assert_refused(hr_load_start(loader, equal.checkpoint, NULL, 1, NULL, &started, &err), "NULL");
    assert_null(started);
    assert_null(hr_checkpoint_find(equal.checkpoint, NULL, 3));
    assert_int_equal(hr_checkpoint_match(equal.checkpoint, NULL, 0), equal.count);
    assert_int_equal(hr_dtype_find(NULL, 4), HR_DTYPE_NONE);
    assert_int_equal(hr_route_find(NULL), -1);
}

static void test_loader_options(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", NULL}, *const nonsense[] = {"cpu:0"};
    static const struct {
        struct hr_loader_options options;
        int code;
        const char *text;
    } cases[] = {
        {{.reserved = 1}, HR_EINVALID_ARGUMENT, "reserved"},
        {{.route = HR_ROUTE_COUNT}, HR_EINVALID_ARGUMENT, "route is 5"},
        {{.thread_count = 129}, HR_EINVALID_ARGUMENT, "thread_count is 129"},
        {{.queue_depth = 257}, HR_EINVALID_ARGUMENT, "queue_depth is 257"},
        {{.chunk_bytes = 65535}, HR_EINVALID_ARGUMENT, "chunk_bytes is 65535"},
        {{.chunk_bytes = UINT64_MAX}, HR_EINVALID_ARGUMENT, "chunk_bytes is"},
        {{.device_count = 1}, HR_EINVALID_ARGUMENT, "devices is NULL"},
        {{.device_count = 2, .devices = devices}, HR_EINVALID_ARGUMENT, "NULL"},
        {{.device_count = 65, .devices = devices}, HR_EINVALID_ARGUMENT, "device_count is 65"},
        {{.device_count = 1, .devices = nonsense}, HR_EINVALID_ARGUMENT, "cpu:0"},
        {{.lane_count = 17}, HR_EINVALID_ARGUMENT, "lane_count is 17"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_loader_options options = cases[i].options;
        struct hr_loader *made = NULL;
        struct hr_error err = {0};
        options.size = sizeof options;
        assert_code(hr_loader_new(&options, &made, &err), cases[i].code);
        assert_null(made);
        assert_non_null(strstr(err.message, cases[i].text));
    }
}

/* What a caller of an older library asks for is filled as far as he knows it; no size at all is refused. */
static void test_sizes_of_outputs(void **state)
{
    (void)state;
    struct hr_stats stats = {0};
    struct hr_device_info info = {0};
    assert_int_equal(hr_load_wait_all(load, NULL), 0);
    assert_code(hr_load_stats(load, &stats), HR_EINVALID_ARGUMENT);
    assert_code(hr_loader_device(loader, 0, &info), HR_EINVALID_ARGUMENT);
    stats.size = offsetof(struct hr_stats, bytes_sent);
    memset(&stats.bytes_sent, 0x77, sizeof stats - stats.size);
    assert_int_equal(hr_load_stats(load, &stats), 0);
    assert_int_equal(stats.size, offsetof(struct hr_stats, bytes_sent));
    assert_int_equal(stats.bytes_needed, 2000);
    for (const char *byte = (char *)&stats.bytes_sent; byte < (char *)(&stats + 1); byte++)
        assert_int_equal(*byte, 0x77);
    info.size = offsetof(struct hr_device_info, uuid);
    memset(info.uuid, 0x77, sizeof info.uuid);
    assert_int_equal(hr_loader_device(loader, 0, &info), 0);
    assert_int_equal(info.size, offsetof(struct hr_device_info, uuid));
    assert_int_equal(info.type, HR_DEVICE_CPU);
    assert_string_equal(info.name, "cpu");
    assert_int_equal(info.uuid[0], 0x77);
    info.size = sizeof info;
    assert_code(hr_loader_device(loader, 1, &info), HR_EINVALID_ARGUMENT);
    assert_code(hr_loader_device(NULL, 0, &info), HR_EINVALID_ARGUMENT);
}

static void test_trim(void **state)
{
    (void)state;
    assert_int_equal(hr_loader_trim(NULL), 0);
    assert_int_equal(hr_loader_trim(loader), 0); /* host memory is not pinned */
}

/* Exit status of the child: which call did not say that it is in one. */
static int first_wrong_call(void)
{
    struct hr_stats stats = {.size = sizeof stats};
    struct hr_device_info info = {.size = sizeof info};
    char byte;
    if (hr_load_stats(load, &stats) != HR_EFORKED)
        return 1;
    if (hr_load_read(load, 0, 0, 1, &byte, NULL) != HR_EFORKED)
        return 2;
    if (hr_loader_device(loader, 0, &info) != HR_EFORKED)
        return 3;
    return hr_loader_trim(loader) == 0 ? 0 : 4;
}

static void test_in_a_forked_child(void **state)
{
    int status = 0;
    (void)state;
    assert_int_equal(hr_load_wait_all(load, NULL), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(first_wrong_call());
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
}

static void test_load_options(void **state)
{
    (void)state;
    static const struct hr_load_options cases[] = {{.reserved = 1}, {.reserved_tail = 7}, {.ownership = 2}};
    struct hr_item item = {.size = sizeof item};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hr_load_options options = cases[i];
        struct hr_load *started = NULL;
        options.size = sizeof options;
        assert_refused(hr_load_start(loader, equal.checkpoint, &item, 1, &options, &started, &err),
                       options.ownership ? "ownership is 2" : "reserved");
        assert_null(started);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_load),      cmocka_unit_test(test_no_output),
        cmocka_unit_test(test_no_input),     cmocka_unit_test(test_loader_options),
        cmocka_unit_test(test_load_options), cmocka_unit_test(test_sizes_of_outputs),
        cmocka_unit_test(test_trim),         cmocka_unit_test(test_in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
