/* exchange.c - from the head of a request to its answer, and the lines that tell of it */
#include "server/http/exchange.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/host_pass.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/head.h"
#include "server/api/sse.h"
#include "server/http/access.h"
#include "server/http/access_log.h"
#include "server/http/routes.h"
#include "server/job.h"
#include "server/key_ring.h"
#include "server/web/web.h"

enum {
    PATH_MAX_BYTES = 256,  /* of a path, as far as logs and messages tell it */
    QUERY_MAX_BYTES = 256, /* of a query, as far as routes look at it */
};

/* One request on a connection. */
struct exchange {
    const struct exchange_env *all;
    const struct server_options *o; /* of all->routes.served */
    struct connection *connection;
    char method[HEAD_METHOD_MAX + 1];
    char path[PATH_MAX_BYTES];
    const char *rest;          /* of a prefix route: in path */
    const struct route *route; /* NULL: none; then error is set */
    struct api_error error;    /* decided from the headers, told after the body */
    struct port_asker asker;
    char *asked_headers; /* of a preflight; NULL: not said */
    bool preflight;
    bool refused_method;
    char query[QUERY_MAX_BYTES]; /* of a route that looks at it */
    bool wants_stream;           /* by the query */
    uint32_t tenant;             /* of the API key: key_ring.h */
    bool has_tenant;             /* a key was needed and brought */
    bool keep_body;
    bool gzip; /* as the body comes */
    struct stream_pass pass;
    struct trace_context trace;
    struct buf body;
    uint64_t n_body;                     /* bytes received */
    struct job *job;                     /* NULL: answered without the engine */
    const struct api_warnings *warnings; /* the job's; NULL: none yet */
    bool streams;
    char id[ANSWER_ID_BYTES];                           /* of the answer; "": none */
    int32_t lane;                                       /* that it asks for; -1: none */
    uint32_t host;                                      /* whose client asks */
    char remote[REMOTE_BYTES];                          /* that client's address */
    enum { LOAD_NONE, LOAD_TEXT, LOAD_JSON } load_form; /* of a report in the answer's head */
    int status;
    uint64_t start_us;
};

static struct metrics *metrics_of(const struct exchange *x)
{
    return x->all->routes.jobs->metrics;
}

/* ---- replies ------------------------------------------------------------------------------- */

static void add_header(struct buf *fields, const char *name, const char *value)
{
    (void)buf_printf(fields, "%s: %s\r\n", name, value);
}

/* Whether a job will answer, with the body and the engine. */
static bool has_prompt(const struct exchange *x)
{
    return x->route && !x->route->get && !x->route->call;
}

/* Errors have the form of the API that was asked. */
static bool is_anthropic(const struct exchange *x)
{
    return port_is_anthropic(&x->all->port, x->path);
}

/* Adds a header that says which parts of the request were ignored. */
static void add_warnings(const struct api_warnings *w, struct buf *fields)
{
    (void)buf_printf(fields, "warnings: %s", w->text);
    if (w->n_untold) (void)buf_printf(fields, "; and %u more", w->n_untold);
    (void)buf_add_str(fields, "\r\n");
}

/* Adds the load in the form of ORCA, which Envoy and gRPC's load balancers read. Not to refused
 * requests, for example those without a key. */
static void add_load(const struct exchange *x, struct buf *fields)
{
    static const char *const forms[] = {
        [LOAD_TEXT] = "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=%.6g, "
                      "named_metrics.num_requests_waiting=%u\r\n",
        [LOAD_JSON] =
            "endpoint-load-metrics: JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %.6g, "
            "\"num_requests_waiting\": %u}}\r\n"};
    fathom_stats s;
    if (x->load_form == LOAD_NONE || !has_prompt(x) || x->status != 200) return;
    fathom_get_stats(x->all->routes.served->engine, &s);
    const double used = s.n_page ? (double)(s.n_page - s.n_page_free) / s.n_page : 0;
    (void)buf_printf(fields, forms[x->load_form], used, s.n_waiting);
}

