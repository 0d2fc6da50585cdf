/*
 * core_items.c: what a load is asked for in Python, lists and dicts by the item's position, made into the library's
 * items; and what neither Python nor the framework could hold, refused before a byte is read.
 */
#include "core_load.h"

#include <stdlib.h>

static int set_ranges(struct hr_item *item, struct hr_range *pool, size_t *used, uint32_t rank, PyObject *tuple)
{
    if (PyTuple_Size(tuple) != (Py_ssize_t)rank) {
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_ValueError, "one range a dimension is needed");
        return -1;
    }
    item->ranges = &pool[*used];
    for (uint32_t i = 0; i < rank; i++) {
        unsigned long long start, stop, step;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, (Py_ssize_t)i), "KKK", &start, &stop, &step))
            return -1;
        pool[(*used)++] = (struct hr_range){start, stop, step};
    }
    return 0;
}

static int set_into(struct load_object *self, size_t index, int64_t *pool, size_t *used, PyObject *row)
{
    PyObject *object, *strides;
    unsigned long long address;
    struct hr_item *item = &self->items[index];
    if (!PyArg_ParseTuple(row, "OKO", &object, &address, &strides))
        return -1;
    item->into = (void *)(uintptr_t)address;
    self->objects[index] = Py_NewRef(object);
    self->places[index] = CORE_INTO;
    if (strides == Py_None)
        return 0;
    uint32_t rank = core_load_tensor(self, index)->rank;
    if (PyTuple_Size(strides) != (Py_ssize_t)rank) {
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_ValueError, "one stride a dimension is needed");
        return -1;
    }
    item->into_strides = &pool[*used];
    for (uint32_t i = 0; i < rank; i++) {
        pool[(*used)++] = PyLong_AsLongLong(PyTuple_GetItem(strides, (Py_ssize_t)i));
        if (PyErr_Occurred() != NULL)
            return -1;
    }
    return 0;
}

/* The sum of the ranks of a dict's items: what their pool needs. */
static size_t rank_sum(struct load_object *self, PyObject *dict)
{
    size_t sum = 0;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &position, &key, &value)) {
        size_t index = PyLong_AsSize_t(key);
        if (index < self->item_count)
            sum += core_load_tensor(self, index)->rank;
    }
    return sum;
}

static int set_extras(struct load_object *self, PyObject *ranges, PyObject *into)
{
    size_t range_count = 0, stride_count = 0;
    self->ranges = calloc(rank_sum(self, ranges) + 1, sizeof *self->ranges);
    self->strides = calloc(rank_sum(self, into) + 1, sizeof *self->strides);
    if (self->ranges == NULL || self->strides == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(ranges, &position, &key, &value)) {
        size_t index = PyLong_AsSize_t(key);
        if (index < self->item_count &&
            set_ranges(&self->items[index], self->ranges, &range_count, core_load_tensor(self, index)->rank, value) < 0)
            return -1;
    }
    position = 0;
    while (PyDict_Next(into, &position, &key, &value)) {
        size_t index = PyLong_AsSize_t(key);
        if (index < self->item_count && set_into(self, index, self->strides, &stride_count, value) < 0)
            return -1;
    }
    return PyErr_Occurred() == NULL ? 0 : -1;
}

/* `places` holds a byte an item, the index of its device; None: all on the first. */
static int set_devices(struct load_object *self, PyObject *places)
{
    char *indices;
    Py_ssize_t count;
    size_t device_count = (size_t)PyTuple_Size(self->loader->devices);
    if (places == Py_None)
        return 0;
    if (PyBytes_AsStringAndSize(places, &indices, &count) < 0)
        return -1;
    if ((size_t)count != self->item_count) {
        PyErr_SetString(PyExc_ValueError, "one device an item is needed");
        return -1;
    }
    for (size_t i = 0; i < self->item_count; i++) {
        self->items[i].device_index = (unsigned char)indices[i];
        if (self->items[i].device_index >= device_count) {
            PyErr_SetString(PyExc_IndexError, "device index out of range");
            return -1;
        }
    }
    return 0;
}

static int set_streams(struct load_object *self, PyObject *streams)
{
    size_t count = (size_t)PyTuple_Size(self->loader->devices);
    if (!PyList_Check(streams) || (size_t)PyList_Size(streams) != count) {
        PyErr_SetString(PyExc_ValueError, "one stream a device is needed");
        return -1;
    }
    self->streams = calloc(count + 1, sizeof *self->streams);
    if (self->streams == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        self->streams[i] = PyLong_AsVoidPtr(PyList_GetItem(streams, (Py_ssize_t)i));
        if (self->streams[i] == NULL && PyErr_Occurred() != NULL)
            return -1;
    }
    return 0;
}

