/*
 * diff_report.c: differences in the order of names, as text and as JSON.
 */
#include "diff_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_device.h"
#include "output.h"

static const char *const verdict_names[] = {"same", "only_in_a", "only_in_b", "dtype", "shape", "bytes"};

static const struct hr_tensor *pair_tensor(const struct pair *pair)
{
    return pair->tensors[SIDE_A] ? pair->tensors[SIDE_A] : pair->tensors[SIDE_B];
}

static int compare_names(const void *a, const void *b)
{
    const struct hr_tensor *x = pair_tensor(a), *y = pair_tensor(b);
    int order = memcmp(x->name, y->name, x->name_size < y->name_size ? x->name_size : y->name_size);
    return order ? order : (x->name_size > y->name_size) - (x->name_size < y->name_size);
}

void diff_sort(struct differences *differences)
{
    qsort(differences->pairs, differences->pair_count, sizeof *differences->pairs, compare_names);
    differences->different_count = 0;
    for (size_t i = 0; i < differences->pair_count; i++)
        differences->different_count += differences->pairs[i].verdict != VERDICT_SAME;
}

/* The element's index in each dimension, outermost first, for free(). */
static uint64_t *unravel(const struct hr_tensor *tensor, uint64_t element_index)
{
    uint64_t *index = allocate(tensor->rank, sizeof *index);
    for (uint32_t i = tensor->rank; i-- > 0;) {
        index[i] = element_index % tensor->shape[i];
        element_index /= tensor->shape[i];
    }
    return index;
}

static void json_side(struct json *json, const char *key, const struct hr_tensor *tensor)
{
    if (!tensor) {
        json_text(json, key, NULL);
        return;
    }
    json_open(json, key, '{');
    json_text(json, "dtype", hr_dtype_name(tensor->dtype));
    json_shape(json, "shape", tensor->shape, tensor->rank);
    json_u64(json, "bytes", tensor->size);
    json_close(json, '}');
}

static void json_pair_difference(struct json *json, const struct pair *pair)
{
    const struct hr_tensor *tensor = pair_tensor(pair);
    json_open(json, NULL, '{');
    json_string(json, "name", tensor->name, tensor->name_size);
    json_text(json, "difference", verdict_names[pair->verdict]);
    json_side(json, "a", pair->tensors[SIDE_A]);
    json_side(json, "b", pair->tensors[SIDE_B]);
    if (pair->verdict == VERDICT_BYTES) {
        uint64_t *index = unravel(tensor, pair->element_index);
        json_u64(json, "element", pair->element_index);
        json_shape(json, "index", index, tensor->rank);
        json_u64(json, "different_bytes", pair->different_bytes);
        free(index);
    }
    json_close(json, '}');
}

void diff_json(struct json *json, const struct differences *differences)
{
    json_bool(json, "same", differences->different_count == 0);
    json_u64(json, "same_count", differences->pair_count - differences->different_count);
    json_u64(json, "different_count", differences->different_count);
    json_open(json, "differences", '[');
    for (size_t i = 0; i < differences->pair_count; i++)
        if (differences->pairs[i].verdict != VERDICT_SAME)
            json_pair_difference(json, &differences->pairs[i]);
    json_close(json, ']');
}

void diff_print_json(const struct differences *differences, const struct hr_device_info *device)
{
    struct json json = {0};
    char name[32];
    json_open(&json, NULL, '{');
    json_text(&json, "device", device_name(name, device));
    diff_json(&json, differences);
    json_close(&json, '}');
    json_end(&json);
}

static void print_element(const struct pair *pair)
{
    const struct hr_tensor *tensor = pair->tensors[SIDE_A];
    uint64_t *index = unravel(tensor, pair->element_index);
    char *text = shape_text(index, tensor->rank);
    printf("bytes differ, first at element %llu %s; %llu of %llu bytes\n", (unsigned long long)pair->element_index,
           text, (unsigned long long)pair->different_bytes, (unsigned long long)tensor->size);
    free(text);
    free(index);
}

static void print_sides(const char *what, const struct pair *pair)
{
    char *shapes[SIDE_COUNT];
    for (int side = SIDE_A; side < SIDE_COUNT; side++)
        shapes[side] = shape_text(pair->tensors[side]->shape, pair->tensors[side]->rank);
    printf("%s: %s %s in A, %s %s in B\n", what, hr_dtype_name(pair->tensors[SIDE_A]->dtype), shapes[SIDE_A],
           hr_dtype_name(pair->tensors[SIDE_B]->dtype), shapes[SIDE_B]);
    free(shapes[SIDE_A]);
    free(shapes[SIDE_B]);
}

static void print_difference(const struct pair *pair)
{
    print_escaped(stdout, pair_tensor(pair)->name, pair_tensor(pair)->name_size);
    fputs(": ", stdout);
    if (pair->verdict == VERDICT_BYTES)
        print_element(pair);
    else if (pair->verdict == VERDICT_ONLY_IN_A || pair->verdict == VERDICT_ONLY_IN_B)
        printf("only in %c\n", pair->verdict == VERDICT_ONLY_IN_A ? 'A' : 'B');
    else
        print_sides(pair->verdict == VERDICT_DTYPE ? "dtypes differ" : "shapes differ", pair);
}

void diff_print_text(const struct differences *differences, const struct hr_device_info *device)
{
    char text[64], title[192];
    int is_gpu = device->type != HR_DEVICE_CPU;
    for (size_t i = 0; i < differences->pair_count; i++)
        if (differences->pairs[i].verdict != VERDICT_SAME)
            print_difference(&differences->pairs[i]);
    printf("%s the same, %zu different%s%s\n",
           human_count(text, differences->pair_count - differences->different_count, "tensor"),
           differences->different_count, is_gpu ? ", on " : "", is_gpu ? device_title(title, device) : "");
}
