/* http.c - exchanges on connections, from their headers to their answer; listening */
#include "server/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/utf8.h"
#include "server/api/sse.h"
#include "server/http/access.h"
#include "server/http/access_log.h"
#include "server/http/claim.h"
#include "server/http/gate.h"
#include "server/http/listen.h"
#include "server/http/routes.h"
#include "server/http/tls.h"
#include "server/http/watch.h"
#include "server/job.h"
#include "server/key_ring.h"
#include "server/web/web.h"

enum {
    SHUT_MS = 1000,          /* for connections to end, at the end */
    SILENCE_S = 75,          /* an answer that is not read at all */
    OVER_LIMIT_RESERVE = 64, /* connections above the limit that are told so */
    STREAM_BLOCK_BYTES = 16384,
    PATH_MAX_BYTES = 256, /* of a path, as far as logs and messages tell it */
};

struct http {
    struct route_env env;
    const struct server_options *o; /* of env.served */
    struct MHD_Daemon *daemon;
    struct watch *watch;
    struct server_claim *claim;
    uint32_t max_connections; /* o's, or what the limit of open files leaves of it */
};

/* One request on a connection. */
struct exchange {
    const struct http *http;
    struct MHD_Connection *connection;
    int fd; /* -1: not known */
    char method[12];
    char path[PATH_MAX_BYTES];
    const char *rest;          /* of a prefix route: in path */
    const struct route *route; /* NULL: none; then error is set */
    struct api_error error;    /* decided from the headers, told after the body */
    bool preflight;
    bool refused_method;
    struct gate_pass *pass;
    uint32_t tenant; /* of the API key: key_ring.h */
    bool has_tenant; /* a key was needed and brought */
    bool keep_body;
    struct buf body;
    uint64_t n_body; /* bytes received */
    struct job *job; /* NULL: answered without the engine */
    uint32_t watch_entry;
    char id[ANSWER_ID_BYTES];          /* of the answer; "": none */
    char request_id[REQUEST_ID_BYTES]; /* the client's; "": the answer's is told instead */
    int status;
    uint64_t start_us;
};

static struct metrics *metrics_of(const struct exchange *x)
{
    return x->http->env.jobs->metrics;
}

static int fd_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

/* ---- replies ------------------------------------------------------------------------------- */

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (MHD_add_response_header(r, name, value) != MHD_YES) {
        LOG_DEBUG("server", "header %s could not be set", name);
    }
}

/* Whether a job will answer: the body is needed, and the engine. */
static bool has_prompt(const struct exchange *x)
{
    return x->route && !x->route->get && !x->route->call;
}

/* Errors have the form of the API that was asked. */
static bool is_anthropic(const struct exchange *x)
{
    return has_prompt(x) && api_is_anthropic((enum api_kind)x->route->api);
}

