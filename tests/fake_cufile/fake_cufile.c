/*
 * fake_cufile.c: see fake_cufile.h. One lock guards the state; it is not held while bytes are read.
 */
#include "fake_cufile/fake_cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/gds_driver.h"
#include "fake_cuda/cuda_abi.h"

#define DECLARE(name, result, parameters) result name parameters;
HR_CU_FILE_FUNCTION_LIST(DECLARE)
struct hr_cu_file_error cuFileDriverClose_v2(void);

#define ALIGNMENT 4096
#define HANDLE_MAX 512
#define BUFFER_MAX 256

struct settings {
    long open, close_input, major, storage, control, aperture, handle, most, excess, truncate;
};

static const struct settings defaults = {.major = 2, .storage = -1, .aperture = -1};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings settings;
static int is_ready;
static unsigned long fail_in, fired_count;
static int fail_code;
static struct fake_cufile_live live;
static struct handle {
    int fd, is_live;
} handles[HANDLE_MAX];
static struct buffer {
    uintptr_t memory;
    size_t bytes;
} buffers[BUFFER_MAX];

/* ---------------------------------------------------------------------------------------- settings */

static int apply_one(const char *word)
{
    static const struct {
        const char *key;
        long *value;
    } keys[] = {{"open", &settings.open},       {"close_input", &settings.close_input},
                {"major", &settings.major},     {"storage", &settings.storage},
                {"control", &settings.control}, {"aperture", &settings.aperture},
                {"handle", &settings.handle},   {"short", &settings.most},
                {"excess", &settings.excess},   {"truncate", &settings.truncate}};
    const char *value = strchr(word, '=');
    if (!value)
        return -1;
    if (sscanf(word, "fail=%lu:%d", &fail_in, &fail_code) == 2)
        return (int)(fired_count = 0);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i].key) == (size_t)(value - word) && !strncmp(keys[i].key, word, (size_t)(value - word))) {
            *keys[i].value = strtol(value + 1, NULL, 0);
            return 0;
        }
    return -1;
}

static int apply(const char *text)
{
    char copy[256], *rest;
    int result = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest))
        result |= apply_one(word);
    return result;
}

static void reset(void)
{
    const char *text = getenv("FAKE_CUFILE");
    settings = defaults;
    fail_in = fired_count = 0;
    live.violation_count = live.read_count = 0;
    is_ready = 1;
    if (text && apply(text)) {
        fprintf(stderr, "fake libcufile: FAKE_CUFILE=%s is not understood\n", text);
        abort();
    }
}

int fake_cufile_configure(const char *text)
{
    pthread_mutex_lock(&lock);
    if (!is_ready)
        reset();
    int result = apply(text);
    pthread_mutex_unlock(&lock);
    return result;
}

void fake_cufile_reset(void)
{
    pthread_mutex_lock(&lock);
    reset();
    pthread_mutex_unlock(&lock);
}

void fake_cufile_live(struct fake_cufile_live *ret_live)
{
    pthread_mutex_lock(&lock);
    *ret_live = live;
    pthread_mutex_unlock(&lock);
}

unsigned long fake_cufile_fired(void)
{
    pthread_mutex_lock(&lock);
    unsigned long count = fired_count;
    pthread_mutex_unlock(&lock);
    return count;
}

/* -------------------------------------------------------------------------------------------- CUDA */

static void *cuda(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, name) : NULL;
    if (!symbol) {
        fprintf(stderr, "fake libcufile: no %s\n", name);
        abort();
    }
    return symbol;
}

#define CUDA(name, ...) ((__typeof__(&name))cuda(#name))(__VA_ARGS__)

static int has_context(void)
{
    CUcontext context = NULL;
    return CUDA(cuCtxGetCurrent, &context) == 0 && context;
}

