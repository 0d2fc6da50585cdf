/*
 * core_write.c: writing a checkpoint. Python has decided what is written: rows of name, dtype, shape and where the bytes
 * are; here they become the library's structs, and objects with buffers are held while the library reads them.
 */
#include "core.h"

#include <stdlib.h>

/* The arguments as the library wants them; zeroed it can be released. */
struct write_call {
    size_t count;
    struct hr_tensor *tensors;
    struct hr_source *sources;
    uint64_t *shapes; /* of all tensors */
    Py_buffer *buffers;
    size_t buffer_count;
    struct hr_metadata *metadata;
    const char **devices;
    struct hr_write_options options;
    PyThreadState *thread; /* of the released interpreter lock */
};

static void call_release(struct write_call *call)
{
    for (size_t i = 0; i < call->buffer_count; i++)
        PyBuffer_Release(&call->buffers[i]);
    free(call->tensors);
    free(call->sources);
    free(call->shapes);
    free(call->buffers);
    free(call->metadata);
    free(call->devices);
}

static int text_of(PyObject *object, const char **ret_text, size_t *ret_size)
{
    Py_ssize_t size;
    *ret_text = PyUnicode_AsUTF8AndSize(object, &size);
    *ret_size = *ret_text == NULL ? 0 : (size_t)size;
    return *ret_text == NULL ? -1 : 0;
}

/* An address, or an object with a buffer of at least `bytes`. */
static int read_data(struct write_call *call, PyObject *data, Py_ssize_t bytes, struct hr_source *source)
{
    if (PyLong_Check(data)) {
        source->data = PyLong_AsVoidPtr(data);
        return source->data == NULL && PyErr_Occurred() != NULL ? -1 : 0;
    }
    Py_buffer *buffer = &call->buffers[call->buffer_count];
    if (PyObject_GetBuffer(data, buffer, PyBUF_SIMPLE) < 0)
        return -1;
    call->buffer_count++;
    source->data = buffer->buf;
    if (buffer->len >= bytes)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a buffer is shorter than its tensor");
    return -1;
}

static int read_shape(PyObject *shape, uint64_t *ret_shape)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(shape); i++) {
        ret_shape[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(shape, i));
        if (PyErr_Occurred() != NULL)
            return -1;
    }
    return 0;
}

/* (name, dtype, shape, data, bytes, device index) */
static int read_row(struct write_call *call, size_t index, PyObject *row, uint64_t **shape)
{
    PyObject *name, *extents, *data;
    Py_ssize_t bytes;
    struct hr_tensor *tensor = &call->tensors[index];
    struct hr_source *source = &call->sources[index];
    source->size = sizeof *source;
    if (!PyArg_ParseTuple(row, "UIO!OnI", &name, &tensor->dtype, &PyTuple_Type, &extents, &data, &bytes,
                          &source->device_index))
        return -1;
    tensor->rank = (uint32_t)PyTuple_Size(extents);
    tensor->shape = *shape;
    *shape += tensor->rank;
    if (text_of(name, &tensor->name, &tensor->name_size) < 0 || read_shape(extents, *shape - tensor->rank) < 0)
        return -1;
    return read_data(call, data, bytes, source);
}

/* Of rows that are tuples; what is wrong with them read_row says. */
static size_t extent_count(PyObject *rows)
{
    size_t count = 1;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *row = PyList_GetItem(rows, i);
        PyObject *shape = PyTuple_Check(row) && PyTuple_Size(row) > 2 ? PyTuple_GetItem(row, 2) : NULL;
        count += shape != NULL && PyTuple_Check(shape) ? (size_t)PyTuple_Size(shape) : 0;
    }
    return count;
}

