/*
 * core_loader.c: _core.Loader, the options of loads and what is kept between them. The library ties the allocation
 * hook to a loader; loads into a framework want it and loads into arenas do not, so there are two handles, each
 * made when first needed. Its devices are fixed; loads to others have another loader.
 */
#include "core.h"

#include <stdlib.h>

static PyObject *loader_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords))
{
    struct hr_loader_options options = {.size = sizeof options};
    unsigned long long chunk_bytes, arena_bytes, staging_bytes;
    PyObject *devices;
    if (!PyArg_ParseTuple(arguments, "IIKIKO!KIII", &options.route, &options.thread_count, &chunk_bytes,
                          &options.queue_depth, &arena_bytes, &PyTuple_Type, &devices, &staging_bytes,
                          &options.lane_count, &options.no_binding, &options.keep_cache))
        return NULL;
    options.chunk_bytes = chunk_bytes;
    options.arena_bytes = arena_bytes;
    options.staging_bytes = staging_bytes;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    struct loader_object *self = (struct loader_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->options = options;
    self->devices = Py_NewRef(devices);
    self->fork_generation = core_state_of((PyObject *)self)->fork_generation;
    if (core_loader_get(self, NULL) == NULL) /* refuse wrong options now, not at the first load */
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* The names in the tuple, borrowed from it; the array is for free(). NULL with an exception. */
static const char **device_names(PyObject *devices)
{
    Py_ssize_t count = PyTuple_Size(devices);
    const char **names = calloc((size_t)count + 1, sizeof *names);
    if (names == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; names != NULL && i < count; i++) {
        names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(devices, i), NULL);
        if (names[i] == NULL) {
            free(names);
            return NULL;
        }
    }
    return names;
}

struct hr_loader *core_loader_get(struct loader_object *self, const struct hr_allocator *hook)
{
    struct core_state *state = core_state_of((PyObject *)self);
    if (self->fork_generation != state->fork_generation) {
        core_raise_code(state, HR_EFORKED, NULL, "this loader was made before a fork; make a new one in the child");
        return NULL;
    }
    struct hr_loader **place = hook == NULL ? &self->plain : &self->hooked;
    if (*place != NULL)
        return *place;
    struct hr_loader_options options = self->options;
    const char **names = device_names(self->devices);
    if (names == NULL)
        return NULL;
    options.devices = names;
    options.device_count = (size_t)PyTuple_Size(self->devices);
    if (hook != NULL)
        options.allocator = *hook;
    struct hr_loader *loader;
    struct hr_error err;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = hr_loader_new(&options, &loader, &err);
    Py_END_ALLOW_THREADS free(names);
    if (rc != 0) {
        core_raise(state, &err);
        return NULL;
    }
    if (*place == NULL)
        *place = loader;
    else
        hr_loader_free(loader); /* another thread was faster */
    return *place;
}

static int is_forked(PyObject *self)
{
    return ((struct loader_object *)self)->fork_generation != core_state_of(self)->fork_generation;
}

static PyObject *loader_trim(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct loader_object *self = (struct loader_object *)object;
    uint64_t bytes = 0;
    if (!is_forked(object)) {
        Py_BEGIN_ALLOW_THREADS if (self->plain != NULL) bytes += hr_loader_trim(self->plain);
        if (self->hooked != NULL)
            bytes += hr_loader_trim(self->hooked);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *loader_devices(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct hr_device_info info = {.size = sizeof info};
    struct hr_loader *loader = core_loader_get((struct loader_object *)object, NULL);
    PyObject *list = loader == NULL ? NULL : PyList_New(0);
    for (size_t i = 0; list != NULL && hr_loader_device(loader, i, &info) == 0; i++) {
        PyObject *dict = core_device_dict(&info);
        if (dict == NULL || PyList_Append(list, dict) < 0)
            Py_CLEAR(list);
        Py_XDECREF(dict);
    }
    return list;
}

static void loader_dealloc(PyObject *object)
{
    struct loader_object *self = (struct loader_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (!is_forked(object)) {
        Py_BEGIN_ALLOW_THREADS hr_loader_free(self->plain);
        hr_loader_free(self->hooked);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(self->devices);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef loader_methods[] = {
    {"trim", loader_trim, METH_NOARGS,
     "trim($self, /)\n--\n\nGives back the pinned memory that no load uses; returns its bytes."},
    {"devices", loader_devices, METH_NOARGS, "devices($self, /)\n--\n\nThe facts of its devices, a dict each."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot loader_slots[] = {
    {Py_tp_new, loader_new},
    {Py_tp_dealloc, loader_dealloc},
    {Py_tp_methods, loader_methods},
    {Py_tp_doc,
     (char *)"Loader(route, thread_count, chunk_bytes, queue_depth, arena_bytes, devices, staging_bytes, "
             "lane_count, no_binding, keep_cache, /)\n--\n\nWhat loads share; 0 means the library's default."},
    {0, NULL},
};

PyType_Spec core_loader_spec = {
    .name = "headrace._core.Loader",
    .basicsize = sizeof(struct loader_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = loader_slots,
};
