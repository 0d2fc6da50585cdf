/*
 * core_tensor.c: _core.Tensor, a loaded tensor that belongs to no framework. It speaks DLPack (both capsules), in host
 * memory the buffer protocol and in GPU memory the CUDA array interface. What a device holds is complete before a
 * Tensor of it exists, so no stream has to wait, and nothing here calls a driver: giving memory up is the library's
 * DLPack deleter, which never blocks and may be called with kernels pending. The memory is held by a counter of its
 * own, not by the Python object: a framework may drop its last reference on any thread, without the interpreter lock.
 */
#include "core.h"
#include "core_dlpack.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_ALIGNMENT 256u

struct core_memory {
    atomic_size_t reference_count;    /* partner: memory_unref() */
    struct dlpack_versioned *managed; /* the library's hold on its memory, or NULL: */
    void *copy;                       /* memory of our own */
};

struct tensor_object {
    PyObject_HEAD PyObject *weakrefs;
    struct core_memory *memory;
    void *data;
    uint64_t bytes;
    uint32_t dtype, rank;
    uint32_t device_type; /* enum hr_device_type, which are DLPack's numbers */
    int32_t device_ordinal;
    Py_ssize_t *extents; /* rank extents, then rank strides in bytes, for the buffer protocol */
};

/* DLPack's type codes, and the letter of the struct module; '\0' where it has none: then raw bytes. */
static const struct {
    uint8_t code, lanes;
    const char *letter;
} dtype_traits[HR_DTYPE_COUNT] = {
    [HR_DTYPE_BOOL] = {6, 1, "?"},
    [HR_DTYPE_F4] = {17, 2, NULL},
    [HR_DTYPE_F6_E2M3] = {15, 1, NULL},
    [HR_DTYPE_F6_E3M2] = {16, 1, NULL},
    [HR_DTYPE_U8] = {1, 1, "B"},
    [HR_DTYPE_I8] = {0, 1, "b"},
    [HR_DTYPE_F8_E5M2] = {12, 1, NULL},
    [HR_DTYPE_F8_E4M3] = {10, 1, NULL},
    [HR_DTYPE_F8_E8M0] = {14, 1, NULL},
    [HR_DTYPE_F8_E4M3FNUZ] = {11, 1, NULL},
    [HR_DTYPE_F8_E5M2FNUZ] = {13, 1, NULL},
    [HR_DTYPE_I16] = {0, 1, "h"},
    [HR_DTYPE_U16] = {1, 1, "H"},
    [HR_DTYPE_F16] = {2, 1, "e"},
    [HR_DTYPE_BF16] = {4, 1, NULL},
    [HR_DTYPE_I32] = {0, 1, "i"},
    [HR_DTYPE_U32] = {1, 1, "I"},
    [HR_DTYPE_F32] = {2, 1, "f"},
    [HR_DTYPE_C64] = {5, 1, "Zf"},
    [HR_DTYPE_F64] = {2, 1, "d"},
    [HR_DTYPE_I64] = {0, 1, "q"},
    [HR_DTYPE_U64] = {1, 1, "Q"},
};

static struct tensor_object *tensor_of(PyObject *self)
{
    return (struct tensor_object *)self;
}

static void memory_unref(struct core_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub_explicit(&memory->reference_count, 1, memory_order_acq_rel) != 1)
        return;
    if (memory->managed != NULL)
        memory->managed->deleter(memory->managed);
    free(memory->copy);
    free(memory);
}

/* -------------------------------------------------------------------------------------------------- life */

static int is_on_host(const struct tensor_object *self)
{
    return self->device_type == HR_DEVICE_CPU;
}

