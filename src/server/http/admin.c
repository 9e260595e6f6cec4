/* admin.c - the operator's socket: a table of actions, and the HTTP around it */
#include "server/http/admin.h"

#include <microhttpd.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/health.h"
#include "server/http/claim.h"
#include "server/http/listen.h"
#include "server/http/routes.h"
#include "server/http/state_text.h"
#include "server/key_ring.h"
#include "server/served.h"
#include "server/state.h"

enum { CONNECTIONS_MAX = 8, SILENCE_S = 30 };

struct admin {
    const struct route_env *env;
    void (*stop)(void *arg);
    void *stop_arg;
    struct MHD_Daemon *http;
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
                     info->n_page);
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

static enum MHD_Result reply(struct MHD_Connection *c, int status, struct buf *body)
{
    size_t n = body->len;
    char *bytes = buf_steal(body);
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(n, bytes, mem_free);
    if (!r) {
        mem_free(bytes);
        return MHD_NO;
    }
    enum MHD_Result result = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return result;
}

/* A body is read and dropped; con_cls is the admin from the headers on, and its member `stop` when
 * the server is to stop. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *bytes,
                              size_t *n_byte, void **con_cls)
{
    struct admin *a = arg;
    struct buf body = {0};
    struct api_error e = {0};
    (void)version, (void)bytes;
    if (!*con_cls || *n_byte) {
        *con_cls = a;
        *n_byte = 0;
        return MHD_YES;
    }
    const char *level = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "level");
    const struct action *action = find_action(method, url);
    if (action && action->method == METHOD_POST)
        LOG_INFO("admin", "%s %s", url, level ? level : "");
    if (action && action->stops) *con_cls = &a->stop;
    fathom_err err = action ? action->call(a->env, level, &body, &e) : refuse(method, url, &e);
    if (err) {
        buf_clear(&body);
        (void)api_error_from(&e, err, NULL, NULL);
        if (api_error_write(&body, &e) != FATHOM_OK) {
            buf_free(&body);
            return MHD_NO;
        }
    }
    return reply(c, err ? e.status : 200, &body);
}

/* The answer is out, or its client has gone. */
static void completed(void *arg, struct MHD_Connection *c, void **con_cls,
                      enum MHD_RequestTerminationCode how)
{
    struct admin *a = arg;
    (void)c, (void)how;
    if (*con_cls == &a->stop) a->stop(a->stop_arg);
}

fathom_err admin_open(struct admin **out, const struct route_env *env, struct server_claim *claim,
                      void (*stop)(void *arg), void *arg, fathom_diag *d)
{
    *out = NULL;
    TRY(listen_begin(claim->admin_fd, d));
    struct admin *a = mem_calloc(1, sizeof *a);
    if (!a) FAIL(d, FATHOM_ENOMEM, "out of memory for the server of --admin-socket");
    a->env = env;
    a->stop = stop;
    a->stop_arg = arg;
    a->http = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle, a,
                               MHD_OPTION_LISTEN_SOCKET, claim->admin_fd,
                               MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                               MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENCE_S,
                               MHD_OPTION_NOTIFY_COMPLETED, completed, a, MHD_OPTION_END);
    if (!a->http) {
        mem_free(a);
        FAIL(d, FATHOM_EIO, "the server of --admin-socket cannot start");
    }
    (void)claim_take(&claim->admin_fd); /* the daemon closes it */
    *out = a;
    return FATHOM_OK;
}

void admin_close(struct admin *a)
{
    if (!a) return;
    MHD_stop_daemon(a->http);
    mem_free(a);
}
