/* front.c - from the head of a request to a relay, and from a relay to the answer */
#include "router/front.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/host_pass.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "http/head.h"

/* Answers of the router's own. */
struct own_route {
    const char *method;
    const char *path;
    int (*answer)(struct front *f, const struct buf *request, struct buf *body);
    bool guarded; /* it changes something */
    const char *type;
};

/* One request on a connection. */
struct exchange {
    struct front *all;
    struct connection *connection;
    const struct own_route *own; /* NULL: it is passed on */
    struct relay *relay;         /* NULL: answered here */
    struct buf body;             /* of a route of the router's own */
    struct port_asker asker;
    bool is_head, is_post;
    bool is_anthropic;      /* errors have Anthropic's form */
    bool is_answered;       /* the connection has the answer, or what there is of it */
    struct api_error error; /* refused already; the body is read to its end all the same */
    uint64_t n_body;        /* bytes received */
    size_t held;
};

/* ---- a host of a model ---------------------------------------------------------------------- */

void front_host_init(struct front_host *h)
{
    *h = (struct front_host){0};
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)snprintf(h->text, sizeof h->text, "this host has not joined host 0 yet");
}

void front_host_fini(struct front_host *h)
{
    (void)pthread_mutex_destroy(&h->lock);
}

void front_host_set(struct front_host *h, bool has_host_0, const char *text)
{
    (void)pthread_mutex_lock(&h->lock);
    h->has_host_0 = has_host_0;
    (void)snprintf(h->text, sizeof h->text, "%s", text);
    (void)pthread_mutex_unlock(&h->lock);
}

/* Copies what there is; returns whether it is a pass. */
static bool read_host(struct front_host *h, char out[FRONT_TEXT_BYTES])
{
    (void)pthread_mutex_lock(&h->lock);
    bool has_host_0 = h->has_host_0;
    memcpy(out, h->text, FRONT_TEXT_BYTES);
    (void)pthread_mutex_unlock(&h->lock);
    return has_host_0;
}

/* ---- routes of the router's own ------------------------------------------------------------ */

static int get_health(struct front *f, const struct buf *request, struct buf *body)
{
    (void)request;
    uint32_t n_up = pool_n_up(f->relays->pool);
    bool draining = atomic_load(&f->draining);
    (void)buf_printf(body, "{\"status\":\"%s\",\"servers_up\":%u,\"servers\":%u}",
                     draining ? "stopping"
                     : n_up   ? "ok"
                              : "no server is up",
                     n_up, pool_n(f->relays->pool));
    return n_up && !draining ? 200 : 503;
}

static int get_load(struct front *f, const struct buf *request, struct buf *body)
{
    (void)request;
    (void)buf_printf(body, "{\"server_load\":%u}", atomic_load(&f->relays->n_live));
    return 200;
}

static int get_instances(struct front *f, const struct buf *request, struct buf *body)
{
    (void)request;
    return pool_write_json(f->relays->pool, body, clock_now_us()) ? 500 : 200;
}

static void write_counter(struct buf *b, const char *name, const char *help, uint64_t value)
{
    (void)buf_printf(b, "# HELP fathom_router_%s %s\n# TYPE fathom_router_%s counter\n", name, help,
                     name);
    (void)buf_printf(b, "fathom_router_%s %llu\n", name, (unsigned long long)value);
}

static int get_metrics(struct front *f, const struct buf *request, struct buf *body)
{
    (void)request;
    struct relays *r = f->relays;
    write_counter(body, "passed_total", "Requests passed on", atomic_load(&r->n_request));
    write_counter(body, "retries_total", "Requests given to another server before any answer",
                  atomic_load(&r->n_retry));
    write_counter(body, "moved_streams_total", "Streams that went on at another server",
                  atomic_load(&r->n_move));
    write_counter(body, "unserved_total", "Requests that no server has answered to the end",
                  atomic_load(&r->n_unserved));
    return pool_write_metrics(r->pool, body) ? 500 : 200;
}

