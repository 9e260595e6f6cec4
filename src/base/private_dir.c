/* private_dir.c - a directory that nobody else can write to, and its files */
#define _GNU_SOURCE
#include "base/private_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/limits.h"

/* What errno means after a path was opened or made: no room, a disk that fails, or a path that
 * cannot be used. */
static fathom_err code_of_errno(void)
{
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) return FATHOM_ELIMIT;
    return errno == EIO || errno == ENOMEM || errno == ENFILE || errno == EMFILE ? FATHOM_EIO
                                                                                 : FATHOM_EINVAL;
}

static fathom_err check_dir(int fd, const char *path, fathom_diag *d)
{
    struct stat st;
    if (fstat(fd, &st) != 0) FAIL(d, FATHOM_EIO, "%s: %s", path, strerror(errno));
    if (st.st_uid != geteuid()) {
        FAIL(d, FATHOM_EINVAL,
             "%s belongs to user %u, needed is a directory of user %u, who runs this: change its "
             "owner, or name a directory below it that is not there yet",
             path, (unsigned)st.st_uid, (unsigned)geteuid());
    }
    if (st.st_mode & (S_IWGRP | S_IWOTH)) {
        FAIL(d, FATHOM_EINVAL,
             "%s has mode %04o, so others can write to it: chmod go-w it, or name a directory "
             "below it that is not there yet",
             path, (unsigned)st.st_mode & 07777);
    }
    return FATHOM_OK;
}

fathom_err private_dir_open(int *fd, const char *path, fathom_diag *d)
{
    *fd = -1;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        FAIL(d, code_of_errno(), "%s: cannot be made a directory: %s", path, strerror(errno));
    }
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        FAIL(d, code_of_errno(), "%s: cannot be opened as a directory: %s", path, strerror(errno));
    }
    fathom_err err = check_dir(dir, path, d);
    if (err) {
        close(dir);
        return err;
    }
    *fd = dir;
    return FATHOM_OK;
}

void private_dir_close(int fd)
{
    if (fd >= 0) close(fd);
}

static fathom_err check_file(int fd, const char *name, fathom_diag *d)
{
    struct stat st;
    if (fstat(fd, &st) != 0) FAIL(d, FATHOM_EIO, "%s: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode)) {
        FAIL(d, FATHOM_EINVAL, "%s is not a regular file: remove it", name);
    }
    if (st.st_uid == geteuid()) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s belongs to user %u, not to user %u, who runs this: remove it", name,
         (unsigned)st.st_uid, (unsigned)geteuid());
}

fathom_err private_file_open(int *fd, int dir, const char *name, int flags, fathom_diag *d)
{
    *fd = -1;
    /* Without O_NONBLOCK to open a pipe that somebody has put there waits for the other end. */
    int file = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
    if (file < 0 && errno == EINVAL && (flags & O_DIRECT)) return FATHOM_EUNSUPPORTED;
    if (file < 0 && errno == ENOENT && !(flags & O_CREAT)) return FATHOM_ENOTFOUND;
    if (file < 0 && errno == ELOOP) {
        FAIL(d, FATHOM_EINVAL, "%s is a symbolic link, which is not followed: remove it", name);
    }
    if (file < 0) FAIL(d, code_of_errno(), "%s: cannot be opened: %s", name, strerror(errno));
    fathom_err err = check_file(file, name, d);
    if (err) {
        close(file);
        return err;
    }
    *fd = file;
    return FATHOM_OK;
}

fathom_err private_file_read(int dir, const char *name, void *data, size_t n_max, size_t *n,
                             fathom_diag *d)
{
    int fd;
    fathom_err err = FATHOM_OK;
    *n = 0;
    TRY(private_file_open(&fd, dir, name, O_RDONLY, d));
    for (;;) {
        char beyond;
        bool is_full = *n == n_max;
        ssize_t got = is_full ? read(fd, &beyond, 1) : read(fd, (char *)data + *n, n_max - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) err = diag_fail(d, FATHOM_EIO, "%s: %s", name, strerror(errno));
        if (got > 0 && is_full)
            err = diag_fail(d, FATHOM_ELIMIT, "%s: longer than %zu", name, n_max);
        if (got <= 0 || err) break;
        *n += (size_t)got;
    }
    close(fd);
    return err;
}

static fathom_err write_all(int fd, const char *name, const void *data, size_t n, fathom_diag *d)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = write(fd, (const char *)data + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) FAIL(d, code_of_errno(), "%s: cannot be written: %s", name, strerror(errno));
        done += (size_t)put;
    }
    return FATHOM_OK;
}

fathom_err private_file_replace(int dir, const char *name, const void *data, size_t n,
                                fathom_diag *d)
{
    int fd;
    char next[LIMIT_PATH_BYTES];
    int len = snprintf(next, sizeof next, "%s.new", name);
    ASSERT(len > 0 && (size_t)len < sizeof next);
    (void)unlinkat(dir, next, 0); /* of a process that was killed while it wrote */
    TRY(private_file_open(&fd, dir, next, O_WRONLY | O_CREAT | O_EXCL, d));
    fathom_err err = write_all(fd, next, data, n, d);
    close(fd);
    if (!err && renameat(dir, next, dir, name) != 0) {
        err = diag_fail(d, code_of_errno(), "%s: %s", name, strerror(errno));
    }
    if (err) (void)unlinkat(dir, next, 0);
    return err;
}
