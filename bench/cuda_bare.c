/*
 * cuda_bare.c: see cuda_bare.h. Names ending in _v2 are what cuda.h's plain names have meant since CUDA 4.
 */
#include "cuda_bare.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "measure.h"

enum { STREAM_NON_BLOCKING = 1, EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2, HOST_REGISTER_PORTABLE = 1 };

struct cuda_calls cuda;
static void *primary_context;

void cuda_check(int code, const char *what)
{
    char text[64];
    snprintf(text, sizeof text, "the CUDA driver's error %d", code);
    if (code)
        die(what, text);
}

static const char *find_calls(void *library)
{
#define CUDA_FIND(name, symbol, parameters)         \
    *(void **)&cuda.name = dlsym(library, #symbol); \
    if (!cuda.name)                                 \
        return "the driver lacks " #symbol;
    CUDA_CALLS(CUDA_FIND)
#undef CUDA_FIND
    return NULL;
}

int cuda_open(int ordinal, const char **reason)
{
    int device;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *reason = library ? find_calls(library) : dlerror();
    if (*reason)
        return -1;
    if (cuda.init(0) || cuda.device_get(&device, ordinal)) {
        *reason = "the driver knows no such device";
        return -1;
    }
    CUDA(context_retain, &primary_context, device);
    cuda_enter();
    return 0;
}

void cuda_enter(void)
{
    CUDA(context_set, primary_context);
}

void cuda_name(int ordinal, char *name, size_t capacity)
{
    int device;
    CUDA(device_get, &device, ordinal);
    CUDA(device_name, name, (int)capacity, device);
}

void *cuda_stream(void)
{
    void *stream;
    CUDA(stream_create, &stream, STREAM_NON_BLOCKING);
    return stream;
}

void *cuda_event(void)
{
    void *event;
    CUDA(event_create, &event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING);
    return event;
}

void *cuda_event_to_poll(void)
{
    void *event;
    CUDA(event_create, &event, EVENT_DISABLE_TIMING);
    return event;
}

uint64_t cuda_alloc(uint64_t bytes)
{
    uint64_t address;
    CUDA(memory_alloc, &address, bytes);
    return address;
}

uint64_t cuda_free_bytes(void)
{
    size_t free, total;
    CUDA(memory_info, &free, &total);
    return free;
}

uint64_t cuda_settle(void)
{
    uint64_t before = cuda_free_bytes();
    for (int same = 0, tries = 0; same < 4 && tries < 1000; tries++) {
        usleep(2000);
        uint64_t now = cuda_free_bytes();
        same = now == before ? same + 1 : 0;
        before = now;
    }
    return before;
}

char *cuda_pinned(uint64_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap", "out of memory");
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    CUDA(host_register, memory, bytes, HOST_REGISTER_PORTABLE);
    return memory;
}