/* A browser shows the answer to a web page when these headers allow it. */
static void add_cors_headers(const struct exchange *x, struct MHD_Connection *c,
                             struct MHD_Response *r)
{
    bool varies;
    const char *asker = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    const char *origin = access_origin(x->http->o, asker, &varies);
    if (varies) add_header(r, "Vary", "Origin");
    if (!origin) return;
    add_header(r, "Access-Control-Allow-Origin", origin);
    if (x->http->o->allow_credentials) add_header(r, "Access-Control-Allow-Credentials", "true");
    if (!x->preflight) add_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

static void add_common_headers(const struct exchange *x, struct MHD_Connection *c,
                               struct MHD_Response *r)
{
    const char *id = x->request_id[0] ? x->request_id : x->id;
    add_cors_headers(x, c, r);
    if (*id) add_header(r, "X-Request-Id", id);
    if (x->id[0] && is_anthropic(x)) add_header(r, "request-id", x->id);
    if (x->refused_method) add_header(r, "Allow", route_allow(x->route));
    if (gate_is_over_limit(x->pass) || atomic_load(&x->http->env.state->draining)) {
        add_header(r, "Connection", "close");
    }
    bool web = x->route && x->route->web;
    if (x->status == 401) add_header(r, "WWW-Authenticate", web ? WEB_LOGIN : "Bearer");
    if (web) {
        add_header(r, "Content-Security-Policy", WEB_POLICY);
        add_header(r, "X-Content-Type-Options", "nosniff");
        add_header(r, "Referrer-Policy", "no-referrer");
        add_header(r, "Cache-Control", "no-cache");
    }
}

static enum MHD_Result queue(struct exchange *x, struct MHD_Connection *c, struct MHD_Response *r)
{
    if (!r) return MHD_NO;
    add_common_headers(x, c, r);
    metrics_note_response(metrics_of(x), x->status);
    enum MHD_Result result = MHD_queue_response(c, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return result;
}

static const char *body_type(const struct exchange *x)
{
    if (x->route && x->route->web) return web_type(x->rest);
    return x->route && x->route->type ? x->route->type : "application/json";
}

/* Moves the body into a response. */
static enum MHD_Result reply(struct exchange *x, struct MHD_Connection *c, int status,
                             struct buf *body, unsigned retry_after_s)
{
    size_t n = body->len;
    char *bytes = buf_steal(body);
    struct MHD_Response *r =
        bytes ? MHD_create_response_from_buffer_with_free_callback(n, bytes, mem_free)
              : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!r) {
        mem_free(bytes);
        return MHD_NO;
    }
    x->status = status;
    if (n) {
        add_header(r, "Content-Type", status == 200 ? body_type(x) : "application/json");
    }
    if (retry_after_s) {
        char seconds[16];
        (void)snprintf(seconds, sizeof seconds, "%u", retry_after_s);
        add_header(r, "Retry-After", seconds);
    }
    return queue(x, c, r);
}

static enum MHD_Result reply_error(struct exchange *x, struct MHD_Connection *c,
                                   const struct api_error *e)
{
    struct buf body = {0};
    fathom_err err =
        is_anthropic(x) ? api_error_write_anthropic(&body, e) : api_error_write(&body, e);
    if (err) {
        buf_free(&body);
        return MHD_NO;
    }
    metrics_note_error(metrics_of(x), e->code);
    return reply(x, c, e->status, &body, e->retry_after_s);
}

static enum MHD_Result reply_preflight(struct exchange *x, struct MHD_Connection *c)
{
    const struct server_options *o = x->http->o;
    const char *asked =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    struct buf methods = {0}, headers = {0};
    (void)access_list(&methods, o->cors_methods, o->n_cors_method, route_allow(x->route));
    (void)access_list(&headers, o->cors_headers, o->n_cors_header, asked ? asked : "*");
    bool ok = !buf_status(&methods) && !buf_status(&headers);
    struct MHD_Response *r =
        ok ? MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT) : NULL;
    x->status = 204;
    if (r) add_header(r, "Allow", route_allow(x->route));
    if (r && o->n_origin) {
        add_header(r, "Access-Control-Allow-Methods", buf_str(&methods));
        add_header(r, "Access-Control-Allow-Headers", buf_str(&headers));
        add_header(r, "Access-Control-Max-Age", "86400");
    }
    buf_free(&methods);
    buf_free(&headers);
    return queue(x, c, r);
}

/* ---- streams ------------------------------------------------------------------------------- */

static ssize_t read_stream(void *arg, uint64_t pos, char *bytes, size_t max)
{
    (void)pos;
    ssize_t n = job_read(arg, bytes, max);
    if (n == JOB_END) return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == JOB_BROKEN) return MHD_CONTENT_READER_END_WITH_ERROR;
    return n;
}

static void end_stream(void *arg)
{
    struct job *job = arg;
    atomic_fetch_sub(&job->jobs->metrics->n_stream, 1);
    job_release(job);
}

static enum MHD_Result reply_stream(struct exchange *x, struct MHD_Connection *c)
{
    job_hold(x->job);
    atomic_fetch_add(&metrics_of(x)->n_stream, 1);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES,
                                                               read_stream, x->job, end_stream);
    if (!r) {
        end_stream(x->job);
        return MHD_NO;
    }
    x->status = 200;
    add_header(r, "Content-Type", SSE_CONTENT_TYPE);
    add_header(r, "Cache-Control", "no-cache");
    add_header(r, "X-Accel-Buffering", "no"); /* proxies must not gather the stream */
    return queue(x, c, r);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

