/*
 * fake_nccl.c: a libnccl.so.2 for tests: writes down what it is asked for, and fails when told. FAKE_NCCL_FAIL is the
 * number of the call that fails, with the code 3.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char fake_nccl_log[4096];
static int call_count;

static int note(const char *text)
{
    const char *fail = getenv("FAKE_NCCL_FAIL");
    strncat(fake_nccl_log, text, sizeof fake_nccl_log - strlen(fake_nccl_log) - 1);
    return fail && ++call_count == atoi(fail) ? 3 : 0;
}

void fake_nccl_reset(void)
{
    fake_nccl_log[0] = '\0';
    call_count = 0;
}

const char *ncclGetErrorString(int result)
{
    return result == 3 ? "internal error" : "no error";
}

int ncclGroupStart(void)
{
    return note("(");
}

int ncclGroupEnd(void)
{
    return note(")");
}

int ncclSend(const void *memory, size_t count, int type, int peer, void *communicator, void *stream)
{
    char text[128];
    snprintf(text, sizeof text, "send %p %zu %d to %d %p %p;", memory, count, type, peer, communicator, stream);
    return note(text);
}

int ncclRecv(void *memory, size_t count, int type, int peer, void *communicator, void *stream)
{
    char text[128];
    snprintf(text, sizeof text, "receive %p %zu %d from %d %p %p;", memory, count, type, peer, communicator, stream);
    return note(text);
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, void *communicator, void *stream)
{
    char text[128];
    snprintf(text, sizeof text, "gather %p %p %zu %d %p %p;", send, receive, count, type, communicator, stream);
    return note(text);
}
