/* download.c - several files at once, over libcurl's multi interface
 *
 *   WAITING --due, a place is free--> RUNNING --end, sum as listed--> DONE
 *      ^                                |
 *      +------ it may be tried again ---+--> the first that may not ends the pull
 */
#include "hub/download.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "hub/client.h"
#include "hub/partial.h"

enum { WAIT_MS = 100, SUMS_TRIED = 2 };

struct transfer {
    const struct hub_file *file;
    enum { WAITING, RUNNING, DONE } state;
    struct partial partial;
    struct hub_request request;
    struct download *download;
    uint64_t due_us;
    uint64_t furthest; /* most bytes that were there, of attempts since the last wrong sum */
    unsigned n_failed; /* attempts since it last got further */
    unsigned n_bad_sum;
    bool begun;     /* the answer's first bytes were looked at */
    fathom_err err; /* of the disk, or of an answer that is not what was asked for */
};

struct download {
    const struct hub_store *store;
    const struct hub_listing *listing;
    const struct hub_order *order;
    CURLM *multi;
    struct transfer *transfers;
    size_t n_transfer, n_done, n_running;
    uint64_t done_bytes, total_bytes, fetched_bytes;
    fathom_diag *diag;
};

/* ---- one file ------------------------------------------------------------------------------- */

/* A hub that does not support ranges sends the whole file: then it is begun anew. */
static fathom_err look_at_answer(struct transfer *t)
{
    struct download *w = t->download;
    long status = 0;
    (void)curl_easy_getinfo(t->request.easy, CURLINFO_RESPONSE_CODE, &status);
    t->begun = true;
    if (status == 200 && t->partial.n > 0) {
        w->done_bytes -= t->partial.n;
        return partial_restart(&t->partial, w->diag);
    }
    if (status == 206 && t->request.offset != t->partial.n) {
        FAIL(w->diag, FATHOM_EFORMAT, "%s: asked for bytes from %llu on, the hub sends from %llu",
             t->file->path, (unsigned long long)t->partial.n,
             (unsigned long long)t->request.offset);
    }
    return FATHOM_OK;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct transfer *t = arg;
    struct download *w = t->download;
    long status = 0;
    (void)one;
    (void)curl_easy_getinfo(t->request.easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) return n; /* what a hub says beside an error */
    if (!t->begun) t->err = look_at_answer(t);
    if (!t->err) t->err = partial_add(&t->partial, bytes, n, w->diag);
    if (t->err) return 0;
    if (t->partial.n > t->furthest) {
        t->furthest = t->partial.n;
        t->n_failed = 0;
    }
    w->done_bytes += n;
    w->fetched_bytes += n;
    return n;
}

static fathom_err write_url(struct buf *url, const struct download *w, const struct hub_file *f)
{
    const struct hub_order *o = w->order;
    if (o->modelscope) {
        TRY(buf_printf(url, "%s/api/v1/models/%s/repo?Revision=", client_endpoint(o),
                       o->repository));
        TRY(client_add_escaped(url, o->revision ? o->revision : "master", false));
        TRY(buf_add_str(url, "&FilePath="));
        return client_add_escaped(url, f->path, false);
    }
    TRY(buf_printf(url, "%s/%s/resolve/%s/", client_endpoint(o), o->repository,
                   w->listing->commit));
    return client_add_escaped(url, f->path, true);
}

static fathom_err ask(struct transfer *t, const char *url)
{
    struct download *w = t->download;
    char range[64];
    TRY(request_init(&t->request, w->order, url, w->diag));
    CURL *e = t->request.easy;
    (void)curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
    (void)curl_easy_setopt(e, CURLOPT_PRIVATE, t);
    if (t->partial.n) {
        (void)snprintf(range, sizeof range, "%llu-", (unsigned long long)t->partial.n);
        if (curl_easy_setopt(e, CURLOPT_RANGE, range) != CURLE_OK) return FATHOM_ENOMEM;
    }
    if (curl_multi_add_handle(w->multi, e) != CURLM_OK) return FATHOM_ENOMEM;
    t->state = RUNNING;
    w->n_running++;
    return FATHOM_OK;
}

static fathom_err finish(struct transfer *t)
{
    struct download *w = t->download;
    fathom_diag sum = {{0}};
    uint64_t n = t->partial.n;
    fathom_err err = partial_finish(&t->partial, &sum);
    if (err == FATHOM_EFORMAT && ++t->n_bad_sum < SUMS_TRIED) {
        w->done_bytes -= n;
        t->furthest = 0;
        t->state = WAITING;
        return FATHOM_OK;
    }
    if (err) FAIL(w->diag, err, "%s", sum.text);
    t->state = DONE;
    w->n_done++;
    return FATHOM_OK;
}

