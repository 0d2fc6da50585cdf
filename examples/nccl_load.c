/*
 * nccl_load.c: loads a checkpoint into several GPUs of one machine at once, one process for each, with NCCL as the
 * transport of the process group: `nccl_load [-c] WORLD PATH...`. Each rank reads a part; what all need comes over the
 * links between the GPUs. With -c matrices are sharded by columns, as tensor parallelism does with half of them.
 *
 * Nothing of CUDA or NCCL is needed to build it: both libraries are opened when it runs. Ranks agree through a page of
 * memory that they share; a program of several machines would use its own rendezvous instead.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORLD_MAX 16
#define RECORD_MAX 1024
#define ROUNDS 3

/* --------------------------------------------------------------- what is used of CUDA's driver and NCCL */

typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct ncclComm *nccl_comm;
typedef struct {
    char bytes[128];
} nccl_id;
enum { NCCL_UINT8 = 1, CU_STREAM_NON_BLOCKING = 1 };

/* clang-format off */
#define FUNCTIONS(X)                                                                                   \
    X(cuda, int, cuInit, (unsigned flags))                                                             \
    X(cuda, int, cuDeviceGetCount, (int *count))                                                       \
    X(cuda, int, cuDevicePrimaryCtxRetain, (cu_context *context, int device))                          \
    X(cuda, int, cuCtxSetCurrent, (cu_context context))                                                \
    X(cuda, int, cuStreamCreate, (cu_stream *stream, unsigned flags))                                  \
    X(nccl, int, ncclGetUniqueId, (nccl_id *id))                                                       \
    X(nccl, int, ncclCommInitRank, (nccl_comm *comm, int world, nccl_id id, int rank))                 \
    X(nccl, int, ncclCommDestroy, (nccl_comm comm))                                                    \
    X(nccl, int, ncclCommGetAsyncError, (nccl_comm comm, int *result))                                 \
    X(nccl, const char *, ncclGetErrorString, (int result))                                            \
    X(nccl, int, ncclGroupStart, (void))                                                               \
    X(nccl, int, ncclGroupEnd, (void))                                                                 \
    X(nccl, int, ncclSend, (const void *memory, size_t count, int type, int peer, nccl_comm comm, cu_stream stream)) \
    X(nccl, int, ncclRecv, (void *memory, size_t count, int type, int peer, nccl_comm comm, cu_stream stream))       \
    X(nccl, int, ncclAllGather, (const void *send, void *receive, size_t count, int type, nccl_comm comm,            \
                                 cu_stream stream))
/* clang-format on */

static struct {
#define MEMBER(library, result, name, arguments) result(*name) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
} api;

static int load_function(void *library, const char *name, void *ret_function)
{
    void *symbol = dlsym(library, name);
    memcpy(ret_function, &symbol, sizeof symbol);
    return symbol ? 0 : -1;
}

static int open_libraries(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nccl = dlopen("libnccl.so.2", RTLD_NOW);
    int failed = 0;
    if (!cuda || !nccl) {
        fprintf(stderr, "nccl_load: there is no %s here; it must be where the loader of programs finds it\n",
                cuda ? "NCCL (libnccl.so.2)" : "CUDA driver (libcuda.so.1)");
        return -1;
    }
#define LOAD(library, result, name, arguments) failed |= load_function(library, #name, &api.name);
    FUNCTIONS(LOAD)
#undef LOAD
    if (failed)
        fprintf(stderr, "nccl_load: libcuda.so.1 or libnccl.so.2 is too old\n");
    return failed;
}

/* ----------------------------------------------------------------------------------------- the group */

/* A page that the processes share. */
struct meeting {
    nccl_id id;
    int arrived, round; /* of a barrier */
    int failed;
    char records[WORLD_MAX][RECORD_MAX];
};

struct rank {
    struct meeting *meeting;
    int rank, world;
    cu_context context;
    cu_stream stream;
    nccl_comm comm;
    int result; /* of the last call that failed */
};

