/*
 * write_block.c: a range of a file, from wherever its bytes are. What is plain memory is written from where it lies, many
 * tensors at once; the rest goes through a buffer that holds the whole range, so it never has to be emptied in between.
 */
#include <string.h>

#include "base/limits.h"
#include "base/sys.h"
#include "writer/writer.h"

/* Adjacent bytes of a file on their way. */
struct batch {
    struct hr_writer *writer;
    const struct hr_output *output;
    uint64_t offset; /* of the first byte that is in the vectors */
    uint64_t bytes;  /* in the vectors */
    int vector_count;
    struct iovec vectors[HR_IOV_MAX];
    struct writer_buffer *buffer; /* or NULL */
    size_t buffer_used;
};

static int batch_flush(struct batch *batch, struct hr_error *err)
{
    int count = batch->vector_count;
    uint64_t offset = batch->offset;
    batch->offset += batch->bytes;
    batch->bytes = 0;
    batch->vector_count = 0;
    return count ? hr_output_write(batch->output, batch->vectors, count, offset, err) : 0;
}

static int batch_add(struct batch *batch, const char *bytes, size_t size, struct hr_error *err)
{
    int code = batch->vector_count == HR_IOV_MAX ? batch_flush(batch, err) : 0;
    batch->vectors[batch->vector_count++] = (struct iovec){(char *)bytes, size};
    batch->bytes += size;
    return code;
}

/* Tensors of two devices in one block are rare: then the buffer is changed, once its bytes are written. */
static int batch_need_buffer(struct batch *batch, uint32_t device_index, struct hr_error *err)
{
    if (batch->buffer && batch->buffer->device_index == device_index)
        return 0;
    int code = batch_flush(batch, err);
    if (code)
        return code;
    if (batch->buffer)
        hr_writer_give_buffer(batch->writer, batch->buffer);
    batch->buffer = hr_writer_take_buffer(batch->writer, device_index, err);
    batch->buffer_used = 0;
    return batch->buffer ? 0 : HR_EOUT_OF_MEMORY;
}

static int batch_add_tensor(struct batch *batch, const struct hr_tensor *tensor, const struct hr_source *source,
                            uint64_t begin, size_t size, struct hr_error *err)
{
    const struct hr_content_devices *devices = &batch->writer->devices;
    const char *memory = hr_content_memory(devices, source, begin);
    if (memory)
        return batch_add(batch, memory, size, err);
    int code = batch_need_buffer(batch, source->device_index, err);
    if (code)
        return code;
    char *copy = batch->buffer->block.memory + batch->buffer_used;
    batch->buffer_used += size;
    code = hr_content_copy(devices, tensor, source, begin, size, copy, err);
    return code ? code : batch_add(batch, copy, size, err);
}

size_t hr_writer_position(const struct hr_writer *writer, size_t file_index, uint64_t offset)
{
    const struct hr_layout *layout = &writer->layout;
    size_t low = layout->files[file_index].first, high = low + layout->files[file_index].count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct hr_tensor *tensor = &layout->tensors[layout->order[middle]];
        if (tensor->offset + tensor->size > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int hr_writer_write_block(struct hr_writer *writer, const struct write_block *block, struct hr_error *err)
{
    const struct hr_layout *layout = &writer->layout;
    struct batch batch;
    batch.writer = writer;
    batch.output = &writer->files[block->file_index].output;
    batch.offset = block->begin;
    batch.bytes = batch.buffer_used = 0;
    batch.vector_count = 0;
    batch.buffer = NULL;
    int code = 0;
    size_t position = hr_writer_position(writer, block->file_index, block->begin);
    for (uint64_t at = block->begin; !code && at < block->end; position++) {
        size_t index = layout->order[position];
        const struct hr_tensor *tensor = &layout->tensors[index];
        uint64_t end = tensor->offset + tensor->size < block->end ? tensor->offset + tensor->size : block->end;
        if (end > at)
            code = batch_add_tensor(&batch, tensor, block->source ? block->source : &block->sources[index],
                                    at - tensor->offset, (size_t)(end - at), err);
        at = end > at ? end : at;
    }
    if (!code)
        code = batch_flush(&batch, err);
    if (batch.buffer)
        hr_writer_give_buffer(writer, batch.buffer);
    return code;
}
