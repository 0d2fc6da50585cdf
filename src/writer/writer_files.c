/*
 * writer_files.c: the files of a writer, begun with their first byte and sealed with their last, and its buffers.
 */
#include <errno.h>
#include <string.h>

#include "base/limits.h"
#include "base/sys.h"
#include "writer/writer.h"

static void set_state(struct hr_writer *writer, struct writer_file *file, enum file_state state)
{
    pthread_mutex_lock(&writer->lock);
    file->state = state;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

static int create(struct hr_writer *writer, size_t file_index, struct hr_error *err)
{
    struct hr_layout_file *layout = &writer->layout.files[file_index];
    struct writer_file *file = &writer->files[file_index];
    int code = hr_output_create(&file->output, file->path, hr_writer_path(writer, file_index), layout->size, err);
    if (code)
        return code;
    struct iovec vector = {layout->header, layout->data_offset};
    code = hr_output_write(&file->output, &vector, 1, 0, err);
    if (code) {
        hr_output_release(&file->output, 0);
        return code;
    }
    hr_free(layout->header);
    layout->header = NULL;
    return 0;
}

/* Files that storage is waited for hold descriptors: where none is left, one of theirs will do. */
static int create_in_time(struct hr_writer *writer, size_t file_index, struct hr_error *err)
{
    struct hr_error ours;
    int code;
    do
        code = create(writer, file_index, &ours);
    while (code && (ours.sys_errno == EMFILE || ours.sys_errno == ENFILE) && hr_writer_sealers_wait_one(writer));
    if (code && err)
        *err = ours;
    return code;
}

int hr_writer_open_file(struct hr_writer *writer, size_t file_index, struct hr_error *err)
{
    struct writer_file *file = &writer->files[file_index];
    pthread_mutex_lock(&writer->lock);
    while (file->state == FILE_BEGINS)
        pthread_cond_wait(&writer->changed, &writer->lock);
    uint32_t state = file->state;
    if (state == FILE_WAITS)
        file->state = FILE_BEGINS;
    pthread_mutex_unlock(&writer->lock);
    if (state == FILE_FAILED) {
        const char *said = hr_writer_path(writer, file_index);
        int code = hr_fail(err, HR_EIO_ERROR, "%s could not be brought to the storage before; begin anew", said);
        hr_error_in_file(err, said);
        return code;
    }
    if (state != FILE_WAITS)
        return 0;
    int code = create_in_time(writer, file_index, err);
    set_state(writer, file, code ? FILE_WAITS : FILE_OPEN);
    return code;
}

int hr_writer_count_bytes(struct hr_writer *writer, size_t file_index, uint64_t bytes, struct hr_error *err)
{
    struct writer_file *file = &writer->files[file_index];
    pthread_mutex_lock(&writer->lock);
    file->bytes_left -= bytes;
    int is_last = file->bytes_left == 0 && file->state == FILE_OPEN;
    if (is_last)
        file->state = FILE_BEGINS; /* nobody else may seal it */
    pthread_mutex_unlock(&writer->lock);
    if (!is_last)
        return 0;
    return hr_writer_seal(writer, file, err);
}

/* ----------------------------------------------------------------------------------------- buffers */

static struct writer_buffer *reuse_buffer(struct hr_writer *writer, uint32_t device_index)
{
    pthread_mutex_lock(&writer->lock);
    struct writer_buffer **link = &writer->buffers;
    while (*link && (*link)->device_index != device_index)
        link = &(*link)->next;
    struct writer_buffer *found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&writer->lock);
    return found;
}

struct writer_buffer *hr_writer_take_buffer(struct hr_writer *writer, uint32_t device_index, struct hr_error *err)
{
    char detail[1];
    struct writer_buffer *buffer = reuse_buffer(writer, device_index);
    if (buffer)
        return buffer;
    buffer = hr_alloc(sizeof *buffer);
    if (!buffer) {
        hr_fail_memory(err, sizeof *buffer, "staging");
        return NULL;
    }
    buffer->device_index = device_index;
    if (hr_staging_block_make(writer->devices.devices[device_index], HR_WRITE_BLOCK_BYTES, -1, &buffer->block, detail,
                              sizeof detail, err)) {
        hr_free(buffer);
        return NULL;
    }
    return buffer;
}

void hr_writer_give_buffer(struct hr_writer *writer, struct writer_buffer *buffer)
{
    pthread_mutex_lock(&writer->lock);
    buffer->next = writer->buffers;
    writer->buffers = buffer;
    pthread_mutex_unlock(&writer->lock);
}
