/*
 * gds_files.c: see gds_files.h. The lock guards counts only; files are registered and let go outside of it, so two
 * threads may register one file at once: the later one lets its own go.
 */
#include "engine/gds_files.h"

#include <pthread.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/sys.h"

struct gds_file_entry {
    struct hr_gds_file *file; /* NULL: not registered */
    unsigned holders;         /* acquired and not released */
    size_t uses_left;         /* chunks that were not released */
};

struct hr_gds_files {
    struct hr_gds *gds;
    pthread_mutex_t lock;
    size_t file_count, open_count;
    struct gds_file_entry entries[];
};

int hr_gds_files_new(struct hr_gds *gds, const struct hr_plan *plan, struct hr_gds_files **ret_files,
                     struct hr_error *err)
{
    size_t bytes = sizeof(struct hr_gds_files) + plan->file_count * sizeof(struct gds_file_entry);
    struct hr_gds_files *files = hr_alloc(bytes);
    if (!files)
        return hr_fail_memory(err, bytes, "the table of files of cuFile");
    files->gds = gds;
    files->file_count = plan->file_count;
    pthread_mutex_init(&files->lock, NULL);
    for (size_t i = 0; i < plan->chunk_count; i++)
        if (hr_plan_is_remote(plan, plan->groups[plan->chunks[i].group_index].device_index))
            files->entries[plan->chunks[i].file_index].uses_left++;
    *ret_files = files;
    return 0;
}

void hr_gds_files_free(struct hr_gds_files *files)
{
    if (!files)
        return;
    for (size_t i = 0; i < files->file_count; i++)
        hr_gds_file_close(files->gds, files->entries[i].file);
    pthread_mutex_destroy(&files->lock);
    hr_free(files);
}

void hr_gds_files_forget(struct hr_gds_files *files)
{
    hr_free(files);
}

/* The file if it is registered, held; else NULL. */
static struct hr_gds_file *hold(struct hr_gds_files *files, struct gds_file_entry *entry)
{
    pthread_mutex_lock(&files->lock);
    struct hr_gds_file *file = entry->file;
    if (file)
        entry->holders++;
    pthread_mutex_unlock(&files->lock);
    return file;
}

/* Puts `file` into the table, held, unless another thread was faster: what the table holds. */
static struct hr_gds_file *publish(struct hr_gds_files *files, struct gds_file_entry *entry, struct hr_gds_file *file)
{
    pthread_mutex_lock(&files->lock);
    if (!entry->file) {
        entry->file = file;
        files->open_count++;
    }
    struct hr_gds_file *kept = entry->file;
    entry->holders++;
    pthread_mutex_unlock(&files->lock);
    if (kept != file)
        hr_gds_file_close(files->gds, file);
    return kept;
}

int hr_gds_files_acquire(struct hr_gds_files *files, size_t file_index, int fd, struct hr_gds_file **ret_file,
                         struct hr_error *err)
{
    struct gds_file_entry *entry = &files->entries[file_index];
    struct hr_gds_file *file = hold(files, entry);
    if (!file) {
        int code = hr_gds_file_open(files->gds, fd, &file, err);
        if (code < 0)
            return code;
        file = publish(files, entry, file);
    }
    *ret_file = file;
    return 0;
}

void hr_gds_files_release(struct hr_gds_files *files, size_t file_index)
{
    struct gds_file_entry *entry = &files->entries[file_index];
    struct hr_gds_file *unused = NULL;
    pthread_mutex_lock(&files->lock);
    entry->uses_left--;
    if (--entry->holders == 0 && (entry->uses_left == 0 || files->open_count > HR_GDS_FILES_MAX)) {
        unused = entry->file;
        entry->file = NULL;
        files->open_count--;
    }
    pthread_mutex_unlock(&files->lock);
    hr_gds_file_close(files->gds, unused);
}