static void suspend(void *arg)
{
    const struct exchange *x = arg;
    MHD_suspend_connection(x->connection);
}

static void resume(void *arg)
{
    const struct exchange *x = arg;
    MHD_resume_connection(x->connection);
}

/* Closes the socket under the connection, which makes the HTTP library drop it at once even if it
 * is waiting for the client to read. */
static void shut(void *arg)
{
    const struct exchange *x = arg;
    if (x->fd >= 0) (void)shutdown(x->fd, SHUT_RDWR);
}

static const struct job_client_ops client_ops = {suspend, resume, shut};

static fathom_err start_job(struct exchange *x, struct MHD_Connection *c)
{
    const struct job_setup setup = {.api = (enum api_kind)x->route->api,
                                    .tenant = x->tenant,
                                    .request_id = x->request_id,
                                    .client = {&client_ops, x}};
    x->fd = fd_of(c);
    fathom_err err = job_start(&x->job, x->http->env.jobs, &setup, &x->body);
    if (!err) x->watch_entry = watch_add(x->http->watch, x->fd, x->job);
    return err;
}

static enum MHD_Result go_on_with_job(struct exchange *x, struct MHD_Connection *c)
{
    struct job_answer answer;
    switch (job_next_action(x->job)) {
    case JOB_WAIT: return MHD_YES;
    case JOB_CLOSE: return MHD_NO;
    case JOB_ANSWER: break;
    }
    if (job_take_answer(x->job, &answer) != FATHOM_OK) {
        buf_free(&answer.body);
        return MHD_NO;
    }
    memcpy(x->id, answer.id, sizeof x->id);
    if (answer.stream) return reply_stream(x, c);
    if (answer.status >= 400) metrics_note_error(metrics_of(x), answer.code);
    return reply(x, c, answer.status, &answer.body, answer.retry_after_s);
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Whether the request needs no key or has one. */
static bool is_authorized(struct exchange *x, struct MHD_Connection *c)
{
    struct key_ring *keys = x->http->env.served->keys;
    if (x->route && route_is_open(x->http->o, x->route)) return true;
    x->has_tenant = key_ring_n(keys) > 0;
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *key = access_bearer(given);
    if (!given) key = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Api-Key");
    if (key || !x->has_tenant) return key_ring_find(keys, key, &x->tenant);
    char *password = NULL; /* that a browser has asked for */
    char *name = MHD_basic_auth_get_username_password(c, &password);
    bool ok = key_ring_find(keys, password, &x->tenant);
    MHD_free(name);
    MHD_free(password);
    return ok;
}

static bool is_known_version(struct MHD_Connection *c)
{
    const char *version = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "anthropic-version");
    return !version || strcmp(version, "2023-06-01") == 0 || strcmp(version, "2026-10-21") == 0;
}

/* Decides from the headers what the request will get. A job is made after the body. */
static void choose_route(struct exchange *x, struct MHD_Connection *c)
{
    const struct http *h = x->http;
    unsigned method = route_method(x->method);
    x->route = route_find(access_path(h->o, x->path), &x->rest);
    if (!tls_client_is_known(h->o, c)) {
        (void)api_error_set(&x->error, 403, "client_certificate", NULL,
                            "this server asks for a client certificate that its authorities have "
                            "signed");
    } else if (x->route && method == METHOD_OPTIONS) {
        x->preflight = true;
    } else if (!is_authorized(x, c)) {
        (void)api_error_set(&x->error, 401, "invalid_api_key", NULL,
                            "the API key is missing or wrong; send it as \"Authorization: Bearer "
                            "KEY\"");
    } else if (!x->route) {
        (void)route_refuse_path(x->method, x->path, &x->error);
    } else if (!(x->route->methods & method)) {
        x->refused_method = true;
        (void)api_error_set(&x->error, 405, "method_not_allowed", NULL,
                            "%s does not take %.16s; it takes %s", x->route->path, x->method,
                            route_allow(x->route));
    } else if (has_prompt(x) && gate_is_over_limit(x->pass)) {
        x->error.retry_after_s = 1;
        (void)api_error_set(&x->error, 503, "too_many_connections", NULL,
                            "%u connections are open, which is the limit (--max-connections); try "
                            "again later",
                            h->max_connections);
    } else if (is_anthropic(x) && !is_known_version(c)) {
        (void)api_error_set(&x->error, 400, "unsupported_value", "anthropic-version",
                            "the header anthropic-version names a version that is not served; "
                            "send 2026-10-21 or 2023-06-01, or leave it out");
    } else if (has_prompt(x)) {
        x->keep_body = true;
    }
}

