/*
 * core_maker.c: destinations made in a framework (torch.empty, numpy.empty) when the library asks for memory. The
 * library asks on threads that wait, without the interpreter lock; taking it can cost a switch interval when
 * another Python thread is busy, so small tensors are made ahead, a batch at a time.
 *
 * It knows of a framework only what the maker says: a callable, its keywords for each device and dtype, and how to
 * learn the address of what it returned.
 */
#include "core_load.h"

#include <stdlib.h>

#define BATCH_BYTES_MAX (1u << 20)
#define BATCH_COUNT_MAX 256

static int init_row(struct core_maker_row *row, PyObject *given)
{
    row->divisor = 1;
    if (PyUnicode_Check(given)) {
        row->reason = Py_NewRef(given);
        return 0;
    }
    PyObject *keywords;
    unsigned long long divisor;
    if (!PyArg_ParseTuple(given, "O!K", &PyDict_Type, &keywords, &divisor))
        return -1;
    row->keywords = Py_NewRef(keywords);
    row->divisor = divisor;
    return 0;
}

static int init_table(struct core_maker_row *rows, PyObject *table)
{
    if (!PyList_Check(table) || PyList_Size(table) != HR_DTYPE_COUNT - 1) {
        PyErr_SetString(PyExc_ValueError, "a maker needs a row for each dtype");
        return -1;
    }
    for (uint32_t dtype = 1; dtype < HR_DTYPE_COUNT; dtype++) {
        if (init_row(&rows[dtype], PyList_GetItem(table, (Py_ssize_t)dtype - 1)) < 0)
            return -1;
    }
    return 0;
}

int core_maker_init(struct core_maker *maker, PyObject *tuple, size_t device_count)
{
    PyObject *callable, *tables, *pointer_method;
    if (!PyArg_ParseTuple(tuple, "OO!O", &callable, &PyList_Type, &tables, &pointer_method))
        return -1;
    if (PyList_Size(tables) != (Py_ssize_t)device_count) {
        PyErr_SetString(PyExc_ValueError, "a maker needs a table for each device");
        return -1;
    }
    maker->rows = calloc(device_count * HR_DTYPE_COUNT + 1, sizeof *maker->rows);
    if (maker->rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    maker->row_count = device_count * HR_DTYPE_COUNT;
    maker->callable = Py_NewRef(callable);
    maker->pointer_method = pointer_method == Py_None ? NULL : Py_NewRef(pointer_method);
    for (size_t i = 0; i < device_count; i++) {
        if (init_table(&maker->rows[i * HR_DTYPE_COUNT], PyList_GetItem(tables, (Py_ssize_t)i)) < 0)
            return -1;
    }
    return 0;
}

void core_maker_clear(struct core_maker *maker)
{
    Py_CLEAR(maker->callable);
    Py_CLEAR(maker->pointer_method);
    for (size_t i = 0; i < maker->row_count; i++) {
        Py_CLEAR(maker->rows[i].keywords);
        Py_CLEAR(maker->rows[i].reason);
    }
    maker->row_count = 0;
    free(maker->rows);
    maker->rows = NULL;
}

int core_maker_visit(const struct core_maker *maker, visitproc visit, void *arg)
{
    Py_VISIT(maker->callable);
    for (size_t i = 0; i < maker->row_count; i++)
        Py_VISIT(maker->rows[i].keywords);
    return 0;
}

const struct core_maker_row *core_maker_row(const struct load_object *load, size_t index)
{
    size_t device_index = load->items[index].device_index;
    return &load->maker.rows[device_index * HR_DTYPE_COUNT + core_load_dtype(load, index)];
}

uint64_t core_load_extent(const struct load_object *load, size_t index, uint32_t dim)
{
    const struct hr_item *item = &load->items[index];
    struct hr_range range = {0, core_load_tensor(load, index)->shape[dim], 1};
    if (item->ranges != NULL)
        range = item->ranges[dim];
    uint64_t step = range.step == 0 ? 1 : range.step;
    uint64_t extent = (range.stop - range.start + step - 1) / step;
    if (item->shard_world == 0 || item->shard_dim != dim)
        return extent;
    hr_shard_range(extent, item->shard_rank, item->shard_world, &range);
    return range.stop - range.start;
}

/* Whether an item is not all of its tensor. */
static int is_part(const struct hr_item *item)
{
    return item->ranges != NULL || item->shard_world != 0;
}

uint64_t core_load_item_bytes(const struct load_object *load, size_t index)
{
    const struct hr_tensor *tensor = core_load_tensor(load, index);
    uint32_t dtype = core_load_dtype(load, index);
    if (!is_part(&load->items[index]) && dtype == tensor->dtype)
        return tensor->size;
    uint64_t bits = hr_dtype_bits(dtype);
    if (!is_part(&load->items[index]))
        return tensor->size / (hr_dtype_bits(tensor->dtype) / 8) * (bits / 8); /* what converts has whole bytes */
    for (uint32_t i = 0; i < tensor->rank; i++)
        bits *= core_load_extent(load, index, i);
    return bits / 8;
}

PyObject *core_load_given_shape(const struct load_object *load, size_t index)
{
    if (load->shapes == NULL)
        return NULL;
    PyObject *key = PyLong_FromSize_t(index);
    PyObject *shape = key == NULL ? NULL : PyDict_GetItem(load->shapes, key);
    Py_XDECREF(key);
    return shape;
}

uint64_t core_load_last_extent(const struct load_object *load, size_t index)
{
    uint32_t rank = core_load_tensor(load, index)->rank;
    PyObject *given = core_load_given_shape(load, index);
    if (given == NULL)
        return rank == 0 ? 1 : core_load_extent(load, index, rank - 1);
    Py_ssize_t count = PyTuple_Size(given);
    return count == 0 ? 1 : PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, count - 1));
}

