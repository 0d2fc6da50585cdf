/*
 * files.c: a bounded set of descriptors. The lock guards the table only; files are opened, checked and closed
 * outside of it, so two threads may open the same file at once: the later one closes its own. A file's two
 * descriptors share its holders: while anybody holds the file, neither is closed.
 */
#include "engine/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/limits.h"
#include "base/sys.h"

enum way { BUFFERED, DIRECT, WAY_COUNT };

struct open_file {
    int fds[WAY_COUNT]; /* -1: closed */
    int refuses_direct;
    unsigned holders; /* acquired and not released */
    size_t uses_left;
};

struct hr_files {
    const struct hr_checkpoint *checkpoint;
    struct open_file *files;
    pthread_mutex_t lock;
    pthread_cond_t released;
    size_t open_count, open_max; /* descriptors, those being opened included */
    size_t victim_hint;          /* where the search for an idle file goes on */
    atomic_ulong close_count;    /* descriptors that were given back; pairs with itself */
    int fork_generation;
};

/* Half of what the process may open: the other half is the program's. */
static size_t open_files_max(void)
{
    uint64_t soft, hard;
    uint64_t most = HR_OPEN_FILES_MAX;
    if (hr_sys->descriptor_limits(&soft, &hard) == 0 && soft / 2 < most)
        most = soft / 2;
    return most ? (size_t)most : 1;
}

int hr_files_new(const struct hr_checkpoint *checkpoint, const size_t *use_counts, struct hr_files **ret_files,
                 struct hr_error *err)
{
    struct hr_files *files = hr_alloc(sizeof *files);
    struct open_file *entries = hr_alloc_array(checkpoint->file_count, sizeof *entries);
    if (!files || !entries) {
        hr_free(entries);
        hr_free(files);
        return hr_fail_memory(err, checkpoint->file_count * sizeof *entries, "the table of open files");
    }
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        entries[i].fds[BUFFERED] = entries[i].fds[DIRECT] = -1;
        entries[i].uses_left = use_counts[i];
    }
    files->checkpoint = checkpoint;
    files->files = entries;
    files->open_max = open_files_max();
    files->fork_generation = hr_fork_generation();
    pthread_mutex_init(&files->lock, NULL);
    pthread_cond_init(&files->released, NULL);
    *ret_files = files;
    return 0;
}

static void close_fds(const int *fds)
{
    for (int way = 0; way < WAY_COUNT; way++)
        if (fds[way] >= 0)
            hr_sys->close(fds[way]);
}

void hr_files_free(struct hr_files *files)
{
    if (!files)
        return;
    for (size_t i = 0; i < files->checkpoint->file_count; i++)
        close_fds(files->files[i].fds);
    /* in a forked child the waiters are gone but not their marks: destroying would block */
    if (files->fork_generation == hr_fork_generation()) {
        pthread_cond_destroy(&files->released);
        pthread_mutex_destroy(&files->lock);
    }
    hr_free(files->files);
    hr_free(files);
}

/* An open file that nobody holds, or NULL. The lock is held. */
static struct open_file *find_idle(struct hr_files *files)
{
    size_t count = files->checkpoint->file_count;
    for (size_t i = 0; i < count; i++) {
        size_t at = (files->victim_hint + i) % count;
        const struct open_file *file = &files->files[at];
        if ((file->fds[BUFFERED] >= 0 || file->fds[DIRECT] >= 0) && file->holders == 0) {
            files->victim_hint = at;
            return &files->files[at];
        }
    }
    return NULL;
}

/* Takes a descriptor of an idle file out of the table, or -1. The lock is held. */
static int take_idle(struct hr_files *files)
{
    struct open_file *file = find_idle(files);
    if (!file)
        return -1;
    enum way way = file->fds[DIRECT] >= 0 ? DIRECT : BUFFERED;
    int fd = file->fds[way];
    file->fds[way] = -1;
    return fd;
}

