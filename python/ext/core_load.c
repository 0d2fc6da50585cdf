/*
 * core_load.c: _core.Load, a running load. Items are numbered by their position in the request. Each is handed out
 * once, by next(), wait() or wait_all(), and the load keeps nothing of what it has handed out, so that a window
 * bounds what exists.
 *
 * Waiting runs without the interpreter lock. The library calls back every PROGRESS_NS on a thread that waits: there
 * signals are handled, so that Ctrl-C ends a wait, and the caller's progress function is called. close() may come
 * while other threads wait: it cancels, and the last of them frees.
 */
#include "core_load.h"

#include <stdlib.h>
#include <string.h>

#define PROGRESS_NS 50000000u

static _Thread_local struct core_call *current_call;

struct core_call *core_call_current(void)
{
    return current_call;
}

void core_call_fail(struct core_call *call)
{
    if (call->error_type == NULL)
        PyErr_Fetch(&call->error_type, &call->error_value, &call->error_traceback);
    else
        PyErr_Clear();
}

static struct load_object *load_of(PyObject *self)
{
    return (struct load_object *)self;
}

const struct hr_tensor *core_load_tensor(const struct load_object *load, size_t index)
{
    return hr_checkpoint_at(load->checkpoint->checkpoint, load->items[index].tensor_index);
}

uint32_t core_load_dtype(const struct load_object *load, size_t index)
{
    uint32_t dtype = load->items[index].dtype;
    return dtype == HR_DTYPE_NONE ? core_load_tensor(load, index)->dtype : dtype;
}

static int is_forked(struct load_object *load)
{
    return load->fork_generation != core_state_of((PyObject *)load)->fork_generation;
}

/* ------------------------------------------------------------------------------------------ library calls */

static void free_load(struct load_object *self)
{
    struct hr_load *load = self->load;
    self->load = NULL;
    if (is_forked(self))
        return; /* in a child its threads do not exist, and its locks may be held by them for ever */
    if (load != NULL) {
        Py_BEGIN_ALLOW_THREADS hr_load_free(load);
        Py_END_ALLOW_THREADS
    }
    core_group_close(&self->group, load == NULL);
}

/* 0 and the interpreter lock released, or -1 with an exception. */
static int call_begin(struct core_call *call, struct load_object *load)
{
    struct core_state *state = core_state_of((PyObject *)load);
    memset(call, 0, sizeof *call);
    if (is_forked(load)) {
        core_raise_code(state, HR_EFORKED, NULL, "this load was started before a fork; start it again in the child");
        return -1;
    }
    if (load->closing) {
        core_raise_code(state, HR_ECANCELLED, NULL, "the load was closed");
        return -1;
    }
    call->load = load;
    call->outer = current_call;
    current_call = call;
    load->user_count++;
    call->thread = PyEval_SaveThread();
    return 0;
}

/* The library's error, caused by what the framework raised when it was asked for memory. Others pass as they are. */
static void raise_out_of_memory(struct core_call *call, const struct hr_error *err)
{
    PyObject *type, *error, *traceback;
    if (!PyErr_GivenExceptionMatches(call->error_type, PyExc_MemoryError) &&
        !PyErr_GivenExceptionMatches(call->error_type, PyExc_RuntimeError)) {
        PyErr_Restore(call->error_type, call->error_value, call->error_traceback);
        return;
    }
    PyErr_NormalizeException(&call->error_type, &call->error_value, &call->error_traceback);
    core_raise(core_state_of((PyObject *)call->load), err);
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyException_SetCause(error, Py_XNewRef(call->error_value));
    PyErr_Restore(type, error, traceback);
    Py_XDECREF(call->error_type);
    Py_XDECREF(call->error_value);
    Py_XDECREF(call->error_traceback);
}

/* Takes the lock again. `rc` and `err` are the library's; 0, or -1 with an exception. */
static int call_end(struct core_call *call, int rc, const struct hr_error *err)
{
    struct load_object *load = call->load;
    PyEval_RestoreThread(call->thread);
    current_call = call->outer;
    if (--load->user_count == 0 && load->closing)
        free_load(load);
    if (rc == 0 && !call->is_stopped) {
        Py_XDECREF(call->error_type);
        Py_XDECREF(call->error_value);
        Py_XDECREF(call->error_traceback);
        return 0;
    }
    if (rc == HR_EOUT_OF_MEMORY && call->error_type != NULL)
        raise_out_of_memory(call, err);
    else if (call->error_type != NULL)
        PyErr_Restore(call->error_type, call->error_value, call->error_traceback);
    else
        core_raise(core_state_of((PyObject *)load), err);
    return -1;
}

