/*
 * writer.c: the object's life: made, put into, finished, freed. Its files and buffers are in writer_files.c.
 */
#include "writer/writer.h"

#include <stdio.h>
#include <string.h>

#include "base/fork.h"
#include "base/limits.h"
#include "base/option_struct.h"
#include "base/path.h"
#include "base/sys.h"

#define SUFFIX ".safetensors"
#define SHARD_NAME_BYTES 32 /* "-00001-of-00003" and what 100,000 files make of it */

/* The names of all files in the end. */
static int name_files(struct hr_writer *writer, const char *path, struct hr_error *err)
{
    size_t count = writer->layout.file_count, size = strlen(path), stem = size;
    size_t capacity = size + sizeof SUFFIX + sizeof ".index.json" + SHARD_NAME_BYTES;
    if (size > strlen(SUFFIX) && strcmp(path + size - strlen(SUFFIX), SUFFIX) == 0)
        stem = size - strlen(SUFFIX);
    for (size_t i = 0; i < count; i++) {
        char *name = writer->files[i].path = hr_alloc(capacity);
        if (!name)
            return hr_fail_memory(err, capacity, "a file's name");
        if (count == 1)
            memcpy(name, path, size);
        else
            snprintf(name, capacity, "%.*s-%05zu-of-%05zu" SUFFIX, (int)stem, path, i + 1, count);
    }
    if (count == 1)
        return 0;
    writer->index_path = hr_alloc(capacity);
    if (!writer->index_path)
        return hr_fail_memory(err, capacity, "a file's name");
    snprintf(writer->index_path, capacity, "%.*s" SUFFIX ".index.json", (int)stem, path);
    return hr_output_check(writer->index_path + writer->folder_bytes, err);
}

/* As above, in the folder that is the current one now. */
static int name_files_here(struct hr_writer *writer, const char *path, struct hr_error *err)
{
    char *folder = path[0] == '/' ? hr_strndup("", 0) : hr_current_folder();
    size_t before = folder ? hr_folder_bytes(folder, path) : 0, size = strlen(path);
    char *whole = folder ? hr_alloc(before + size + 1) : NULL;
    int code = whole ? 0 : hr_fail_memory(err, size + 1, "a file's name");
    if (whole) {
        memcpy(whole, folder, before);
        memcpy(whole + before, path, size);
        writer->folder_bytes = before;
        code = name_files(writer, whole, err);
    }
    hr_free(whole);
    hr_free(folder);
    return code;
}

static int make_files(struct hr_writer *writer, const char *path, struct hr_error *err)
{
    struct hr_layout *layout = &writer->layout;
    writer->files = hr_alloc_array(layout->file_count, sizeof *writer->files);
    writer->put_states = hr_alloc(layout->tensor_count + 1);
    if (!writer->files || !writer->put_states)
        return hr_fail_memory(err, layout->file_count * sizeof *writer->files, "the files of a checkpoint");
    for (size_t i = 0; i < layout->file_count; i++) {
        writer->files[i].output.fd = -1;
        writer->files[i].bytes_left = layout->files[i].size - layout->files[i].data_offset;
    }
    int code = name_files_here(writer, path, err);
    for (size_t i = 0; !code && i < layout->file_count; i++)
        code = hr_output_check(hr_writer_path(writer, i), err);
    return code ? code : hr_writer_open_file(writer, 0, err); /* a folder that cannot be written is found out now */
}

static int writer_init(struct hr_writer *writer, const char *path, const struct hr_tensor *tensors, size_t tensor_count,
                       const struct hr_write_options *options, struct hr_error *err)
{
    int code = options->thread_count > HR_READER_MAX
                   ? hr_fail(err, HR_EINVALID_ARGUMENT, "thread_count is %u; it must be at most %d",
                             options->thread_count, HR_READER_MAX)
                   : hr_layout_make(tensors, tensor_count, options, &writer->layout, err);
    if (!code)
        code = hr_content_open_devices(&writer->devices, options, err);
    if (!code)
        code = make_files(writer, path, err);
    if (!code)
        hr_writer_sealers_start(writer);
    return code;
}

