/*
 * dtype.c: names and widths of the dtypes, from the one list in the public header.
 */
#include <headrace/headrace.h>

#include <string.h>

struct dtype_text {
    const char *name;
    uint8_t name_size;
    uint8_t bits;
};

static const struct dtype_text dtype_texts[HR_DTYPE_COUNT] = {{NULL, 0, 0},
#define DTYPE_TEXT(name, bits) {#name, sizeof #name - 1, bits},
                                                              HR_DTYPE_LIST(DTYPE_TEXT)
#undef DTYPE_TEXT
};

const char *hr_dtype_name(uint32_t dtype)
{
    return dtype < HR_DTYPE_COUNT ? dtype_texts[dtype].name : NULL;
}

uint32_t hr_dtype_bits(uint32_t dtype)
{
    return dtype < HR_DTYPE_COUNT ? dtype_texts[dtype].bits : 0;
}

uint32_t hr_dtype_find(const char *name, size_t name_size)
{
    for (uint32_t dtype = 1; name && dtype < HR_DTYPE_COUNT; dtype++)
        if (dtype_texts[dtype].name_size == name_size && memcmp(dtype_texts[dtype].name, name, name_size) == 0)
            return dtype;
    return HR_DTYPE_NONE;
}