static int fail_open(struct hr_files *files, size_t file_index, int code, struct hr_error *err)
{
    const char *path = files->checkpoint->files[file_index].path;
    if (code == -ENOENT)
        hr_fail_sys(err, HR_EFILE_CHANGED, -code,
                    "the file is gone since the checkpoint was opened; open the checkpoint again");
    else if (code == -EMFILE || code == -ENFILE)
        hr_fail_sys(err, HR_EIO_ERROR, -code,
                    "no descriptor is left to open the file again; raise the limit (ulimit -n)");
    else
        hr_fail_sys(err, HR_EIO_ERROR, -code, "cannot open the file again");
    hr_error_in_file(err, path);
    return code == -ENOENT ? HR_EFILE_CHANGED : HR_EIO_ERROR;
}

static int check_fd(struct hr_files *files, size_t file_index, int fd, struct hr_error *err)
{
    const char *path = files->checkpoint->files[file_index].path;
    struct stat now;
    int status = hr_sys->fstat(fd, &now);
    if (status < 0) {
        hr_fail_sys(err, HR_EIO_ERROR, -status, "cannot tell whether the file has changed");
        hr_error_in_file(err, path);
        return HR_EIO_ERROR;
    }
    return hr_identity_check(&files->checkpoint->identities[file_index], &now, path, err);
}

/* Gives up a place that was reserved for opening; what was open is closed by now. */
static void unreserve(struct hr_files *files)
{
    atomic_fetch_add(&files->close_count, 1);
    pthread_mutex_lock(&files->lock);
    files->open_count--;
    pthread_cond_broadcast(&files->released);
    pthread_mutex_unlock(&files->lock);
}

/* Puts `fd`, for which a place is reserved, into the table unless another thread was faster. */
static int publish(struct hr_files *files, size_t file_index, enum way way, int fd)
{
    struct open_file *file = &files->files[file_index];
    int kept = fd;
    pthread_mutex_lock(&files->lock);
    if (file->fds[way] < 0)
        file->fds[way] = fd;
    else
        kept = file->fds[way];
    file->holders++;
    pthread_mutex_unlock(&files->lock);
    if (kept != fd) {
        hr_sys->close(fd);
        unreserve(files);
    }
    return kept;
}

/* Opened with O_DIRECT, and of no use: reads were refused. Its holders wait for the other one. The lock is held. */
static int has_useless(const struct open_file *file)
{
    return file->refuses_direct && file->fds[DIRECT] >= 0;
}

/*
 * 0 with the open descriptor, 1 when a place was reserved and it must be opened, -1 when there is no place. A file that
 * refuses O_DIRECT turns *way; what replaces a descriptor that its holders cannot give up may go beyond the bound.
 */
static int reserve(struct hr_files *files, size_t file_index, enum way *way, int *ret_fd, int *ret_victim)
{
    struct open_file *file = &files->files[file_index];
    int result = 1;
    *ret_victim = -1;
    pthread_mutex_lock(&files->lock);
    if (file->refuses_direct)
        *way = BUFFERED;
    if (file->fds[*way] >= 0) {
        file->holders++;
        *ret_fd = file->fds[*way];
        result = 0;
    } else if (files->open_count >= files->open_max && !has_useless(file)) {
        *ret_victim = take_idle(files); /* its place is ours */
        result = *ret_victim >= 0 ? 1 : -1;
    } else {
        files->open_count++;
    }
    pthread_mutex_unlock(&files->lock);
    return result;
}

/*
 * The process has no descriptor left: live with what this load holds already. 1 when that is more than none, or was when
 * `close_count` was read, before the open.
 */
static int shrink(struct hr_files *files, unsigned long close_count)
{
    pthread_mutex_lock(&files->lock);
    files->open_count--;
    int others = files->open_count > 0 || atomic_load(&files->close_count) != close_count;
    if (files->open_count > 0)
        files->open_max = files->open_count;
    pthread_cond_broadcast(&files->released); /* who waits for the last of the others may have waited for this one */
    pthread_mutex_unlock(&files->lock);
    return others;
}

void hr_files_refuse_direct(struct hr_files *files, size_t file_index)
{
    pthread_mutex_lock(&files->lock);
    files->files[file_index].refuses_direct = 1;
    pthread_mutex_unlock(&files->lock);
}