static int to_device(uintptr_t target, const void *bytes, size_t size)
{
    CUstream stream;
    if (CUDA(cuStreamCreate, &stream, 1))
        return -1;
    int result = CUDA(cuMemcpyHtoDAsync_v2, target, bytes, size, stream);
    result |= CUDA(cuStreamSynchronize, stream);
    CUDA(cuStreamDestroy_v2, stream);
    return result;
}

/* ------------------------------------------------------------------------------------------- calls */

/* With the lock. The code with which the call fails, or 0. */
static int enter(void)
{
    pthread_mutex_lock(&lock);
    if (!is_ready)
        reset();
    if (!fail_in || --fail_in)
        return 0;
    fired_count++;
    return fail_code;
}

/* Gives the lock back. */
static struct hr_cu_file_error leave(int code)
{
    pthread_mutex_unlock(&lock);
    return (struct hr_cu_file_error){.err = code};
}

static int violation(const char *what)
{
    fprintf(stderr, "fake libcufile: %s\n", what);
    live.violation_count++;
    return HR_CU_FILE_INVALID_VALUE;
}

struct hr_cu_file_error cuFileDriverOpen(void)
{
    int code = enter();
    if (settings.close_input)
        close(0);
    if (!code)
        code = (int)settings.open;
    if (!code)
        live.open_count++;
    return leave(code);
}

struct hr_cu_file_error cuFileDriverClose_v2(void)
{
    int code = enter();
    if (settings.close_input)
        close(0);
    if (live.open_count == 0)
        code = violation("the driver is closed that is not open");
    else
        live.open_count--;
    return leave(code);
}

struct hr_cu_file_error cuFileDriverGetProperties(struct hr_cu_file_properties *ret_properties)
{
    int code = enter();
    if (!code) {
        memset(ret_properties, 0, offsetof(struct hr_cu_file_properties, spare));
        ret_properties->nvfs.major_version = (unsigned)settings.major;
        ret_properties->nvfs.dstatusflags = (unsigned)settings.storage;
        ret_properties->nvfs.dcontrolflags = (unsigned)settings.control;
    }
    return leave(code);
}

static int handle_add(hr_cu_file_handle *ret_handle, const struct hr_cu_file_descr *descr)
{
    if (!live.open_count || !has_context() || descr->type != HR_CU_FILE_HANDLE_TYPE_OPAQUE_FD ||
        fcntl(descr->handle.fd, F_GETFD) < 0)
        return violation("a file is registered that is none, or without a driver or a context");
    for (size_t i = 0; i < HANDLE_MAX; i++)
        if (handles[i].is_live && handles[i].fd == descr->handle.fd)
            return violation("a descriptor is registered twice");
    for (size_t i = 0; i < HANDLE_MAX; i++)
        if (!handles[i].is_live) {
            handles[i] = (struct handle){descr->handle.fd, 1};
            *ret_handle = &handles[i];
            live.handle_count++;
            return 0;
        }
    return violation("too many files");
}

struct hr_cu_file_error cuFileHandleRegister(hr_cu_file_handle *ret_handle, struct hr_cu_file_descr *descr)
{
    int code = enter();
    if (!code)
        code = (int)settings.handle;
    return leave(code ? code : handle_add(ret_handle, descr));
}

void cuFileHandleDeregister(hr_cu_file_handle handle)
{
    struct handle *file = handle;
    pthread_mutex_lock(&lock);
    if (!file->is_live || fcntl(file->fd, F_GETFD) < 0)
        violation("a file is let go that is not registered, or closed already");
    else
        live.handle_count--;
    file->is_live = 0;
    pthread_mutex_unlock(&lock);
}

static struct buffer *buffer_find(uintptr_t memory)
{
    for (size_t i = 0; i < BUFFER_MAX; i++)
        if (buffers[i].bytes && buffers[i].memory == memory)
            return &buffers[i];
    return NULL;
}

