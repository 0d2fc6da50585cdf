/*
 * core_stats.c: the library's records as dicts: what a load did, what a device is, what a machine can do. The
 * functions of the module that ask for the latter two, and for what storage is, are here too.
 */
#include "core.h"

#define U64(value) ((unsigned long long)(value))

/* Puts the pairs of the second into the first and gives the second up. Returns the first, or NULL with an exception. */
static PyObject *joined(PyObject *first, PyObject *second)
{
    if (first != NULL && (second == NULL || PyDict_Update(first, second) < 0))
        Py_CLEAR(first);
    Py_XDECREF(second);
    return first;
}

static PyObject *transfer_dict(const struct hr_stats *stats)
{
    return Py_BuildValue("{sK sK sK sK sK sK ss ss sK ss sK ss}", "bytes_sent", U64(stats->bytes_sent), "copy_count",
                         U64(stats->copy_count), "kernel_count", U64(stats->kernel_count), "staging_bytes",
                         U64(stats->staging_bytes), "copy_wait_ns", U64(stats->copy_wait_ns), "cpu_ns",
                         U64(stats->cpu_ns), "staging", stats->staging, "placement", stats->placement, "bytes_direct",
                         U64(stats->bytes_direct), "storage", stats->storage, "bytes_converted",
                         U64(stats->bytes_converted), "conversion", stats->conversion);
}

PyObject *core_stats_dict(const struct hr_stats *stats)
{
    PyObject *dict = Py_BuildValue(
        "{sK sK sK sK sK sn sn sn sK sK sK sK sK sK sK sK sI ss ss ss}", "bytes_needed", U64(stats->bytes_needed),
        "bytes_ready", U64(stats->bytes_ready), "bytes_read", U64(stats->bytes_read), "bytes_allocated",
        U64(stats->bytes_allocated), "peak_window_bytes", U64(stats->peak_window_bytes), "item_count",
        (Py_ssize_t)stats->item_count, "file_count", (Py_ssize_t)stats->file_count, "chunk_count",
        (Py_ssize_t)stats->chunk_count, "read_count", U64(stats->read_count), "plan_ns", U64(stats->plan_ns),
        "allocate_ns", U64(stats->allocate_ns), "wait_ns", U64(stats->wait_ns), "read_ns", U64(stats->read_ns),
        "place_ns", U64(stats->place_ns), "idle_ns", U64(stats->idle_ns), "total_ns", U64(stats->total_ns),
        "thread_count", (unsigned)stats->thread_count, "route", hr_route_name(stats->route), "route_reason",
        stats->route_reason, "bottleneck", stats->bottleneck);
    return joined(dict, dict == NULL ? NULL : transfer_dict(stats));
}

/* The name by which every part of the package knows a device. */
static PyObject *device_name(const struct hr_device_info *info)
{
    return info->type == HR_DEVICE_CPU ? PyUnicode_FromString("cpu")
                                       : PyUnicode_FromFormat("cuda:%d", (int)info->ordinal);
}

PyObject *core_device_dict(const struct hr_device_info *info)
{
    return Py_BuildValue("{sN ss ss ss sK s(II) sI sN}", "device", device_name(info), "name", info->name, "uuid",
                         info->uuid, "pci", info->pci, "memory_bytes", U64(info->memory_bytes), "compute_capability",
                         (unsigned)info->compute_major, (unsigned)info->compute_minor, "copy_engine_count",
                         (unsigned)info->copy_engine_count, "confidential", PyBool_FromLong(info->confidential != 0));
}

PyObject *core_device_find(PyObject *module, PyObject *name)
{
    struct hr_device_info info = {.size = sizeof info};
    struct hr_error err;
    int rc;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = hr_device_find(text, &info, &err);
    Py_END_ALLOW_THREADS return rc != 0 ? core_raise(PyModule_GetState(module), &err) : core_device_dict(&info);
}

/* {bytes of a copy: bytes a second} */
static PyObject *sizes_dict(const struct hr_limits *limits)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < HR_PROBE_SIZE_COUNT; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(limits->to_device_sizes[i]);
        PyObject *rate = PyLong_FromUnsignedLongLong(limits->to_device[i]);
        if (size == NULL || rate == NULL || PyDict_SetItem(dict, size, rate) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(size);
        Py_XDECREF(rate);
    }
    return dict;
}

static PyObject *limits_dict(const struct hr_limits *limits)
{
    return Py_BuildValue(
        "{sL sN sI sI sK sK sK sK sN sK sK sK ss ss ss}", "time", (long long)limits->time, "device",
        core_device_dict(&limits->device), "core_count", (unsigned)limits->core_count, "page_cache_threads",
        (unsigned)limits->page_cache_threads, "memory_copy", U64(limits->memory_copy), "page_cache",
        U64(limits->page_cache), "page_cache_fresh", U64(limits->page_cache_fresh), "storage", U64(limits->storage),
        "to_device", sizes_dict(limits), "from_device", U64(limits->from_device), "page_cache_to_device",
        U64(limits->page_cache_to_device), "pin", U64(limits->pin), "page_cache_detail", limits->page_cache_detail,
        "storage_detail", limits->storage_detail, "device_detail", limits->device_detail);
}

PyObject *core_storage(PyObject *module, PyObject *path)
{
    char text[320];
    struct hr_error err;
    int rc;
    const char *name = PyBytes_AsString(path);
    if (name == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = hr_storage_describe(name, text, sizeof text, &err);
    Py_END_ALLOW_THREADS return rc != 0 ? core_raise(PyModule_GetState(module), &err) : PyUnicode_FromString(text);
}

PyObject *core_probe(PyObject *module, PyObject *arguments)
{
    struct hr_probe_options options = {.size = sizeof options};
    struct hr_limits limits = {.size = sizeof limits};
    struct hr_error err;
    unsigned long long budget_ns;
    PyObject *path;
    int rc;
    if (!PyArg_ParseTuple(arguments, "sOIK", &options.device, &path, &options.thread_count, &budget_ns))
        return NULL;
    if (path != Py_None && (options.path = PyBytes_AsString(path)) == NULL)
        return NULL;
    options.budget_ns = budget_ns;
    Py_BEGIN_ALLOW_THREADS rc = hr_probe(&options, &limits, &err);
    Py_END_ALLOW_THREADS return rc != 0 ? core_raise(PyModule_GetState(module), &err) : limits_dict(&limits);
}
