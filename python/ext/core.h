/*
 * core.h: what the files of the extension headrace._core share.
 *
 * The extension is a thin, small layer: it owns the handles of the C library (Checkpoint, Loader, Load), the
 * tensors that are not a framework's (Tensor), and the two crossings that must be cheap: making destinations in
 * the framework, and handing tensors out. It knows no framework, no path rule, no option's default: those are
 * Python's.
 *
 * Invariants: every library call that can block runs without the interpreter lock, between call_begin() and
 * call_end(); Python objects are touched with it only. An object made before a fork refuses to work in the child
 * and frees nothing there. Only the limited API of Python 3.11 is used.
 */
#ifndef HR_CORE_H
#define HR_CORE_H

#include <Python.h>
#include <structmember.h>

#include <headrace/headrace.h>

struct core_state {
    PyObject *make_error; /* headrace.errors.from_core */
    PyTypeObject *checkpoint_type, *loader_type, *load_type, *tensor_type;
    uint64_t fork_generation; /* counts the forks between us and the process that imported the module */
};

struct checkpoint_object {
    PyObject_HEAD struct hr_checkpoint *checkpoint;
};

struct loader_object {
    PyObject_HEAD struct hr_loader *plain,
        *hooked; /* without and with the allocation hook; each made on first use, or NULL */
    uint64_t fork_generation;
    PyObject *devices; /* a tuple of their names */
    struct hr_loader_options options;
};

/* The state of an object's module; its type must be one of ours, which cannot be subclassed. */
struct core_state *core_state_of(PyObject *object);

/* The one place where a library error becomes an exception. Returns NULL. */
PyObject *core_raise(struct core_state *state, const struct hr_error *err);
/* The same for a fact that the extension itself knows. */
PyObject *core_raise_code(struct core_state *state, int code, const char *tensor, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The loader that loads with (or without) the allocation hook; NULL with an exception. */
struct hr_loader *core_loader_get(struct loader_object *self, const struct hr_allocator *hook);

/* The facts of a device as a dict; NULL with an exception. */
PyObject *core_device_dict(const struct hr_device_info *info);

/* Statistics as a dict; NULL with an exception. */
PyObject *core_stats_dict(const struct hr_stats *stats);

/*
 * A Tensor for a ready item of a load, which gives up its hold on it; NULL with an exception. `shape` is a tuple of its
 * extents where it has not all dimensions of the item, or NULL.
 */
PyObject *core_tensor_take(struct core_state *state, struct hr_load *load, size_t item_index, PyObject *shape);

/* In loops over many tensors: lets other Python threads have the interpreter lock now and then. */
void core_take_turns(size_t index);

/* A tuple of `count` extents; `divisor` divides the last one. */
PyObject *core_shape_tuple(const uint64_t *extents, size_t count, uint64_t divisor);

extern PyType_Spec core_checkpoint_spec, core_loader_spec, core_load_spec, core_tensor_spec;
/* The bytes of a list of bytes objects, borrowed; NULL with an exception. The array is the caller's, by free(). */
const char **core_borrow_paths(PyObject *list, Py_ssize_t count);
/* Takes the checkpoint over, also where it fails. */
PyObject *core_checkpoint_object(struct core_state *state, struct hr_checkpoint *checkpoint);
PyObject *core_open(PyObject *module, PyObject *arguments);
PyObject *core_from_table(PyObject *module, PyObject *arguments);
PyObject *core_device_find(PyObject *module, PyObject *name);
PyObject *core_storage(PyObject *module, PyObject *path);
PyObject *core_probe(PyObject *module, PyObject *arguments);
PyObject *core_write(PyObject *module, PyObject *arguments);

#endif