static int call_progress(struct load_object *load, const struct hr_progress *progress)
{
    if (load->progress == NULL)
        return 0;
    PyObject *result = PyObject_CallFunction(load->progress, "KKnn", (unsigned long long)progress->bytes_done,
                                             (unsigned long long)progress->bytes_total, (Py_ssize_t)progress->item_done,
                                             (Py_ssize_t)progress->item_count);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int on_progress(void *Py_UNUSED(context), const struct hr_progress *progress)
{
    struct core_call *call = core_call_current();
    PyEval_RestoreThread(call->thread);
    int stop = PyErr_CheckSignals() < 0 || call_progress(call->load, progress) < 0;
    if (stop) {
        core_call_fail(call);
        call->is_stopped = 1;
    }
    call->thread = PyEval_SaveThread();
    return stop;
}

/* ------------------------------------------------------------------------------------------ making a load */

static int start(struct load_object *self, struct hr_load_options *options)
{
    int hooked = self->maker.callable != NULL;
    struct hr_loader *loader = core_loader_get(self->loader, hooked ? &core_maker_hook : NULL);
    if (loader == NULL)
        return -1;
    options->size = sizeof *options;
    options->ownership = hooked ? HR_OWN_EACH : HR_OWN_ARENA;
    options->progress_ns = PROGRESS_NS;
    options->progress = on_progress;
    options->streams = self->streams;
    options->group = self->group.transport == NULL ? NULL : &self->group.group;
    struct core_call call;
    struct hr_error err;
    struct hr_load *load = NULL;
    if (call_begin(&call, self) < 0)
        return -1;
    int rc = hr_load_start(loader, self->checkpoint->checkpoint, self->items, self->item_count, options, &load, &err);
    if (rc == 0)
        self->load = load; /* before the lock is taken: nobody else knows this object yet */
    return call_end(&call, rc, &err);
}

static PyObject *load_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords))
{
    PyObject *loader, *checkpoint, *shapes, *maker, *progress, *group;
    struct core_asked asked;
    struct core_state *state = PyType_GetModuleState(type);
    struct hr_load_options options = {0};
    unsigned long long window_bytes, deadline_ns, group_bytes;
    if (!PyArg_ParseTuple(arguments, "O!O!OOO!O!O!O!O!OKKIOOOK", state->loader_type, &loader, state->checkpoint_type,
                          &checkpoint, &asked.indices, &asked.places, &PyDict_Type, &asked.ranges, &PyDict_Type,
                          &asked.shards, &PyDict_Type, &shapes, &PyDict_Type, &asked.dtypes, &PyDict_Type, &asked.into,
                          &maker, &window_bytes, &deadline_ns, &options.sequential, &progress, &asked.streams, &group,
                          &group_bytes))
        return NULL;
    options.window_bytes = window_bytes;
    options.deadline_ns = deadline_ns;
    options.group_bytes = group_bytes;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    struct load_object *self = (struct load_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->fork_generation = state->fork_generation;
    self->loader = (struct loader_object *)Py_NewRef(loader);
    self->checkpoint = (struct checkpoint_object *)Py_NewRef(checkpoint);
    self->shapes = PyDict_Size(shapes) == 0 ? NULL : Py_NewRef(shapes);
    self->progress = progress == Py_None ? NULL : Py_NewRef(progress);
    size_t device_count = (size_t)PyTuple_Size(self->loader->devices);
    if ((maker != Py_None && core_maker_init(&self->maker, maker, device_count) < 0) ||
        core_items_set(self, &asked) < 0 || core_group_init(&self->group, group) < 0 || start(self, &options) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* -------------------------------------------------------------------------------------------- handing out */

/* For what the library needed no memory of ours: tensors without elements, and mapped ones, which are copied. */
static int make_late(struct load_object *self, size_t index)
{
    struct hr_view view = {.size = sizeof view};
    struct hr_error err;
    void *memory;
    if (hr_load_view(self->load, index, &view, &err) != 0) {
        core_raise(core_state_of((PyObject *)self), &err);
        return -1;
    }
    if (core_maker_make(self, index, &memory) < 0)
        return -1;
    if (view.bytes > 0)
        memcpy(memory, view.data, view.bytes);
    return 0;
}

static PyObject *hand_out(struct load_object *self, size_t index)
{
    struct core_state *state = core_state_of((PyObject *)self);
    if (self->places[index] == CORE_INTO)
        return Py_NewRef(self->objects[index]);
    if (self->places[index] == CORE_HANDED_OUT) {
        const char *name = core_load_tensor(self, index)->name;
        return core_raise_code(state, HR_EINVALID_ARGUMENT, name,
                               "tensor '%s' was handed out before; a load gives each tensor once", name);
    }
    if (self->load == NULL)
        return core_raise_code(state, HR_ECANCELLED, NULL, "the load was closed");
    if (self->maker.callable == NULL) {
        PyObject *tensor = core_tensor_take(state, self->load, index, core_load_given_shape(self, index));
        if (tensor != NULL)
            self->places[index] = CORE_HANDED_OUT;
        return tensor;
    }
    if (self->places[index] == CORE_WAITING && make_late(self, index) < 0)
        return NULL;
    PyObject *object = self->objects[index];
    self->objects[index] = NULL;
    self->places[index] = CORE_HANDED_OUT;
    hr_load_drop(self->load, index, NULL);
    return object;
}

static PyObject *load_wait(PyObject *object, PyObject *argument)
{
    struct load_object *self = load_of(object);
    size_t index = PyLong_AsSize_t(argument);
    if (index >= self->item_count) {
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_IndexError, "item index out of range");
        return NULL;
    }
    if (self->places[index] == CORE_HANDED_OUT)
        return hand_out(self, index); /* which says so */
    struct core_call call;
    struct hr_error err;
    if (call_begin(&call, self) < 0)
        return NULL;
    int rc = hr_load_wait(self->load, index, &err);
    return call_end(&call, rc, &err) < 0 ? NULL : hand_out(self, index);
}

static PyObject *load_next(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct load_object *self = load_of(object);
    struct core_call call;
    struct hr_error err;
    size_t index = 0;
    if (call_begin(&call, self) < 0)
        return NULL;
    int rc = hr_load_next(self->load, &index, &err);
    int is_end = rc == HR_EEND;
    if (call_end(&call, is_end ? 0 : rc, &err) < 0)
        return NULL;
    if (is_end)
        Py_RETURN_NONE;
    PyObject *tensor = hand_out(self, index);
    return tensor == NULL ? NULL : Py_BuildValue("(nN)", (Py_ssize_t)index, tensor);
}

static int parse_ready(struct load_object *self, size_t index)
{
    if (index < self->item_count && (self->places[index] == CORE_WAITING || self->places[index] == CORE_LENT))
        return 0;
    PyErr_SetString(PyExc_IndexError, "there is no such item, or it was handed out");
    return -1;
}

/* The next three hand nothing out: for who wants to see the bytes as they lie, and not the tensor. */
static PyObject *load_next_index(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct core_call call;
    struct hr_error err;
    size_t index = 0;
    if (call_begin(&call, load_of(object)) < 0)
        return NULL;
    int rc = hr_load_next(load_of(object)->load, &index, &err);
    int is_end = rc == HR_EEND;
    if (call_end(&call, is_end ? 0 : rc, &err) < 0)
        return NULL;
    return is_end ? Py_NewRef(Py_None) : PyLong_FromSize_t(index);
}

static PyObject *load_read(PyObject *object, PyObject *arguments)
{
    struct load_object *self = load_of(object);
    Py_ssize_t index;
    unsigned long long offset, bytes;
    struct core_call call;
    struct hr_error err;
    if (!PyArg_ParseTuple(arguments, "nKK", &index, &offset, &bytes) || parse_ready(self, (size_t)index) < 0)
        return NULL;
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (result == NULL || call_begin(&call, self) < 0) {
        Py_XDECREF(result);
        return NULL;
    }
    int rc = hr_load_read(self->load, (size_t)index, offset, bytes, PyBytes_AsString(result), &err);
    if (call_end(&call, rc, &err) < 0)
        Py_CLEAR(result);
    return result;
}

static PyObject *load_drop(PyObject *object, PyObject *argument)
{
    struct load_object *self = load_of(object);
    size_t index = PyLong_AsSize_t(argument);
    if (PyErr_Occurred() != NULL || parse_ready(self, index) < 0)
        return NULL;
    self->places[index] = CORE_HANDED_OUT;
    if (self->load != NULL && !is_forked(self))
        hr_load_drop(self->load, index, NULL);
    Py_RETURN_NONE;
}

static PyObject *load_wait_all(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct load_object *self = load_of(object);
    struct core_call call;
    struct hr_error err;
    if (call_begin(&call, self) < 0)
        return NULL;
    int rc = hr_load_wait_all(self->load, &err);
    if (call_end(&call, rc, &err) < 0)
        return NULL;
    PyObject *tensors = PyList_New((Py_ssize_t)self->item_count);
    for (size_t i = 0; tensors != NULL && i < self->item_count; i++) {
        core_take_turns(i);
        PyObject *tensor = self->places[i] == CORE_HANDED_OUT ? Py_NewRef(Py_None) : hand_out(self, i);
        if (tensor == NULL || PyList_SetItem(tensors, (Py_ssize_t)i, tensor) < 0)
            Py_CLEAR(tensors);
    }
    return tensors;
}

/* ------------------------------------------------------------------------------------------ its life's end */

static PyObject *load_cancel(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct load_object *self = load_of(object);
    if (self->load != NULL && !is_forked(self))
        hr_load_cancel(self->load);
    Py_RETURN_NONE;
}

static PyObject *load_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct load_object *self = load_of(object);
    self->closing = 1;
    if (self->user_count == 0)
        free_load(self);
    else if (self->load != NULL && !is_forked(self))
        hr_load_cancel(self->load);
    Py_RETURN_NONE;
}

static PyObject *load_is_idle(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(load_of(object)->load == NULL || is_forked(load_of(object)));
}

static PyObject *load_stats(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct load_object *self = load_of(object);
    struct hr_stats stats = {.size = sizeof stats};
    if (self->load == NULL || is_forked(self))
        Py_RETURN_NONE;
    hr_load_stats(self->load, &stats);
    return core_stats_dict(&stats);
}

static int load_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct load_object *self = load_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->loader);
    Py_VISIT(self->checkpoint);
    Py_VISIT(self->shapes);
    Py_VISIT(self->progress);
    Py_VISIT(self->group.transport);
    for (size_t i = 0; self->objects != NULL && i < self->item_count; i++)
        Py_VISIT(self->objects[i]);
    return core_maker_visit(&self->maker, visit, arg);
}

