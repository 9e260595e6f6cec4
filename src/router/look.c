/* look.c - one look at a time for each place */
#include "router/look.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"

enum { LOOK_TIMEOUT_MS = 2000, LOOK_BYTES = 65536, LOOKS_FAILED = 2 };

static const double MOST = 1e15;

struct look {
    struct looks *all;
    struct upstream_call *call; /* NULL: none under way */
    uint64_t generation;
    uint32_t n_failed; /* in a row */
    uint64_t begun_us;
    uint64_t silent_us; /* as in pool_load */
    int status;
    struct buf body;
};

struct looks {
    struct pool *pool;
    struct buf fields;
    struct look places[POOL_SERVERS_MAX];
};

/* The text of another machine: what is not printable is left out of logs and lists. */
static void note_why(struct pool_load *l, const char *why)
{
    (void)snprintf(l->why, sizeof l->why, "%s", why);
    for (char *at = l->why; *at; at++) {
        if (*at < ' ' || *at > '~') *at = '?';
    }
}

/* 0: it is none, or beyond max. */
static double number(const json_t *o, const char *name, double max)
{
    const json_t *v = json_object_get(o, name);
    double x = json_is_number(v) ? json_number_value(v) : 0;
    return x > 0 && x <= max ? x : 0;
}

/* It goes into bodies of requests as it is. */
static bool is_host(const char *s)
{
    size_t n = 0;
    while (s[n] > ' ' && s[n] <= '~' && s[n] != '"' && s[n] != '\\') n++;
    return s[n] == '\0';
}

bool look_read(struct pool_load *out, const char *body, size_t n)
{
    fathom_diag d;
    json_t *o = NULL;
    *out = (struct pool_load){.is_up = true};
    diag_clear(&d);
    if (json_read(body, n, "/load", &o, &d) != FATHOM_OK || !json_is_object(o)) {
        json_decref(o);
        return false;
    }
    const char *numerics = json_string_value(json_object_get(o, "numerics"));
    out->moves = json_is_true(json_object_get(o, "moves_streams")) && numerics;
    if (numerics) out->numerics = strtoull(numerics, NULL, 16);
    out->started_us = (uint64_t)number(o, "started_us", 0x1p53);
    out->n_room = (uint32_t)number(o, "max_running", UINT32_MAX);
    out->n_page = (uint64_t)number(o, "pages", MOST);
    out->n_page_free = (uint64_t)number(o, "free_pages", MOST);
    out->n_owed = (uint64_t)number(o, "waiting_tokens", MOST);
    out->token_us = number(o, "prefill_token_us", MOST);
    out->step_us = number(o, "decode_step_us", MOST);
    const char *host = json_string_value(json_object_get(o, "pages_host"));
    if (host && strlen(host) < sizeof out->pages_host && is_host(host)) {
        memcpy(out->pages_host, host, strlen(host) + 1);
        out->pages_port = (uint16_t)number(o, "pages_port", UINT16_MAX);
    }
    out->takes_none = json_is_false(json_object_get(o, "takes_pages"));
    out->is_up = !json_is_false(json_object_get(o, "accepts"));
    const char *why = json_string_value(json_object_get(o, "why"));
    if (!out->is_up) note_why(out, why ? why : "it takes no requests");
    json_decref(o);
    return true;
}

static void take_head(void *arg, int status, const struct buf *fields)
{
    struct look *l = arg;
    (void)fields;
    l->status = status;
}

static enum upstream_take take_body(void *arg, const char *bytes, size_t n)
{
    struct look *l = arg;
    return buf_add(&l->body, bytes, n) ? UPSTREAM_STOP : UPSTREAM_TAKEN;
}

/* A server is down once two looks in a row have failed: one may be lost in a burst of work. */
static void take_end(void *arg, bool ok, const char *cause)
{
    struct look *l = arg;
    struct pool_load load = {0};
    char why[POOL_WHY_BYTES];
    l->call = NULL;
    bool is_up = ok && l->status < 500;
    l->n_failed = is_up ? 0 : l->n_failed + 1;
    if (is_up) (void)look_read(&load, buf_str(&l->body), l->body.len);
    if (ok || !l->silent_us) l->silent_us = ok ? 0 : l->begun_us;
    load.silent_us = l->silent_us;
    if (!ok || l->status >= 400) {
        (void)snprintf(
            why, sizeof why, "GET /load is answered %d%s", l->status,
            l->status >= 500 ? ""
            : l->status == 401
                ? ": neither load nor pages are known, streams cannot move; give --server-api-key"
            : l->status == 403
                ? ": neither load nor pages are known, streams cannot move; if it asks for a "
                  "certificate, give --client-cert-path"
                : ": neither load nor pages are known, streams cannot move");
        note_why(&load, ok ? why : cause);
    }
    if (!is_up && l->n_failed < LOOKS_FAILED) return;
    pool_note_load(l->all->pool, (uint32_t)(l - l->all->places), l->generation, &load);
}

static const struct upstream_ops ops = {.head = take_head, .body = take_body, .end = take_end};

fathom_err looks_create(struct looks **out, struct pool *pool, const char *key)
{
    struct looks *l = mem_calloc(1, sizeof *l);
    *out = l;
    if (!l) return FATHOM_ENOMEM;
    l->pool = pool;
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        l->places[i].all = l;
        l->places[i].body.limit = LOOK_BYTES;
    }
    if (!key || buf_printf(&l->fields, "Authorization: Bearer %s\r\n", key) == FATHOM_OK) {
        return FATHOM_OK;
    }
    looks_destroy(l);
    *out = NULL;
    return FATHOM_ENOMEM;
}

void looks_destroy(struct looks *l)
{
    if (!l) return;
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) buf_free(&l->places[i].body);
    buf_free(&l->fields);
    mem_free(l);
}

static void look_at(struct looks *all, struct upstream *u, uint32_t place)
{
    struct look *l = &all->places[place];
    char server[POOL_URL_BYTES], name[POOL_URL_BYTES], url[POOL_URL_BYTES + 8];
    uint64_t generation;
    if (l->call || !pool_url(all->pool, place, server, name, &generation)) return;
    if (generation != l->generation) l->n_failed = 0, l->silent_us = 0;
    l->generation = generation;
    l->begun_us = clock_now_us();
    l->status = 0;
    buf_clear(&l->body);
    (void)snprintf(url, sizeof url, "%s/load", server);
    const struct upstream_request q = {.method = "GET",
                                       .url = url,
                                       .name = name,
                                       .fields = buf_str(&all->fields),
                                       .timeout_ms = LOOK_TIMEOUT_MS,
                                       .ops = &ops,
                                       .arg = l};
    (void)upstream_send(u, &q, &l->call); /* out of memory: at the next tick */
}

void looks_tick(struct looks *l, struct upstream *u)
{
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) look_at(l, u, i);
}