typedef fathom_err change_server(struct pool *, const char *, fathom_diag *);

/* Calls `change` for each address that the request names. */
static fathom_err change_each(struct pool *p, const json_t *o, change_server *change,
                              fathom_diag *d)
{
    static const char *const names[] = {"url", "instance"};
    const json_t *list = json_object_get(o, "instances");
    size_t n = json_is_array(list) ? json_array_size(list) : 0, n_one = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *one = json_string_value(json_object_get(o, names[i]));
        if (!one) continue;
        TRY(change(p, one, d));
        n_one++;
    }
    for (size_t i = 0; i < n; i++) {
        const char *item = json_string_value(json_array_get(list, i));
        TRY(change(p, item ? item : "", d));
    }
    if (n + n_one > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "needed is {\"url\": \"http://host:port\"}, or {\"instances\": [...]}");
}

/* `change`, or, where the request says that it is of servers that prefill, `change_prefill`. */
static int change_servers(struct front *f, const struct buf *request, struct buf *body,
                          change_server *change, change_server *change_prefill)
{
    fathom_diag d;
    json_t *o = NULL;
    fathom_err err;
    diag_clear(&d);
    TRY_GOTO(json_read_strict(buf_str(request), request->len, "request body", &o, &d), done);
    const json_t *type = json_object_get(o, "type");
    const char *role = type ? json_string_value(type) : "decode";
    if (role && strcmp(role, "prefill") == 0) {
        change = change_prefill;
    } else if (!role || strcmp(role, "decode") != 0) {
        err = diag_fail(&d, FATHOM_EINVAL,
                        "\"type\" is \"prefill\", or \"decode\" for one that answers");
        goto done;
    }
    TRY_GOTO(change_each(f->relays->pool, o, change, &d), done);
    err = pool_write_json(f->relays->pool, body, clock_now_us());
done:
    json_decref(o);
    if (!err) return 200;
    struct api_error e = {0};
    const int status = err == FATHOM_ENOTFOUND ? 404 : 400;
    buf_clear(body);
    (void)api_error_set(&e, status, "invalid_value", NULL, "%s", d.text);
    (void)api_error_write(body, &e);
    return status;
}

static int add_servers(struct front *f, const struct buf *request, struct buf *body)
{
    return change_servers(f, request, body, pool_add, pool_add_prefill);
}

static int remove_servers(struct front *f, const struct buf *request, struct buf *body)
{
    return change_servers(f, request, body, pool_remove, pool_remove);
}

static const struct own_route routes[] = {
    {"GET", "/health", get_health, false, NULL},
    {"GET", "/healthcheck", get_health, false, NULL},
    {"GET", "/ready", get_health, false, NULL},
    {"GET", "/load", get_load, false, NULL},
    {"GET", "/metrics", get_metrics, false, "text/plain; version=0.0.4; charset=utf-8"},
    {"GET", "/instances", get_instances, false, NULL},
    {"POST", "/instances/add", add_servers, true, NULL},
    {"POST", "/instances/remove", remove_servers, true, NULL},
};

static const struct own_route *find_own(const struct head *h)
{
    const char *method = strcmp(h->method, "HEAD") == 0 ? "GET" : h->method;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(h->path, routes[i].path) == 0 && strcmp(method, routes[i].method) == 0) {
            return &routes[i];
        }
    }
    return NULL;
}

/* ---- the head ------------------------------------------------------------------------------ */

static bool is_near(const struct connection *c)
{
    const char *remote = connection_remote(c);
    return !remote[0] || strncmp(remote, "127.", 4) == 0 || strcmp(remote, "::1") == 0 ||
           strncmp(remote, "::ffff:127.", 11) == 0;
}

/* Compares keys; the time does not depend on where they differ. */
static bool is_key(const char *given, const char *key)
{
    size_t n = strlen(key);
    unsigned char differs = strlen(given) != n;
    for (size_t i = 0; i < n && given[i]; i++) differs |= (unsigned char)(given[i] ^ key[i]);
    return differs == 0;
}

