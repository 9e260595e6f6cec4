/* admin.c - the operator's socket: a table of actions, and the HTTP around it */
#include "server/http/admin.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/gate.h"
#include "http/head.h"
#include "http/listen.h"
#include "http/loop.h"
#include "server/health.h"
#include "server/http/access.h"
#include "server/http/claim.h"
#include "server/http/routes.h"
#include "server/http/state_text.h"
#include "server/key_ring.h"
#include "server/served.h"
#include "server/state.h"

enum { CONNECTIONS_MAX = 8, SILENCE_MS = 30000, UNREAD_MAX = 64 << 20, BODY_MAX_BYTES = 1 << 20 };

struct admin {
    const struct route_env *env;
    void (*stop)(void *arg);
    void *stop_arg;
    struct gate *gate; /* NULL: none yet, as the loop */
    struct loop *loop;
    int fd;
};

/* What is asked, and the argument after '?': level for /log_level, NULL elsewhere. */
typedef fathom_err admin_action(const struct route_env *env, const char *argument, struct buf *body,
                                struct api_error *e);

/* ---- actions ------------------------------------------------------------------------------- */

static fathom_err say_ok(struct buf *body)
{
    return buf_add_str(body, "{\"status\":\"ok\"}\n");
}

static fathom_err tell_server(const struct route_env *env, const char *argument, struct buf *body,
                              struct api_error *e)
{
    (void)argument, (void)e;
    const struct served *s = env->served;
    const fathom_info *info = s->info;
    fathom_stats stats;
    fathom_get_stats(s->engine, &stats);
    (void)buf_add_str(body, "{\"version\":\"" FATHOM_VERSION "\",\"models\":[");
    for (size_t i = 0; i < s->o.n_model_name; i++) {
        if (i) (void)buf_add_char(body, ',');
        (void)json_write_string(body, s->o.model_names[i], strlen(s->o.model_names[i]));
    }
    (void)buf_printf(body,
                     "],\"model_type\":\"%s\",\"backend\":\"%s\",\"max_model_len\":%u,"
                     "\"max_num_seqs\":%u,\"max_num_batched_tokens\":%u,\"draft_tokens\":%u,",
                     info->model_type, info->backend, info->max_model_len, info->max_num_seqs,
                     info->max_num_batched_tokens, info->n_draft);
    (void)buf_printf(body, "\"weights_bytes\":%llu,\"kv_bytes\":%llu,\"pages\":%u,",
                     (unsigned long long)info->weights_bytes, (unsigned long long)info->kv_bytes,
                     stats.n_page / info->n_lane);
    return buf_printf(body,
                      "\"uptime_s\":%lld,\"draining\":%s,\"running\":%u,\"waiting\":%u,"
                      "\"api_keys\":%zu}\n",
                      (long long)(clock_unix_s() - s->created),
                      atomic_load(&env->state->draining) ? "true" : "false", stats.n_running,
                      stats.n_waiting, key_ring_n(s->keys));
}

static fathom_err tell_state(const struct route_env *env, const char *argument, struct buf *body,
                             struct api_error *e)
{
    (void)argument, (void)e;
    return state_write(env, body);
}

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static fathom_err tell_level(const struct route_env *env, const char *argument, struct buf *body,
                             struct api_error *e)
{
    (void)env, (void)argument, (void)e;
    return buf_printf(body, "{\"level\":\"%s\"}\n", level_names[log_get_level()]);
}

static fathom_err set_level(const struct route_env *env, const char *argument, struct buf *body,
                            struct api_error *e)
{
    (void)env;
    for (int i = 0; argument && i <= LOG_LEVEL_DEBUG; i++) {
        if (strcmp(argument, level_names[i]) != 0) continue;
        log_set_level((enum log_level)i);
        return say_ok(body);
    }
    return api_error_set(e, 400, "invalid_value", "level",
                         "level is \"%.40s\", needed is error, warn, info or debug: POST "
                         "/log_level?level=debug",
                         argument ? argument : "");
}

static fathom_err drain(const struct route_env *env, const char *argument, struct buf *body,
                        struct api_error *e)
{
    (void)env, (void)argument, (void)e;
    return say_ok(body);
}

static fathom_err reset_cache(const struct route_env *env, const char *argument, struct buf *body,
                              struct api_error *e)
{
    (void)argument, (void)e;
    fathom_reset_cache(env->served->engine);
    return say_ok(body);
}

static fathom_err tell_metrics(const struct route_env *env, const char *argument, struct buf *body,
                               struct api_error *e)
{
    const char *rest;
    (void)argument;
    return route_find("/metrics", &rest)->get(env, "", body, e);
}

static fathom_err tell_health(const struct route_env *env, const char *argument, struct buf *body,
                              struct api_error *e)
{
    (void)argument;
    return health_tell_live(env->health, body, e);
}

static const struct action {
    unsigned method;
    const char *path;
    admin_action *call;
    bool stops; /* the server, once the answer is out */
} actions[] = {
    {METHOD_GET, "/server_info", tell_server, false},
    {METHOD_GET, "/state", tell_state, false},
    {METHOD_GET, "/metrics", tell_metrics, false},
    {METHOD_GET, "/health", tell_health, false},
    {METHOD_GET, "/log_level", tell_level, false},
    {METHOD_POST, "/log_level", set_level, false},
    {METHOD_POST, "/drain", drain, true},
    {METHOD_POST, "/reset_prefix_cache", reset_cache, false},
};

enum { N_ACTION = sizeof actions / sizeof actions[0] };

