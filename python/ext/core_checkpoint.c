/*
 * core_checkpoint.c: _core.Checkpoint, a table of tensors. Names and infos become Python objects when they are
 * asked for, so that opening 20,000 tensors makes none. Immutable; any thread, also after a fork.
 */
#include "core.h"

#include <stdlib.h>

static struct hr_checkpoint *handle_of(PyObject *self)
{
    return ((struct checkpoint_object *)self)->checkpoint;
}

const char **core_borrow_paths(PyObject *list, Py_ssize_t count)
{
    const char **paths = calloc((size_t)count + 1, sizeof *paths);
    if (paths == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *path = PyList_GetItem(list, i);
        paths[i] = path == NULL ? NULL : PyBytes_AsString(path);
        if (paths[i] == NULL) {
            free(paths);
            return NULL;
        }
    }
    return paths;
}

PyObject *core_checkpoint_object(struct core_state *state, struct hr_checkpoint *checkpoint)
{
    allocfunc allocate = PyType_GetSlot(state->checkpoint_type, Py_tp_alloc);
    PyObject *self = allocate(state->checkpoint_type, 0);
    if (self == NULL)
        hr_checkpoint_close(checkpoint);
    else
        ((struct checkpoint_object *)self)->checkpoint = checkpoint;
    return self;
}

PyObject *core_open(PyObject *module, PyObject *arguments)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *list;
    struct hr_open_options options = {.size = sizeof options};
    if (!PyArg_ParseTuple(arguments, "OIII", &list, &options.mode, &options.allow_trailing, &options.thread_count))
        return NULL;
    Py_ssize_t count = PyList_Size(list);
    const char **paths = count < 0 ? NULL : core_borrow_paths(list, count);
    if (paths == NULL)
        return NULL;
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = hr_checkpoint_open(paths, (size_t)count, &options, &checkpoint, &err);
    Py_END_ALLOW_THREADS free(paths);
    if (rc != 0)
        return core_raise(state, &err);
    return core_checkpoint_object(state, checkpoint);
}

static void checkpoint_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    hr_checkpoint_close(handle_of(self));
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static Py_ssize_t checkpoint_length(PyObject *self)
{
    return (Py_ssize_t)hr_checkpoint_count(handle_of(self));
}

static PyObject *name_object(const struct hr_tensor *tensor)
{
    return PyUnicode_DecodeUTF8(tensor->name, (Py_ssize_t)tensor->name_size, "strict");
}

static PyObject *checkpoint_names(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    size_t count = hr_checkpoint_count(handle_of(self));
    PyObject *names = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; names != NULL && i < count; i++) {
        core_take_turns(i);
        PyObject *name = name_object(hr_checkpoint_at(handle_of(self), i));
        if (name == NULL || PyList_SetItem(names, (Py_ssize_t)i, name) < 0)
            Py_CLEAR(names);
    }
    return names;
}

static PyObject *checkpoint_find(PyObject *self, PyObject *argument)
{
    Py_ssize_t size;
    const char *name = PyUnicode_AsUTF8AndSize(argument, &size);
    if (name == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear(); /* a lone surrogate is in no UTF-8 name */
        return PyLong_FromLong(-1);
    }
    const struct hr_tensor *tensor = hr_checkpoint_find(handle_of(self), name, (size_t)size);
    return PyLong_FromSsize_t(tensor == NULL ? -1 : tensor - hr_checkpoint_at(handle_of(self), 0));
}

static PyObject *checkpoint_read_ahead(PyObject *self, PyObject *argument)
{
    unsigned long long bytes = PyLong_AsUnsignedLongLong(argument);
    uint64_t asked = 0;
    struct hr_error err;
    int rc;
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = hr_checkpoint_read_ahead(handle_of(self), bytes, &asked, &err);
    Py_END_ALLOW_THREADS if (rc != 0)
    {
        return core_raise(core_state_of(self), &err);
    }
    return PyLong_FromUnsignedLongLong(asked);
}

static PyObject *checkpoint_match(PyObject *self, PyObject *argument)
{
    const char *pattern = PyUnicode_AsUTF8AndSize(argument, NULL);
    if (pattern == NULL)
        return NULL;
    size_t count = hr_checkpoint_count(handle_of(self));
    PyObject *matches = PyList_New(0);
    for (size_t i = 0; matches != NULL; i++) {
        i = hr_checkpoint_match(handle_of(self), pattern, i);
        if (i >= count)
            break;
        PyObject *index = PyLong_FromSize_t(i);
        if (index == NULL || PyList_Append(matches, index) < 0)
            Py_CLEAR(matches);
        Py_XDECREF(index);
    }
    return matches;
}