/* Logs and messages get one printable line. */
static void copy_path(char out[PATH_MAX_BYTES], const char *url)
{
    size_t n = strlen(url);
    if (n >= PATH_MAX_BYTES) n = PATH_MAX_BYTES - 1;
    n = utf8_complete(url, n);
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)url[i] < 0x20 || url[i] == 0x7f ? '?' : url[i];
    out[n] = '\0';
    if (!utf8_valid(out, n)) {
        for (size_t i = 0; i < n; i++) out[i] = (unsigned char)out[i] < 0x80 ? out[i] : '?';
    }
}

static bool announces_too_much(struct MHD_Connection *c)
{
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    return length && strtoull(length, NULL, 10) > LIMIT_HTTP_BODY_BYTES;
}

static void refuse_size(struct exchange *x)
{
    (void)api_error_set(&x->error, 413, "request_too_large", NULL,
                        "the request body is larger than %d bytes", LIMIT_HTTP_BODY_BYTES);
}

static struct gate_pass *pass_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static enum MHD_Result begin_exchange(const struct http *h, struct MHD_Connection *c,
                                      const char *url, const char *method, void **con_cls)
{
    struct exchange *x = mem_calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    *con_cls = x;
    x->http = h;
    x->connection = c;
    x->watch_entry = WATCH_NONE;
    x->start_us = clock_now_us();
    x->pass = pass_of(c);
    gate_move(h->env.gate, x->pass, GATE_BODY, x->start_us);
    x->body.limit = LIMIT_HTTP_BODY_BYTES;
    (void)snprintf(x->method, sizeof x->method, "%s", method);
    copy_path(x->path, url);
    access_request_id(x->request_id,
                      MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Request-Id"));
    choose_route(x, c);
    if (!announces_too_much(c)) return MHD_YES;
    refuse_size(x);
    gate_move(h->env.gate, x->pass, GATE_ANSWER, x->start_us);
    return reply_error(x, c, &x->error);
}

static void drop_body(struct exchange *x)
{
    state_drop_bytes(x->http->env.state, x->body.len);
    buf_free(&x->body);
}

static void keep_body(struct exchange *x, const char *bytes, size_t n)
{
    if (!state_hold_bytes(x->http->env.state, n)) {
        x->error.retry_after_s = 1;
        (void)api_error_set(&x->error, 429, "server_busy", NULL,
                            "the bodies of requests on their way hold %u bytes, which is the "
                            "limit; try again later",
                            x->http->o->max_held_bytes);
        drop_body(x);
        return;
    }
    if (buf_add(&x->body, bytes, n) == FATHOM_OK) return;
    state_drop_bytes(x->http->env.state, n);
    if (x->body.over_limit) {
        refuse_size(x);
    } else {
        (void)api_error_set(&x->error, 500, NULL, NULL, "out of memory for the request body");
    }
    drop_body(x);
}

/* A body that turns out too long is read on without being kept, so that a client that looks for the
 * answer after its body finds it. A body of twice the limit is cut. */
static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t *n)
{
    x->n_body += *n;
    if (x->keep_body && !x->error.status) keep_body(x, bytes, *n);
    *n = 0;
    return x->n_body <= 2ull * LIMIT_HTTP_BODY_BYTES ? MHD_YES : MHD_NO;
}

static fathom_err call_route(struct exchange *x, struct MHD_Connection *c, struct buf *body)
{
    if (x->route->get) return x->route->get(&x->http->env, x->rest, body, &x->error);
    const char *stream = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "stream");
    const struct route_request r = {.method = route_method(x->method),
                                    .rest = x->rest,
                                    .tenant = x->tenant,
                                    .stream = stream && strcmp(stream, "true") == 0};
    return x->route->call(&x->http->env, &r, body, &x->error);
}