static const struct action *find_action(const char *method, const char *path)
{
    unsigned bit = route_method(method);
    for (size_t i = 0; i < N_ACTION; i++) {
        if (actions[i].method == bit && strcmp(actions[i].path, path) == 0) return &actions[i];
    }
    return NULL;
}

static fathom_err refuse(const char *method, const char *path, struct api_error *e)
{
    struct buf list = {0};
    for (size_t i = 0; i < N_ACTION; i++) {
        (void)buf_printf(&list, "%s%s %s", i ? ", " : "",
                         actions[i].method == METHOD_POST ? "POST" : "GET", actions[i].path);
    }
    fathom_err err = api_error_set(e, 404, "not_found", NULL,
                                   "there is no %.16s %.100s here; there "
                                   "are %s",
                                   method, path, buf_str(&list));
    buf_free(&list);
    return err;
}

/* ---- HTTP ---------------------------------------------------------------------------------- */

/* One request; its body is read and dropped. */
struct errand {
    struct admin *admin;
    struct connection *connection;
    const struct action *action; /* NULL: refused */
    char level[48];
    bool has_level;
    size_t n_body;
    struct api_error error;
};

static void *begin(void *arg, struct connection *c, const struct head *h,
                   const struct head_fault *fault, bool *at_once)
{
    struct errand *x = mem_calloc(1, sizeof *x);
    char path[128];
    (void)at_once;
    if (!x) return NULL;
    x->admin = arg;
    x->connection = c;
    if (!h) {
        (void)api_error_set(&x->error, fault->status, "malformed_request", NULL, "%s", fault->text);
        return x;
    }
    access_copy_path(path, sizeof path, h->path);
    x->action = find_action(h->method, path);
    x->has_level = head_query(h, "level", x->level, sizeof x->level);
    if (!x->action) (void)refuse(h->method, path, &x->error);
    return x;
}

static bool take(void *arg, const char *bytes, size_t n)
{
    struct errand *x = arg;
    (void)bytes;
    x->n_body += n;
    return x->n_body <= BODY_MAX_BYTES;
}

static void answer(void *arg, const char *fault)
{
    struct errand *x = arg;
    struct buf fields = {0}, body = {0};
    const char *level = x->has_level ? x->level : NULL;
    fathom_err err = FATHOM_OK;
    if (fault) (void)api_error_set(&x->error, 400, "malformed_request", NULL, "%s", fault);
    if (!x->error.status && x->action->method == METHOD_POST) {
        LOG_INFO("admin", "%s %s", x->action->path, level ? level : "");
    }
    if (!x->error.status) err = x->action->call(x->admin->env, level, &body, &x->error);
    if (err) (void)api_error_from(&x->error, err, NULL, NULL);
    if (x->error.status) {
        x->action = NULL;
        buf_clear(&body);
        (void)api_error_write(&body, &x->error);
    }
    if (buf_status(&body) == FATHOM_OK) {
        connection_reply(x->connection, x->error.status ? x->error.status : 200, &fields, &body,
                         false);
    } else {
        buf_free(&body);
        connection_end(x->connection);
    }
}

/* No answer is waited for, and none is a stream. */
static void go_on(void *arg)
{
    (void)arg;
}

static ssize_t read_nothing(void *arg, char *bytes, size_t max)
{
    (void)arg, (void)bytes, (void)max;
    return CONNECTION_STREAM_END;
}

/* The answer is out, or its client has gone. */
static void end(void *arg)
{
    struct errand *x = arg;
    if (x->action && x->action->stops) x->admin->stop(x->admin->stop_arg);
    mem_free(x);
}

static const struct connection_ops ops = {.begin = begin,
                                          .take = take,
                                          .answer = answer,
                                          .go_on = go_on,
                                          .read = read_nothing,
                                          .left = go_on,
                                          .end = end};

static fathom_err start(struct admin *a, fathom_diag *d)
{
    const struct gate_limits limits = {.max_connections = CONNECTIONS_MAX,
                                       .head_timeout_ms = SILENCE_MS,
                                       .idle_timeout_ms = SILENCE_MS,
                                       .body_timeout_ms = SILENCE_MS,
                                       .unread_timeout_ms = SILENCE_MS,
                                       .max_unread_bytes = UNREAD_MAX};
    TRY(listen_begin(a->fd, d));
    TRY(gate_create(&a->gate, &limits));
    const struct loop_setup setup = {
        .name = "admin", .n_thread = 1, .listen_fd = a->fd, .gate = a->gate, .ops = &ops, .arg = a};
    return loop_open(&a->loop, &setup, d);
}

fathom_err admin_open(struct admin **out, const struct route_env *env, struct server_claim *claim,
                      void (*stop)(void *arg), void *arg, fathom_diag *d)
{
    *out = NULL;
    struct admin *a = mem_calloc(1, sizeof *a);
    if (!a) FAIL(d, FATHOM_ENOMEM, "out of memory for the server of --admin-socket");
    a->env = env;
    a->stop = stop;
    a->stop_arg = arg;
    a->fd = claim_take(&claim->admin_fd);
    fathom_err err = start(a, d);
    if (!err) {
        *out = a;
        return FATHOM_OK;
    }
    admin_close(a);
    FAIL(d, err, "the server of --admin-socket cannot start");
}

void admin_close(struct admin *a)
{
    if (!a) return;
    loop_close(a->loop);
    gate_destroy(a->gate);
    (void)close(a->fd);
    mem_free(a);
}
