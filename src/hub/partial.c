/* partial.c - a file that arrives */
#include "hub/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/mem.h"

enum { READ_BYTES = 1 << 20 };

static void end_hash(struct partial *p)
{
    if (p->hash) gnutls_hash_deinit(p->hash, NULL);
    p->hash = NULL;
}

/* git hashes "blob SIZE" and a NUL before the bytes. */
static fathom_err begin_hash(struct partial *p, fathom_diag *d)
{
    char head[32];
    gnutls_digest_algorithm_t kind = p->file->is_git ? GNUTLS_DIG_SHA1 : GNUTLS_DIG_SHA256;
    end_hash(p);
    if (gnutls_hash_init(&p->hash, kind) != 0) FAIL(d, FATHOM_ENOMEM, "out of memory for a digest");
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)p->file->size);
    if (p->file->is_git) (void)gnutls_hash(p->hash, head, (size_t)n + 1);
    p->n = 0;
    return FATHOM_OK;
}

static fathom_err fault(const struct partial *p, fathom_diag *d)
{
    int why = errno;
    if (why == ENOSPC || why == EDQUOT) {
        FAIL(d, FATHOM_ELIMIT,
             "%s: no space is left for it at %.300s; what has come is kept: make room and run the "
             "command again",
             p->file->path, p->path);
    }
    FAIL(d, FATHOM_EIO, "%s: cannot be written: %s", p->path, strerror(why));
}

static fathom_err hash_what_is_there(struct partial *p, fathom_diag *d)
{
    unsigned char *block = mem_alloc(READ_BYTES);
    if (!block) FAIL(d, FATHOM_ENOMEM, "out of memory for a block of 1 MiB");
    ssize_t n;
    while ((n = pread(p->fd, block, READ_BYTES, (off_t)p->n)) > 0) {
        (void)gnutls_hash(p->hash, block, (size_t)n);
        p->n += (uint64_t)n;
    }
    mem_free(block);
    return n < 0 ? fault(p, d) : FATHOM_OK;
}

fathom_err partial_open(struct partial *p, const struct hub_store *s, const struct hub_file *f,
                        fathom_diag *d)
{
    memset(p, 0, sizeof *p);
    p->file = f;
    p->fd = -1;
    TRY(store_name_blob(p->path, s, f, true, d));
    TRY(store_name_blob(p->name, s, f, false, d));
    p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->fd < 0) return fault(p, d);
    TRY(begin_hash(p, d));
    TRY(hash_what_is_there(p, d));
    return p->n > f->size ? partial_restart(p, d) : FATHOM_OK;
}

fathom_err partial_add(struct partial *p, const void *bytes, size_t n, fathom_diag *d)
{
    const unsigned char *next = bytes;
    if (n > p->file->size - p->n) {
        FAIL(d, FATHOM_EFORMAT, "%s: the hub sends more than the %llu bytes of its list",
             p->file->path, (unsigned long long)p->file->size);
    }
    (void)gnutls_hash(p->hash, bytes, n);
    while (n) {
        ssize_t written = pwrite(p->fd, next, n, (off_t)p->n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fault(p, d);
        next += written;
        n -= (size_t)written;
        p->n += (uint64_t)written;
    }
    return FATHOM_OK;
}

fathom_err partial_restart(struct partial *p, fathom_diag *d)
{
    if (ftruncate(p->fd, 0) != 0) return fault(p, d);
    return begin_hash(p, d);
}

static bool is_wanted(const struct partial *p)
{
    unsigned char digest[32];
    char text[HUB_SUM_BYTES];
    size_t n = p->file->is_git ? 20 : 32;
    gnutls_hash_output(p->hash, digest);
    for (size_t i = 0; i < n; i++) (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return p->n == p->file->size && strcmp(text, p->file->sum) == 0;
}

fathom_err partial_finish(struct partial *p, fathom_diag *d)
{
    if (!is_wanted(p)) {
        (void)unlink(p->path);
        partial_close(p);
        FAIL(d, FATHOM_EFORMAT, "%s: what came has not the sum %s of the hub's list", p->file->path,
             p->file->sum);
    }
    if (fsync(p->fd) != 0 || rename(p->path, p->name) != 0) return fault(p, d);
    partial_close(p);
    return FATHOM_OK;
}

void partial_close(struct partial *p)
{
    if (p->fd >= 0) (void)close(p->fd);
    p->fd = -1;
    end_hash(p);
}
