/* new_file.c - a file that is there as a whole or not at all */
#include "base/new_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

static fathom_err failed(const char *path, fathom_diag *d)
{
    const int cause = errno;
    const bool is_full = cause == ENOSPC || cause == EDQUOT || cause == EFBIG;
    FAIL(d, is_full ? FATHOM_ELIMIT : FATHOM_EIO, "%s: cannot be written: %s", path,
         strerror(cause));
}

/* The same of bytes to be written; those of a mapped file may be gone. */
static fathom_err failed_bytes(const char *path, const void *bytes, fathom_diag *d)
{
    char source[LIMIT_PATH_BYTES];
    uint64_t byte;
    if (errno != EFAULT || !os_mapped_file(bytes, source, sizeof source, &byte)) {
        return failed(path, d);
    }
    FAIL(d, FATHOM_EIO,
         "%s: cannot be read at byte %llu: the file was cut while it was read, or its disk fails",
         source, (unsigned long long)byte);
}

static fathom_err open_part(struct new_file *f, const char *path, int flags, fathom_diag *d)
{
    f->fd = -1;
    int n = snprintf(f->path, sizeof f->path, "%s", path);
    int m = snprintf(f->part, sizeof f->part, "%s.part", path);
    if (n < 0 || m < 0 || (size_t)m >= sizeof f->part) {
        FAIL(d, FATHOM_EINVAL, "%.80s...: the path is longer than %d bytes", path,
             LIMIT_PATH_BYTES - 6);
    }
    f->fd = open(f->part, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    return f->fd < 0 ? failed(f->part, d) : FATHOM_OK;
}

fathom_err new_file_begin(struct new_file *f, const char *path, fathom_diag *d)
{
    return open_part(f, path, O_TRUNC, d);
}

fathom_err new_file_go_on(struct new_file *f, const char *path, fathom_diag *d)
{
    struct stat held, named;
    TRY(open_part(f, path, 0, d));
    const bool is_free = flock(f->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (is_free && fstat(f->fd, &held) == 0 && stat(f->part, &named) == 0 &&
        held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
        return FATHOM_OK;
    }
    new_file_leave(f);
    FAIL(d, FATHOM_EBUSY, "%s: another process writes it", f->part);
}

fathom_err new_file_cut(struct new_file *f, uint64_t n, fathom_diag *d)
{
    ASSERT(f->fd >= 0);
    return ftruncate(f->fd, (off_t)n) == 0 ? FATHOM_OK : failed(f->part, d);
}

void new_file_leave(struct new_file *f)
{
    if (f->fd >= 0) (void)close(f->fd);
    f->fd = -1;
}

fathom_err new_file_write(struct new_file *f, const void *bytes, size_t n, uint64_t offset,
                          fathom_diag *d)
{
    const char *from = bytes;
    ASSERT(f->fd >= 0);
    while (n > 0) {
        ssize_t wrote = pwrite(f->fd, from, n < (1u << 30) ? n : 1u << 30, (off_t)offset);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return failed_bytes(f->part, from, d);
        from += wrote;
        n -= (size_t)wrote;
        offset += (uint64_t)wrote;
    }
    return FATHOM_OK;
}

/* The directory's entry for the new name is on the disk. */
static void sync_dir(const char *path)
{
    char dir[LIMIT_PATH_BYTES];
    (void)snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) *(slash == dir ? slash + 1 : slash) = '\0';
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd); /* a file system that cannot do this for directories has done what it can */
    (void)close(fd);
}

fathom_err new_file_end(struct new_file *f, fathom_diag *d)
{
    ASSERT(f->fd >= 0);
    if (fsync(f->fd) != 0) return failed(f->part, d);
    if (rename(f->part, f->path) != 0) return failed(f->path, d);
    (void)close(f->fd); /* all of it is on the disk */
    f->fd = -1;
    sync_dir(f->path);
    return FATHOM_OK;
}

void new_file_drop(struct new_file *f)
{
    if (f->fd < 0) return;
    (void)unlink(f->part); /* while nobody else may go on with it */
    (void)close(f->fd);
    f->fd = -1;
}

fathom_err new_file_save(const char *path, const void *bytes, size_t n, fathom_diag *d)
{
    struct new_file f;
    TRY(new_file_begin(&f, path, d));
    fathom_err err = new_file_write(&f, bytes, n, 0, d);
    if (!err) err = new_file_end(&f, d);
    if (err) new_file_drop(&f);
    return err;
}

