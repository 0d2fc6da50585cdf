/*
 * option_struct.h: how the caller's option structs are read, whichever version of the header they come from. They
 * begin with their own size; it knows nothing else of them.
 */
#ifndef HR_BASE_OPTION_STRUCT_H
#define HR_BASE_OPTION_STRUCT_H

#include <stddef.h>

#include "base/error.h"

/*
 * Copies a caller's option struct, whose size is its first member, over `known_size` bytes of ours. What the caller
 * lacks stays zero; a longer struct is refused unless its tail is zero. `given` may be NULL: all zero. `what` is the
 * struct's name, for messages.
 */
int hr_options_copy(void *ours, size_t known_size, const void *given, const char *what, struct hr_error *err);

/* Refuses a reserved member that is set: so that it can get a meaning later. */
int hr_options_check_reserved(uint32_t reserved, const char *what, struct hr_error *err);

#endif
