/*
 * limits_file.h: what `probe` measured, kept with its date in $XDG_CACHE_HOME/headrace/limits.json or
 * ~/.cache/headrace/limits.json. One entry for each host and device; a new one takes the place of the old one.
 */
#ifndef CLI_LIMITS_FILE_H
#define CLI_LIMITS_FILE_H

#include <headrace/headrace.h>
#include <stddef.h>

#include "json_input.h"
#include "output.h"

struct limits_entry {
    char host[256];
    char path[4096]; /* absolute, of the file that was read; "" without */
    struct hr_limits limits;
};

struct limits_file {
    char path[1000];              /* fits into an error */
    struct limits_entry *entries; /* for limits_release() */
    size_t count;
};

/*
 * Reads the file; one that is not there has no entries. HR_EIO_ERROR when it cannot be read, HR_EUNSUPPORTED when it
 * is not what limits_save() writes; `path` is set also then. Always release it.
 */
int limits_read(struct limits_file *ret_file, struct hr_error *err);
void limits_release(struct limits_file *file);

/*
 * The entry of this device on this host, or NULL. Without one for the CPU the newest of the host serves: the page cache
 * is the same.
 */
const struct limits_entry *limits_find(const struct limits_file *file, const struct hr_device_info *device);

/* The kept entry that limits_save() would replace by `entry`, or NULL. */
const struct limits_entry *limits_find_same(const struct limits_file *file, const struct limits_entry *entry);

/*
 * Puts an entry into the file that `file` was read from, whole or not at all: readers see the old file or the new one.
 * One that is broken is replaced, one that cannot be read is not.
 */
int limits_save(const struct limits_file *file, const struct limits_entry *entry, struct hr_error *err);

/* The host's name, as entries have it. */
void limits_host(char out[256]);

/* One entry as an object: what it holds, and reading it again. */
void limits_print(struct json *json, const char *key, const struct limits_entry *entry);
int limits_parse(struct json_input *input, struct limits_entry *ret_entry);

#endif