static void add_common_headers(const struct exchange *x, struct buf *fields)
{
    port_add_fields(&x->all->port, &x->asker, x->id, x->preflight, fields);
    if (x->id[0] && is_anthropic(x)) add_header(fields, "request-id", x->id);
    if (x->warnings && x->warnings->n) add_warnings(x->warnings, fields);
    add_load(x, fields);
    if (x->refused_method) add_header(fields, "Allow", route_allow(x->route));
    bool web = x->route && x->route->web;
    if (x->status == 401) add_header(fields, "WWW-Authenticate", web ? WEB_LOGIN : "Bearer");
    if (web) {
        add_header(fields, "Content-Security-Policy", WEB_POLICY);
        add_header(fields, "X-Content-Type-Options", "nosniff");
        add_header(fields, "Referrer-Policy", "no-referrer");
        add_header(fields, "Cache-Control", "no-cache");
    }
}

/* Gives the answer to the connection: the body, or NULL for a stream. */
static void send(struct exchange *x, struct buf *fields, struct buf *body)
{
    add_common_headers(x, fields);
    metrics_note_response(metrics_of(x), route_number(x->route), x->method, x->status);
    bool close =
        connection_is_over_limit(x->connection) || atomic_load(&x->all->routes.state->draining);
    if (buf_status(fields) != FATHOM_OK) {
        connection_end(x->connection);
    } else if (body) {
        connection_reply(x->connection, x->status, fields, body, close);
    } else {
        connection_stream(x->connection, x->status, fields, close);
    }
    buf_free(fields);
}

static const char *body_type(const struct exchange *x)
{
    if (x->route && x->route->web) return web_type(x->rest);
    return x->route && x->route->type ? x->route->type : "application/json";
}

/* Moves the body into the answer. */
static void reply(struct exchange *x, int status, struct buf *body, unsigned retry_after_s)
{
    struct buf fields = {0};
    x->status = status;
    if (body->len) {
        add_header(&fields, "Content-Type", status == 200 ? body_type(x) : "application/json");
    }
    if (retry_after_s) (void)buf_printf(&fields, "Retry-After: %u\r\n", retry_after_s);
    send(x, &fields, body);
}

static void reply_error(struct exchange *x, const struct api_error *e)
{
    struct buf body = {0};
    if (port_write_error(&body, e, is_anthropic(x)) != FATHOM_OK) {
        buf_free(&body);
        connection_end(x->connection);
        return;
    }
    metrics_note_error(metrics_of(x), e->code);
    reply(x, e->status, &body, e->retry_after_s);
}

/* An answer larger than what one client may leave unread is refused. */
static void reply_whole(struct exchange *x, int status, struct buf *body, unsigned retry_after_s)
{
    if (body->len <= LIMIT_HTTP_ANSWER_BYTES) {
        reply(x, status, body, retry_after_s);
        return;
    }
    (void)api_error_set(&x->error, 413, "answer_too_large", NULL,
                        "the answer has %zu bytes, and %d is the limit; ask for less at once",
                        body->len, LIMIT_HTTP_ANSWER_BYTES);
    buf_free(body);
    reply_error(x, &x->error);
}

static void reply_preflight(struct exchange *x)
{
    const struct server_options *o = x->o;
    const char *asked = x->asked_headers;
    struct buf fields = {0}, none = {0};
    x->status = 204;
    add_header(&fields, "Allow", route_allow(x->route));
    if (o->n_origin) {
        (void)buf_add_str(&fields, "Access-Control-Allow-Methods: ");
        (void)access_list(&fields, o->cors_methods, o->n_cors_method, route_allow(x->route));
        (void)buf_add_str(&fields, "\r\nAccess-Control-Allow-Headers: ");
        (void)access_list(&fields, o->cors_headers, o->n_cors_header, asked ? asked : "*");
        (void)buf_add_str(&fields, "\r\nAccess-Control-Max-Age: 86400\r\n");
    }
    send(x, &fields, &none);
}

