/*
 * test_core_nccl.c: what the extension asks of NCCL, held against a library that writes it down: the calls and their
 * order, one that fails, and the alarm, after which nothing is called.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../python/ext/core_nccl.c" /* which knows nothing of Python */

extern char fake_nccl_log[];
void fake_nccl_reset(void);

static struct core_nccl_flags flags;
static struct core_nccl subject;

#define AT(number) ((void *)(uintptr_t)(number))

static int setup(void **state)
{
    (void)state;
    unsetenv("FAKE_NCCL_FAIL");
    fake_nccl_reset();
    flags.alarm = flags.busy = 0;
    return core_nccl_init(&subject, AT(0xc0), AT(0x50), 3, &flags);
}

static void test_all_gather(void **state)
{
    (void)state;
    assert_int_equal(core_nccl_all_gather(&subject, AT(0x100), AT(0x200), 64), 0);
    assert_string_equal(fake_nccl_log, "gather 0x100 0x200 64 1 0xc0 0x50;");
    assert_int_equal(flags.busy, 0);
}

/* Of all roots, as the library calls them: 0 when all were well. The second sends. */
static int scatter_all(void)
{
    int failed = 0;
    for (uint32_t root = 0; root < 3 && !failed; root++)
        failed = core_nccl_scatter(&subject, root == 1 ? AT(0x1000) : NULL, AT(0x200 + root), 256, root);
    return failed;
}

/* The root sends to all, itself too; the others only receive. All of it is one launch. */
static void test_scatter(void **state)
{
    (void)state;
    assert_int_equal(scatter_all(), 0);
    assert_string_equal(fake_nccl_log, "(receive 0x200 256 1 from 0 0xc0 0x50;"
                                       "send 0x1000 256 1 to 0 0xc0 0x50;send 0x1100 256 1 to 1 0xc0 0x50;"
                                       "send 0x1200 256 1 to 2 0xc0 0x50;receive 0x201 256 1 from 1 0xc0 0x50;"
                                       "receive 0x202 256 1 from 2 0xc0 0x50;)");
}

/* A group that was begun is ended, whatever failed in it; the first code stays. */
static void test_failures(void **state)
{
    for (int failing = 1; failing <= 8; failing++) {
        char number[8];
        setup(state);
        snprintf(number, sizeof number, "%d", failing);
        setenv("FAKE_NCCL_FAIL", number, 1);
        assert_int_equal(scatter_all(), 3);
        assert_int_equal(subject.result, 3);
        assert_string_equal(core_nccl_text(&subject), "internal error");
        assert_int_equal(fake_nccl_log[strlen(fake_nccl_log) - 1], ')');
        assert_int_equal(flags.busy, 0);
    }
}

static void test_alarm(void **state)
{
    (void)state;
    flags.alarm = 1;
    assert_int_not_equal(core_nccl_all_gather(&subject, AT(0x100), AT(0x200), 64), 0);
    assert_int_not_equal(core_nccl_scatter(&subject, AT(0x100), AT(0x200), 64, 0), 0);
    assert_string_equal(fake_nccl_log, "");
    assert_int_equal(subject.result, 0);
    assert_int_equal(flags.busy, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_all_gather, setup),
        cmocka_unit_test_setup(test_scatter, setup),
        cmocka_unit_test_setup(test_failures, setup),
        cmocka_unit_test_setup(test_alarm, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
