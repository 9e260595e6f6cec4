/* pull.c - a list, the files it names, then a snapshot of them */
#include "hub/pull.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/new_file.h"
#include "base/os.h"
#include "base/size_text.h"
#include "hub/client.h"
#include "hub/download.h"
#include "hub/partial.h"

/* What is needed on the disk besides the files: links, and blocks of the file system. */
static const uint64_t spare_bytes = 16 << 20;

/* Allows only characters that names have, because the name becomes a path and a part of a URL. */
static bool is_name(const char *s)
{
    if (!isalnum((unsigned char)s[0]) || strlen(s) > 200 || strstr(s, "..")) return false;
    for (; *s; s++) {
        if (isalnum((unsigned char)*s) || strchr("-_.", *s)) continue;
        if (*s != '/' || !isalnum((unsigned char)s[1])) return false;
    }
    return true;
}

static fathom_err check_names(const struct hub_order *o, fathom_diag *d)
{
    const char *slash = strchr(o->repository, '/');
    if (!slash || !is_name(o->repository) || strchr(slash + 1, '/')) {
        FAIL(d, FATHOM_EINVAL, "\"%.200s\" is no repository: needed is org/name", o->repository);
    }
    if (o->revision && !path_stays_below(o->revision)) {
        FAIL(d, FATHOM_EINVAL, "--revision \"%.200s\" is no branch, tag or commit", o->revision);
    }
    const char *e = client_endpoint(o);
    if (strncmp(e, "https://", 8) != 0 && strncmp(e, "http://", 7) != 0) {
        FAIL(d, FATHOM_EINVAL, "HF_ENDPOINT is \"%.200s\", needed is https://HOST", e);
    }
    return FATHOM_OK;
}

static fathom_err fetch_listing(struct hub_listing *l, const struct hub_order *o, fathom_diag *d)
{
    struct buf url = {0}, body = {0};
    const char *revision = o->revision ? o->revision : o->modelscope ? "master" : "main";
    fathom_err err;
    TRY_GOTO(buf_printf(&url,
                        o->modelscope ? "%s/api/v1/models/%s/repo/files?Recursive=true&Revision="
                                      : "%s/api/models/%s/revision/",
                        client_endpoint(o), o->repository),
             done);
    TRY_GOTO(client_add_escaped(&url, revision, false), done);
    if (!o->modelscope) TRY_GOTO(buf_add_str(&url, "?blobs=true"), done);
    TRY_GOTO(client_get(&body, o, buf_str(&url), o->repository, d), done);
    err = (o->modelscope ? listing_read_modelscope : listing_read)(l, buf_str(&body), body.len, d);
done:
    buf_free(&url);
    buf_free(&body);
    return err;
}

/* Counts the bytes of the listing that are in the cache: of whole files, and in *parts of
 * others. */
static uint64_t count_there(const struct hub_store *s, const struct hub_listing *l, uint64_t *parts)
{
    uint64_t whole = 0;
    *parts = 0;
    for (size_t i = 0; i < l->n_file; i++) {
        char path[LIMIT_PATH_BYTES];
        struct file_stamp stamp;
        const struct hub_file *f = &l->files[i];
        if (store_holds(s, f)) {
            whole += f->size;
        } else if (store_name_blob(path, s, f, true, NULL) == FATHOM_OK &&
                   file_stamp_of(path, &stamp) == FATHOM_OK && stamp.size <= f->size) {
            *parts += stamp.size;
        }
    }
    return whole;
}

static fathom_err check_room(const struct hub_store *s, uint64_t need, fathom_diag *d)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    uint64_t free_bytes;
    TRY(disk_free_bytes(s->folder, &free_bytes, d));
    if (need == 0 || free_bytes >= need + spare_bytes) return FATHOM_OK;
    FAIL(d, FATHOM_ELIMIT,
         "%s to be fetched, %s free at %s: make room, or set HF_HOME to a folder on a larger disk",
         size_text(a, need), size_text(b, free_bytes), s->folder);
}

static fathom_err fill_store(struct hub_result *out, const struct hub_store *s,
                             const struct hub_listing *l, const struct hub_order *o, fathom_diag *d)
{
    uint64_t parts, total = listing_bytes(l), there = count_there(s, l, &parts);
    const struct hub_summary summary = {.commit = l->commit,
                                        .n_file = l->n_file,
                                        .n_left_out = l->n_left_out,
                                        .bytes = total,
                                        .there_bytes = there + parts};
    if (o->on_summary) o->on_summary(o->arg, &summary);
    TRY(check_room(s, total - there - parts, d));
    TRY(download_missing(&out->fetched_bytes, s, l, o, there, d));
    const char *revision = o->revision ? o->revision : "main"; /* also of a master branch */
    return store_make_snapshot(out->dir, s, l, revision, d);
}

fathom_err hub_pull(struct hub_result *out, const struct hub_order *o, fathom_diag *d)
{
    struct hub_listing listing = {0};
    struct hub_store store;
    memset(out, 0, sizeof *out);
    TRY(check_names(o, d));
    fathom_err err = fetch_listing(&listing, o, d);
    if (!err) {
        memcpy(out->commit, listing.commit, sizeof listing.commit);
        err = store_open(&store, o->cache, o->repository, d);
        if (!err) err = fill_store(out, &store, &listing, o, d);
        store_close(&store);
    }
    listing_free(&listing);
    return err;
}