static PyObject *item_shape(struct load_object *load, size_t index)
{
    const struct hr_tensor *tensor = core_load_tensor(load, index);
    uint64_t divisor = core_maker_row(load, index)->divisor;
    PyObject *given = core_load_given_shape(load, index);
    if (given != NULL && divisor == 1)
        return Py_NewRef(given);
    if (given == NULL && !is_part(&load->items[index]))
        return core_shape_tuple(tensor->shape, tensor->rank, divisor);
    Py_ssize_t rank = given != NULL ? PyTuple_Size(given) : (Py_ssize_t)tensor->rank;
    PyObject *shape = PyTuple_New(rank);
    for (Py_ssize_t i = 0; shape != NULL && i < rank; i++) {
        uint64_t extent = given != NULL ? PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, i))
                                        : core_load_extent(load, index, (uint32_t)i);
        PyObject *number = PyLong_FromUnsignedLongLong(i + 1 == rank ? extent / divisor : extent);
        if (number == NULL || PyTuple_SetItem(shape, i, number) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

static int address_of(const struct core_maker *maker, PyObject *object, void **ret_memory)
{
    if (maker->pointer_method == NULL) {
        Py_buffer view;
        if (PyObject_GetBuffer(object, &view, PyBUF_WRITABLE) < 0)
            return -1;
        *ret_memory = view.buf;
        PyBuffer_Release(&view);
        return 0;
    }
    PyObject *address = PyObject_CallMethodObjArgs(object, maker->pointer_method, NULL);
    if (address == NULL)
        return -1;
    void *memory = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (memory == NULL && PyErr_Occurred() != NULL)
        return -1;
    *ret_memory = memory;
    return 0;
}

/* The exception that is set is about a shape without elements, such as [0, 2^62, 2^62]: no lack of memory. */
static void refuse_empty(struct load_object *load, size_t index)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *words = value == NULL ? NULL : PyObject_Str(value);
    const char *text = words == NULL ? NULL : PyUnicode_AsUTF8AndSize(words, NULL);
    const char *name = core_load_tensor(load, index)->name;
    PyErr_Clear();
    core_raise_code(core_state_of((PyObject *)load), HR_EUNSUPPORTED, name,
                    "tensor '%s' has no elements, and its shape is none that the framework takes: %.300s", name,
                    text == NULL ? "" : text);
    Py_XDECREF(words);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

static int make_object(struct load_object *load, size_t index)
{
    PyObject *shape = item_shape(load, index);
    PyObject *arguments = shape == NULL ? NULL : PyTuple_Pack(1, shape);
    Py_XDECREF(shape);
    if (arguments == NULL)
        return -1;
    PyObject *object = PyObject_Call(load->maker.callable, arguments, core_maker_row(load, index)->keywords);
    Py_DECREF(arguments);
    if (object == NULL) {
        if (core_load_item_bytes(load, index) == 0)
            refuse_empty(load, index);
        return -1;
    }
    /* Python code has run: another thread may have made it, or handed it out, in the meantime. */
    if (load->objects[index] == NULL && load->places[index] == CORE_WAITING)
        load->objects[index] = object;
    else
        Py_DECREF(object);
    return 0;
}

int core_maker_make(struct load_object *load, size_t index, void **ret_memory)
{
    if (load->objects[index] == NULL && make_object(load, index) < 0)
        return -1;
    return address_of(&load->maker, load->objects[index], ret_memory);
}

/*
 * The small items behind `index` are likely asked for next; they may exceed the window by BATCH_BYTES_MAX. What
 * cannot be made now fails when it is asked for. What is never asked for is filled when it is handed out.
 */
static void make_ahead(struct load_object *load, size_t index, uint64_t bytes)
{
    for (size_t count = 1; count < BATCH_COUNT_MAX && ++index < load->item_count; count++) {
        if (load->places[index] != CORE_WAITING || load->objects[index] != NULL)
            continue;
        bytes += core_load_item_bytes(load, index);
        if (bytes > BATCH_BYTES_MAX)
            return;
        if (make_object(load, index) < 0) {
            PyErr_Clear();
            return;
        }
    }
}

static void *hook_alloc(void *Py_UNUSED(context), const struct hr_allocation *allocation)
{
    struct core_call *call = core_call_current();
    struct load_object *load = call->load;
    size_t index = allocation->item_index;
    void *memory = NULL;
    PyEval_RestoreThread(call->thread);
    int made_before = load->objects[index] != NULL;
    if (core_maker_make(load, index, &memory) < 0) {
        core_call_fail(call);
    } else {
        load->places[index] = CORE_LENT;
        if (!made_before)
            make_ahead(load, index, allocation->bytes);
    }
    call->thread = PyEval_SaveThread();
    return memory;
}

/* The memory is the object's, and the object's life is Python's business. */
static void hook_free(void *Py_UNUSED(context), void *Py_UNUSED(memory),
                      const struct hr_allocation *Py_UNUSED(allocation))
{
}

const struct hr_allocator core_maker_hook = {NULL, hook_alloc, hook_free};