static int set_geometry(struct tensor_object *self, const struct hr_view *view, PyObject *shape)
{
    uint32_t rank = shape == NULL ? view->rank : (uint32_t)PyTuple_Size(shape);
    self->data = view->data;
    self->device_type = view->device_type;
    self->device_ordinal = view->device_ordinal;
    self->bytes = view->bytes;
    self->dtype = view->dtype;
    self->rank = rank;
    self->extents = calloc(2 * (size_t)rank + 1, sizeof *self->extents);
    if (self->extents == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t stride = (Py_ssize_t)(hr_dtype_bits(view->dtype) / 8);
    for (uint32_t i = rank; i-- > 0;) {
        self->extents[i] = shape == NULL ? (Py_ssize_t)view->shape[i] : PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        self->extents[rank + i] = stride;
        if (__builtin_mul_overflow(stride, self->extents[i], &stride))
            stride = 0; /* only without elements */
    }
    return 0;
}

/* What DLPack cannot describe (F4 with an odd last dimension) the library does not hand out: on the host it is copied. */
static int copy_memory(const struct hr_view *view, struct core_memory *memory)
{
    memory->copy = aligned_alloc(TENSOR_ALIGNMENT, (view->bytes / TENSOR_ALIGNMENT + 1) * TENSOR_ALIGNMENT);
    if (memory->copy == NULL)
        return -1;
    if (view->bytes > 0)
        memcpy(memory->copy, view->data, view->bytes);
    return 0;
}

static struct core_memory *memory_new(struct core_state *state, struct hr_load *load, size_t item_index,
                                      const struct hr_view *view)
{
    struct hr_error err;
    void *managed = NULL;
    struct core_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return (struct core_memory *)PyErr_NoMemory();
    atomic_init(&memory->reference_count, 1);
    int code = hr_load_take(load, item_index, 1, &managed, &err);
    memory->managed = managed;
    int on_host = view->device_type == HR_DEVICE_CPU;
    if (code == 0 || (code == HR_EUNSUPPORTED && (on_host ? copy_memory(view, memory) == 0 : view->bytes == 0)))
        return memory;
    free(memory);
    core_raise(state, &err);
    return NULL;
}

PyObject *core_tensor_take(struct core_state *state, struct hr_load *load, size_t item_index, PyObject *shape)
{
    struct hr_view view = {.size = sizeof view};
    struct hr_error err;
    if (hr_load_view(load, item_index, &view, &err) != 0)
        return core_raise(state, &err);
    allocfunc allocate = PyType_GetSlot(state->tensor_type, Py_tp_alloc);
    struct tensor_object *self = (struct tensor_object *)allocate(state->tensor_type, 0);
    if (self == NULL)
        return NULL;
    if (set_geometry(self, &view, shape) == 0)
        self->memory = memory_new(state, load, item_index, &view);
    if (self->memory == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->memory->copy != NULL)
        self->data = self->memory->copy;
    hr_load_drop(load, item_index, NULL);
    return (PyObject *)self;
}

static void tensor_dealloc(PyObject *object)
{
    struct tensor_object *self = tensor_of(object);
    PyTypeObject *type = Py_TYPE(object);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    memory_unref(self->memory);
    free(self->extents);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------------------------------- buffer protocol */

static int tensor_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    struct tensor_object *self = tensor_of(object);
    static char empty;
    if (!is_on_host(self)) {
        view->obj = NULL;
        PyErr_Format(
            PyExc_BufferError,
            "this tensor is in the memory of cuda:%d, which has no buffer protocol: import it into a framework "
            "(from_dlpack of torch, cupy or jax.dlpack) and copy it there, or load to device='cpu'",
            (int)self->device_ordinal);
        return -1;
    }
    const char *letter = dtype_traits[self->dtype].letter;
    if (PyBuffer_FillInfo(view, object, self->data == NULL ? &empty : self->data, (Py_ssize_t)self->bytes, 0, flags) <
        0)
        return -1;
    if (letter == NULL)
        return 0; /* raw bytes */
    view->itemsize = (Py_ssize_t)(hr_dtype_bits(self->dtype) / 8);
    if ((flags & PyBUF_FORMAT) != 0)
        view->format = (char *)letter;
    if ((flags & PyBUF_ND) != 0) {
        view->ndim = (int)self->rank;
        view->shape = self->extents;
    }
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES)
        view->strides = self->extents + self->rank;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- DLPack */

struct export
{
    union {
        struct dlpack_managed legacy;
        struct dlpack_versioned versioned;
    } capsule;
    struct core_memory *memory; /* or NULL: */
    void *copy;                 /* the export's own memory */
    int64_t extents[];          /* shape, strides */
};

static void export_free(struct export *export)
{
    memory_unref(export->memory);
    free(export->copy);
    free(export);
}

static void delete_legacy(struct dlpack_managed *managed)
{
    export_free(managed->context);
}

static void delete_versioned(struct dlpack_versioned *managed)
{
    export_free(managed->context);
}

/* A capsule that nobody consumed still has its first name. */
static void capsule_free(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct dlpack_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        managed->deleter(managed);
    }
}

