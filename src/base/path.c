/*
 * path.c: see path.h. A name of the current folder is used only if it leads there, which it need not do for a program
 * that inherited a folder inside one that it may not enter.
 */
#include "base/path.h"

#include <limits.h>
#include <string.h>

#include "base/sys.h"

static int leads_here(const char *folder)
{
    struct stat named, here;
    return hr_sys->stat(folder, &named) == 0 && hr_sys->stat(".", &here) == 0 && named.st_dev == here.st_dev &&
           named.st_ino == here.st_ino;
}

char *hr_current_folder(void)
{
    char *folder = hr_alloc(PATH_MAX + 1);
    if (!folder)
        return NULL;
    if (hr_sys->current_folder(folder, PATH_MAX) || folder[0] != '/' || !leads_here(folder)) {
        folder[0] = '\0';
        return folder;
    }
    size_t size = strlen(folder);
    if (folder[size - 1] != '/')
        memcpy(folder + size, "/", 2);
    return folder;
}

/* Names beside it, which are longer, must not become too long either. */
#define NAME_ROOM 128

size_t hr_folder_bytes(const char *folder, const char *path)
{
    size_t size = strlen(folder);
    return path[0] == '/' || size + strlen(path) + NAME_ROOM > PATH_MAX ? 0 : size;
}
