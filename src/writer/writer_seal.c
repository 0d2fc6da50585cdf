/*
 * writer_seal.c: bringing whole files to the storage. Of many small files that wait is most of the time, so it is left to
 * threads of its own while there is one that has nothing to do; else the caller waits, which bounds open files.
 */
#include "base/limits.h"
#include "base/sys.h"
#include "writer/writer.h"

/* Any thread, without the lock. */
static int seal(struct hr_writer *writer, struct writer_file *file, struct hr_error *err)
{
    int code = hr_output_seal(&file->output, writer->no_sync, err);
    pthread_mutex_lock(&writer->lock);
    file->state = code ? FILE_FAILED : FILE_SEALED;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    return code;
}

/* The next file for a sealer, or NULL when there will be none. */
static struct writer_file *take(struct hr_writer *writer)
{
    struct writer_sealers *sealers = &writer->sealers;
    pthread_mutex_lock(&writer->lock);
    while (sealers->left_count == 0 && !sealers->is_over)
        pthread_cond_wait(&writer->changed, &writer->lock);
    struct writer_file *file = sealers->left_count ? sealers->left[--sealers->left_count] : NULL;
    pthread_mutex_unlock(&writer->lock);
    return file;
}

static void *sealer_main(void *argument)
{
    struct hr_writer *writer = argument;
    struct writer_sealers *sealers = &writer->sealers;
    struct writer_file *file;
    while ((file = take(writer))) {
        struct hr_error err;
        int code = seal(writer, file, &err);
        pthread_mutex_lock(&writer->lock);
        if (code && !sealers->code) {
            sealers->code = code;
            sealers->err = err;
        }
        sealers->busy_count--;
        sealers->done_count++;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
    }
    return NULL;
}

void hr_writer_sealers_start(struct hr_writer *writer)
{
    struct writer_sealers *sealers = &writer->sealers;
    size_t file_count = writer->layout.file_count;
    uint32_t wanted = file_count < HR_WRITE_SEALER_MAX ? (uint32_t)file_count : HR_WRITE_SEALER_MAX;
    if (file_count == 1 || writer->no_sync)
        return;
    while (sealers->count < wanted && hr_sys->thread_start(&sealers->threads[sealers->count], sealer_main, writer) == 0)
        sealers->count++;
}

int hr_writer_seal(struct hr_writer *writer, struct writer_file *file, struct hr_error *err)
{
    struct writer_sealers *sealers = &writer->sealers;
    pthread_mutex_lock(&writer->lock);
    int is_left = sealers->busy_count < sealers->count;
    if (is_left) {
        sealers->busy_count++;
        sealers->left[sealers->left_count++] = file;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return is_left ? 0 : seal(writer, file, err);
}

int hr_writer_sealers_wait_one(struct hr_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    int is_any = writer->sealers.busy_count > 0;
    uint64_t before = writer->sealers.done_count;
    while (is_any && writer->sealers.done_count == before)
        pthread_cond_wait(&writer->changed, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
    return is_any;
}

void hr_writer_sealers_wait(struct hr_writer *writer)
{
    while (hr_writer_sealers_wait_one(writer))
        ;
}

int hr_writer_sealers_check(struct hr_writer *writer, struct hr_error *err)
{
    pthread_mutex_lock(&writer->lock);
    int code = writer->sealers.code;
    if (code && err)
        *err = writer->sealers.err;
    pthread_mutex_unlock(&writer->lock);
    return code;
}

void hr_writer_sealers_stop(struct hr_writer *writer)
{
    struct writer_sealers *sealers = &writer->sealers;
    pthread_mutex_lock(&writer->lock);
    sealers->is_over = 1;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    while (sealers->count > 0)
        pthread_join(sealers->threads[--sealers->count], NULL);
}