static fathom_err start(struct transfer *t)
{
    struct download *w = t->download;
    struct buf url = {0};
    fathom_err err = FATHOM_OK;
    if (t->partial.fd < 0) {
        TRY(partial_open(&t->partial, w->store, t->file, w->diag));
        w->done_bytes += t->partial.n;
    }
    if (t->partial.n == t->file->size) return finish(t); /* empty, or whole before it had a name */
    t->begun = false;
    t->err = FATHOM_OK;
    err = write_url(&url, w, t->file);
    if (!err) err = ask(t, buf_str(&url));
    buf_free(&url);
    return err;
}

/* Takes the end of a request. */
static fathom_err take_end(struct transfer *t, CURLcode code)
{
    struct download *w = t->download;
    struct hub_request *r = &t->request;
    fathom_err err = t->err;
    uint64_t pause_us = 0;
    request_note_end(r, code);
    (void)curl_multi_remove_handle(w->multi, r->easy);
    w->n_running--;
    bool whole = code == CURLE_OK && (r->status == 200 || r->status == 206);
    if (!err && !whole && r->status == 416 && t->partial.n) { /* there is no such middle */
        w->done_bytes -= t->partial.n;
        err = partial_restart(&t->partial, w->diag);
        pause_us = 1;
    } else if (!err && !whole) {
        pause_us = request_pause_us(r, ++t->n_failed);
        if (!pause_us) err = request_fail(r, w->order, t->file->path, w->diag);
    }
    request_fini(r);
    t->state = WAITING;
    t->due_us = clock_now_us() + pause_us;
    return !err && whole ? finish(t) : err;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static fathom_err start_those_due(struct download *w)
{
    uint64_t now_us = clock_now_us();
    for (size_t i = 0; i < w->n_transfer && w->n_running < w->order->n_parallel; i++) {
        struct transfer *t = &w->transfers[i];
        if (t->state == WAITING && t->due_us <= now_us) TRY(start(t));
    }
    return FATHOM_OK;
}

static fathom_err turn(struct download *w)
{
    int n, n_left;
    const CURLMsg *m;
    TRY(start_those_due(w));
    if (curl_multi_perform(w->multi, &n) != CURLM_OK) return FATHOM_EIO;
    while ((m = curl_multi_info_read(w->multi, &n_left)) != NULL) {
        struct transfer *t = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        TRY(take_end(t, m->data.result));
    }
    if (w->order->on_progress) {
        w->order->on_progress(w->order->arg, w->done_bytes, w->total_bytes);
    }
    if (w->n_done < w->n_transfer) (void)curl_multi_poll(w->multi, NULL, 0, WAIT_MS, NULL);
    return FATHOM_OK;
}

static int compare_sums(const void *a, const void *b)
{
    const struct transfer *x = a, *y = b;
    return strcmp(x->file->sum, y->file->sum);
}

static int compare_sizes(const void *a, const void *b)
{
    const struct transfer *x = a, *y = b;
    return x->file->size < y->file->size ? -1 : x->file->size > y->file->size;
}

/* Files with the same contents are one transfer. Small files go first, so that an error that hits
 * all files is seen early. */
static fathom_err list_transfers(struct download *w)
{
    const struct hub_listing *l = w->listing;
    size_t n = 0;
    w->transfers = mem_calloc(l->n_file, sizeof *w->transfers);
    if (!w->transfers) FAIL(w->diag, FATHOM_ENOMEM, "out of memory for %zu files", l->n_file);
    for (size_t i = 0; i < l->n_file; i++) {
        if (store_holds(w->store, &l->files[i])) continue;
        w->transfers[n++] =
            (struct transfer){.file = &l->files[i], .download = w, .partial.fd = -1};
    }
    if (n) qsort(w->transfers, n, sizeof *w->transfers, compare_sums);
    for (size_t i = 0; i < n; i++) {
        if (i && compare_sums(&w->transfers[i - 1], &w->transfers[i]) == 0) continue;
        w->transfers[w->n_transfer++] = w->transfers[i];
    }
    if (n) qsort(w->transfers, w->n_transfer, sizeof *w->transfers, compare_sizes);
    return FATHOM_OK;
}

fathom_err download_missing(uint64_t *fetched, const struct hub_store *s,
                            const struct hub_listing *l, const struct hub_order *o,
                            uint64_t there_bytes, fathom_diag *d)
{
    struct download w = {.store = s,
                         .listing = l,
                         .order = o,
                         .done_bytes = there_bytes,
                         .total_bytes = listing_bytes(l),
                         .diag = d};
    fathom_err err = list_transfers(&w);
    if (!err) w.multi = curl_multi_init();
    if (!err && !w.multi) err = diag_fail(d, FATHOM_ENOMEM, "out of memory for requests");
    while (!err && w.n_done < w.n_transfer) err = turn(&w);
    for (size_t i = 0; i < w.n_transfer; i++) {
        struct transfer *t = &w.transfers[i];
        if (t->state == RUNNING) (void)curl_multi_remove_handle(w.multi, t->request.easy);
        request_fini(&t->request);
        partial_close(&t->partial);
    }
    (void)curl_multi_cleanup(w.multi);
    mem_free(w.transfers);
    *fetched = w.fetched_bytes;
    return err;
}
