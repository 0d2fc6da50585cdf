/*
 * core_nccl.c: see core_nccl.h. The declarations are those of NCCL 2, whose numbers do not change.
 */
#include "core_nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { NCCL_UINT8 = 1 };

/* clang-format off */
#define FUNCTIONS(X)                                                                                                \
    X(const char *, ncclGetErrorString, (int result))                                                               \
    X(int, ncclGroupStart, (void))                                                                                  \
    X(int, ncclGroupEnd, (void))                                                                                    \
    X(int, ncclSend, (const void *memory, size_t count, int type, int peer, void *communicator, void *stream))      \
    X(int, ncclRecv, (void *memory, size_t count, int type, int peer, void *communicator, void *stream))            \
    X(int, ncclAllGather, (const void *send, void *receive, size_t count, int type, void *communicator,             \
                           void *stream))
/* clang-format on */

static struct {
#define MEMBER(result, name, arguments) result(*name) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
    int is_found;
} nccl;

static pthread_once_t found_once = PTHREAD_ONCE_INIT;

static int find(void *library, const char *name, void *ret_function)
{
    void *symbol = dlsym(library, name);
    memcpy(ret_function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Only what is loaded: another NCCL than the one that made the communicator is of no use. */
static void find_all(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    nccl.is_found = library != NULL;
#define FIND(result, name, arguments) nccl.is_found = nccl.is_found && find(library, #name, &nccl.name);
    FUNCTIONS(FIND)
#undef FIND
}

int core_nccl_init(struct core_nccl *self, void *communicator, void *stream, uint32_t world,
                   struct core_nccl_flags *flags)
{
    pthread_once(&found_once, find_all);
    *self = (struct core_nccl){nccl.is_found ? communicator : NULL, stream, world, flags, 0};
    return self->communicator ? 0 : -1;
}

/* 0 when the communicator may be used, until leave(). */
static int enter(struct core_nccl *self)
{
    self->flags->busy = 1;
    if (!self->flags->alarm)
        return 0;
    self->flags->busy = 0;
    return -1;
}

static int leave(struct core_nccl *self, int result)
{
    self->flags->busy = 0;
    if (result && !self->result)
        self->result = result;
    return result;
}

int core_nccl_all_gather(struct core_nccl *self, const void *send, void *receive, uint64_t bytes)
{
    if (enter(self))
        return -1;
    return leave(self, nccl.ncclAllGather(send, receive, bytes, NCCL_UINT8, self->communicator, self->stream));
}

int core_nccl_scatter(struct core_nccl *self, const void *send, void *receive, uint64_t bytes, uint32_t root)
{
    if (enter(self))
        return -1;
    int result = root == 0 ? nccl.ncclGroupStart() : 0;
    for (uint32_t r = 0; send && !result && r < self->world; r++)
        result =
            nccl.ncclSend((const char *)send + r * bytes, bytes, NCCL_UINT8, (int)r, self->communicator, self->stream);
    if (!result)
        result = nccl.ncclRecv(receive, bytes, NCCL_UINT8, (int)root, self->communicator, self->stream);
    int ended = result || root + 1 == self->world ? nccl.ncclGroupEnd() : 0;
    return leave(self, result ? result : ended);
}

const char *core_nccl_text(const struct core_nccl *self)
{
    return nccl.ncclGetErrorString(self->result);
}
