/*
 * header_check.c: what is checked once all tensors are known: duplicate names, order, and that the tensors cover
 * the data section without hole or overlap. On success offsets count from the start of the file.
 */
#include "format/header_build.h"

#include <string.h>

#include "base/sort.h"
#include "base/sys.h"
#include "format/tensor_size.h"

static unsigned long long ull(uint64_t value)
{
    return value;
}

/* Where a tensor's name stands in the file. */
static uint64_t name_offset(const struct hr_header_build *build, const struct hr_tensor *tensor)
{
    return build->json.base + (uint64_t)(tensor->name - build->header.text);
}

static void shapes_attach(struct hr_header_build *build)
{
    const uint64_t *shape = build->header.shapes;
    for (size_t i = 0; i < build->header.tensor_count; i++) {
        build->header.tensors[i].shape = shape;
        shape += build->header.tensors[i].rank;
    }
}

static int names_build(struct hr_header_build *build, size_t *ret_later, size_t *ret_earlier)
{
    struct hr_header *header = &build->header;
    const struct hr_named array = {header->tensors, sizeof *header->tensors, header->hashes};
    hr_names_release(&header->names);
    int result = hr_names_init(&header->names, header->tensor_count);
    if (result)
        return hr_fail_memory(build->err, header->tensor_count * 2 * sizeof *header->names.slots, "a table of names");
    *ret_later = hr_names_add_all(&header->names, &array, header->tensor_count, ret_earlier);
    return 0;
}

/* Builds the name table in the order of the header. Duplicates: refused, or under compat the last one stays. */
static int duplicates_settle(struct hr_header_build *build)
{
    struct hr_header *header = &build->header;
    size_t later = HR_NAMES_NONE, earlier = 0;
    int result = names_build(build, &later, &earlier);
    if (result || later == HR_NAMES_NONE)
        return result;
    const struct hr_tensor *second = &header->tensors[later];
    if (build->is_strict) {
        hr_fail_at(build->err, HR_EDUPLICATE_TENSOR, name_offset(build, second),
                   "the header has this tensor twice, first at byte %llu",
                   ull(name_offset(build, &header->tensors[earlier])));
        hr_error_in_tensor(build->err, second->name, second->name_size);
        return HR_EDUPLICATE_TENSOR;
    }
    hr_names_release(&header->names);
    if (hr_names_init(&header->names, header->tensor_count))
        return hr_fail_memory(build->err, header->tensor_count * 2 * sizeof *header->names.slots, "a table of names");
    header->tensor_count = hr_names_keep_last(&header->names, header->tensors, sizeof *header->tensors, header->hashes,
                                              header->tensor_count);
    build->is_sorted = 0; /* and the table is to be built again */
    return 0;
}

static int tensors_sort(struct hr_header_build *build)
{
    struct hr_header *header = &build->header;
    size_t count = header->tensor_count, later, earlier = 0;
    struct hr_sort_key *keys = hr_alloc_array(2 * count, sizeof *keys);
    struct hr_tensor *tensors = hr_alloc_array(count, sizeof *tensors);
    uint64_t *hashes = hr_alloc_array(count, sizeof *hashes);
    if (!keys || !tensors || !hashes) {
        hr_free(keys);
        hr_free(tensors);
        hr_free(hashes);
        return hr_fail_memory(build->err, count * (2 * sizeof *keys + sizeof *tensors), "sorting a header's tensors");
    }
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct hr_sort_key){header->tensors[i].offset, header->tensors[i].size, i};
    const struct hr_sort_key *sorted = hr_sort_keys(keys, count);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = header->tensors[sorted[i].index];
        hashes[i] = header->hashes[sorted[i].index];
    }
    hr_free(keys);
    hr_free(header->tensors);
    hr_free(header->hashes);
    header->tensors = tensors;
    header->hashes = hashes;
    return names_build(build, &later, &earlier);
}

/* Rules 5 to 7 of one tensor; `previous` is where the one before ended. */
static int tensor_check(const struct hr_header_build *build, const struct hr_tensor *tensor, uint64_t previous)
{
    uint64_t begin = tensor->offset, end = tensor->size, size = 0;
    if (begin != previous || end < begin)
        return hr_fail_at(build->err, HR_EINVALID_OFFSET, name_offset(build, tensor),
                          begin > previous   ? "data_offsets [%llu, %llu] leave a hole: the bytes before end at %llu"
                          : begin < previous ? "data_offsets [%llu, %llu] overlap the bytes before, which end at %llu"
                                             : "data_offsets [%llu, %llu] run backwards (the bytes before end at %llu)",
                          ull(begin), ull(end), ull(previous));
    int result = hr_tensor_size(tensor, name_offset(build, tensor), &size, build->err);
    if (result)
        return result;
    if (end - begin != size)
        return hr_fail_at(build->err, HR_ETENSOR_INVALID_INFO, name_offset(build, tensor),
                          "data_offsets [%llu, %llu] span %llu bytes but shape and dtype need %llu", ull(begin),
                          ull(end), ull(end - begin), ull(size));
    return 0;
}

static int data_end_check(const struct hr_header_build *build, uint64_t end)
{
    uint64_t data_size = build->file_size - build->header.data_offset;
    uint64_t wanted_size = build->header.data_offset + end;
    if (end > data_size)
        return hr_fail_at(build->err, HR_EMETADATA_INCOMPLETE_BUFFER, build->file_size,
                          "the file is cut short: it has %llu bytes, its tensors end at %llu: %llu are missing",
                          ull(build->file_size), ull(wanted_size), ull(end - data_size));
    if (end < data_size && !build->allow_trailing)
        return hr_fail_at(build->err, HR_EMETADATA_INCOMPLETE_BUFFER, wanted_size,
                          "%llu bytes follow the last tensor, which ends at byte %llu; allow trailing bytes if they "
                          "are meant to be there",
                          ull(data_size - end), ull(wanted_size));
    return 0;
}

int hr_header_check(struct hr_header_build *build)
{
    struct hr_header *header = &build->header;
    shapes_attach(build);
    int result = duplicates_settle(build);
    if (!result && !build->is_sorted)
        result = tensors_sort(build);
    uint64_t previous = 0;
    for (size_t i = 0; !result && i < header->tensor_count; i++) {
        struct hr_tensor *tensor = &header->tensors[i];
        result = tensor_check(build, tensor, previous);
        if (result) {
            hr_error_in_tensor(build->err, tensor->name, tensor->name_size);
            return result;
        }
        previous = tensor->size;
        tensor->size -= tensor->offset;
        tensor->offset += header->data_offset;
    }
    return result ? result : data_end_check(build, previous);
}
