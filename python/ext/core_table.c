/*
 * core_table.c: from_table(), a checkpoint of tensors that the caller describes. Rows come in the one form that
 * _table.py makes: (name, dtype's code, shape, file index, offset). Names are borrowed from them during the call.
 */
#include "core.h"

#include <stdlib.h>

/* What a list of rows becomes; shapes of all of them lie in one pool. */
struct table {
    struct hr_extent *extents;
    uint64_t *shapes;
};

static void table_release(struct table *table)
{
    free(table->extents);
    free(table->shapes);
}

/* Extents of all rows together, or -1 with an exception. */
static Py_ssize_t count_extents(PyObject *rows)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *shape = PyTuple_GetItem(PyList_GetItem(rows, i), 2);
        Py_ssize_t rank = shape == NULL ? -1 : PyTuple_Size(shape);
        if (rank < 0)
            return -1;
        count += rank;
    }
    return count;
}

/* 0, or -1 with an exception. */
static int fill_extent(PyObject *row, uint64_t *shape, struct hr_extent *extent)
{
    PyObject *name, *extents;
    Py_ssize_t name_size;
    unsigned long long dtype, file_index, offset;
    if (!PyArg_ParseTuple(row, "UKOKK", &name, &dtype, &extents, &file_index, &offset))
        return -1;
    const char *text = PyUnicode_AsUTF8AndSize(name, &name_size);
    Py_ssize_t rank = PyTuple_Size(extents);
    if (text == NULL || rank < 0)
        return -1;
    for (Py_ssize_t d = 0; d < rank; d++) {
        shape[d] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(extents, d));
        if (shape[d] == UINT64_MAX && PyErr_Occurred() != NULL)
            return -1;
    }
    *extent = (struct hr_extent){
        .size = sizeof *extent,
        .name = text,
        .name_size = (size_t)name_size,
        .dtype = (uint32_t)dtype,
        .rank = (uint32_t)rank,
        .shape = shape,
        .file_index = file_index,
        .offset = offset,
    };
    return 0;
}

/* 0, or -1 with an exception; the caller releases either way. */
static int table_fill(PyObject *rows, struct table *table)
{
    Py_ssize_t count = PyList_Size(rows), extents = count < 0 ? -1 : count_extents(rows);
    if (extents < 0)
        return -1;
    table->extents = calloc((size_t)count + 1, sizeof *table->extents);
    table->shapes = calloc((size_t)extents + 1, sizeof *table->shapes);
    if (table->extents == NULL || table->shapes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    uint64_t *shape = table->shapes;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (fill_extent(PyList_GetItem(rows, i), shape, &table->extents[i]) < 0)
            return -1;
        shape += table->extents[i].rank;
    }
    return 0;
}

PyObject *core_from_table(PyObject *module, PyObject *arguments)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *path_list, *rows;
    struct table table = {0};
    if (!PyArg_ParseTuple(arguments, "OO", &path_list, &rows))
        return NULL;
    Py_ssize_t path_count = PyList_Size(path_list);
    const char **paths = path_count < 0 ? NULL : core_borrow_paths(path_list, path_count);
    if (paths == NULL)
        return NULL;
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    int rc = table_fill(rows, &table);
    if (rc == 0) {
        size_t count = (size_t)PyList_Size(rows);
        PyThreadState *lock = PyEval_SaveThread();
        rc = hr_checkpoint_from_table(paths, (size_t)path_count, table.extents, count, &checkpoint, &err);
        PyEval_RestoreThread(lock);
        if (rc != 0)
            core_raise(state, &err);
    }
    free(paths);
    table_release(&table);
    return rc == 0 ? core_checkpoint_object(state, checkpoint) : NULL;
}