static void describe(const struct tensor_object *self, struct export *export, struct dlpack_tensor *ret_tensor)
{
    uint8_t lanes = (uint8_t)dtype_traits[self->dtype].lanes;
    int64_t *shape = export->extents, *strides = export->extents + self->rank;
    int64_t stride = 1;
    for (uint32_t i = self->rank; i-- > 0;) {
        shape[i] = (int64_t)self->extents[i] / (i + 1 == self->rank ? lanes : 1);
        strides[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i], &stride))
            stride = 0; /* only without elements */
    }
    *ret_tensor = (struct dlpack_tensor){
        .data = export->copy != NULL ? export->copy : self->data,
        .device_type = (int32_t)self->device_type,
        .device_id = self->device_ordinal,
        .rank = (int32_t)self->rank,
        .type_code = dtype_traits[self->dtype].code,
        .type_bits = (uint8_t)hr_dtype_bits(self->dtype),
        .type_lanes = lanes,
        .shape = shape,
        .strides = strides,
    };
}

static struct export *export_new(struct tensor_object *self, int copy)
{
    struct export *export = calloc(1, sizeof *export + 2 * (size_t)self->rank * sizeof(int64_t));
    if (export != NULL && copy && self->bytes > 0) {
        export->copy = aligned_alloc(TENSOR_ALIGNMENT, (self->bytes / TENSOR_ALIGNMENT + 1) * TENSOR_ALIGNMENT);
        if (export->copy == NULL) {
            free(export);
            export = NULL;
        }
    }
    if (export == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (export->copy != NULL) {
        Py_BEGIN_ALLOW_THREADS memcpy(export->copy, self->data, self->bytes);
        Py_END_ALLOW_THREADS
    } else {
        export->memory = self->memory;
        atomic_fetch_add_explicit(&self->memory->reference_count, 1, memory_order_relaxed);
    }
    return export;
}

static PyObject *export_capsule(struct tensor_object *self, int versioned, int copy)
{
    struct export *export = export_new(self, copy);
    if (export == NULL)
        return NULL;
    PyObject *capsule;
    if (versioned) {
        struct dlpack_versioned *managed = &export->capsule.versioned;
        managed->version_major = 1;
        managed->context = export;
        managed->deleter = delete_versioned;
        managed->flags = copy ? DLPACK_FLAG_COPIED : 0;
        describe(self, export, &managed->tensor);
        capsule = PyCapsule_New(managed, "dltensor_versioned", capsule_free);
    } else {
        struct dlpack_managed *managed = &export->capsule.legacy;
        managed->context = export;
        managed->deleter = delete_legacy;
        describe(self, export, &managed->tensor);
        capsule = PyCapsule_New(managed, "dltensor", capsule_free);
    }
    if (capsule == NULL)
        export_free(export);
    return capsule;
}

static int check_exportable(const struct tensor_object *self)
{
    uint32_t bits = hr_dtype_bits(self->dtype);
    uint8_t lanes = (uint8_t)dtype_traits[self->dtype].lanes;
    if (bits == 6) {
        PyErr_Format(PyExc_BufferError, "no framework imports %s by DLPack; raw() gives its bytes as U8",
                     hr_dtype_name(self->dtype));
        return -1;
    }
    if (lanes > 1 && (self->rank == 0 || self->extents[self->rank - 1] % lanes != 0)) {
        PyErr_Format(PyExc_BufferError,
                     "the last dimension of this %s tensor does not fill whole bytes; raw() gives its bytes as U8",
                     hr_dtype_name(self->dtype));
        return -1;
    }
    return 0;
}

/* None leaves the numbers as they are. */
static int parse_pair(PyObject *pair, const char *name, int *first, int *second)
{
    if (pair == Py_None || (PyTuple_Check(pair) && PyArg_ParseTuple(pair, "ii", first, second)))
        return 0;
    if (PyErr_Occurred() == NULL)
        PyErr_Format(PyExc_TypeError, "%s must be None or a tuple of two integers", name);
    return -1;
}

/* Only host memory is copied here; on a GPU the consumer does it, on a stream of its own. */
static int check_placement(const struct tensor_object *self, int device_type, int device_index, int is_copy)
{
    if ((uint32_t)device_type != self->device_type || device_index != self->device_ordinal) {
        PyErr_Format(PyExc_BufferError, "this tensor is in %s; dl_device must be (%u, %d) or None",
                     is_on_host(self) ? "host memory" : "GPU memory", (unsigned)self->device_type,
                     (int)self->device_ordinal);
        return -1;
    }
    if (is_copy && !is_on_host(self)) {
        PyErr_SetString(PyExc_BufferError, "tensors in GPU memory are exported without a copy; copy in the framework");
        return -1;
    }
    return 0;
}

/* All bytes are in place when the load says so: there is no stream to wait for, whatever `stream` is. */
static PyObject *tensor_dlpack(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    static char stream_name[] = "stream", version_name[] = "max_version", device_name[] = "dl_device";
    static char copy_name[] = "copy";
    static char *names[] = {stream_name, version_name, device_name, copy_name, NULL};
    PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
    const struct tensor_object *self = tensor_of(object);
    int major = 0, minor = 0, device_type = (int)self->device_type, device_index = self->device_ordinal;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|$OOOO", names, &stream, &max_version, &device, &copy))
        return NULL;
    if (parse_pair(max_version, "max_version", &major, &minor) < 0 ||
        parse_pair(device, "dl_device", &device_type, &device_index) < 0)
        return NULL;
    int is_copy = PyObject_IsTrue(copy); /* None and False: no copy is needed, so none is made */
    if (is_copy < 0 || check_placement(self, device_type, device_index, is_copy) < 0 || check_exportable(self) < 0)
        return NULL;
    return export_capsule(tensor_of(object), major >= 1, is_copy);
}

static PyObject *tensor_dlpack_device(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(Ii)", (unsigned)tensor_of(object)->device_type, (int)tensor_of(object)->device_ordinal);
}

/* --------------------------------------------------------------------------------------------- attributes */

static PyObject *tensor_shape(PyObject *object, void *Py_UNUSED(closure))
{
    struct tensor_object *self = tensor_of(object);
    PyObject *shape = PyTuple_New((Py_ssize_t)self->rank);
    for (uint32_t i = 0; shape != NULL && i < self->rank; i++) {
        PyObject *extent = PyLong_FromSsize_t(self->extents[i]);
        if (extent == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, extent) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

static PyObject *tensor_dtype(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(hr_dtype_name(tensor_of(object)->dtype));
}

static PyObject *tensor_nbytes(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(tensor_of(object)->bytes);
}

static PyObject *tensor_data_ptr(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromVoidPtr(tensor_of(object)->data);
}

static PyObject *tensor_device(PyObject *object, void *Py_UNUSED(closure))
{
    const struct tensor_object *self = tensor_of(object);
    return is_on_host(self) ? PyUnicode_FromString("cpu") : PyUnicode_FromFormat("cuda:%d", (int)self->device_ordinal);
}

/* Absent, as hasattr() sees it, where the interface has nothing to say. */
static PyObject *tensor_cuda_interface(PyObject *object, void *Py_UNUSED(closure))
{
    static const char kinds[] = {[0] = 'i', [1] = 'u', [2] = 'f', [5] = 'c', [6] = 'b'}; /* of DLPack's codes */
    const struct tensor_object *self = tensor_of(object);
    if (is_on_host(self) || dtype_traits[self->dtype].letter == NULL) {
        PyErr_SetString(PyExc_AttributeError, is_on_host(self)
                                                  ? "a tensor in host memory has no __cuda_array_interface__"
                                                  : "__cuda_array_interface__ has no such dtype; use DLPack or raw()");
        return NULL;
    }
    uint32_t bytes = hr_dtype_bits(self->dtype) / 8;
    char typestr[16];
    snprintf(typestr, sizeof typestr, "%c%c%u", bytes > 1 ? '<' : '|', kinds[dtype_traits[self->dtype].code],
             (unsigned)bytes);
    return Py_BuildValue("{sN ss s(NO) sO sO si}", "shape", tensor_shape(object, NULL), "typestr", typestr, "data",
                         PyLong_FromVoidPtr(self->data), Py_False, "strides", Py_None, "stream", Py_None, "version", 3);
}

/* The bytes of any dtype for frameworks that lack it: the same memory, one dimension. */
static PyObject *tensor_raw(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct tensor_object *self = tensor_of(object);
    struct hr_view view = {
        .data = self->data,
        .bytes = self->bytes,
        .dtype = HR_DTYPE_U8,
        .rank = 1,
        .shape = &self->bytes,
        .device_type = self->device_type,
        .device_ordinal = self->device_ordinal,
    };
    allocfunc allocate = PyType_GetSlot(Py_TYPE(object), Py_tp_alloc);
    struct tensor_object *raw = (struct tensor_object *)allocate(Py_TYPE(object), 0);
    if (raw == NULL)
        return NULL;
    raw->memory = self->memory;
    atomic_fetch_add_explicit(&self->memory->reference_count, 1, memory_order_relaxed);
    if (set_geometry(raw, &view, NULL) < 0)
        Py_CLEAR(raw);
    return (PyObject *)raw;
}

static PyObject *tensor_repr(PyObject *object)
{
    const char *dtype = hr_dtype_name(tensor_of(object)->dtype);
    PyObject *shape = tensor_shape(object, NULL), *device = tensor_device(object, NULL), *text = NULL;
    if (shape != NULL && device != NULL && is_on_host(tensor_of(object)))
        text = PyUnicode_FromFormat("headrace.Tensor(dtype=%s, shape=%R)", dtype, shape);
    else if (shape != NULL && device != NULL)
        text = PyUnicode_FromFormat("headrace.Tensor(dtype=%s, shape=%R, device=%U)", dtype, shape, device);
    Py_XDECREF(shape);
    Py_XDECREF(device);
    return text;
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule: versioned when max_version is at least (1, 0), else legacy."},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\n(1, 0): host memory; (2, N): cuda:N."},
    {"raw", tensor_raw, METH_NOARGS,
     "raw($self)\n--\n\nThe tensor's bytes as U8, in one dimension; shares the memory."},
    {"data_ptr", tensor_data_ptr, METH_NOARGS,
     "data_ptr($self)\n--\n\nThe address of the first byte, on the device; 0 for a tensor without bytes."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tensor_getset[] = {
    {"shape", tensor_shape, NULL, "The extents in elements, a tuple of int.", NULL},
    {"dtype", tensor_dtype, NULL, "The safetensors name of the dtype, for example 'BF16'.", NULL},
    {"nbytes", tensor_nbytes, NULL, "Bytes of the elements.", NULL},
    {"device", tensor_device, NULL, "'cpu' or 'cuda:N'.", NULL},
    {"__cuda_array_interface__", tensor_cuda_interface, NULL, "Version 3; on GPUs, for dtypes that it knows.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef tensor_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct tensor_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_repr, tensor_repr},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_getset},
    {Py_tp_members, tensor_members},
    {Py_bf_getbuffer, tensor_getbuffer},
    {Py_tp_doc, (char *)"A tensor in memory of headrace's own, row-major. It speaks DLPack; in host memory also the\n"
                        "buffer protocol, where a dtype without a letter (BF16, F8_*, F6_*, F4) gives its raw bytes,\n"
                        "on GPUs the CUDA array interface."},
    {0, NULL},
};

PyType_Spec core_tensor_spec = {
    .name = "headrace.Tensor",
    .basicsize = sizeof(struct tensor_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensor_slots,
};
