/*
 * core_load.h: a running load as the extension sees it, shared by core_load.c (its life and its methods), core_items.c
 * (what it is asked for) and core_maker.c (destinations made in a framework).
 */
#ifndef HR_CORE_LOAD_H
#define HR_CORE_LOAD_H

#include "core.h"
#include "core_group.h"

/* How the framework makes tensors of one dtype on one device. */
struct core_maker_row {
    PyObject *keywords; /* {"dtype": the framework's, "device": its}; NULL: it has no such dtype */
    PyObject *reason;   /* then: why, and what to do instead */
    uint64_t divisor;   /* elements of the last dimension in one of the framework's */
};

/* How destinations come into being; all NULL when they are the library's own. */
struct core_maker {
    PyObject *callable;          /* called as callable(shape, **keywords) */
    PyObject *pointer_method;    /* name of the method that returns the address; NULL: buffer protocol */
    struct core_maker_row *rows; /* HR_DTYPE_COUNT a device */
    size_t row_count;
};

enum core_place {
    CORE_WAITING = 0, /* objects[i], where it was made already, has no bytes yet */
    CORE_LENT,        /* objects[i] is ours, and where the library puts the bytes */
    CORE_INTO,        /* objects[i] is the caller's and stays */
    CORE_HANDED_OUT   /* ours, and gone */
};

struct load_object {
    PyObject_HEAD PyObject *weakrefs;
    struct hr_load *load; /* NULL once closed */
    struct loader_object *loader;
    struct checkpoint_object *checkpoint;
    struct hr_item *items;
    size_t item_count;
    struct hr_range *ranges; /* pools of the items' arrays */
    int64_t *strides;
    PyObject *shapes;   /* {item index: tuple} where indices dropped dimensions of the ranges, or NULL */
    PyObject **objects; /* destinations made or given, not handed out yet */
    uint8_t *places;    /* enum core_place */
    struct core_maker maker;
    PyObject *progress;
    struct core_group group; /* closed when the load is freed */
    void **streams;    /* one a device: the caller's memory is written after what it held; NULL: the legacy default */
    size_t user_count; /* threads inside a library call on this load */
    int closing;
    uint64_t fork_generation;
};

/*
 * One library call on a load, on the stack of its thread: the hooks that the library calls on this thread find
 * their load through it, and leave here the exception that the call must end with.
 */
struct core_call {
    struct load_object *load;
    struct core_call *outer;
    PyThreadState *thread; /* of the released interpreter lock */
    PyObject *error_type, *error_value, *error_traceback;
    int is_stopped; /* by a signal or the progress function: what they raised ends the call, however it went */
};

/* The call that this thread is in, or NULL. */
struct core_call *core_call_current(void);
/* Keeps the exception that is set for the end of the call; the first one wins. */
void core_call_fail(struct core_call *call);

/*
 * Fills a maker from the tuple (callable, tables, pointer_method): `tables` has one for each device of the loader, with
 * a row a dtype. 0, or -1 with an exception.
 */
int core_maker_init(struct core_maker *maker, PyObject *tuple, size_t device_count);
void core_maker_clear(struct core_maker *maker);
int core_maker_visit(const struct core_maker *maker, visitproc visit, void *arg);
/* Makes objects[index] and returns its memory, which is NULL for an empty tensor; -1 with an exception. */
int core_maker_make(struct load_object *load, size_t index, void **ret_memory);
/* The row for an item; there must be a maker. */
const struct core_maker_row *core_maker_row(const struct load_object *load, size_t index);

extern const struct hr_allocator core_maker_hook;

/* What a load is asked for; items are numbered by their position in `indices`. All borrowed. */
struct core_asked {
    PyObject *indices; /* list of tensors' indices, or None: all */
    PyObject *places;  /* bytes, the index of each item's device; None: all on the first */
    PyObject *ranges;  /* {item: ((start, stop, step) a dimension)} */
    PyObject *shards;  /* {item: (dimension, rank, world)} */
    PyObject *dtypes;  /* {item: hr_dtype} */
    PyObject *into;    /* {item: (object, address, strides or None)} */
    PyObject *streams; /* list of addresses, one a device */
};

/* Fills the load's items and what they point to, once its maker is there. 0, or -1 with an exception. */
int core_items_set(struct load_object *self, const struct core_asked *asked);

/* Tensor of an item. */
const struct hr_tensor *core_load_tensor(const struct load_object *load, size_t index);
/* What it becomes: the tensor's dtype, or the one that it is converted to. */
uint32_t core_load_dtype(const struct load_object *load, size_t index);
/* The shape of an item of which indices dropped dimensions, in elements of the format, borrowed; NULL: of another. */
PyObject *core_load_given_shape(const struct load_object *load, size_t index);
/* Elements of a dimension of an item. */
uint64_t core_load_extent(const struct load_object *load, size_t index, uint32_t dim);
/* Elements of the last dimension that is handed out; 1 where there is none. */
uint64_t core_load_last_extent(const struct load_object *load, size_t index);
/* Bytes of an item's elements, converted. */
uint64_t core_load_item_bytes(const struct load_object *load, size_t index);

#endif