/* A route without the engine is answered at once. */
static enum MHD_Result answer_route(struct exchange *x, struct MHD_Connection *c)
{
    struct buf body = {0};
    fathom_err err = call_route(x, c, &body);
    if (err) {
        buf_free(&body);
        (void)api_error_from(&x->error, err, NULL, NULL);
        return reply_error(x, c, &x->error);
    }
    return reply(x, c, 200, &body, 0);
}

static enum MHD_Result answer_exchange(struct exchange *x, struct MHD_Connection *c)
{
    const struct route_env *env = &x->http->env;
    gate_move(env->gate, x->pass, GATE_ANSWER, clock_now_us());
    if (x->error.status) return reply_error(x, c, &x->error);
    if (x->preflight) return reply_preflight(x, c);
    if (!x->keep_body) return answer_route(x, c);
    if (atomic_load(&env->state->draining)) {
        x->error.retry_after_s = 5;
        (void)api_error_set(&x->error, 503, "shutting_down", NULL, "the server is shutting down");
        return reply_error(x, c, &x->error);
    }
    return start_job(x, c) == FATHOM_OK ? go_on_with_job(x, c) : MHD_NO;
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *bytes,
                              size_t *n_byte, void **con_cls)
{
    struct exchange *x = *con_cls;
    (void)version;
    if (!x) return begin_exchange(arg, c, url, method, con_cls);
    if (*n_byte) return take_body(x, bytes, n_byte);
    return x->job ? go_on_with_job(x, c) : answer_exchange(x, c);
}

static void log_exchange(const struct exchange *x, const struct job_summary *j)
{
    unsigned long long total_ms = (clock_now_us() - x->start_us) / 1000;
    if (x->http->o->hide_requests) return;
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

static void remote_text(char out[INET6_ADDRSTRLEN], struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    out[0] = '\0';
    if (a && a->sa_family == AF_INET) {
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, out, INET6_ADDRSTRLEN);
    } else if (a && a->sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, out,
                        INET6_ADDRSTRLEN);
    }
}

static void log_access(const struct exchange *x, struct MHD_Connection *c,
                       const struct job_summary *j)
{
    char remote[INET6_ADDRSTRLEN];
    if (!x->http->claim->access_log) return;
    remote_text(remote, c);
    const struct access_entry e = {.request_id = x->request_id,
                                   .id = x->id,
                                   .remote = remote,
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
    if (!access_log_write(x->http->claim->access_log, &e)) metrics_note_lost_line(metrics_of(x));
}

static void end_exchange(void *arg, struct MHD_Connection *c, void **con_cls,
                         enum MHD_RequestTerminationCode why)
{
    struct exchange *x = *con_cls;
    struct job_summary summary = {0};
    (void)arg, (void)why;
    if (!x) return;
    *con_cls = NULL;
    watch_remove(x->http->watch, x->watch_entry);
    if (x->job) job_detach(x->job, &summary);
    if (!x->status) metrics_note_response(metrics_of(x), 499);
    log_exchange(x, &summary);
    log_access(x, c, &summary);
    gate_move(x->http->env.gate, x->pass, GATE_HEAD, clock_now_us());
    drop_body(x);
    mem_free(x);
}

static void pass_gate(void *arg, struct MHD_Connection *c, void **socket_context,
                      enum MHD_ConnectionNotificationCode what)
{
    const struct http *h = arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        gate_leave(h->env.gate, *socket_context);
        return;
    }
    int fd = fd_of(c);
    *socket_context = fd >= 0 ? gate_enter(h->env.gate, fd, clock_now_us()) : NULL;
}

/* ---- listening ----------------------------------------------------------------------------- */

/* A connection is a file handle; the usual soft limit of 1024 is below what we serve. */
static void raise_file_limit(struct http *h)
{
    enum { RESERVE = 256 + OVER_LIMIT_RESERVE };
    uint64_t need = (uint64_t)h->max_connections + RESERVE;
    uint64_t allowed = os_allow_files(need);
    if (allowed == 0 || allowed >= need) return;
    uint32_t room = allowed > 2 * RESERVE ? (uint32_t)allowed - RESERVE : RESERVE;
    LOG_WARN("server", "at most %llu open files are allowed (ulimit -n): %u connections, not %u",
             (unsigned long long)allowed, room, h->max_connections);
    h->max_connections = room;
}

