/*
 * limits_file.c: where the limits file is, reading it whole, and writing it beside the old one and renaming it. A lock
 * on the folder keeps two that save at once from losing an entry; where folders cannot be locked the last one wins.
 */
#include "limits_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 4 << 20, ENTRY_COUNT_MAX = 1000 };

static int fail_io(const char *what, const char *path, struct hr_error *err)
{
    int number = errno;
    int code = error_set(err, HR_EIO_ERROR, "%s: %s", what, number ? strerror(number) : "it is no regular file");
    err->sys_errno = number == ENOENT || number == ENOTDIR ? 0 : number; /* not that the answer is "no" */
    snprintf(err->file, sizeof err->file, "%s", path);
    return code;
}

/* A relative XDG_CACHE_HOME counts as unset, as the specification of the base directories wants it. */
static int find_path(char *out, size_t capacity, struct hr_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int size = -1;
    if (cache && *cache == '/')
        size = snprintf(out, capacity, "%s/headrace/limits.json", cache);
    else if (home && *home == '/')
        size = snprintf(out, capacity, "%s/.cache/headrace/limits.json", home);
    if (size > 0 && (size_t)size + sizeof ".XXXXXX" <= capacity)
        return 0;
    *out = '\0';
    return error_set(err, HR_EUNSUPPORTED, "there is no folder for the limits file: set XDG_CACHE_HOME or HOME");
}

void limits_host(char out[256])
{
    if (gethostname(out, 256) != 0 || !*out)
        snprintf(out, 256, "unknown");
    out[255] = '\0';
}

/* ---------------------------------------------------------------------------------------------- reading */

/* Not waiting where the path is a FIFO; -1 with errno. Only a regular file is one to read or to replace. */
static int open_regular(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)))
        return fd;
    close(fd);
    errno = 0;
    return -1;
}

/* The file's bytes for free(), NULL with 0 when there is no file. */
static int read_bytes(const char *path, char **ret_text, size_t *ret_size, struct hr_error *err)
{
    *ret_text = NULL;
    *ret_size = 0;
    int fd = open_regular(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file)
        return errno == ENOENT || errno == ENOTDIR ? 0 : fail_io("the limits file cannot be read", path, err);
    char *text = allocate(FILE_BYTES_MAX, 1);
    *ret_size = fread(text, 1, FILE_BYTES_MAX, file);
    int code = ferror(file) ? fail_io("the limits file cannot be read", path, err) : 0;
    fclose(file);
    if (code == 0)
        *ret_text = text;
    else
        free(text);
    return code;
}

static int parse_entries(struct json_input *input, struct limits_file *file)
{
    int more = 1;
    uint64_t version;
    char name[16];
    if (!json_take(input, '{') || !json_take_text(input, name, sizeof name) || strcmp(name, "version") != 0 ||
        !json_take(input, ':') || !json_take_u64(input, &version) || version != 1 || !json_take(input, ',') ||
        !json_take_text(input, name, sizeof name) || strcmp(name, "limits") != 0 || !json_take(input, ':') ||
        !json_take(input, '['))
        return 0;
    while (more) {
        if (file->count == ENTRY_COUNT_MAX || !limits_parse(input, &file->entries[file->count]))
            return 0;
        file->count++;
        if (!json_take_end(input, ']', &more))
            return 0;
    }
    return json_take(input, '}');
}

int limits_read(struct limits_file *ret_file, struct hr_error *err)
{
    struct json_input input = {0};
    char *text = NULL;
    *ret_file = (struct limits_file){0};
    int code = find_path(ret_file->path, sizeof ret_file->path, err);
    if (code == 0)
        code = read_bytes(ret_file->path, &text, &input.size, err);
    if (code < 0 || !text)
        return code;
    input.text = text;
    ret_file->entries = allocate(ENTRY_COUNT_MAX, sizeof *ret_file->entries);
    if (!parse_entries(&input, ret_file)) {
        ret_file->count = 0;
        code = error_set(err, HR_EUNSUPPORTED, "the limits file is broken at byte %zu", input.at);
        snprintf(err->file, sizeof err->file, "%s", ret_file->path);
    }
    free(text);
    return code;
}

