/*
 * option_struct.c: see option_struct.h.
 */
#include "base/option_struct.h"

#include <string.h>

int hr_options_copy(void *ours, size_t known_size, const void *given, const char *what, struct hr_error *err)
{
    size_t given_size;
    memset(ours, 0, known_size);
    if (!given)
        return 0;
    memcpy(&given_size, given, sizeof given_size);
    if (given_size < sizeof given_size)
        return hr_fail(err, HR_EINVALID_ARGUMENT, "%s: the member 'size' is %zu; set it to sizeof the struct", what,
                       given_size);
    for (size_t i = known_size; i < given_size; i++)
        if (((const unsigned char *)given)[i])
            return hr_fail(
                err, HR_EINVALID_ARGUMENT,
                "%s: byte %zu is set, but this library knows only %zu bytes of the struct; use a newer library", what,
                i, known_size);
    memcpy(ours, given, given_size < known_size ? given_size : known_size);
    return 0;
}

int hr_options_check_reserved(uint32_t reserved, const char *what, struct hr_error *err)
{
    if (reserved == 0)
        return 0;
    return hr_fail(err, HR_EINVALID_ARGUMENT, "%s: a reserved member is %u; clear the struct before filling it", what,
                   reserved);
}
