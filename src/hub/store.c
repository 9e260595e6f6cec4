/* store.c - blobs, snapshots, refs */
#include "hub/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/new_file.h"
#include "base/os.h"

static fathom_err join(char out[LIMIT_PATH_BYTES], const char *a, const char *b, const char *c,
                       fathom_diag *d)
{
    int n = snprintf(out, LIMIT_PATH_BYTES, "%s%s%s", a, b, c);
    if (n >= 0 && n < LIMIT_PATH_BYTES) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "a path below %.200s is longer than %d bytes", a, LIMIT_PATH_BYTES - 1);
}

fathom_err store_open(struct hub_store *s, const char *cache, const char *repository,
                      fathom_diag *d)
{
    char blobs[LIMIT_PATH_BYTES];
    const char *slash = strchr(repository, '/');
    s->lock = -1;
    int n = snprintf(s->folder, sizeof s->folder, "%s/models--%.*s--%s", cache,
                     (int)(slash - repository), repository, slash + 1);
    if (n < 0 || n >= LIMIT_PATH_BYTES) FAIL(d, FATHOM_EINVAL, "the cache's path is too long");
    TRY(join(blobs, s->folder, "/blobs", "", d));
    TRY(os_make_dir(blobs, d));
    fathom_err err = dir_lock(&s->lock, s->folder, d);
    if (err == FATHOM_EBUSY) {
        FAIL(d, FATHOM_EBUSY, "another pull of %s runs: let it end, or end it", repository);
    }
    return err;
}

void store_close(struct hub_store *s)
{
    dir_unlock(s->lock);
    s->lock = -1;
}

fathom_err store_name_blob(char out[LIMIT_PATH_BYTES], const struct hub_store *s,
                           const struct hub_file *f, bool partial, fathom_diag *d)
{
    char name[HUB_SUM_BYTES + 16];
    (void)snprintf(name, sizeof name, "%s%s", f->sum, partial ? ".incomplete" : "");
    return join(out, s->folder, "/blobs/", name, d);
}

bool store_holds(const struct hub_store *s, const struct hub_file *f)
{
    char path[LIMIT_PATH_BYTES];
    struct stat st;
    return store_name_blob(path, s, f, false, NULL) == FATHOM_OK && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size;
}

/* The folder that a path lies in, made if it is not there. */
static fathom_err make_parent(const char *path, fathom_diag *d)
{
    char parent[LIMIT_PATH_BYTES];
    size_t n = (size_t)(strrchr(path, '/') - path);
    memcpy(parent, path, n);
    parent[n] = '\0';
    return os_make_dir(parent, d);
}

/* snapshots/COMMIT/a/b is a link to ../../../blobs/SUM. */
static fathom_err link_file(const char *dir, const struct hub_file *f, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES], target[LIMIT_PATH_BYTES], seen[LIMIT_PATH_BYTES];
    char up[3 * (2 + HUB_FOLDERS_MAX) + 1] = "../../";
    size_t n_up = strlen(up);
    TRY(join(path, dir, "/", f->path, d));
    for (const char *p = f->path; *p; p++) {
        if (*p != '/') continue;
        ASSERT(n_up + sizeof "../" <= sizeof up);
        memcpy(up + n_up, "../", sizeof "../");
        n_up += 3;
    }
    TRY(join(target, up, "blobs/", f->sum, d));
    ssize_t n = readlink(path, seen, sizeof seen - 1);
    if (n >= 0) seen[n] = '\0';
    if (n >= 0 && strcmp(seen, target) == 0) return FATHOM_OK;
    TRY(make_parent(path, d));
    TRY(file_remove(path, d));
    if (symlink(target, path) != 0) {
        FAIL(d, FATHOM_EIO, "%s: no link can be made: %s", path, strerror(errno));
    }
    return FATHOM_OK;
}

fathom_err store_make_snapshot(char *dir, const struct hub_store *s, const struct hub_listing *l,
                               const char *revision, fathom_diag *d)
{
    char ref[LIMIT_PATH_BYTES];
    TRY(join(dir, s->folder, "/snapshots/", l->commit, d));
    TRY(os_make_dir(dir, d));
    for (size_t i = 0; i < l->n_file; i++) TRY(link_file(dir, &l->files[i], d));
    if (!revision || strcmp(revision, l->commit) == 0) return FATHOM_OK;
    TRY(join(ref, s->folder, "/refs/", revision, d));
    TRY(make_parent(ref, d));
    return new_file_save(ref, l->commit, strlen(l->commit), d);
}
