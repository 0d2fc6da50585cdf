/*
 * core_group.c: the hooks of a process group, handed on to a Python object. It knows no framework and no transport.
 *
 * The library calls them on the thread that starts a load and on one of its own, without the interpreter lock; each
 * hook takes the lock and gives it back. Where a thread is inside a call on a load (starting), what the transport
 * raises, as Ctrl-C, is what that call ends with. Elsewhere the transport keeps the reason for failure().
 */
#define PY_SSIZE_T_CLEAN
#include "core_group.h"
#include "core_load.h"

#include <stdio.h>
#include <string.h>

/* Gives the result up. 0 when it is true; with an exception, or what is false, 1. */
static int judged(struct core_group *self, PyObject *result)
{
    int is_true = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (is_true >= 0)
        return !is_true;
    if (core_call_current() != NULL)
        core_call_fail(core_call_current());
    else
        PyErr_WriteUnraisable(self->transport);
    return 1;
}

static int on_exchange(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct core_group *self = context;
    PyGILState_STATE lock = PyGILState_Ensure();
    size_t wanted = (size_t)bytes * self->group.world;
    PyObject *all = PyObject_CallMethod(self->transport, "exchange", "y#", (const char *)send, (Py_ssize_t)bytes);
    if (all != NULL && PyBytes_Check(all) && (size_t)PyBytes_Size(all) == wanted)
        memcpy(receive, PyBytes_AsString(all), wanted);
    int rc = judged(self, all); /* no bytes: it failed */
    PyGILState_Release(lock);
    return rc;
}

static void *on_alloc(void *context, uint64_t bytes)
{
    struct core_group *self = context;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *address = PyObject_CallMethod(self->transport, "alloc", "K", (unsigned long long)bytes);
    void *memory = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    if (PyErr_Occurred() != NULL)
        judged(self, NULL);
    Py_XDECREF(address);
    PyGILState_Release(lock);
    return memory;
}

static void on_free(void *context, void *memory)
{
    struct core_group *self = context;
    PyGILState_STATE lock = PyGILState_Ensure();
    judged(self, PyObject_CallMethod(self->transport, "free", "K", (unsigned long long)(uintptr_t)memory));
    PyGILState_Release(lock);
}

/* Once, on the thread of the collectives: whether NCCL can be called directly. */
static void ask_for_communicator(struct core_group *self)
{
    unsigned long long communicator, flags;
    self->has_asked = 1;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *result = PyObject_CallMethod(self->transport, "communicator", NULL);
    if (result != NULL && result != Py_None && PyArg_ParseTuple(result, "KK", &communicator, &flags))
        core_nccl_init(&self->nccl, (void *)(uintptr_t)communicator, self->group.stream, self->group.world,
                       (struct core_nccl_flags *)(uintptr_t)flags);
    if (PyErr_Occurred() != NULL)
        PyErr_WriteUnraisable(self->transport);
    Py_XDECREF(result);
    PyGILState_Release(lock);
}

/* What NCCL says, and whoever caused it, becomes the transport's failure(). */
static int blamed(struct core_group *self, int rc)
{
    if (rc == 0 || self->nccl.result == 0)
        return rc;
    PyGILState_STATE lock = PyGILState_Ensure();
    Py_XDECREF(PyObject_CallMethod(self->transport, "blame", "s", core_nccl_text(&self->nccl)));
    if (PyErr_Occurred() != NULL)
        PyErr_WriteUnraisable(self->transport);
    PyGILState_Release(lock);
    return rc;
}

static int on_all_gather(void *context, const void *send, void *receive, uint64_t bytes)
{
    struct core_group *self = context;
    if (!self->has_asked)
        ask_for_communicator(self);
    if (self->nccl.communicator)
        return blamed(self, core_nccl_all_gather(&self->nccl, send, receive, bytes));
    PyGILState_STATE lock = PyGILState_Ensure();
    int rc = judged(self, PyObject_CallMethod(self->transport, "all_gather", "KKK", (unsigned long long)(uintptr_t)send,
                                              (unsigned long long)(uintptr_t)receive, (unsigned long long)bytes));
    PyGILState_Release(lock);
    return rc;
}

static int on_scatter(void *context, const void *send, void *receive, uint64_t bytes, uint32_t root)
{
    struct core_group *self = context;
    if (!self->has_asked)
        ask_for_communicator(self);
    if (self->nccl.communicator)
        return blamed(self, core_nccl_scatter(&self->nccl, send, receive, bytes, root));
    PyGILState_STATE lock = PyGILState_Ensure();
    int rc = judged(self, PyObject_CallMethod(self->transport, "scatter", "KKKI", (unsigned long long)(uintptr_t)send,
                                              (unsigned long long)(uintptr_t)receive, (unsigned long long)bytes,
                                              (unsigned)root));
    PyGILState_Release(lock);
    return rc;
}

static const char *on_failure(void *context)
{
    struct core_group *self = context;
    if (self->nccl.communicator && !self->nccl.flags->alarm && self->nccl.result == 0)
        return NULL;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *text = PyObject_CallMethod(self->transport, "failure", NULL);
    const char *result = NULL;
    if (text == NULL)
        judged(self, NULL);
    if (text != NULL && text != Py_None) {
        Py_CLEAR(self->text);
        self->text = Py_NewRef(text);
        result = PyUnicode_AsUTF8AndSize(text, NULL);
    }
    Py_XDECREF(text);
    PyGILState_Release(lock);
    return result;
}

int core_group_init(struct core_group *self, PyObject *tuple)
{
    PyObject *transport;
    unsigned rank, world;
    unsigned long long stream;
    if (tuple == Py_None)
        return 0;
    if (!PyArg_ParseTuple(tuple, "OIIK", &transport, &rank, &world, &stream))
        return -1;
    self->transport = Py_NewRef(transport);
    self->group = (struct hr_group){
        .size = sizeof self->group,
        .rank = rank,
        .world = world,
        .context = self,
        .stream = (void *)(uintptr_t)stream,
        .alloc = on_alloc,
        .free = on_free,
        .exchange = on_exchange,
        .all_gather = on_all_gather,
        .scatter = on_scatter,
        .failure = on_failure,
    };
    return 0;
}

void core_group_close(struct core_group *self, int has_failed)
{
    PyObject *type, *value, *traceback;
    if (self->transport == NULL)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    judged(self, PyObject_CallMethod(self->transport, "close", "i", has_failed));
    Py_CLEAR(self->transport);
    Py_CLEAR(self->text);
    PyErr_Restore(type, value, traceback);
}

PyObject *core_group_decline(PyObject *module, PyObject *arguments)
{
    PyObject *tuple;
    const char *message, *file, *tensor;
    struct core_group group = {0};
    struct hr_error err, cause = {.offset = HR_NO_OFFSET};
    int rc;
    if (!PyArg_ParseTuple(arguments, "Oisss", &tuple, &cause.code, &message, &file, &tensor))
        return NULL;
    snprintf(cause.message, sizeof cause.message, "%s", message);
    snprintf(cause.file, sizeof cause.file, "%s", file);
    snprintf(cause.tensor, sizeof cause.tensor, "%s", tensor);
    if (core_group_init(&group, tuple) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = hr_group_decline(&group.group, &cause, &err);
    Py_END_ALLOW_THREADS core_group_close(&group, 0);
    if (rc != 0)
        return core_raise(PyModule_GetState(module), &err);
    Py_RETURN_NONE;
}
