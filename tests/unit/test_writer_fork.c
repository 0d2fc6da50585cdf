/*
 * test_writer_fork.c: a fork while a checkpoint is written, of one file and of several, for which threads wait: the parent
 * goes on, the child can but free what it got, and write anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/make_files.h"
#include "support/write_scene.h"

static struct write_scene scene;

static int child_of_writer(struct hr_writer *writer)
{
    if (hr_writer_put(writer, 1, &scene.sources[1], NULL) != HR_EFORKED)
        return 1;
    if (hr_writer_finish(writer, NULL) != HR_EFORKED)
        return 2;
    hr_writer_free(writer);
    return hr_write(test_path("fork/child.safetensors"), scene.tensors, scene.sources, scene.count, NULL, NULL) ? 3 : 0;
}

static void fork_with(uint64_t shard_bytes)
{
    struct hr_write_options options = {.size = sizeof options, .shard_bytes = shard_bytes};
    struct hr_writer *writer = NULL;
    struct hr_error err = {0};
    const char *path = test_path(shard_bytes ? "fork/s.safetensors" : "fork/f.safetensors");
    int status;
    assert_int_equal(hr_writer_new(path, scene.tensors, scene.count, &options, &writer, &err), 0);
    assert_int_equal(hr_writer_put(writer, 0, &scene.sources[0], &err), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(child_of_writer(writer));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (size_t i = 1; i < scene.count; i++)
        assert_int_equal(hr_writer_put(writer, i, &scene.sources[i], &err), 0);
    assert_int_equal(hr_writer_finish(writer, &err), 0);
    hr_writer_free(writer);
    write_scene_check(&scene, shard_bytes ? test_path("fork/s.safetensors.index.json") : path);
    write_scene_check(&scene, test_path("fork/child.safetensors"));
}

static void test_fork(void **state)
{
    (void)state;
#ifdef HEADRACE_SANITIZE
    skip(); /* its allocator may be locked by a thread that waits for the storage, in the child for ever (gcc 12) */
#endif
    fork_with(0);
    fork_with(2 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fork)};
    write_scene_fill(&scene);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    write_scene_release(&scene);
    return failed;
}