static void reply_stream(struct exchange *x, bool tells_tokens)
{
    struct buf fields = {0};
    x->status = 200;
    x->streams = true;
    atomic_fetch_add(&metrics_of(x)->n_stream, 1);
    add_header(&fields, "Content-Type", SSE_CONTENT_TYPE);
    add_header(&fields, "Cache-Control", "no-cache");
    add_header(&fields, "X-Accel-Buffering", "no"); /* proxies must not gather the stream */
    if (tells_tokens) add_header(&fields, STREAM_PASS_HEADER, STREAM_PASS_TAKEN);
    send(x, &fields, NULL);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

static void resume(void *arg)
{
    const struct exchange *x = arg;
    connection_wake(x->connection);
}

static void shut(void *arg)
{
    const struct exchange *x = arg;
    connection_shut(x->connection);
}

static const struct job_client_ops client_ops = {resume, shut};

static void go_on(void *arg)
{
    struct exchange *x = arg;
    struct job_answer answer;
    switch (job_next_action(x->job)) {
    case JOB_WAIT: return;
    case JOB_CLOSE: connection_end(x->connection); return;
    case JOB_ANSWER: break;
    }
    if (job_take_answer(x->job, &answer) != FATHOM_OK) {
        buf_free(&answer.body);
        connection_end(x->connection);
        return;
    }
    memcpy(x->id, answer.id, sizeof x->id);
    x->warnings = answer.warnings;
    if (answer.stream) {
        reply_stream(x, answer.tells_tokens);
        return;
    }
    if (answer.status >= 400) metrics_note_error(metrics_of(x), answer.code);
    reply_whole(x, answer.status, &answer.body, answer.retry_after_s);
}

static void start_job(struct exchange *x)
{
    const struct job_setup setup = {.api = (enum api_kind)x->route->api,
                                    .tenant = x->tenant,
                                    .request_id = x->asker.request_id,
                                    .lane = x->lane,
                                    .host = x->host,
                                    .gzip = x->gzip,
                                    .pass = x->pass,
                                    .trace = x->trace,
                                    .client = {&client_ops, x}};
    if (job_start(&x->job, x->all->routes.jobs, &setup, &x->body) != FATHOM_OK) {
        connection_end(x->connection);
        return;
    }
    go_on(x);
}

static ssize_t read_stream(void *arg, char *bytes, size_t max)
{
    static_assert(JOB_END == (int)CONNECTION_STREAM_END, "one meaning");
    static_assert(JOB_BROKEN == (int)CONNECTION_STREAM_BROKEN, "one meaning");
    struct exchange *x = arg;
    return job_read(x->job, bytes, max);
}

static void client_left(void *arg)
{
    struct exchange *x = arg;
    if (x->job) job_client_left(x->job);
}

/* ---- requests ------------------------------------------------------------------------------ */

/* A browser sends its login for this server with requests of any page. Whether this request may use
 * it: only those of the server's own page may. */
static bool may_use_login(const struct exchange *x, const struct head *h)
{
    const struct access_asker asker = {.method = route_method(x->method),
                                       .fetch_site = head_find(h, "Sec-Fetch-Site"),
                                       .origin = head_find(h, "Origin"),
                                       .host = x->all->is_inner ? head_find(h, HOST_NAME_HEADER)
                                                                : h->host};
    return (x->route && x->route->web) || access_is_own_page(&asker);
}

/* Whether the request needs no key or has one. */
static bool is_authorized(struct exchange *x, const struct head *h)
{
    struct key_ring *keys = x->all->routes.served->keys;
    char password[LOGIN_BYTES];
    if (x->route && route_is_open(x->o, x->route)) return true;
    x->has_tenant = key_ring_n(keys) > 0;
    const char *given = head_find(h, "Authorization");
    const char *key = access_bearer(given);
    if (!given) key = head_find(h, "X-Api-Key");
    if (!key && x->has_tenant && access_password(password, given) && may_use_login(x, h)) {
        key = password; /* that a browser has asked for */
    }
    return key_ring_find(keys, key, &x->tenant);
}

static bool is_known_version(const struct head *h)
{
    const char *version = head_find(h, "anthropic-version");
    return !version || strcmp(version, "2023-06-01") == 0 || strcmp(version, "2026-10-21") == 0;
}

/* Sets the error if not. */
static bool is_known_coding(struct exchange *x, const struct head *h)
{
    const char *coding = head_find(h, "Content-Encoding");
    if (!coding || strcasecmp(coding, "identity") == 0) return true;
    x->gzip = strcasecmp(coding, "gzip") == 0 || strcasecmp(coding, "x-gzip") == 0;
    if (x->gzip) return true;
    (void)api_error_set(&x->error, 415, "unsupported_value", "Content-Encoding",
                        "the header Content-Encoding is \"%.40s\"; gzip is taken, or none", coding);
    return false;
}

/* Whether anybody may ask so, whatever the route; sets the error if not. */
static bool may_ask(struct exchange *x, const struct head *h)
{
    if (x->all->is_inner) {
        if (x->host > 0) return true;
        (void)api_error_set(&x->error, 401, "invalid_api_key", NULL,
                            "this port is for hosts that compute the model with this one");
        return false;
    }
    return port_check(&x->all->port, x->connection, h->host, &x->error);
}

/* Decides from the headers what the request will get. A job is made after the body. */
static void choose_route(struct exchange *x, const struct head *h)
{
    unsigned method = route_method(x->method);
    x->route = route_find(port_path(&x->all->port, x->path), &x->rest);
    if (!may_ask(x, h)) return;
    if (x->route && method == METHOD_OPTIONS) {
        x->preflight = true;
    } else if (!is_authorized(x, h)) {
        (void)api_error_set(&x->error, 401, "invalid_api_key", NULL,
                            "the API key is missing or wrong; send it as \"Authorization: Bearer "
                            "KEY\"");
    } else if (!x->route) {
        (void)route_refuse_path(x->method, port_path(&x->all->port, x->path), &x->error);
    } else if (!(x->route->methods & method)) {
        x->refused_method = true;
        (void)api_error_set(&x->error, 405, "method_not_allowed", NULL,
                            "%s does not take %.16s; it takes %s", x->route->path, x->method,
                            route_allow(x->route));
    } else if (has_prompt(x) && connection_is_over_limit(x->connection)) {
        port_refuse_connections(&x->error, &x->all->port);
    } else if (is_anthropic(x) && !is_known_version(h)) {
        (void)api_error_set(&x->error, 400, "unsupported_value", "anthropic-version",
                            "the header anthropic-version names a version that is not served; "
                            "send 2026-10-21 or 2023-06-01, or leave it out");
    } else if (has_prompt(x) && is_known_coding(x, h)) {
        x->keep_body = true;
    }
}

/* Whether the client is on the machine whose port it has asked: by a socket file, or a loopback
 * address. */
static bool is_near(const struct exchange *x)
{
    const char *remote = x->remote;
    if (x->all->is_inner && x->host == 0) return false;
    return !remote[0] || strncmp(remote, "127.", 4) == 0 || strcmp(remote, "::1") == 0 ||
           strncmp(remote, "::ffff:127.", 11) == 0;
}

static void read_load_form(struct exchange *x, const char *form)
{
    if (!form) return;
    if (strcasecmp(form, "TEXT") == 0) x->load_form = LOAD_TEXT;
    if (strcasecmp(form, "JSON") == 0) x->load_form = LOAD_JSON;
}

/* Notes the client's address. If another host forwards the request, that host tells it. */
static void take_remote(struct exchange *x, const struct head *h)
{
    const char *remote = connection_remote(x->connection);
    if (x->all->is_inner &&
        host_pass_read(&x->host, head_find(h, HOST_PASS_HEADER), x->o->n_host, x->o->inner_key)) {
        remote = head_find(h, HOST_CLIENT_HEADER);
    }
    (void)snprintf(x->remote, sizeof x->remote, "%s", remote ? remote : "");
}

/* Copies the parts of the head that are needed later. */
static fathom_err keep_head(struct exchange *x, const struct head *h)
{
    char stream[8];
    const char *asked = head_find(h, "Access-Control-Request-Headers");
    (void)snprintf(x->method, sizeof x->method, "%s", h->method);
    access_copy_path(x->path, sizeof x->path, h->path);
    x->lane = access_lane(head_find(h, "X-data-parallel-rank"));
    read_load_form(x, head_find(h, "endpoint-load-metrics-format"));
    (void)snprintf(x->query, sizeof x->query, "%s", h->query);
    (void)trace_context_read(&x->trace, head_find(h, "traceparent"));
    take_remote(x, h);
    (void)stream_pass_read(&x->pass, head_find(h, STREAM_PASS_HEADER), &x->o->pool_secret,
                           is_near(x));
    x->wants_stream = head_query(h, "stream", stream, sizeof stream) && !strcmp(stream, "true");
    TRY(port_asker_read(&x->asker, &x->all->port, h));
    if (asked && !(x->asked_headers = mem_strdup(asked))) return FATHOM_ENOMEM;
    return FATHOM_OK;
}

static void free_exchange(struct exchange *x)
{
    state_drop_bytes(x->all->routes.state, x->body.len);
    buf_free(&x->body);
    port_asker_free(&x->asker);
    mem_free(x->asked_headers);
    mem_free(x);
}

static void *begin_exchange(void *arg, struct connection *c, const struct head *h,
                            const struct head_fault *fault, bool *at_once)
{
    struct exchange *x = mem_calloc(1, sizeof *x);
    if (!x) return NULL;
    x->all = arg;
    x->o = &x->all->routes.served->o;
    x->connection = c;
    x->start_us = clock_now_us();
    x->body.limit = LIMIT_HTTP_BODY_BYTES;
    if (!h) {
        x->method[0] = x->path[0] = '-';
        port_refuse_form(&x->error, fault->status, fault->text);
        return x;
    }
    if (keep_head(x, h) != FATHOM_OK) {
        free_exchange(x);
        return NULL;
    }
    choose_route(x, h);
    if (h->length > LIMIT_HTTP_BODY_BYTES) {
        *at_once = true;
        port_refuse_size(&x->error, LIMIT_HTTP_BODY_BYTES);
    } else if (h->wants_continue && x->error.status) {
        *at_once = true;
    }
    return x;
}

static void drop_body(struct exchange *x)
{
    state_drop_bytes(x->all->routes.state, x->body.len);
    buf_free(&x->body);
}

static void keep_body(struct exchange *x, const char *bytes, size_t n)
{
    struct server_state *state = x->all->routes.state;
    if (!state_hold_bytes(state, n)) {
        port_refuse_bodies(&x->error, x->o->max_held_bytes);
        drop_body(x);
        return;
    }
    if (buf_add(&x->body, bytes, n) == FATHOM_OK) return;
    state_drop_bytes(state, n);
    if (x->body.over_limit) {
        port_refuse_size(&x->error, LIMIT_HTTP_BODY_BYTES);
    } else {
        (void)api_error_set(&x->error, 500, NULL, NULL, "out of memory for the request body");
    }
    drop_body(x);
}

/* A body that turns out too long is read to its end without being kept, because some clients read
 * the answer only after they have sent all. The connection ends at twice the limit. */
static bool take_body(void *arg, const char *bytes, size_t n)
{
    struct exchange *x = arg;
    x->n_body += n;
    if (x->keep_body && !x->error.status) keep_body(x, bytes, n);
    return x->n_body <= 2ull * LIMIT_HTTP_BODY_BYTES;
}

static fathom_err call_route(struct exchange *x, struct buf *body)
{
    struct route_env env = x->all->routes;
    env.host = x->host;
    if (x->route->get) return x->route->get(&env, x->rest, body, &x->error);
    const struct route_request r = {.method = route_method(x->method),
                                    .rest = x->rest,
                                    .tenant = x->tenant,
                                    .stream = x->wants_stream,
                                    .query = x->query};
    return x->route->call(&env, &r, body, &x->error);
}

/* A route without the engine is answered at once. */
static void answer_route(struct exchange *x)
{
    struct buf body = {0};
    fathom_err err = call_route(x, &body);
    if (!err) {
        reply_whole(x, 200, &body, 0);
        return;
    }
    buf_free(&body);
    (void)api_error_from(&x->error, err, NULL, NULL);
    reply_error(x, &x->error);
}

static void answer_exchange(void *arg, const char *fault)
{
    struct exchange *x = arg;
    if (fault) port_refuse_form(&x->error, 400, fault);
    if (x->keep_body && !x->error.status && atomic_load(&x->all->routes.state->draining)) {
        x->error.retry_after_s = 5;
        (void)api_error_set(&x->error, 503, "shutting_down", NULL, "the server is shutting down");
    }
    if (x->error.status) {
        reply_error(x, &x->error);
    } else if (x->preflight) {
        reply_preflight(x);
    } else if (x->keep_body) {
        start_job(x);
    } else {
        answer_route(x);
    }
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void log_exchange(const struct exchange *x, const struct job_summary *j)
{
    unsigned long long total_ms = (clock_now_us() - x->start_us) / 1000;
    if (x->o->hide_requests) return;
    if (!x->job) {
        enum log_level level = x->status < 400 ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO;
        log_write(level, "server", "%s %s %d ms=%llu", x->method, x->path, x->status, total_ms);
        return;
    }
    LOG_INFO("server", "%s %s %d n_prompt=%llu n_cached=%llu n_output=%llu first_ms=%llu ms=%llu",
             x->method, x->path, j->status, (unsigned long long)j->usage.n_prompt,
             (unsigned long long)j->usage.n_cached, (unsigned long long)j->usage.n_output,
             (unsigned long long)j->first_us / 1000, total_ms);
}

static void log_access(const struct exchange *x, const struct job_summary *j)
{
    if (!x->all->access_log) return;
    const struct access_entry e = {.request_id = x->asker.request_id,
                                   .id = x->id,
                                   .remote = x->remote,
                                   .method = x->method,
                                   .path = x->path,
                                   .status = x->job      ? j->status
                                             : x->status ? x->status
                                                         : 499,
                                   .has_key = x->has_tenant && !x->error.status,
                                   .key = x->tenant,
                                   .has_tokens = x->job != NULL,
                                   .n_prompt = j->usage.n_prompt,
                                   .n_cached = j->usage.n_cached,
                                   .n_output = j->usage.n_output,
                                   .first_ms = j->first_us / 1000,
                                   .total_ms = (clock_now_us() - x->start_us) / 1000};
    if (!access_log_write(x->all->access_log, &e)) metrics_note_lost_line(metrics_of(x));
}

static void end_exchange(void *arg)
{
    struct exchange *x = arg;
    struct job_summary summary = {0};
    if (x->streams) atomic_fetch_sub(&metrics_of(x)->n_stream, 1);
    if (x->job) job_detach(x->job, &summary);
    if (!x->status) {
        metrics_note_response(metrics_of(x), route_number(x->route), x->method, 499);
    }
    log_exchange(x, &summary);
    log_access(x, &summary);
    free_exchange(x);
}

const struct connection_ops exchange_ops = {.begin = begin_exchange,
                                            .take = take_body,
                                            .answer = answer_exchange,
                                            .go_on = go_on,
                                            .read = read_stream,
                                            .left = client_left,
                                            .end = end_exchange};