/* The engine may still write into the objects: they go only after the load. */
static int load_clear(PyObject *object)
{
    struct load_object *self = load_of(object);
    self->closing = 1;
    free_load(self);
    for (size_t i = 0; self->objects != NULL && i < self->item_count; i++)
        Py_CLEAR(self->objects[i]);
    core_maker_clear(&self->maker);
    Py_CLEAR(self->progress);
    Py_CLEAR(self->shapes);
    Py_CLEAR(self->loader);
    Py_CLEAR(self->checkpoint);
    return 0;
}

static void load_dealloc(PyObject *object)
{
    struct load_object *self = load_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    load_clear(object);
    free(self->items);
    free(self->ranges);
    free(self->strides);
    free(self->objects);
    free(self->places);
    free(self->streams);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static Py_ssize_t load_length(PyObject *object)
{
    return (Py_ssize_t)load_of(object)->item_count;
}

static PyMethodDef load_methods[] = {
    {"wait", load_wait, METH_O, "wait($self, index, /)\n--\n\nWaits for an item and hands it out."},
    {"next", load_next, METH_NOARGS,
     "next($self, /)\n--\n\n(index, tensor) of the next item that is ready, or None when all were handed out."},
    {"wait_all", load_wait_all, METH_NOARGS,
     "wait_all($self, /)\n--\n\nWaits for all items and hands them out; None for those that were."},
    {"next_index", load_next_index, METH_NOARGS,
     "next_index($self, /)\n--\n\nLike next(), but hands nothing out: the index only."},
    {"read", load_read, METH_VARARGS,
     "read($self, index, offset, bytes, /)\n--\n\nBytes of a ready item, copied from where it lies."},
    {"drop", load_drop, METH_O, "drop($self, index, /)\n--\n\nFrees a ready item that nobody wants."},
    {"cancel", load_cancel, METH_NOARGS, "cancel($self, /)\n--\n\nStops reading; does not block."},
    {"close", load_close, METH_NOARGS,
     "close($self, /)\n--\n\nCancels and frees; when other threads wait, the last of them frees."},
    {"stats", load_stats, METH_NOARGS, "stats($self, /)\n--\n\nThe statistics as a dict; None when closed."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef load_getset[] = {
    {"idle", load_is_idle, NULL, "True when nothing of the load runs any more.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef load_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct load_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot load_slots[] = {
    {Py_tp_new, load_new},
    {Py_tp_dealloc, load_dealloc},
    {Py_tp_traverse, load_traverse},
    {Py_tp_clear, load_clear},
    {Py_tp_methods, load_methods},
    {Py_tp_getset, load_getset},
    {Py_tp_members, load_members},
    {Py_sq_length, load_length},
    {Py_tp_doc, (char *)"Load(loader, checkpoint, indices, places, ranges, shards, shapes, dtypes, into, maker, "
                        "window_bytes, deadline_ns, sequential, progress, streams, group, group_bytes, /)\n--\n\n"
                        "A running load."},
    {0, NULL},
};

PyType_Spec core_load_spec = {
    .name = "headrace._core.Load",
    .basicsize = sizeof(struct load_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = load_slots,
};
