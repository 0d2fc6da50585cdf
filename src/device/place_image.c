/*
 * place_image.c: the files that hold the placing kernel, taken into the library by the assembler. The build names them:
 * HR_PLACE_PTX always, HR_PLACE_FATBIN where it made one (cmake/kernel.cmake).
 */
#include "device/place_image.h"

#define EMBED(name, file, after)                                    \
    __asm__(".pushsection .rodata\n"                                \
            ".balign 64\n" #name ":\n"                              \
            ".incbin \"" file "\"\n" after "\n" #name "_end:\n"     \
            ".popsection\n");                                       \
    extern const char name[] __attribute__((visibility("hidden"))); \
    extern const char name##_end[] __attribute__((visibility("hidden")))

EMBED(hr_place_ptx_file, HR_PLACE_PTX, ".byte 0");

#ifdef HR_PLACE_FATBIN
EMBED(hr_place_fatbin_file, HR_PLACE_FATBIN, "");
#endif

const void *hr_place_image(size_t *ret_size, const char **ret_kind)
{
#ifdef HR_PLACE_FATBIN
    *ret_kind = "fatbin";
    *ret_size = (size_t)(hr_place_fatbin_file_end - hr_place_fatbin_file);
    return hr_place_fatbin_file;
#else
    *ret_kind = "PTX";
    return hr_place_ptx(ret_size);
#endif
}

const void *hr_place_ptx(size_t *ret_size)
{
    *ret_size = (size_t)(hr_place_ptx_file_end - hr_place_ptx_file);
    return hr_place_ptx_file;
}