/* O_NONBLOCK so that a pipe in the file's place cannot hold the call up. Where O_DIRECT is refused *way turns. */
static int open_way(struct hr_files *files, size_t file_index, enum way *way)
{
    const char *path = files->checkpoint->open_paths[file_index];
    int flags = O_RDONLY | O_NONBLOCK;
    int fd = hr_sys->open(path, *way == DIRECT ? flags | O_DIRECT : flags);
    if (*way == DIRECT && (fd == -EINVAL || fd == -EOPNOTSUPP)) {
        hr_files_refuse_direct(files, file_index);
        *way = BUFFERED;
        fd = hr_sys->open(path, flags);
    }
    return fd;
}

/* Opens and checks the file, for which a place is reserved, and puts it into the table; the place is given up else. */
static int open_reserved(struct hr_files *files, size_t file_index, enum way *way, int *ret_fd, struct hr_error *err)
{
    unsigned long close_count = atomic_load(&files->close_count);
    int fd = open_way(files, file_index, way);
    if ((fd == -EMFILE || fd == -ENFILE) && shrink(files, close_count))
        return 1;
    if (fd < 0) {
        if (fd != -EMFILE && fd != -ENFILE)
            unreserve(files);
        return fail_open(files, file_index, fd, err);
    }
    int code = check_fd(files, file_index, fd, err);
    if (code < 0) {
        hr_sys->close(fd);
        unreserve(files);
        return code;
    }
    *ret_fd = publish(files, file_index, *way, fd);
    return 0;
}

int hr_files_acquire(struct hr_files *files, size_t file_index, uint32_t *mode, int *ret_fd, struct hr_error *err)
{
    enum way way = *mode == HR_READ_DIRECT ? DIRECT : BUFFERED;
    int victim;
    int code = reserve(files, file_index, &way, ret_fd, &victim);
    if (code < 0)
        return 1;
    if (victim >= 0)
        hr_sys->close(victim);
    if (code > 0)
        code = open_reserved(files, file_index, &way, ret_fd, err);
    if (code == 0 && *mode == HR_READ_DIRECT && way == BUFFERED)
        *mode = HR_READ_BUFFERED;
    return code;
}

void hr_files_unacquire(struct hr_files *files, size_t file_index)
{
    pthread_mutex_lock(&files->lock);
    files->files[file_index].uses_left++;
    pthread_mutex_unlock(&files->lock);
    hr_files_release(files, file_index);
}

void hr_files_release(struct hr_files *files, size_t file_index)
{
    struct open_file *file = &files->files[file_index];
    int fds[WAY_COUNT] = {-1, -1};
    size_t closed_count = 0;
    pthread_mutex_lock(&files->lock);
    file->holders--;
    if (file->uses_left)
        file->uses_left--;
    for (int way = WAY_COUNT; way-- > 0 && file->holders == 0;) {
        if (file->fds[way] >= 0 && (file->uses_left == 0 || files->open_count - closed_count > files->open_max)) {
            fds[way] = file->fds[way];
            file->fds[way] = -1;
            closed_count++;
        }
    }
    pthread_cond_broadcast(&files->released);
    pthread_mutex_unlock(&files->lock);
    if (!closed_count)
        return;
    close_fds(fds);
    atomic_fetch_add(&files->close_count, 1);
    pthread_mutex_lock(&files->lock); /* not before: the place of an open descriptor is not free */
    files->open_count -= closed_count;
    pthread_cond_broadcast(&files->released);
    pthread_mutex_unlock(&files->lock);
}

void hr_files_wait(struct hr_files *files)
{
    pthread_mutex_lock(&files->lock);
    while (files->open_count >= files->open_max && !find_idle(files))
        pthread_cond_wait(&files->released, &files->lock);
    pthread_mutex_unlock(&files->lock);
}

int hr_files_check(struct hr_files *files, size_t file_index, struct hr_error *err)
{
    const int *fds = files->files[file_index].fds;
    pthread_mutex_lock(&files->lock); /* other holders may be opening the file the other way */
    int fd = fds[BUFFERED] >= 0 ? fds[BUFFERED] : fds[DIRECT];
    pthread_mutex_unlock(&files->lock);
    return check_fd(files, file_index, fd, err);
}