/* Whether a request may add and remove servers. Without a key, only from this machine and not from
 * a web page: a browser always sends the page's origin. */
static bool may_change(const struct exchange *x, const struct head *h)
{
    const char *bearer = head_find(h, "Authorization"), *given = head_find(h, "X-API-Key");
    const char *key = x->all->admin_key;
    if (!key) return is_near(x->connection) && !head_find(h, "Origin");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) given = bearer + 7;
    return given && is_key(given, key);
}

static void add_path(struct buf *out, const char *path)
{
    for (; *path; path++) {
        unsigned char c = (unsigned char)*path;
        if (isalnum(c) || strchr("-._~!$&'()*+,;=:@/", c)) {
            (void)buf_add_char(out, *path);
        } else {
            (void)buf_printf(out, "%%%02X", c);
        }
    }
}

/* Fields of the client that are not passed on: those of this connection only, and passes, which a
 * client may not give. A host passes on a router's stream pass, and replaces the fields that say
 * who the client is. */
static bool is_own_field(const struct front *f, const char *name)
{
    static const char *const names[] = {
        "Host",    "Connection", "Content-Length", "Keep-Alive",    "Transfer-Encoding", "Expect",
        "Upgrade", "TE",         "Trailer",        HOST_PASS_HEADER};
    if (strcasecmp(name, STREAM_PASS_HEADER) == 0) return !f->host;
    if (strcasecmp(name, HOST_NAME_HEADER) == 0) return f->host;
    if (strcasecmp(name, HOST_CLIENT_HEADER) == 0) return f->host;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(name, names[i]) == 0) return true;
    }
    return strncasecmp(name, "Proxy-", 6) == 0;
}

/* Whether the client has said that the field is for this connection only. */
static bool is_for_connection(const struct head *h, const char *name)
{
    for (size_t i = 0; i < h->n_field; i++) {
        const struct head_field *f = &h->fields[i];
        if (strcasecmp(f->name, "Connection") == 0 && head_lists(f->value, name, strlen(name)))
            return true;
    }
    return false;
}

static void pass_fields(struct exchange *x, const struct head *h)
{
    struct buf *out = &x->relay->fields;
    const char *remote = connection_remote(x->connection);
    for (size_t i = 0; i < h->n_field; i++) {
        const char *name = h->fields[i].name;
        if (is_own_field(x->all, name) || is_for_connection(h, name)) continue;
        (void)buf_printf(out, "%s: %s\r\n", name, h->fields[i].value);
    }
    if (x->all->host && h->host) (void)buf_printf(out, HOST_NAME_HEADER ": %s\r\n", h->host);
    if (*remote) (void)buf_printf(out, HOST_CLIENT_HEADER ": %s\r\n", remote);
}

static uint64_t session_of(const struct head *h)
{
    static const char *const names[] = {"X-Session-ID", "X-User-ID", "X-Correlation-ID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = head_find(h, names[i]);
        uint64_t hash = 1;
        if (!value || !*value) continue;
        for (; *value; value++) hash = rng_hash(hash ^ (unsigned char)*value);
        return hash ? hash : 1;
    }
    return 0;
}

static bool can_move(const struct head *h)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/v1/messages",
                                        "/v1/responses"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        if (strcmp(h->path, paths[i]) == 0) return strcmp(h->method, "POST") == 0;
    }
    return false;
}

static void wake_client(void *arg)
{
    struct exchange *x = arg;
    connection_wake(x->connection);
}

static fathom_err make_relay(struct exchange *x, const struct head *h)
{
    struct buf target = {0};
    const struct relay_client client = {wake_client, x};
    add_path(&target, h->path);
    if (h->query[0]) (void)buf_printf(&target, "?%s", h->query);
    fathom_err err = buf_status(&target);
    if (!err)
        err = relay_create(&x->relay, x->all->relays, connection_guest(x->connection), h->method,
                           buf_str(&target), &client);
    buf_free(&target);
    TRY(err);
    x->relay->body.limit = LIMIT_HTTP_BODY_BYTES;
    x->relay->session = session_of(h);
    x->relay->may_move = !x->all->host && can_move(h);
    x->relay->is_anthropic = x->is_anthropic;
    pass_fields(x, h);
    return buf_status(&x->relay->fields);
}

