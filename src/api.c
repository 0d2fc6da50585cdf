/*
 * api.c: the public entry points that belong to no part: versions and texts. The others stand where their
 * object lives; every public function checks its arguments there.
 */
#include <headrace/headrace.h>

#include "base/sys.h"

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *hr_version(void)
{
    return VERSION_TEXT(HR_VERSION_MAJOR, HR_VERSION_MINOR, HR_VERSION_PATCH);
}

void hr_string_free(char *text)
{
    hr_free(text);
}