int hr_writer_new(const char *path, const struct hr_tensor *tensors, size_t tensor_count,
                  const struct hr_write_options *options, struct hr_writer **ret_writer, struct hr_error *err)
{
    struct hr_write_options ours;
    int code = hr_options_copy(&ours, sizeof ours, options, "hr_write_options", err);
    if (!code && (!path || !ret_writer))
        code = hr_fail(err, HR_EINVALID_ARGUMENT, "%s must be given; it is NULL", path ? "ret_writer" : "path");
    if (code)
        return code;
    struct hr_writer *writer = hr_alloc(sizeof *writer);
    if (!writer)
        return hr_fail_memory(err, sizeof *writer, "a writer");
    writer->no_sync = ours.no_sync;
    writer->fork_generation = hr_fork_generation();
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    code = writer_init(writer, path, tensors, tensor_count, &ours, err);
    if (code)
        hr_writer_free(writer);
    else
        *ret_writer = writer;
    return code;
}

/* --------------------------------------------------------------------------------------------- put */

static int claim(struct hr_writer *writer, size_t index, struct hr_error *err)
{
    pthread_mutex_lock(&writer->lock);
    unsigned state = writer->put_states[index];
    int is_finished = writer->is_finished;
    if (state == PUT_NOT && !is_finished)
        writer->put_states[index] = PUT_RUNS;
    pthread_mutex_unlock(&writer->lock);
    if (state == PUT_NOT && !is_finished)
        return 0;
    const struct hr_tensor *tensor = &writer->layout.tensors[index];
    int code = hr_fail(err, HR_EINVALID_ARGUMENT, "it %s; each tensor is put once",
                       is_finished ? "comes after hr_writer_finish()" : "was put before");
    hr_error_in_tensor(err, tensor->name, tensor->name_size);
    return code;
}

static int write_tensor(struct hr_writer *writer, const struct hr_tensor *tensor, const struct hr_source *source,
                        struct hr_error *err)
{
    uint64_t end = tensor->offset + tensor->size, next;
    int code = tensor->size ? hr_writer_open_file(writer, tensor->file_index, err) : 0;
    for (uint64_t at = tensor->offset; !code && at < end; at = next) {
        next = (at / HR_WRITE_BLOCK_BYTES + 1) * HR_WRITE_BLOCK_BYTES;
        next = next < end ? next : end;
        struct write_block block = {tensor->file_index, at, next, NULL, source};
        code = hr_writer_write_block(writer, &block, err);
    }
    if (!code && tensor->size)
        code = hr_writer_count_bytes(writer, tensor->file_index, tensor->size, err);
    return code;
}

int hr_writer_put(struct hr_writer *writer, size_t tensor_index, const struct hr_source *source, struct hr_error *err)
{
    struct hr_source ours;
    int code = hr_fork_check(writer->fork_generation, "writer", err);
    if (code)
        return code;
    if (tensor_index >= writer->layout.tensor_count)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "tensor_index is %zu, but there are %zu tensors", tensor_index,
                       writer->layout.tensor_count);
    const struct hr_tensor *tensor = &writer->layout.tensors[tensor_index];
    code = hr_writer_sealers_check(writer, err);
    if (!code)
        code = hr_content_check(&writer->devices, tensor, source, &ours, err);
    if (!code)
        code = claim(writer, tensor_index, err);
    if (code)
        return code;
    code = write_tensor(writer, tensor, &ours, err);
    if (code)
        hr_error_in_tensor(err, tensor->name, tensor->name_size);
    pthread_mutex_lock(&writer->lock);
    writer->put_states[tensor_index] = code ? PUT_NOT : PUT_DONE;
    pthread_mutex_unlock(&writer->lock);
    return code;
}

/* ------------------------------------------------------------------------------------------ finish */