static void end_exchange(void *arg)
{
    struct exchange *x = arg;
    if (x->relay) relay_detach(x->relay);
    atomic_fetch_sub(&x->all->held_bytes, x->held);
    port_asker_free(&x->asker);
    buf_free(&x->body);
    mem_free(x);
}

/* Refuses requests that can be refused by their head. */
static void check_head(struct exchange *x, const struct head *h)
{
    struct front *f = x->all;
    struct api_error *e = &x->error;
    if (!port_check(&f->port, x->connection, h->host, e)) return;
    if (x->own) {
        if (x->own->guarded && !may_change(x, h))
            (void)api_error_set(e, 403, "forbidden", NULL,
                                "servers are added and removed from the router's machine, or with "
                                "--admin-key");
        return;
    }
    if (atomic_load(&f->draining)) {
        e->retry_after_s = 5;
        (void)api_error_set(e, 503, "shutting_down", NULL,
                            f->host ? "this host is being stopped" : "the router is being stopped");
    } else if (x->is_post && connection_is_over_limit(x->connection)) {
        port_refuse_connections(e, &f->port);
    }
}

static fathom_err take_head(struct exchange *x, const struct head *h)
{
    TRY(port_asker_read(&x->asker, &x->all->port, h));
    x->is_head = strcmp(h->method, "HEAD") == 0;
    x->is_post = strcmp(h->method, "POST") == 0;
    x->is_anthropic = port_is_anthropic(&x->all->port, h->path);
    x->own = x->all->host ? NULL : find_own(h);
    check_head(x, h);
    if (h->length > LIMIT_HTTP_BODY_BYTES) port_refuse_size(&x->error, LIMIT_HTTP_BODY_BYTES);
    return x->own || x->error.status ? FATHOM_OK : make_relay(x, h);
}

static void *begin_exchange(void *arg, struct connection *c, const struct head *h,
                            const struct head_fault *fault, bool *at_once)
{
    struct exchange *x = mem_calloc(1, sizeof *x);
    if (!x) return NULL;
    x->all = arg;
    x->connection = c;
    x->body.limit = 1 << 20;
    if (!h) {
        port_refuse_form(&x->error, fault->status, fault->text);
    } else if (take_head(x, h) != FATHOM_OK) {
        end_exchange(x);
        return NULL;
    } else if (x->error.status) {
        *at_once = h->wants_continue || h->length > LIMIT_HTTP_BODY_BYTES;
    }
    return x;
}

/* ---- the body and the answer --------------------------------------------------------------- */

static struct buf *body_of(struct exchange *x)
{
    return x->relay ? &x->relay->body : &x->body;
}

static void keep_body(struct exchange *x, const char *bytes, size_t n)
{
    x->held += n;
    if (atomic_fetch_add(&x->all->held_bytes, n) + n > LIMIT_HTTP_HELD_BYTES) {
        port_refuse_bodies(&x->error, LIMIT_HTTP_HELD_BYTES);
    } else if (buf_add(body_of(x), bytes, n) == FATHOM_OK) {
        return;
    } else if (body_of(x)->over_limit) {
        port_refuse_size(&x->error, body_of(x)->limit);
    } else {
        (void)api_error_set(&x->error, 500, NULL, NULL, "out of memory for the request body");
    }
    buf_free(body_of(x));
    atomic_fetch_sub(&x->all->held_bytes, x->held);
    x->held = 0;
}

/* As in a server: a refused body is read to its end without being kept, because some clients read
 * the answer only after they have sent all. The connection ends at twice the limit. */
static bool take_body(void *arg, const char *bytes, size_t n)
{
    struct exchange *x = arg;
    x->n_body += n;
    if (!x->error.status) keep_body(x, bytes, n);
    return x->n_body <= 2ull * LIMIT_HTTP_BODY_BYTES;
}

