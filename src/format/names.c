/*
 * names.c: see names.h. Hashes are compared before names, so that a probe seldom touches a name that differs.
 */
#include "format/names.h"

#include <string.h>
#include <sys/auxv.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/sys.h"

#define PREFETCH_DISTANCE 12 /* insertions ahead: about the latency of a cache miss */

uint64_t hr_names_seed(void)
{
    uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);
    const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes from the kernel, fixed at exec */
    if (random)
        memcpy(&seed, random, sizeof seed);
    return seed;
}

uint64_t hr_names_hash(const char *name, size_t name_size, uint64_t seed)
{
    return XXH3_64bits_withSeed(name, name_size, seed);
}

int hr_names_init(struct hr_names *names, size_t count)
{
    size_t slot_count = 16;
    while (slot_count < count * 2)
        slot_count *= 2;
    uint32_t *slots = count < HR_NAMES_COUNT_MAX ? hr_alloc_array(slot_count, sizeof *slots) : NULL;
    if (!slots)
        return HR_EOUT_OF_MEMORY;
    *names = (struct hr_names){slots, slot_count - 1};
    return 0;
}

void hr_names_release(struct hr_names *names)
{
    hr_free(names->slots);
    *names = (struct hr_names){0};
}

static const struct hr_json_string *name_at(const struct hr_named *array, size_t position)
{
    return (const struct hr_json_string *)(const void *)((const char *)array->elements + position * array->stride);
}

/* The slot that holds the name, or the empty one where it belongs. */
static uint32_t *slot_find(const struct hr_names *names, const struct hr_named *array, const char *name,
                           size_t name_size, uint64_t hash)
{
    for (size_t i = hash & names->mask;; i = (i + 1) & names->mask) {
        uint32_t *slot = &names->slots[i];
        if (*slot == 0)
            return slot;
        if (array->hashes[*slot - 1] != hash)
            continue;
        const struct hr_json_string *other = name_at(array, *slot - 1);
        if (other->size == name_size && memcmp(other->bytes, name, name_size) == 0)
            return slot;
    }
}

size_t hr_names_add(struct hr_names *names, const struct hr_named *array, size_t position)
{
    const struct hr_json_string *name = name_at(array, position);
    uint32_t *slot = slot_find(names, array, name->bytes, name->size, array->hashes[position]);
    if (*slot)
        return *slot - 1;
    *slot = (uint32_t)position + 1;
    return position;
}

size_t hr_names_add_all(struct hr_names *names, const struct hr_named *array, size_t count, size_t *ret_earlier)
{
    for (size_t i = 0; i < count; i++) {
        if (i + PREFETCH_DISTANCE < count)
            __builtin_prefetch(&names->slots[array->hashes[i + PREFETCH_DISTANCE] & names->mask], 1);
        size_t earlier = hr_names_add(names, array, i);
        if (earlier != i) {
            *ret_earlier = earlier;
            return i;
        }
    }
    return HR_NAMES_NONE;
}

size_t hr_names_keep_last(struct hr_names *names, void *elements, size_t stride, uint64_t *hashes, size_t count)
{
    const struct hr_named array = {elements, stride, hashes};
    size_t write = count;
    for (size_t i = count; i-- > 0;) {
        if (hr_names_add(names, &array, i) == i)
            continue;
        ((struct hr_json_string *)(void *)((char *)elements + i * stride))->bytes = NULL; /* marks what goes */
        write = i;
    }
    for (size_t read = write; read < count; read++) {
        if (!name_at(&array, read)->bytes)
            continue;
        memcpy((char *)elements + write * stride, (const char *)elements + read * stride, stride);
        hashes[write++] = hashes[read];
    }
    return write;
}

size_t hr_names_find(const struct hr_names *names, const struct hr_named *array, const char *name, size_t name_size)
{
    uint64_t hash = hr_names_hash(name, name_size, hr_names_seed());
    uint32_t slot = *slot_find(names, array, name, name_size, hash);
    return slot ? slot - 1 : HR_NAMES_NONE;
}

static int name_compare(const void *a, const void *b)
{
    const struct hr_json_string *left = a, *right = b;
    size_t common = left->size < right->size ? left->size : right->size;
    int order = memcmp(left->bytes, right->bytes, common);
    return order ? order : (left->size > right->size) - (left->size < right->size);
}

static void swap(char *a, char *b, size_t size)
{
    char kept[HR_NAMES_STRIDE_MAX];
    memcpy(kept, a, size);
    memcpy(a, b, size);
    memcpy(b, kept, size);
}

/* Lets the element at `root` sink to its place in the heap of `count` elements. */
static void heap_sink(char *elements, size_t stride, size_t root, size_t count)
{
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && name_compare(elements + child * stride, elements + (child + 1) * stride) < 0)
            child++;
        if (name_compare(elements + root * stride, elements + child * stride) >= 0)
            return;
        swap(elements + root * stride, elements + child * stride, stride);
    }
}

/* Heap sort: in place, because the C library's sort may allocate. */
void hr_names_sort(void *elements, size_t stride, size_t count)
{
    for (size_t root = count / 2; root-- > 0;)
        heap_sink(elements, stride, root, count);
    for (size_t last = count; last-- > 1;) {
        swap(elements, (char *)elements + last * stride, stride);
        heap_sink(elements, stride, 0, last);
    }
}