static int check_all_put(struct hr_writer *writer, struct hr_error *err)
{
    size_t index = 0;
    pthread_mutex_lock(&writer->lock);
    while (index < writer->layout.tensor_count && writer->put_states[index] == PUT_DONE)
        index++;
    pthread_mutex_unlock(&writer->lock);
    if (index == writer->layout.tensor_count)
        return 0;
    const struct hr_tensor *tensor = &writer->layout.tensors[index];
    int code = hr_fail(err, HR_EINVALID_ARGUMENT, "it was not put; nothing is written before all are");
    hr_error_in_tensor(err, tensor->name, tensor->name_size);
    return code;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* An index of its own name, sealed and not yet in place. */
static int write_index(struct hr_writer *writer, struct hr_output *ret_output, struct hr_error *err)
{
    struct hr_text text = {0};
    size_t count = writer->layout.file_count;
    const char **names = hr_alloc_array(count, sizeof *names);
    if (!names)
        return hr_fail_memory(err, count * sizeof *names, "the names of files");
    for (size_t i = 0; i < count; i++)
        names[i] = base_name(writer->files[i].path);
    int code = hr_layout_index(&writer->layout, names, &text, err);
    hr_free(names);
    if (!code)
        code =
            hr_output_create(ret_output, writer->index_path, writer->index_path + writer->folder_bytes, text.size, err);
    if (!code) {
        struct iovec vector = {text.bytes, text.size};
        code = hr_output_write(ret_output, &vector, 1, 0, err);
    }
    if (!code)
        code = hr_output_seal(ret_output, writer->no_sync, err);
    hr_text_release(&text);
    return code;
}

/*
 * The index last: until then an old one finds its own files, or misses them, but never finds ours. Where a rename fails
 * the others are taken back, so that no part of a checkpoint is taken for a whole one.
 */
static int publish(struct hr_writer *writer, struct hr_output *index, struct hr_error *err)
{
    int code = 0;
    size_t done = 0;
    while (!code && done < writer->layout.file_count) {
        code = hr_output_publish(&writer->files[done].output, err);
        done += !code;
    }
    if (!code && writer->index_path)
        code = hr_output_publish(index, err);
    while (code && done > 0)
        hr_output_withdraw(writer->files[--done].path);
    return code;
}

static int finish(struct hr_writer *writer, struct hr_error *err)
{
    struct hr_output index = {.fd = -1};
    hr_writer_sealers_wait(writer);
    int code = hr_writer_sealers_check(writer, err);
    for (size_t i = 0; !code && i < writer->layout.file_count; i++) {
        code = hr_writer_open_file(writer, i, err); /* files without bytes do not exist yet */
        if (!code)
            code = hr_writer_count_bytes(writer, i, 0, err);
    }
    hr_writer_sealers_wait(writer);
    if (!code)
        code = hr_writer_sealers_check(writer, err);
    if (!code && writer->index_path)
        code = write_index(writer, &index, err);
    if (!code)
        code = publish(writer, &index, err);
    hr_output_release(&index, 0);
    return code || writer->no_sync ? code
                                   : hr_output_sync_folder(writer->files[0].path, hr_writer_path(writer, 0), err);
}

int hr_writer_finish(struct hr_writer *writer, struct hr_error *err)
{
    int code = hr_fork_check(writer->fork_generation, "writer", err);
    if (!code)
        code = check_all_put(writer, err);
    if (code)
        return code;
    pthread_mutex_lock(&writer->lock);
    int is_again = writer->is_finished;
    writer->is_finished = 1;
    pthread_mutex_unlock(&writer->lock);
    return is_again ? hr_fail(err, HR_EINVALID_ARGUMENT, "hr_writer_finish() was called before") : finish(writer, err);
}

size_t hr_writer_file_count(const struct hr_writer *writer)
{
    return writer->layout.file_count;
}

const char *hr_writer_path(const struct hr_writer *writer, size_t file_index)
{
    return file_index < writer->layout.file_count ? writer->files[file_index].path + writer->folder_bytes : NULL;
}

/* In a forked child the files, the sealers, the pinned memory and the devices are the parent's. */
void hr_writer_free(struct hr_writer *writer)
{
    if (!writer)
        return;
    int is_forked = writer->fork_generation != hr_fork_generation();
    if (!is_forked)
        hr_writer_sealers_stop(writer);
    for (size_t i = 0; writer->files && i < writer->layout.file_count; i++) {
        hr_output_release(&writer->files[i].output, is_forked);
        hr_free(writer->files[i].path);
    }
    while (writer->buffers) {
        struct writer_buffer *buffer = writer->buffers;
        writer->buffers = buffer->next;
        if (!is_forked)
            hr_staging_block_free(writer->devices.devices[buffer->device_index], &buffer->block);
        hr_free(buffer);
    }
    if (is_forked)
        writer->devices.count = 0;
    hr_content_close_devices(&writer->devices);
    hr_layout_release(&writer->layout);
    hr_free(writer->files);
    hr_free(writer->put_states);
    hr_free(writer->index_path);
    if (!is_forked) { /* in the child sealers are gone but not their marks: destroying would block */
        pthread_cond_destroy(&writer->changed);
        pthread_mutex_destroy(&writer->lock);
    }
    hr_free(writer);
}
