/*
 * writer.h: a checkpoint that is being written: its layout, its files, which tensors were put. Shared by hr_writer_put,
 * which writes one tensor on the caller's thread, and hr_write, whose threads write blocks of all.
 *
 * Invariants, under `lock`, which is never held across a system call: a file is created by the one thread that found it
 * FILE_WAITS, and sealed once, by who counted its last byte, by hr_writer_finish, or by a sealer that one of these left it
 * to. So no file has a descriptor before its first byte comes, or for longer after its last one than storage takes.
 */
#ifndef HR_WRITER_WRITER_H
#define HR_WRITER_WRITER_H

#include <pthread.h>

#include "base/limits.h"
#include "writer/content.h"
#include "writer/layout.h"
#include "writer/write_file.h"

enum file_state {
    FILE_WAITS = 0,
    FILE_BEGINS, /* a thread creates it */
    FILE_OPEN,
    FILE_SEALED,
    FILE_FAILED /* what storage said of it when it was sealed */
};

struct writer_file {
    struct hr_output output;
    char *path;          /* behind folder_bytes stands what the caller named */
    uint32_t state;      /* enum file_state */
    uint64_t bytes_left; /* of tensors that were not written yet */
};

enum put_state { PUT_NOT = 0, PUT_RUNS, PUT_DONE };

/* Staging of one block: pinned for a GPU, plain for gathering what is strided. */
struct writer_buffer {
    struct writer_buffer *next;
    struct hr_staging_block block;
    uint32_t device_index;
};

/*
 * Threads that wait for the storage, where there are several files: it takes many such waits at once as long as one. All
 * but `threads` and `count` is under the writer's lock.
 */
struct writer_sealers {
    pthread_t threads[HR_WRITE_SEALER_MAX];
    uint32_t count;
    uint32_t busy_count; /* with a file, or about to take one of those that are left to them */
    uint32_t left_count;
    uint64_t done_count;
    struct writer_file *left[HR_WRITE_SEALER_MAX];
    int is_over;
    int code; /* of the first that failed */
    struct hr_error err;
};

struct hr_writer {
    struct hr_layout layout;
    struct hr_content_devices devices;
    struct writer_file *files;
    char *index_path;    /* NULL: there is one file */
    size_t folder_bytes; /* of each path: the current folder when the writer was made */
    pthread_mutex_t lock;
    pthread_cond_t changed;        /* the state of a file; something to seal */
    unsigned char *put_states;     /* of tensors: enum put_state */
    struct writer_buffer *buffers; /* those that no thread uses */
    struct writer_sealers sealers;
    uint32_t no_sync;
    int is_finished;
    int fork_generation;
};

/* The file exists and its header is written. Any thread. */
int hr_writer_open_file(struct hr_writer *writer, size_t file_index, struct hr_error *err);
/* `bytes` more of the file's tensors are written; with the last of them it is sealed. Any thread. */
int hr_writer_count_bytes(struct hr_writer *writer, size_t file_index, uint64_t bytes, struct hr_error *err);

/* Seals the file, which nobody else has, or leaves that to a sealer. */
int hr_writer_seal(struct hr_writer *writer, struct writer_file *file, struct hr_error *err);
/* Starts sealers if they are of use. */
void hr_writer_sealers_start(struct hr_writer *writer);
/* Waits until one that has a file is done with it. 0 when none has. */
int hr_writer_sealers_wait_one(struct hr_writer *writer);
/* Waits for all. */
void hr_writer_sealers_wait(struct hr_writer *writer);
/* What the first that failed said, or 0. */
int hr_writer_sealers_check(struct hr_writer *writer, struct hr_error *err);
/* Joins them. */
void hr_writer_sealers_stop(struct hr_writer *writer);

/* A buffer of HR_WRITE_BLOCK_BYTES that the device of `device_index` copies to; NULL without memory. Any thread. */
struct writer_buffer *hr_writer_take_buffer(struct hr_writer *writer, uint32_t device_index, struct hr_error *err);
void hr_writer_give_buffer(struct hr_writer *writer, struct writer_buffer *buffer);

/* A range of one file's data section, at most HR_WRITE_BLOCK_BYTES. */
struct write_block {
    size_t file_index;
    uint64_t begin, end;
    const struct hr_source *sources; /* checked; of tensor i the i-th, or ... */
    const struct hr_source *source;  /* ... this one, if the range is one tensor's */
};

/* The position in the layout's order of the tensor that holds the byte at `offset` of a file's data section. */
size_t hr_writer_position(const struct hr_writer *writer, size_t file_index, uint64_t offset);
/* Writes the range into its file, which is open. Any thread. */
int hr_writer_write_block(struct hr_writer *writer, const struct write_block *block, struct hr_error *err);

#endif
