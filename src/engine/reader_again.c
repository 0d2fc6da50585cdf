/*
 * reader_again.c: chunks whose read was refused, or cannot be relied on, and that are read anew in the next best way: first
 * without places beside the buffer, then without O_DIRECT.
 */
#include <errno.h>

#include "engine/chunks.h"
#include "engine/heat.h"
#include "engine/reader_state.h"

void hr_reader_read_into_buffer(struct hr_reader *reader, struct slot *slot)
{
    slot->memory_alignment = 0;
    hr_slot_restart(slot, slot->mode, slot->fd);
    hr_reader_advance(reader, slot);
}

static int is_refusal(int64_t result)
{
    return result == -EINVAL || result == -EOPNOTSUPP;
}

/*
 * The drive wants other addresses than it said, or EFAULT: the destination is memory that only processors reach. 0 when
 * that is not it.
 */
static int read_without_places(struct hr_reader *reader, struct slot *slot)
{
    if (!slot->has_places || (!is_refusal(slot->op.result) && slot->op.result != -EFAULT))
        return 0;
    if (is_refusal(slot->op.result))
        hr_heat_without_places(reader->load, slot->chunk);
    hr_reader_read_into_buffer(reader, slot);
    return 1;
}

/* The file refuses O_DIRECT after all: the chunk is read anew, in the next best mode. 0 when that is not it. */
static int read_without_direct(struct hr_reader *reader, struct slot *slot, struct hr_error *err)
{
    struct hr_load *load = reader->load;
    int fd;
    if (slot->mode != HR_READ_DIRECT || !is_refusal(slot->op.result))
        return 0;
    struct hr_chunk_reading reading = hr_heat_without_direct(load, slot->chunk);
    hr_files_refuse_direct(load->files, slot->chunk->file_index);
    int code = hr_files_acquire(load->files, slot->chunk->file_index, &reading.mode, &fd, err);
    if (code) /* > 0: the process has no descriptor left */
        return code > 0 ? 0 : code;
    hr_files_unacquire(load->files, slot->chunk->file_index); /* that of the descriptor before */
    hr_slot_restart(slot, reading.mode, fd);
    if (!slot->is_span) /* as it began: the buffer is a span's */
        slot->is_span = slot->buffer && !hr_chunk_device(load, slot->chunk)->lane_count;
    hr_reader_advance(reader, slot);
    return 1;
}

int hr_reader_read_again(struct hr_reader *reader, struct slot *slot, struct hr_error *err)
{
    return read_without_places(reader, slot) ? 1 : read_without_direct(reader, slot, err);
}