/* Waits until all ranks have come; not 0 when one has failed. */
static int barrier(struct meeting *meeting, int world)
{
    int round = __atomic_load_n(&meeting->round, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_SEQ_CST) == world) {
        __atomic_store_n(&meeting->arrived, 0, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&meeting->round, 1, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&meeting->round, __ATOMIC_SEQ_CST) == round) {
        if (__atomic_load_n(&meeting->failed, __ATOMIC_SEQ_CST))
            return -1;
        usleep(100);
    }
    return 0;
}

static int exchange(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct rank *self = context;
    if (bytes > RECORD_MAX)
        return -1;
    memcpy(self->meeting->records[self->rank], send, bytes);
    if (barrier(self->meeting, self->world))
        return -1;
    for (int r = 0; r < self->world; r++)
        memcpy((char *)receive + (size_t)r * bytes, self->meeting->records[r], bytes);
    return barrier(self->meeting, self->world);
}

static int done(struct rank *self, int result)
{
    if (result)
        self->result = result;
    return result;
}

/* Collectives come on a thread of the library, where no context is current. */
static int all_gather(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct rank *self = context;
    api.cuCtxSetCurrent(self->context);
    return done(self, api.ncclAllGather(send, receive, bytes, NCCL_UINT8, self->comm, self->stream));
}

static int scatter(void *context, const void *send, void *receive, uint64_t bytes, uint32_t root)
{
    struct rank *self = context;
    int result;
    api.cuCtxSetCurrent(self->context);
    result = api.ncclGroupStart();
    for (int r = 0; send && !result && r < self->world; r++)
        result = api.ncclSend((const char *)send + (size_t)r * bytes, bytes, NCCL_UINT8, r, self->comm, self->stream);
    if (!result)
        result = api.ncclRecv(receive, bytes, NCCL_UINT8, (int)root, self->comm, self->stream);
    int ended = api.ncclGroupEnd();
    return done(self, result ? result : ended);
}

static const char *failure(void *context)
{
    struct rank *self = context;
    int result = self->result;
    if (!result && api.ncclCommGetAsyncError(self->comm, &result))
        return "NCCL does not answer";
    return result ? api.ncclGetErrorString(result) : NULL;
}

static int open_rank(struct rank *self)
{
    if (api.cuInit(0) || api.cuDevicePrimaryCtxRetain(&self->context, self->rank) ||
        api.cuCtxSetCurrent(self->context) || api.cuStreamCreate(&self->stream, CU_STREAM_NON_BLOCKING)) {
        fprintf(stderr, "rank %d: its GPU cannot be used\n", self->rank);
        return -1;
    }
    int result = self->rank == 0 ? api.ncclGetUniqueId(&self->meeting->id) : 0;
    if (barrier(self->meeting, self->world))
        return -1;
    if (!result)
        result = api.ncclCommInitRank(&self->comm, self->world, self->meeting->id, self->rank);
    if (result)
        fprintf(stderr, "rank %d: NCCL: %s\n", self->rank, api.ncclGetErrorString(result));
    return result;
}

/* ---------------------------------------------------------------------------------------------- a load */

static struct hr_item *make_items(const struct hr_checkpoint *checkpoint, const struct rank *self, int by_columns)
{
    size_t count = hr_checkpoint_count(checkpoint);
    struct hr_item *items = calloc(count ? count : 1, sizeof *items);
    for (size_t i = 0; items && i < count; i++) {
        const struct hr_tensor *tensor = hr_checkpoint_at(checkpoint, i);
        items[i].size = sizeof items[i];
        items[i].tensor_index = i;
        if (!by_columns || tensor->rank != 2 || hr_dtype_bits(tensor->dtype) < 8)
            continue;
        items[i].shard_dim = 1;
        items[i].shard_rank = (uint32_t)self->rank;
        items[i].shard_world = (uint32_t)self->world;
    }
    return items;
}

static void report(const struct hr_load *load, const struct rank *self, int round)
{
    struct hr_stats stats = {.size = sizeof stats};
    if (hr_load_stats(load, &stats) || !stats.total_ns)
        return;
    printf(
        "round %d, rank %d: %.3f GB in %.3f s, %.2f GB/s; read %.3f GB; %zu collectives, waited %.3f s for them; %s\n",
        round, self->rank, (double)stats.bytes_ready / 1e9, (double)stats.total_ns / 1e9,
        (double)stats.bytes_ready / (double)stats.total_ns, (double)stats.bytes_read / 1e9,
        (size_t)stats.collective_count, (double)stats.group_wait_ns / 1e9, stats.bottleneck);
}