static bool write_whole(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t wrote = write(fd, bytes, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

static fathom_err write_in_place(const char *path, const void *bytes, size_t n, fathom_diag *d)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const bool is_written = fd >= 0 && write_whole(fd, bytes, n);
    const fathom_err err = is_written ? FATHOM_OK : failed(path, d);
    if (fd >= 0) (void)close(fd);
    return err;
}

fathom_err file_save(const char *path, const void *bytes, size_t n, fathom_diag *d)
{
    struct stat st;
    const bool is_other = lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
    return is_other ? write_in_place(path, bytes, n, d) : new_file_save(path, bytes, n, d);
}

fathom_err file_append(const char *path, const void *bytes, size_t n, fathom_diag *d)
{
    struct stat st;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return failed(path, d);
    fathom_err err = FATHOM_OK;
    const bool is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!write_whole(fd, bytes, n) || (is_file && fsync(fd) != 0)) {
        fathom_diag why = {{0}};
        err = failed(path, &why);
        const bool is_cut = is_file && ftruncate(fd, st.st_size) == 0;
        (void)diag_fail(d, err, "%s; %s", why.text,
                        is_cut ? "it holds what it held before" : "it may hold a part of a line");
    }
    (void)close(fd);
    return err;
}

fathom_err file_remove(const char *path, fathom_diag *d)
{
    if (unlink(path) == 0 || errno == ENOENT) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "%s: cannot be removed: %s", path, strerror(errno));
}

fathom_err disk_free_bytes(const char *dir, uint64_t *bytes, fathom_diag *d)
{
    struct statvfs s;
    if (statvfs(dir, &s) != 0) {
        FAIL(d, FATHOM_EIO, "%s: its disk cannot be asked: %s", dir, strerror(errno));
    }
    *bytes = (uint64_t)s.f_bavail * s.f_frsize;
    return FATHOM_OK;
}

fathom_err dir_lock(int *fd, const char *dir, fathom_diag *d)
{
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0) return FATHOM_OK;
    const int cause = errno;
    dir_unlock(*fd);
    *fd = -1;
    if (cause == EWOULDBLOCK) return FATHOM_EBUSY;
    FAIL(d, FATHOM_EIO, "%s: cannot be locked: %s", dir, strerror(cause));
}

void dir_unlock(int fd)
{
    if (fd >= 0) (void)close(fd);
}

/* ---- names of a directory -------------------------------------------------------------------- */

struct names {
    char **items;
    size_t n, cap;
};

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static fathom_err read_names(struct names *to, const char *dir, fathom_diag *d)
{
    DIR *handle = opendir(dir);
    struct dirent *entry;
    fathom_err err = FATHOM_OK;
    if (!handle) FAIL(d, FATHOM_EIO, "%s: cannot be read: %s", dir, strerror(errno));
    while (!err && (entry = readdir(handle))) {
        char path[LIMIT_PATH_BYTES];
        struct stat s;
        if (path_join(path, sizeof path, dir, entry->d_name)) continue;
        if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) continue;
        err = mem_grow(&to->items, &to->cap, to->n + 1, sizeof *to->items);
        if (err) break;
        to->items[to->n] = mem_strdup(entry->d_name);
        err = to->items[to->n] ? FATHOM_OK : FATHOM_ENOMEM;
        to->n += !err;
    }
    (void)closedir(handle);
    if (err) FAIL(d, err, "no memory for the names in %s", dir);
    return FATHOM_OK;
}

fathom_err dir_each_file(const char *dir, dir_visit *visit, void *arg, fathom_diag *d)
{
    struct names names = {NULL, 0, 0};
    fathom_err err = read_names(&names, dir, d);
    if (names.n) qsort(names.items, names.n, sizeof *names.items, compare);
    for (size_t i = 0; i < names.n; i++) {
        if (!err) err = visit(arg, names.items[i]);
        mem_free(names.items[i]);
    }
    mem_free(names.items);
    return err;
}

fathom_err dir_other_name(const char *dir, char *name, size_t n_name, fathom_diag *d)
{
    DIR *handle = opendir(dir);
    struct dirent *entry;
    name[0] = '\0';
    if (!handle) FAIL(d, FATHOM_EIO, "%s: cannot be read: %s", dir, strerror(errno));
    while (!name[0] && (entry = readdir(handle))) {
        static const char *const expected[] = {".", "..", "lost+found"};
        struct stat s;
        bool is_other = true;
        for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
            is_other = is_other && strcmp(entry->d_name, expected[i]) != 0;
        }
        if (!is_other) continue;
        const bool is_there = fstatat(dirfd(handle), entry->d_name, &s, 0) == 0;
        if (!is_there || !S_ISREG(s.st_mode)) (void)snprintf(name, n_name, "%s", entry->d_name);
    }
    (void)closedir(handle);
    return FATHOM_OK;
}
