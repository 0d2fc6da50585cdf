/*
 * core_module.c: the module headrace._core: its state, its types, its functions, and the way from a library error
 * to an exception. The exception classes are Python's (headrace.errors): it registers one function that makes an
 * instance, and everything that fails here goes through it.
 */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct core_state *core_state_of(PyObject *object)
{
    return PyType_GetModuleState(Py_TYPE(object));
}

static PyObject *offset_object(uint64_t offset)
{
    return offset == HR_NO_OFFSET ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(offset);
}

static PyObject *text_or_none(const char *text)
{
    return text[0] == '\0' ? Py_NewRef(Py_None) : PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *path_or_none(const char *path)
{
    return path[0] == '\0' ? Py_NewRef(Py_None) : PyUnicode_DecodeFSDefault(path);
}

#define TURN_COUNT 4096 /* tensors between two turns: some milliseconds on a slow machine */
#define TURN_NS 50000   /* long enough for a thread that waits for the lock to wake up and take it */

/*
 * Giving the lock up and taking it back at once would starve who waits for it: each time it wakes up too late, and begins
 * anew to count the 5 ms after which the interpreter would force us.
 */
void core_take_turns(size_t index)
{
    if (index % TURN_COUNT != TURN_COUNT - 1)
        return;
    const struct timespec turn = {0, TURN_NS};
    Py_BEGIN_ALLOW_THREADS nanosleep(&turn, NULL);
    Py_END_ALLOW_THREADS
}

PyObject *core_raise(struct core_state *state, const struct hr_error *err)
{
    if (state->make_error == NULL) {
        PyErr_SetString(PyExc_RuntimeError, err->message);
        return NULL;
    }
    PyObject *error = PyObject_CallFunction(state->make_error, "iNNNNii", err->code, text_or_none(err->message),
                                            path_or_none(err->file), text_or_none(err->tensor),
                                            offset_object(err->offset), err->sys_errno, err->driver_code);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

PyObject *core_raise_code(struct core_state *state, int code, const char *tensor, const char *format, ...)
{
    struct hr_error err = {.code = code, .offset = HR_NO_OFFSET};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err.message, sizeof err.message, format, arguments);
    va_end(arguments);
    if (tensor != NULL)
        snprintf(err.tensor, sizeof err.tensor, "%s", tensor);
    return core_raise(state, &err);
}

PyObject *core_shape_tuple(const uint64_t *extents, size_t count, uint64_t divisor)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; shape != NULL && i < count; i++) {
        PyObject *extent = PyLong_FromUnsignedLongLong(i + 1 == count ? extents[i] / divisor : extents[i]);
        if (extent == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, extent) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

static PyObject *set_error_factory(PyObject *module, PyObject *factory)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *before = state->make_error;
    state->make_error = Py_NewRef(factory);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *after_fork(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    struct core_state *state = PyModule_GetState(module);
    state->fork_generation++;
    Py_RETURN_NONE;
}

static PyObject *error_list(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    static const struct {
        int code;
        const char *kind, *text;
    } errors[] = {
#define ERROR_ROW(name, number, kind, text) {-(number), kind, text},
        HR_ERROR_LIST(ERROR_ROW)
#undef ERROR_ROW
    };
    size_t count = sizeof errors / sizeof errors[0];
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *row = Py_BuildValue("(iss)", errors[i].code, errors[i].kind, errors[i].text);
        if (row == NULL || PyList_SetItem(list, (Py_ssize_t)i, row) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *dtype_list(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    for (uint32_t dtype = 1; list != NULL && dtype < HR_DTYPE_COUNT; dtype++) {
        PyObject *row = Py_BuildValue("(sI)", hr_dtype_name(dtype), (unsigned)hr_dtype_bits(dtype));
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *dtype_converts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    unsigned from, to;
    return PyArg_ParseTuple(arguments, "II", &from, &to) ? PyBool_FromLong(hr_dtype_converts(from, to)) : NULL;
}

static PyObject *capability_list(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct hr_capability capabilities[32];
    size_t count = hr_capabilities(capabilities, 32);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count && i < 32; i++) {
        PyObject *row = Py_BuildValue("(sNs)", capabilities[i].name, PyBool_FromLong(capabilities[i].usable),
                                      capabilities[i].detail);
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *route_find(PyObject *Py_UNUSED(module), PyObject *argument)
{
    const char *name = PyUnicode_AsUTF8AndSize(argument, NULL);
    return name == NULL ? NULL : PyLong_FromLong(hr_route_find(name));
}

static PyMethodDef core_functions[] = {
    {"open", core_open, METH_VARARGS,
     "open(paths, mode, allow_trailing, thread_count, /)\n--\n\nOpens a checkpoint; `paths` are bytes."},
    {"from_table", core_from_table, METH_VARARGS,
     "from_table(paths, rows, /)\n--\n\nA checkpoint of rows (name, dtype's code, shape, file index, offset)."},
    {"set_error_factory", set_error_factory, METH_O,
     "set_error_factory(factory, /)\n--\n\nRegisters what makes an exception from an error's fields."},
    {"after_fork", after_fork, METH_NOARGS,
     "after_fork()\n--\n\nIn a forked child: all loaders and loads made so far are of no use here."},
    {"error_list", error_list, METH_NOARGS, "error_list()\n--\n\n[(code, kind, text)] of every error."},
    {"dtype_list", dtype_list, METH_NOARGS,
     "dtype_list()\n--\n\n[(name, bits)]; the dtype's code is its position + 1."},
    {"dtype_converts", dtype_converts, METH_VARARGS,
     "dtype_converts($module, source, target, /)\n--\n\nWhether elements of one code can be made into those of "
     "another."},
    {"capability_list", capability_list, METH_NOARGS, "capability_list()\n--\n\n[(name, usable, detail)]."},
    {"device_find", core_device_find, METH_O, "device_find(name, /)\n--\n\nThe facts of a device, a dict."},
    {"storage", core_storage, METH_O,
     "storage($module, path, /)\n--\n\nHow the storage of a checkpoint would be read past the page cache, a str."},
    {"probe", core_probe, METH_VARARGS,
     "probe(device, path, thread_count, budget_ns, /)\n--\n\nMeasures the machine's ceilings, a dict."},
    {"route_find", route_find, METH_O, "route_find(name, /)\n--\n\nThe route of this name, or -1."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **ret_type)
{
    *ret_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *ret_type == NULL ? -1 : PyModule_AddType(module, *ret_type);
}

static int core_exec(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    if (add_type(module, &core_checkpoint_spec, &state->checkpoint_type) < 0 ||
        add_type(module, &core_loader_spec, &state->loader_type) < 0 ||
        add_type(module, &core_load_spec, &state->load_type) < 0 ||
        add_type(module, &core_tensor_spec, &state->tensor_type) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "version", hr_version());
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct core_state *state = PyModule_GetState(module);
    Py_VISIT(state->make_error);
    Py_VISIT(state->checkpoint_type);
    Py_VISIT(state->loader_type);
    Py_VISIT(state->load_type);
    Py_VISIT(state->tensor_type);
    return 0;
}

static int core_clear(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    Py_CLEAR(state->make_error);
    Py_CLEAR(state->checkpoint_type);
    Py_CLEAR(state->loader_type);
    Py_CLEAR(state->load_type);
    Py_CLEAR(state->tensor_type);
    return 0;
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
    {0, NULL},
};

static struct PyModuleDef core_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace._core",
    .m_doc = "The C library's handles; use the package headrace instead.",
    .m_size = sizeof(struct core_state),
    .m_methods = core_functions,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
};

PyMODINIT_FUNC PyInit__core(void); /* called by the import system, by name */

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_definition);
}