/* An answer of this port's own. */
static void reply(struct exchange *x, int status, const char *type, struct buf *body)
{
    struct buf fields = {0};
    x->is_answered = true;
    (void)buf_printf(&fields, "Content-Type: %s\r\n", type ? type : "application/json");
    if (x->error.retry_after_s)
        (void)buf_printf(&fields, "Retry-After: %u\r\n", x->error.retry_after_s);
    port_add_fields(&x->all->port, &x->asker, "", false, &fields);
    if (buf_status(&fields) == FATHOM_OK && buf_status(body) == FATHOM_OK) {
        connection_reply(x->connection, status, &fields, body, atomic_load(&x->all->draining));
    } else {
        connection_end(x->connection);
    }
    buf_free(&fields);
    buf_free(body);
}

static void reply_error(struct exchange *x)
{
    struct buf body = {0};
    (void)port_write_error(&body, &x->error, x->is_anthropic);
    reply(x, x->error.status, NULL, &body);
}

static void go_on(void *arg)
{
    struct exchange *x = arg;
    struct buf body = {0};
    const struct buf *head;
    int status;
    if (!x->relay || x->is_answered) return;
    bool close = atomic_load(&x->all->draining);
    switch (relay_take(x->relay, &status, &head, &body, &x->error)) {
    case RELAY_WAIT: return;
    case RELAY_ERROR: reply_error(x); return;
    case RELAY_STREAM: connection_stream(x->connection, status, head, close); break;
    case RELAY_WHOLE:
        if (x->is_head) {
            connection_reply_head(x->connection, status, head, close);
        } else {
            connection_reply(x->connection, status, head, &body, close);
        }
    }
    buf_free(&body);
    x->is_answered = true;
}

/* Adds this host's pass. Called when the body is whole, because host 0 may have come back with
 * another key meanwhile. */
static void add_host_pass(struct exchange *x)
{
    char text[FRONT_TEXT_BYTES];
    if (!read_host(x->all->host, text)) {
        x->error.retry_after_s = 1;
        (void)api_error_set(&x->error, 503, "host_away", NULL, "%s", text);
        return;
    }
    struct buf *fields = &x->relay->fields;
    if (buf_printf(fields, HOST_PASS_HEADER ": %s\r\n", text) != FATHOM_OK)
        (void)api_error_set(&x->error, 500, NULL, NULL, "out of memory for the request");
}

static void answer(void *arg, const char *fault)
{
    struct exchange *x = arg;
    struct buf body = {0};
    if (fault) port_refuse_form(&x->error, 400, fault);
    if (x->all->host && !x->error.status) add_host_pass(x);
    if (x->error.status) {
        reply_error(x);
    } else if (x->own) {
        int status = x->own->answer(x->all, &x->body, &body);
        if (status == 503) x->error.retry_after_s = 1;
        reply(x, status, x->own->type, &body);
    } else {
        relay_ask(x->relay);
        go_on(x);
    }
}

static ssize_t read_stream(void *arg, char *bytes, size_t max)
{
    static_assert((int)RELAY_END == (int)CONNECTION_STREAM_END, "one meaning");
    static_assert((int)RELAY_BROKEN == (int)CONNECTION_STREAM_BROKEN, "one meaning");
    struct exchange *x = arg;
    return relay_read(x->relay, bytes, max);
}

/* Ends the connection, and with it the server's work for this request. Not for other methods than
 * POST: they are answered soon (relay.c's AT_ONCE_MS), and the client may have closed only its
 * sending side. */
static void client_left(void *arg)
{
    struct exchange *x = arg;
    if (x->is_post) connection_end(x->connection);
}

const struct connection_ops front_ops = {.begin = begin_exchange,
                                         .take = take_body,
                                         .answer = answer,
                                         .go_on = go_on,
                                         .read = read_stream,
                                         .left = client_left,
                                         .end = end_exchange};