static void log_library(void *arg, const char *fmt, va_list ap)
{
    char line[256];
    (void)arg;
    int n = vsnprintf(line, sizeof line, fmt, ap);
    while (n > 0 && (size_t)n < sizeof line && line[n - 1] == '\n') line[--n] = '\0';
    LOG_DEBUG("server", "libmicrohttpd: %s", line);
}

static fathom_err start_daemon(struct http *h, fathom_diag *d)
{
    const struct server_options *o = h->o;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)o->tls_certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)o->tls_key},
        {o->tls_client_ca ? MHD_OPTION_HTTPS_MEM_TRUST : MHD_OPTION_END, 0,
         (void *)o->tls_client_ca},
        {MHD_OPTION_END, 0, NULL},
    };
    if (o->tls_certificate) {
        if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
            FAIL(d, FATHOM_EUNSUPPORTED, "this build of libmicrohttpd has no TLS");
        }
        flags |= MHD_USE_TLS;
    } else {
        tls[0].option = MHD_OPTION_END;
    }
    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, h, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL,
        MHD_OPTION_LISTEN_SOCKET, h->claim->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, end_exchange, h,
        MHD_OPTION_NOTIFY_CONNECTION, pass_gate, h, MHD_OPTION_THREAD_POOL_SIZE,
        o->n_http_thread > 1 ? o->n_http_thread : 0, MHD_OPTION_CONNECTION_LIMIT,
        h->max_connections + OVER_LIMIT_RESERVE, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENCE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LIMIT_HTTP_HEAD_BYTES, MHD_OPTION_ARRAY, tls,
        MHD_OPTION_END);
    if (!h->daemon) FAIL(d, FATHOM_EIO, "the HTTP server cannot start");
    (void)claim_take(&h->claim->listen_fd); /* the daemon closes it */
    return FATHOM_OK;
}

static fathom_err start(struct http *h, fathom_diag *d)
{
    static const struct watch_actions watch_actions = {job_hold, job_client_left};
    TRY(watch_create(&h->watch, &watch_actions, d));
    TRY(listen_begin(h->claim->listen_fd, d));
    raise_file_limit(h);
    return start_daemon(h, d);
}

fathom_err http_open(struct http **out, const struct route_env *env, struct server_claim *claim,
                     fathom_diag *d)
{
    struct http *h = mem_calloc(1, sizeof *h);
    *out = h;
    if (!h) return FATHOM_ENOMEM;
    h->env = *env;
    h->o = &env->served->o;
    h->claim = claim;
    h->max_connections = h->o->max_connections;
    fathom_err err = start(h, d);
    if (!err) return FATHOM_OK;
    http_close(h);
    *out = NULL;
    return err;
}

fathom_err http_set_certificates(struct http *h, const char *cert_pem, const char *key_pem,
                                 const char *ca_pem, fathom_diag *d)
{
    const struct server_options texts = {
        .tls_certificate = cert_pem, .tls_key = key_pem, .tls_client_ca = ca_pem};
    (void)h;
    TRY(tls_check(&texts, d));
    FAIL(d, FATHOM_EUNSUPPORTED,
         "libmicrohttpd takes certificates when it starts: a new one needs a restart");
}

/* The library refuses some requests itself, for one what is no HTTP. To do so while it stops would
 * end the process: it takes the refusal for queued when it is not. So connections end before it. */
static void end_connections(struct http *h)
{
    gate_shut(h->env.gate);
    for (int i = 0; i < SHUT_MS && gate_n(h->env.gate) > 0; i++) clock_sleep_us(1000);
}

void http_close(struct http *h)
{
    if (!h) return;
    if (h->daemon) {
        end_connections(h);
        MHD_stop_daemon(h->daemon); /* closes the listening socket */
    }
    watch_destroy(h->watch);
    mem_free(h);
}
