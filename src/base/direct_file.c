/* direct_file.c - files read and written past the page cache */
#define _GNU_SOURCE
#include "base/direct_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/private_dir.h"

/* What the last system call's errno means: no room, or another fault. */
static fathom_err code_of_errno(void)
{
    return errno == ENOSPC || errno == EFBIG || errno == EDQUOT ? FATHOM_ELIMIT : FATHOM_EIO;
}

fathom_err direct_file_open(struct direct_file *f, int dir, const char *name, fathom_diag *d)
{
    f->direct = true;
    fathom_err err = private_file_open(&f->fd, dir, name, O_RDWR | O_CREAT | O_DIRECT, d);
    if (err != FATHOM_EUNSUPPORTED) return err;
    f->direct = false;
    return private_file_open(&f->fd, dir, name, O_RDWR | O_CREAT, d);
}

void direct_file_close(struct direct_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

fathom_err direct_file_lock(struct direct_file *f)
{
    if (flock(f->fd, LOCK_EX | LOCK_NB) == 0) return FATHOM_OK;
    return errno == EWOULDBLOCK ? FATHOM_EBUSY : FATHOM_EIO;
}

fathom_err direct_file_size(const struct direct_file *f, uint64_t *bytes)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) return FATHOM_EIO;
    *bytes = (uint64_t)st.st_size;
    return FATHOM_OK;
}

fathom_err direct_file_resize(struct direct_file *f, uint64_t bytes, fathom_diag *d)
{
    uint64_t now = 0;
    TRY(direct_file_size(f, &now));
    int failed = 0;
    if (bytes > now) failed = fallocate(f->fd, 0, (off_t)now, (off_t)(bytes - now));
    if (bytes < now || (failed && errno == EOPNOTSUPP)) failed = ftruncate(f->fd, (off_t)bytes);
    if (failed) {
        FAIL(d, code_of_errno(), "%llu bytes cannot be had: %s", (unsigned long long)bytes,
             strerror(errno));
    }
    return FATHOM_OK;
}

static bool is_aligned(const void *data, size_t n, uint64_t offset)
{
    return ((uintptr_t)data | n | offset) % DIRECT_ALIGN == 0;
}

fathom_err direct_file_read(struct direct_file *f, void *data, size_t n, uint64_t offset,
                            fathom_diag *d)
{
    ASSERT(is_aligned(data, n, offset));
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, (char *)data + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) FAIL(d, FATHOM_EIO, "cannot be read: %s", strerror(errno));
        /* A direct read that ends off a block has met the end of the file. */
        done += (size_t)got;
        if (got == 0 || (f->direct && done % DIRECT_ALIGN != 0)) {
            FAIL(d, FATHOM_ELIMIT, "the file ends before byte %llu",
                 (unsigned long long)(offset + n));
        }
    }
    return FATHOM_OK;
}

fathom_err direct_file_write(struct direct_file *f, const void *data, size_t n, uint64_t offset,
                             fathom_diag *d)
{
    ASSERT(is_aligned(data, n, offset));
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(f->fd, (const char *)data + done, n - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) FAIL(d, code_of_errno(), "cannot be written: %s", strerror(errno));
        if (put == 0 || (f->direct && (size_t)put % DIRECT_ALIGN != 0)) {
            FAIL(d, FATHOM_ELIMIT, "cannot be written: %zu of %zu bytes were", done + (size_t)put,
                 n);
        }
        done += (size_t)put;
    }
    return FATHOM_OK;
}
