/*
 * kernel_image.c: the files that hold the kernels, taken into the library by the assembler. The build names them:
 * HR_PLACE_PTX and HR_CAST_PTX always, HR_PLACE_FATBIN and HR_CAST_FATBIN where it made them (cmake/kernel.cmake).
 */
#include "device/kernel_image.h"

#include "device/place.h"

#define EMBED(name, file, after)                                    \
    __asm__(".pushsection .rodata\n"                                \
            ".balign 64\n" #name ":\n"                              \
            ".incbin \"" file "\"\n" after "\n" #name "_end:\n"     \
            ".popsection\n");                                       \
    extern const char name[] __attribute__((visibility("hidden"))); \
    extern const char name##_end[] __attribute__((visibility("hidden")))

EMBED(hr_place_ptx_file, HR_PLACE_PTX, ".byte 0");
EMBED(hr_cast_ptx_file, HR_CAST_PTX, ".byte 0");

#ifdef HR_PLACE_FATBIN
EMBED(hr_place_fatbin_file, HR_PLACE_FATBIN, "");
EMBED(hr_cast_fatbin_file, HR_CAST_FATBIN, "");
#endif

struct image {
    const char *begin, *end;
};

static const struct image ptx[HR_KERNEL_COUNT] = {
    [HR_KERNEL_PLACE] = {hr_place_ptx_file, hr_place_ptx_file_end},
    [HR_KERNEL_CAST] = {hr_cast_ptx_file, hr_cast_ptx_file_end},
};

static const void *take(const struct image *image, size_t *ret_size)
{
    *ret_size = (size_t)(image->end - image->begin);
    return image->begin;
}

const char *hr_kernel_name(enum hr_kernel kernel)
{
    return kernel == HR_KERNEL_CAST ? HR_CAST_KERNEL_NAME : HR_PLACE_KERNEL_NAME;
}

const void *hr_kernel_image(enum hr_kernel kernel, size_t *ret_size, const char **ret_kind)
{
#ifdef HR_PLACE_FATBIN
    static const struct image fatbins[HR_KERNEL_COUNT] = {
        [HR_KERNEL_PLACE] = {hr_place_fatbin_file, hr_place_fatbin_file_end},
        [HR_KERNEL_CAST] = {hr_cast_fatbin_file, hr_cast_fatbin_file_end},
    };
    *ret_kind = "fatbin";
    return take(&fatbins[kernel], ret_size);
#else
    *ret_kind = "PTX";
    return hr_kernel_ptx(kernel, ret_size);
#endif
}

const void *hr_kernel_ptx(enum hr_kernel kernel, size_t *ret_size)
{
    return take(&ptx[kernel], ret_size);
}