static PyObject *checkpoint_info(PyObject *self, PyObject *argument)
{
    size_t index = PyLong_AsSize_t(argument);
    if (index == (size_t)-1 && PyErr_Occurred() != NULL)
        return NULL;
    const struct hr_tensor *tensor = hr_checkpoint_at(handle_of(self), index);
    if (tensor == NULL) {
        PyErr_SetString(PyExc_IndexError, "tensor index out of range");
        return NULL;
    }
    return Py_BuildValue("(NsNnKK)", name_object(tensor), hr_dtype_name(tensor->dtype),
                         core_shape_tuple(tensor->shape, tensor->rank, 1), (Py_ssize_t)tensor->file_index,
                         (unsigned long long)tensor->offset, (unsigned long long)tensor->size);
}

static PyObject *checkpoint_files(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    size_t count = hr_checkpoint_file_count(handle_of(self));
    PyObject *files = PyList_New(0);
    for (size_t i = 0; files != NULL && i < count; i++) {
        const struct hr_file *file = hr_checkpoint_file(handle_of(self), i);
        PyObject *row = Py_BuildValue("(NKKnn)", PyUnicode_DecodeFSDefault(file->path), (unsigned long long)file->size,
                                      (unsigned long long)file->data_offset, (Py_ssize_t)file->tensor_first,
                                      (Py_ssize_t)file->tensor_count);
        if (row == NULL || PyList_Append(files, row) < 0)
            Py_CLEAR(files);
        Py_XDECREF(row);
    }
    return files;
}

static PyObject *checkpoint_nbytes(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    unsigned long long bytes = 0;
    for (size_t i = 0; i < hr_checkpoint_count(handle_of(self)); i++)
        bytes += hr_checkpoint_at(handle_of(self), i)->size;
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *checkpoint_metadata(PyObject *self, PyObject *argument)
{
    size_t file_index = PyLong_AsSize_t(argument);
    if (file_index == (size_t)-1 && PyErr_Occurred() != NULL)
        return NULL;
    PyObject *metadata = PyDict_New();
    const char *key, *value;
    size_t key_size, value_size;
    for (size_t i = 0; metadata != NULL; i++) {
        if (hr_checkpoint_metadata(handle_of(self), file_index, i, &key, &key_size, &value, &value_size) != 0)
            break;
        PyObject *key_text = PyUnicode_DecodeUTF8(key, (Py_ssize_t)key_size, "strict");
        PyObject *value_text = PyUnicode_DecodeUTF8(value, (Py_ssize_t)value_size, "strict");
        if (key_text == NULL || value_text == NULL || PyDict_SetItem(metadata, key_text, value_text) < 0)
            Py_CLEAR(metadata);
        Py_XDECREF(key_text);
        Py_XDECREF(value_text);
    }
    return metadata;
}

static PyObject *checkpoint_warnings(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *warnings = PyList_New(0);
    const char *text;
    for (size_t i = 0; warnings != NULL && (text = hr_checkpoint_warning(handle_of(self), i)) != NULL; i++) {
        PyObject *warning = PyUnicode_DecodeFSDefault(text);
        if (warning == NULL || PyList_Append(warnings, warning) < 0)
            Py_CLEAR(warnings);
        Py_XDECREF(warning);
    }
    return warnings;
}

static PyMethodDef checkpoint_methods[] = {
    {"names", checkpoint_names, METH_NOARGS, "names($self, /)\n--\n\nAll names, in file order."},
    {"find", checkpoint_find, METH_O, "find($self, name, /)\n--\n\nThe tensor's index, or -1."},
    {"match", checkpoint_match, METH_O,
     "match($self, pattern, /)\n--\n\nIndices of the tensors that a shell pattern matches."},
    {"info", checkpoint_info, METH_O, "info($self, index, /)\n--\n\n(name, dtype, shape, file index, offset, bytes)."},
    {"files", checkpoint_files, METH_NOARGS,
     "files($self, /)\n--\n\n[(path, size, data offset, first tensor, tensor count)]."},
    {"nbytes", checkpoint_nbytes, METH_NOARGS, "nbytes($self, /)\n--\n\nBytes of all tensors."},
    {"metadata", checkpoint_metadata, METH_O, "metadata($self, file_index, /)\n--\n\nThe __metadata__ of a file."},
    {"read_ahead", checkpoint_read_ahead, METH_O,
     "read_ahead($self, most_bytes, /)\n--\n\nBytes that the kernel was asked to read ahead; ends when a load starts."},
    {"warnings", checkpoint_warnings, METH_NOARGS, "warnings($self, /)\n--\n\nWhat is odd but allowed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot checkpoint_slots[] = {
    {Py_tp_dealloc, checkpoint_dealloc},
    {Py_tp_methods, checkpoint_methods},
    {Py_sq_length, checkpoint_length},
    {Py_tp_doc, (char *)"An open checkpoint; made by open()."},
    {0, NULL},
};

PyType_Spec core_checkpoint_spec = {
    .name = "headrace._core.Checkpoint",
    .basicsize = sizeof(struct checkpoint_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = checkpoint_slots,
};