/* What indices left of the shapes of items: no more dimensions than the tensors have. */
static int check_shapes(struct load_object *self)
{
    Py_ssize_t position = 0;
    PyObject *key, *shape;
    while (self->shapes != NULL && PyDict_Next(self->shapes, &position, &key, &shape)) {
        size_t index = PyLong_AsSize_t(key);
        if (index >= self->item_count || !PyTuple_Check(shape) ||
            PyTuple_Size(shape) > (Py_ssize_t)core_load_tensor(self, index)->rank) {
            if (PyErr_Occurred() == NULL)
                PyErr_SetString(PyExc_ValueError, "a shape is a tuple of at most as many extents as the tensor has");
            return -1;
        }
    }
    return 0;
}

static int set_dtypes(struct load_object *self, PyObject *dtypes)
{
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(dtypes, &position, &key, &value)) {
        size_t index = PyLong_AsSize_t(key);
        if (index < self->item_count)
            self->items[index].dtype = (uint32_t)PyLong_AsUnsignedLong(value);
    }
    return PyErr_Occurred() == NULL ? 0 : -1;
}

/* {index: (dimension, rank, world)} */
static int set_shards(struct load_object *self, PyObject *shards)
{
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(shards, &position, &key, &value)) {
        size_t index = PyLong_AsSize_t(key);
        unsigned dim, rank, world;
        if (index >= self->item_count || !PyArg_ParseTuple(value, "III", &dim, &rank, &world))
            return -1;
        self->items[index].shard_dim = dim;
        self->items[index].shard_rank = rank;
        self->items[index].shard_world = world;
    }
    return 0;
}

static int set_items(struct load_object *self, PyObject *indices)
{
    struct hr_checkpoint *checkpoint = self->checkpoint->checkpoint;
    size_t tensor_count = hr_checkpoint_count(checkpoint);
    self->item_count = indices == Py_None ? tensor_count : (size_t)PyList_Size(indices);
    self->items = calloc(self->item_count + 1, sizeof *self->items);
    self->objects = calloc(self->item_count + 1, sizeof *self->objects);
    self->places = calloc(self->item_count + 1, sizeof *self->places);
    if (self->items == NULL || self->objects == NULL || self->places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < self->item_count; i++) {
        size_t index = indices == Py_None ? i : PyLong_AsSize_t(PyList_GetItem(indices, (Py_ssize_t)i));
        if (index >= tensor_count) {
            if (PyErr_Occurred() == NULL)
                PyErr_SetString(PyExc_IndexError, "tensor index out of range");
            return -1;
        }
        self->items[i].size = sizeof self->items[i];
        self->items[i].tensor_index = index;
    }
    return 0;
}

/* Only tensors without elements have dimensions that nothing in Python, nor DLPack, can hold. */
static int check_extents(struct load_object *self)
{
    for (size_t i = 0; i < self->item_count; i++) {
        const struct hr_tensor *tensor = core_load_tensor(self, i);
        for (uint32_t dim = 0; self->places[i] != CORE_INTO && dim < tensor->rank; dim++) {
            uint64_t extent = core_load_extent(self, i, dim);
            if (extent <= INT64_MAX)
                continue;
            core_raise_code(core_state_of((PyObject *)self), HR_EUNSUPPORTED, tensor->name,
                            "tensor '%s': its dimension %u has %llu elements; tensors in memory have 2^63 - 1 at most",
                            tensor->name, dim, (unsigned long long)extent);
            return -1;
        }
    }
    return 0;
}

/* What the framework cannot hold is refused before a byte is read. */
static int check_dtypes(struct load_object *self)
{
    for (size_t i = 0; i < self->item_count; i++) {
        const struct hr_tensor *tensor = core_load_tensor(self, i);
        if (self->places[i] == CORE_INTO)
            continue;
        PyObject *reason = core_maker_row(self, i)->reason;
        if (reason != NULL) {
            core_raise_code(core_state_of((PyObject *)self), HR_EUNSUPPORTED, tensor->name, "tensor '%s': %s",
                            tensor->name, PyUnicode_AsUTF8AndSize(reason, NULL));
            return -1;
        }
        uint64_t divisor = core_maker_row(self, i)->divisor;
        if (core_load_last_extent(self, i) % divisor != 0) {
            core_raise_code(core_state_of((PyObject *)self), HR_EUNSUPPORTED, tensor->name,
                            "tensor '%s': its last dimension does not fill whole bytes, which no framework can hold; "
                            "framework=None gives the raw bytes",
                            tensor->name);
            return -1;
        }
    }
    return 0;
}

int core_items_set(struct load_object *self, const struct core_asked *asked)
{
    if (set_items(self, asked->indices) < 0 || set_devices(self, asked->places) < 0 ||
        set_streams(self, asked->streams) < 0 || set_extras(self, asked->ranges, asked->into) < 0 ||
        check_shapes(self) < 0 || set_shards(self, asked->shards) < 0 || set_dtypes(self, asked->dtypes) < 0)
        return -1;
    return check_extents(self) < 0 || (self->maker.callable != NULL && check_dtypes(self) < 0) ? -1 : 0;
}
