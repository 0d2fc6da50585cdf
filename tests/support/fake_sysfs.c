/*
 * fake_sysfs.c: see fake_sysfs.h. Each installation has a folder of its own, so that nothing of an earlier machine stays.
 */
#include "support/fake_sysfs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "support/make_files.h"

#define PATH_BYTES 1024

static const struct hr_sys *below;
static struct hr_sys table;
static char tree[32]; /* its folder's name */
static struct fake_sysfs machine;
static struct fake_sysfs_bound bound;
static pthread_t installer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------------------------------ the tree */

/* Of the tree; the folders above it are made. */
static const char *tree_path(const char *path)
{
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "%s/%s", tree, path);
    return test_path(name);
}

static void write_entry(const struct sysfs_entry *entry)
{
    const char *path = tree_path(entry->path);
    char inside[PATH_BYTES / 2];
    if (entry->text) {
        test_raw_write(path, entry->text, strlen(entry->text));
        return;
    }
    snprintf(inside, sizeof inside, "%s/uevent", entry->target); /* so that the target is a folder */
    tree_path(inside);
    assert_int_equal(symlink(tree_path(entry->target), path), 0);
}

static void write_siblings(uint32_t cpu)
{
    char path[96], text[32];
    uint32_t stride = machine.core_stride;
    if (!stride)
        return;
    snprintf(path, sizeof path, "devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    snprintf(text, sizeof text, "%u,%u\n", cpu % stride, cpu % stride + stride);
    write_entry(&(struct sysfs_entry){path, text, NULL});
}

/* ----------------------------------------------------------------------------------------- the table */

/* The path below the tree for one below /sys, else the path itself. */
static const char *redirected(const char *path, char *text)
{
    if (strncmp(path, "/sys/", 5) != 0)
        return path;
    snprintf(text, PATH_BYTES, "%s/%s/%s", test_dir(), tree, path + 5);
    return text;
}

static int fake_open(const char *path, int flags)
{
    char text[PATH_BYTES];
    return below->open(redirected(path, text), flags);
}

static int fake_dir_open(const char *path, struct hr_dir **ret_dir)
{
    char text[PATH_BYTES];
    return below->dir_open(redirected(path, text), ret_dir);
}

static int fake_affinity_get(uint64_t *ret_words, size_t word_count)
{
    return machine.affinity ? hr_list_parse(machine.affinity, ret_words, (uint32_t)word_count * 64) : -EPERM;
}

static int fake_affinity_set(const uint64_t *words, size_t word_count)
{
    pthread_mutex_lock(&lock);
    bound.thread_count++;
    bound.own_count += pthread_equal(pthread_self(), installer) != 0;
    memcpy(bound.cpus.words, words, word_count * sizeof *words);
    pthread_mutex_unlock(&lock);
    return -machine.refusal;
}

static int fake_memory_prefer(void *memory, size_t bytes, unsigned node)
{
    long page = sysconf(_SC_PAGESIZE);
    if ((uintptr_t)memory % (uintptr_t)page || bytes % (size_t)page)
        return -EINVAL;
    pthread_mutex_lock(&lock);
    bound.memory_count++;
    bound.node = (int)node;
    pthread_mutex_unlock(&lock);
    return -machine.refusal;
}

static unsigned fake_core_count(void)
{
    struct hr_cpu_set cpus;
    return machine.affinity && hr_list_parse(machine.affinity, cpus.words, HR_CPU_COUNT_MAX) == 0
               ? hr_cpu_set_count(&cpus)
               : 1;
}

void fake_sysfs_install(const struct fake_sysfs *wanted)
{
    static int number;
    if (hr_sys == &table) /* a test that failed did not come to removing it */
        hr_sys = below;
    machine = *wanted;
    bound = (struct fake_sysfs_bound){.node = -1};
    installer = pthread_self();
    snprintf(tree, sizeof tree, "sysfs-%d", number++);
    for (size_t i = 0; i < machine.entry_count; i++)
        write_entry(&machine.entries[i]);
    for (uint32_t cpu = 0; cpu < machine.cpu_count; cpu++)
        write_siblings(cpu);
    below = hr_sys;
    table = *below;
    table.open = fake_open;
    table.dir_open = fake_dir_open;
    table.affinity_get = fake_affinity_get;
    table.affinity_set = fake_affinity_set;
    table.memory_prefer = fake_memory_prefer;
    table.core_count = fake_core_count;
    hr_sys = &table;
}

void fake_sysfs_remove(void)
{
    assert_ptr_equal(hr_sys, &table);
    hr_sys = below;
}

struct fake_sysfs_bound fake_sysfs_bound(void)
{
    pthread_mutex_lock(&lock);
    struct fake_sysfs_bound now = bound;
    pthread_mutex_unlock(&lock);
    return now;
}