void limits_release(struct limits_file *file)
{
    free(file->entries);
    *file = (struct limits_file){0};
}

static int is_same_device(const struct hr_device_info *a, const struct hr_device_info *b)
{
    return a->type == b->type && strcmp(a->uuid, b->uuid) == 0;
}

const struct limits_entry *limits_find(const struct limits_file *file, const struct hr_device_info *device)
{
    char host[256];
    const struct limits_entry *newest = NULL;
    limits_host(host);
    for (size_t i = 0; i < file->count; i++) {
        const struct limits_entry *entry = &file->entries[i];
        if (strcmp(entry->host, host) != 0)
            continue;
        if (is_same_device(&entry->limits.device, device))
            return entry;
        if (!newest || entry->limits.time > newest->limits.time)
            newest = entry;
    }
    return device->type == HR_DEVICE_CPU ? newest : NULL;
}

static int is_same_entry(const struct limits_entry *a, const struct limits_entry *b)
{
    return strcmp(a->host, b->host) == 0 && is_same_device(&a->limits.device, &b->limits.device);
}

const struct limits_entry *limits_find_same(const struct limits_file *file, const struct limits_entry *entry)
{
    for (size_t i = 0; i < file->count; i++)
        if (is_same_entry(&file->entries[i], entry))
            return &file->entries[i];
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- writing */

/* Makes the folders above `path`. */
static int make_folders(const char *path, struct hr_error *err)
{
    char folder[sizeof((struct limits_file *)0)->path];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return fail_io("the folder of the limits file cannot be made", folder, err);
        *slash = '/';
    }
    return 0;
}

/* A descriptor of the folder of `path` that holds its lock, or -1. */
static int lock_folder(const char *path)
{
    char folder[sizeof((struct limits_file *)0)->path];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        flock(fd, LOCK_EX);
    return fd;
}

static void print_entries(FILE *out, const struct limits_file *file, const struct limits_entry *entry)
{
    struct json json = {.file = out};
    json_open(&json, NULL, '{');
    json_u64(&json, "version", 1);
    json_open(&json, "limits", '[');
    for (size_t i = file->count == ENTRY_COUNT_MAX; i < file->count; i++) /* the first goes where they are too many */
        if (!is_same_entry(&file->entries[i], entry))
            limits_print(&json, NULL, &file->entries[i]);
    limits_print(&json, NULL, entry);
    json_close(&json, ']');
    json_close(&json, '}');
    json_end(&json);
}

static int replace(const struct limits_file *file, const struct limits_entry *entry, struct hr_error *err)
{
    char path[sizeof file->path + sizeof ".XXXXXX"];
    snprintf(path, sizeof path, "%s.XXXXXX", file->path);
    int fd = mkstemp(path);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out)
        return fail_io("the limits file cannot be written", file->path, err);
    print_entries(out, file, entry);
    int failed = fflush(out) != 0 || fsync(fd) != 0;
    failed = fclose(out) != 0 || failed;
    if (!failed && rename(path, file->path) == 0)
        return 0;
    int code = fail_io("the limits file cannot be written", file->path, err);
    unlink(path);
    return code;
}

int limits_save(const struct limits_file *file, const struct limits_entry *entry, struct hr_error *err)
{
    struct limits_file now;
    int code = make_folders(file->path, err);
    if (code < 0)
        return code;
    int lock_fd = lock_folder(file->path);
    code = limits_read(&now, err);
    if (code == 0 || code == HR_EUNSUPPORTED) /* what cannot be understood is replaced */
        code = replace(&now, entry, err);
    limits_release(&now);
    if (lock_fd >= 0)
        close(lock_fd);
    return code;
}