static int buffer_add(uintptr_t memory, size_t bytes)
{
    struct buffer *free_buffer = NULL;
    if (!live.open_count || !has_context() || !bytes || memory % 65536 || bytes % 65536 || buffer_find(memory))
        return violation("memory is registered twice, not on pages of a device, or without a driver or a context");
    for (size_t i = 0; i < BUFFER_MAX && !free_buffer; i++)
        free_buffer = buffers[i].bytes ? NULL : &buffers[i];
    if (!free_buffer || (settings.aperture >= 0 && live.buffer_bytes + (long)bytes > settings.aperture))
        return HR_CU_FILE_GPU_MEMORY_PINNING_FAILED;
    *free_buffer = (struct buffer){memory, bytes};
    live.buffer_count++;
    live.buffer_bytes += (long)bytes;
    return 0;
}

struct hr_cu_file_error cuFileBufRegister(const void *memory, size_t bytes, int flags)
{
    int code = enter();
    (void)flags;
    return leave(code ? code : buffer_add((uintptr_t)memory, bytes));
}

struct hr_cu_file_error cuFileBufDeregister(const void *memory)
{
    int code = 0;
    pthread_mutex_lock(&lock);
    struct buffer *buffer = buffer_find((uintptr_t)memory);
    if (buffer && has_context()) {
        live.buffer_count--;
        live.buffer_bytes -= (long)buffer->bytes;
        buffer->bytes = 0;
    } else {
        code = violation("memory is let go that is not registered, or without a context");
    }
    return leave(code);
}

/* Locked. 0, or a code. */
static int check_read(const struct handle *file, uintptr_t memory, size_t bytes, off_t offset, off_t memory_offset)
{
    const struct buffer *buffer = buffer_find(memory);
    if (!file->is_live || !buffer || !has_context())
        return violation("a read of a file or into memory that is not registered, or without a context");
    if (bytes % ALIGNMENT || offset % ALIGNMENT || memory_offset % ALIGNMENT)
        return violation("a read that is not aligned");
    if (offset < 0 || memory_offset < 0 || !bytes || (size_t)memory_offset + bytes > buffer->bytes)
        return violation("a read that leaves its memory");
    return 0;
}

/* Delivers no more than `most`. */
static ssize_t read_some(int fd, uintptr_t target, size_t bytes, off_t offset, size_t most)
{
    size_t enough = (most + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *staging = NULL;
    if (bytes > enough)
        bytes = enough;
    if (posix_memalign(&staging, ALIGNMENT, bytes)) {
        errno = ENOMEM;
        return -1;
    }
    ssize_t size = pread(fd, staging, bytes, offset);
    int error = errno;
    if (size > (ssize_t)most)
        size = (ssize_t)most;
    if (size > 0 && to_device(target, staging, (size_t)size))
        size = -HR_CU_FILE_CUDA_DRIVER_ERROR;
    free(staging);
    errno = error;
    return size;
}

/* Locked. Once; the descriptor itself is for reading. */
static void cut(int fd)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (truncate(path, settings.truncate))
        perror("fake libcufile: truncate");
    settings.truncate = 0;
}

ssize_t cuFileRead(hr_cu_file_handle handle, void *memory, size_t bytes, off_t offset, off_t memory_offset)
{
    const struct handle *file = handle;
    int code = enter();
    int is_refused = code ? 0 : check_read(file, (uintptr_t)memory, bytes, offset, memory_offset);
    if (settings.truncate && file->is_live)
        cut(file->fd);
    size_t most = settings.most ? (size_t)settings.most : bytes, excess = (size_t)settings.excess;
    live.read_count++;
    leave(0);
    if (code && code < 5000) {
        errno = code;
        return -1;
    }
    if (code || is_refused)
        return -(code ? code : is_refused);
    ssize_t size = read_some(file->fd, (uintptr_t)memory + (uintptr_t)memory_offset, bytes, offset, most);
    return excess ? (ssize_t)(bytes + excess) : size;
}