static int load_once(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, struct rank *self,
                     const struct hr_item *items, int round, struct hr_error *err)
{
    struct hr_load *load = NULL;
    struct hr_group group = {.size = sizeof group,
                             .rank = (uint32_t)self->rank,
                             .world = (uint32_t)self->world,
                             .context = self,
                             .stream = self->stream,
                             .exchange = exchange,
                             .all_gather = all_gather,
                             .scatter = scatter,
                             .failure = failure};
    struct hr_load_options options = {.size = sizeof options, .group = &group};
    int code = hr_load_start(loader, checkpoint, items, hr_checkpoint_count(checkpoint), &options, &load, err);
    if (code == 0)
        code = hr_load_wait_all(load, err);
    if (code == 0)
        report(load, self, round);
    hr_load_free(load);
    return code;
}

static int load_all(struct rank *self, const char *const *paths, size_t path_count, int by_columns,
                    struct hr_error *err)
{
    struct hr_checkpoint *checkpoint = NULL;
    struct hr_loader *loader = NULL;
    struct hr_item *items = NULL;
    char name[16];
    const char *device = name;
    struct hr_loader_options options = {.size = sizeof options, .devices = &device, .device_count = 1};
    snprintf(name, sizeof name, "cuda:%d", self->rank);
    int code = hr_checkpoint_open(paths, path_count, NULL, &checkpoint, err);
    if (code == 0)
        code = hr_loader_new(&options, &loader, err);
    if (code == 0)
        items = make_items(checkpoint, self, by_columns);
    for (int round = 1; code == 0 && items && round <= ROUNDS; round++)
        code = load_once(loader, checkpoint, self, items, round, err);
    free(items);
    hr_loader_free(loader);
    hr_checkpoint_close(checkpoint);
    return code;
}

static int rank_main(struct rank *self, const char *const *paths, size_t path_count, int by_columns)
{
    struct hr_error err = {0};
    int code = open_rank(self);
    if (code == 0)
        code = load_all(self, paths, path_count, by_columns, &err);
    if (code) {
        if (err.code)
            fprintf(stderr, "rank %d: %s: %s\n", self->rank, hr_error_kind(err.code), err.message);
        __atomic_store_n(&self->meeting->failed, 1, __ATOMIC_SEQ_CST);
    }
    if (self->comm && code == 0)
        api.ncclCommDestroy(self->comm);
    return code != 0;
}

/* In a process of its own: a driver that was started is of no use in children. */
static int count_devices(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int count = 0;
        if (open_libraries())
            _exit(255);
        _exit(api.cuInit(0) || api.cuDeviceGetCount(&count) ? 0 : count);
    }
    return child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) ? 0 : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    int by_columns = argc > 1 && strcmp(argv[1], "-c") == 0, first = 1 + by_columns, failed = 0;
    if (argc < first + 2) {
        fprintf(stderr, "usage: nccl_load [-c] WORLD PATH...\n");
        return 2;
    }
    int world = atoi(argv[first]), count = count_devices();
    if (count == 255)
        return 3;
    if (world < 2 || world > WORLD_MAX || world > count) {
        fprintf(stderr, "nccl_load: %d ranks, but there are %d GPUs here; give 2 to %d, as many as there are\n", world,
                count, WORLD_MAX);
        return 3;
    }
    struct meeting *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED) {
        perror("nccl_load");
        return 1;
    }
    for (int r = 0; r < world; r++)
        if (fork() == 0) {
            struct rank self = {.meeting = meeting, .rank = r, .world = world};
            exit(open_libraries()
                     ? 1
                     : rank_main(&self, (const char *const *)&argv[first + 1], (size_t)(argc - first - 1), by_columns));
        }
    for (int status; wait(&status) > 0;)
        failed |= status;
    return failed != 0;
}