static int read_rows(struct write_call *call, PyObject *rows)
{
    call->count = (size_t)PyList_Size(rows);
    call->tensors = calloc(call->count + 1, sizeof *call->tensors);
    call->sources = calloc(call->count + 1, sizeof *call->sources);
    call->buffers = calloc(call->count + 1, sizeof *call->buffers);
    call->shapes = calloc(extent_count(rows), sizeof *call->shapes);
    if (call->tensors == NULL || call->sources == NULL || call->buffers == NULL || call->shapes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    uint64_t *shape = call->shapes;
    for (size_t i = 0; i < call->count; i++)
        if (read_row(call, i, PyList_GetItem(rows, (Py_ssize_t)i), &shape) < 0)
            return -1;
    return 0;
}

/* A list of pairs, or None. */
static int read_metadata(struct write_call *call, PyObject *pairs)
{
    if (pairs == Py_None)
        return 0;
    Py_ssize_t count = PyList_Size(pairs);
    if (count < 0)
        return -1;
    call->metadata = calloc((size_t)count + 1, sizeof *call->metadata);
    if (call->metadata == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key, *value;
        struct hr_metadata *pair = &call->metadata[i];
        if (!PyArg_ParseTuple(PyList_GetItem(pairs, i), "UU", &key, &value) ||
            text_of(key, &pair->key, &pair->key_size) < 0 || text_of(value, &pair->value, &pair->value_size) < 0)
            return -1;
    }
    call->options.metadata = call->metadata;
    call->options.metadata_count = (size_t)count;
    return 0;
}

static int read_devices(struct write_call *call, PyObject *names)
{
    size_t count = (size_t)PyList_Size(names), size;
    call->devices = calloc(count + 1, sizeof *call->devices);
    if (call->devices == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        if (text_of(PyList_GetItem(names, (Py_ssize_t)i), &call->devices[i], &size) < 0)
            return -1;
    call->options.devices = call->devices;
    call->options.device_count = count;
    return 0;
}

/* On the calling thread: Ctrl-C ends the call; its exception stays set in the thread's state. */
static int check_signals(void *context, const struct hr_progress *progress)
{
    struct write_call *call = context;
    (void)progress;
    PyEval_RestoreThread(call->thread);
    int is_raised = PyErr_CheckSignals() < 0;
    call->thread = PyEval_SaveThread();
    return is_raised;
}

static PyObject *write_file(struct core_state *state, struct write_call *call, const char *path)
{
    struct hr_error err;
    call->options.progress = check_signals;
    call->options.progress_context = call;
    call->thread = PyEval_SaveThread();
    int code = hr_write(path, call->tensors, call->sources, call->count, &call->options, &err);
    PyEval_RestoreThread(call->thread);
    if (PyErr_Occurred() != NULL)
        return NULL;
    return code == 0 ? Py_NewRef(Py_None) : core_raise(state, &err);
}

static PyObject *write_bytes(struct core_state *state, struct write_call *call)
{
    struct hr_error err;
    uint64_t size = 0;
    if (hr_serialize(call->tensors, call->sources, call->count, &call->options, NULL, 0, &size, &err) != 0)
        return core_raise(state, &err);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL)
        return NULL;
    char *memory = PyBytes_AsString(bytes);
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        hr_serialize(call->tensors, call->sources, call->count, &call->options, memory, size, &size, &err);
    Py_END_ALLOW_THREADS if (code == 0) return bytes;
    Py_DECREF(bytes);
    return core_raise(state, &err);
}

/* None: into memory. */
static int read_path(PyObject *object, char **ret_path)
{
    *ret_path = NULL;
    return object == Py_None ? 0 : PyBytes_AsStringAndSize(object, ret_path, NULL);
}

PyObject *core_write(PyObject *module, PyObject *arguments)
{
    PyObject *target, *rows, *pairs, *devices, *result = NULL;
    unsigned long long align, shard_bytes;
    char *path;
    struct write_call call = {.options = {.size = sizeof call.options}};
    if (!PyArg_ParseTuple(arguments, "OO!OO!KKII", &target, &PyList_Type, &rows, &pairs, &PyList_Type, &devices, &align,
                          &shard_bytes, &call.options.thread_count, &call.options.no_sync))
        return NULL;
    call.options.align = align;
    call.options.shard_bytes = shard_bytes;
    if (read_path(target, &path) == 0 && read_rows(&call, rows) == 0 && read_metadata(&call, pairs) == 0 &&
        read_devices(&call, devices) == 0)
        result = path == NULL ? write_bytes(PyModule_GetState(module), &call)
                              : write_file(PyModule_GetState(module), &call, path);
    call_release(&call);
    return result;
}
