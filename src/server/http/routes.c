/* routes.c - the table of paths, and the answers of paths that need no engine */
#include "server/http/routes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/json.h"
#include "http/gate.h"
#include "server/api/openapi.h"
#include "server/health.h"
#include "server/job.h"
#include "server/web/web.h"

/* ---- models -------------------------------------------------------------------------------- */

static void write_model(const struct served *s, const char *name, struct buf *b)
{
    (void)buf_add_str(b, "{\"id\":");
    (void)json_write_string(b, name, strlen(name));
    char date[32];
    const time_t created = (time_t)s->created;
    struct tm day;
    (void)gmtime_r(&created, &day);
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &day);
    (void)buf_printf(b,
                     ",\"object\":\"model\",\"type\":\"model\",\"created\":%lld,"
                     "\"created_at\":\"%s\",\"display_name\":",
                     (long long)s->created, date);
    (void)json_write_string(b, name, strlen(name));
    (void)buf_add_str(b, ",\"owned_by\":\"fathom\",\"root\":");
    const char *root = s->o.model_root ? s->o.model_root : s->o.model_names[0];
    (void)json_write_string(b, root, strlen(root));
    (void)buf_printf(b, ",\"parent\":null,\"max_model_len\":%u", s->info->max_model_len);
    if (s->info->dummy || s->info->rank_slice) {
        (void)buf_printf(b, ",\"benchmark\":{\"dummy_weights\":%s,\"rank\":%u,\"ranks\":%u}",
                         s->info->dummy ? "true" : "false", s->info->rank, s->info->world);
    }
    (void)buf_add_char(b, '}');
}

static fathom_err list_models(const struct route_env *env, const char *rest, struct buf *body,
                              struct api_error *e)
{
    const struct served *s = env->served;
    (void)rest, (void)e;
    (void)buf_add_str(body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < s->o.n_model_name; i++) {
        if (i) (void)buf_add_char(body, ',');
        write_model(s, s->o.model_names[i], body);
    }
    const char *first = s->o.model_names[0], *last = s->o.model_names[s->o.n_model_name - 1];
    (void)buf_add_str(body, "],\"has_more\":false,\"first_id\":");
    (void)json_write_string(body, first, strlen(first));
    (void)buf_add_str(body, ",\"last_id\":");
    (void)json_write_string(body, last, strlen(last));
    return buf_add_char(body, '}');
}

static fathom_err get_model(const struct route_env *env, const char *rest, struct buf *body,
                            struct api_error *e)
{
    const struct served *s = env->served;
    for (size_t i = 0; i < s->o.n_model_name; i++) {
        if (strcmp(rest, s->o.model_names[i]) != 0) continue;
        write_model(s, rest, body);
        return buf_status(body);
    }
    return api_error_set(e, 404, "model_not_found", "model",
                         "the model \"%.200s\" is not served here; GET /v1/models lists what is",
                         rest);
}

/* ---- the server ---------------------------------------------------------------------------- */

static const char *route_name(size_t i)
{
    const struct route *r = route_at(i);
    return r ? r->path : NULL;
}

/* Where each host has a port, its gauges are of its own lanes. Returns the first of these. */
static uint32_t keep_own_lanes(const struct route_env *env, fathom_stats *s)
{
    const uint32_t n_host = env->served->o.n_host;
    if (n_host == 0) return 0;
    const uint32_t n = s->n_lane / n_host, first = env->host * n;
    memmove(s->lanes, s->lanes + first, n * sizeof s->lanes[0]);
    s->n_page /= n_host;
    s->n_lane = n;
    s->n_running = s->n_waiting = s->n_page_free = s->n_page_cached = 0;
    s->n_backlog_token = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->n_running += s->lanes[i].n_running;
        s->n_waiting += s->lanes[i].n_waiting;
        s->n_page_free += s->lanes[i].n_page_free;
        s->n_page_cached += s->lanes[i].n_page_cached;
        s->n_backlog_token += s->lanes[i].n_backlog_token;
    }
    return first;
}

static fathom_err get_metrics(const struct route_env *env, const char *rest, struct buf *body,
                              struct api_error *e)
{
    (void)rest, (void)e;
    const struct served *s = env->served;
    fathom_stats stats;
    struct grammar_cache_stats grammars;
    struct api_error why = {0};
    grammar_cache_get_stats(env->jobs->grammars, &grammars);
    bool ready = health_check_ready(env->health, &stats, &why) == FATHOM_OK;
    const uint32_t first_lane = keep_own_lanes(env, &stats);
    const struct metrics_view view = {.model_name = s->o.model_names[0],
                                      .info = s->info,
                                      .stats = &stats,
                                      .first_lane = first_lane,
                                      .gauges_alone = env->host > 0,
                                      .grammars = &grammars,
                                      .held_bytes = atomic_load(&env->state->held_bytes),
                                      .n_job = jobs_count(env->jobs),
                                      .n_connection = gate_n(env->gate),
                                      .n_late = gate_n_late(env->gate),
                                      .n_dropped = gate_n_dropped(env->gate),
                                      .n_unread = gate_unread_bytes(env->gate),
                                      .traces = trace_exporter_counts(env->jobs->traces),
                                      .route_name = route_name,
                                      .start_s = s->created,
                                      .ready = ready,
                                      .draining = atomic_load(&env->state->draining)};
    return metrics_write(body, env->jobs->metrics, &view);
}

static fathom_err get_load(const struct route_env *env, const char *rest, struct buf *body,
                           struct api_error *e)
{
    (void)rest, (void)e;
    const fathom_info *info = env->served->info;
    fathom_stats s;
    struct api_error why = {0};
    bool ready = health_check_ready(env->health, &s, &why) == FATHOM_OK;
    (void)keep_own_lanes(env, &s);
    (void)buf_printf(body, "{\"server_load\":%zu,\"version\":\"" FATHOM_VERSION "\"",
                     jobs_count_of(env->jobs, env->host));
    (void)buf_printf(body, ",\"accepts\":%s,\"moves_streams\":true,\"numerics\":\"%016llx\"",
                     ready ? "true" : "false", (unsigned long long)info->numerics);
    (void)buf_printf(body, ",\"started_us\":%llu", (unsigned long long)env->served->created_us);
    (void)buf_printf(body, ",\"running\":%u,\"waiting\":%u,\"max_running\":%u", s.n_running,
                     s.n_waiting, info->max_num_seqs);
    (void)buf_printf(body,
                     ",\"waiting_tokens\":%llu,\"free_pages\":%u,\"pages\":%u,\"takes_pages\":%s",
                     (unsigned long long)s.n_backlog_token, s.n_page_free, s.n_page,
                     info->pages.takes ? "true" : "false");
    if (!ready) {
        (void)buf_add_str(body, ",\"why\":");
        (void)json_write_string(body, why.diag.text, strlen(why.diag.text));
    }
    if (info->pages.host) {
        (void)buf_add_str(body, ",\"pages_host\":");
        (void)json_write_string(body, info->pages.host, strlen(info->pages.host));
        (void)buf_printf(body, ",\"pages_port\":%u", info->pages.port);
    }
    return buf_printf(body, ",\"prefill_token_us\":%.2f,\"decode_step_us\":%.0f}",
                      s.prefill_token_us, s.decode_step_us);
}

static fathom_err get_tokenizer_info(const struct route_env *env, const char *rest,
                                     struct buf *body, struct api_error *e)
{
    const char *text;
    size_t n;
    (void)rest;
    if (!env->served->o.tokenizer_info) {
        return api_error_set(e, 404, "not_found", NULL,
                             "/tokenizer_info is off: start with --enable-tokenizer-info-endpoint");
    }
    if (fathom_get_file(env->served->engine, "tokenizer_config.json", &text, &n) != FATHOM_OK) {
        return api_error_set(e, 404, "not_found", NULL,
                             "the checkpoint has no tokenizer_config.json");
    }
    return buf_add(body, text, n);
}

static fathom_err get_live(const struct route_env *env, const char *rest, struct buf *body,
                           struct api_error *e)
{
    (void)rest;
    return health_tell_live(env->health, body, e);
}

static fathom_err get_ready(const struct route_env *env, const char *rest, struct buf *body,
                            struct api_error *e)
{
    (void)rest;
    return health_tell_ready(env->health, body, e);
}

static fathom_err get_version(const struct route_env *env, const char *rest, struct buf *body,
                              struct api_error *e)
{
    (void)env, (void)rest, (void)e;
    return buf_add_str(body, "{\"version\":\"" FATHOM_VERSION "\"}");
}

static fathom_err get_web(const struct route_env *env, const char *rest, struct buf *body,
                          struct api_error *e)
{
    (void)env;
    const struct web_file *file = web_find(rest);
    if (file) return buf_add(body, file->data, file->n);
    return api_error_set(e, 404, "not_found", NULL, "the page has no file \"%.200s\"", rest);
}

static fathom_err docs_are_off(struct api_error *e)
{
    return api_error_set(e, 404, "not_found", NULL,
                         "/docs and /openapi.json are off: --disable-fastapi-docs was given");
}

static fathom_err get_docs(const struct route_env *env, const char *rest, struct buf *body,
                           struct api_error *e)
{
    (void)rest;
    const struct web_file *file = web_find("docs.html");
    if (env->served->o.no_docs) return docs_are_off(e);
    return buf_add(body, file->data, file->n);
}

/* The document of the table below and of those that requests are read by. */
static fathom_err get_openapi(const struct route_env *env, const char *rest, struct buf *body,
                              struct api_error *e)
{
    (void)rest;
    if (env->served->o.no_docs) return docs_are_off(e);
    (void)buf_add_str(
        body, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"fathom\",\"version\":\"" FATHOM_VERSION
              "\"},\"paths\":{");
    bool any = false;
    const struct route *r;
    for (size_t i = 0; (r = route_at(i)); i++) {
        if (r->web || r->call) continue;
        if (any) (void)buf_add_char(body, ',');
        any = true;
        if (r->get) {
            openapi_write_plain(body, r->path, r->type ? r->type : "application/json",
                                r->methods & METHOD_GET, r->methods & METHOD_POST);
        } else {
            openapi_write_post(body, (enum api_kind)r->api);
        }
    }
    openapi_write_responses(body);
    return buf_add_str(body, "}}");
}

/* ---- table --------------------------------------------------------------------------------- */

static const struct route routes[] = {
    {.path = "/v1/chat/completions", .methods = METHOD_POST, .api = API_CHAT},
    {.path = "/v1/completions", .methods = METHOD_POST, .api = API_COMPLETION},
    {.path = "/v1/responses", .methods = METHOD_POST, .api = API_RESPONSES},
    {.path = "/v1/responses/input_tokens", .methods = METHOD_POST, .api = API_INPUT_TOKENS},
    {.path = "/v1/responses/",
     .prefix = true,
     .methods = METHOD_GET | METHOD_POST | METHOD_DELETE,
     .call = responses_call},
    {.path = "/v1/messages", .methods = METHOD_POST, .api = API_MESSAGES},
    {.path = "/v1/messages/count_tokens", .methods = METHOD_POST, .api = API_COUNT_TOKENS},
    {.path = "/inference/v1/generate", .methods = METHOD_POST, .api = API_GENERATE},
    {.path = "/generate", .methods = METHOD_POST, .api = API_SGLANG},
    {.path = "/model_info", .methods = METHOD_GET, .get = sglang_get_model},
    {.path = "/get_model_info", .methods = METHOD_GET, .get = sglang_get_model},
    {.path = "/server_info", .methods = METHOD_GET, .get = sglang_get_server},
    {.path = "/get_server_info", .methods = METHOD_GET, .get = sglang_get_server},
    {.path = "/flush_cache", .methods = METHOD_POST, .get = sglang_flush_cache},
    {.path = "/invocations", .methods = METHOD_POST, .api = API_INVOCATION},
    {.path = "/tokenize", .methods = METHOD_POST, .api = API_TOKENIZE},
    {.path = "/detokenize", .methods = METHOD_POST, .api = API_DETOKENIZE},
    {.path = "/tokenizer_info", .methods = METHOD_GET, .get = get_tokenizer_info},
    {.path = "/load", .methods = METHOD_GET, .get = get_load},
    {.path = "/v1/models", .methods = METHOD_GET, .get = list_models},
    {.path = "/v1/models/", .prefix = true, .methods = METHOD_GET, .get = get_model},
    {.path = "/health", .guard = ROUTE_PROBE, .methods = METHOD_GET, .get = get_live},
    {.path = "/health/live", .guard = ROUTE_PROBE, .methods = METHOD_GET, .get = get_live},
    {.path = "/health_generate", .guard = ROUTE_PROBE, .methods = METHOD_GET, .get = get_live},
    {.path = "/ping", .guard = ROUTE_PROBE, .methods = METHOD_GET | METHOD_POST, .get = get_live},
    {.path = "/ready", .guard = ROUTE_PROBE, .methods = METHOD_GET, .get = get_ready},
    {.path = "/health/ready", .guard = ROUTE_PROBE, .methods = METHOD_GET, .get = get_ready},
    {.path = "/metrics",
     .guard = ROUTE_METRICS,
     .methods = METHOD_GET,
     .get = get_metrics,
     .type = PROMETHEUS_CONTENT_TYPE},
    {.path = "/", .web = true, .methods = METHOD_GET, .get = get_web},
    {.path = "/ui/", .prefix = true, .web = true, .methods = METHOD_GET, .get = get_web},
    {.path = "/docs", .web = true, .methods = METHOD_GET, .get = get_docs},
    {.path = "/openapi.json", .methods = METHOD_GET, .get = get_openapi},
    {.path = "/version", .methods = METHOD_GET, .get = get_version},
};

enum { N_ROUTE = sizeof routes / sizeof routes[0] };
static_assert((int)N_ROUTE <= (int)METRIC_ROUTES_MAX, "a counter for each route");

const struct route *route_find(const char *path, const char **rest)
{
    for (size_t i = 0; i < N_ROUTE; i++) {
        size_t n = strlen(routes[i].path);
        if (strncmp(path, routes[i].path, n) != 0) continue;
        *rest = path + n;
        if (routes[i].prefix ? **rest != '\0' : **rest == '\0') return &routes[i];
        /* "/v1/models/" is "/v1/models"; a page would look for its files below itself */
        if (!routes[i].prefix && !routes[i].web && n > 1 && strcmp(*rest, "/") == 0)
            return &routes[i];
    }
    return NULL;
}

const struct route *route_at(size_t i)
{
    return i < N_ROUTE ? &routes[i] : NULL;
}

size_t route_number(const struct route *r)
{
    return r ? (size_t)(r - routes) : SIZE_MAX;
}

bool route_is_open(const struct server_options *o, const struct route *r)
{
    return r->guard == ROUTE_PROBE || (r->guard == ROUTE_METRICS && o->open_metrics);
}

unsigned route_method(const char *name)
{
    if (strcmp(name, "GET") == 0 || strcmp(name, "HEAD") == 0) return METHOD_GET;
    if (strcmp(name, "POST") == 0) return METHOD_POST;
    if (strcmp(name, "OPTIONS") == 0) return METHOD_OPTIONS;
    if (strcmp(name, "DELETE") == 0) return METHOD_DELETE;
    return METHOD_OTHER;
}

const char *route_allow(const struct route *r)
{
    if (r->methods & METHOD_DELETE) return "GET, HEAD, POST, DELETE, OPTIONS";
    if (r->methods == METHOD_POST) return "POST, OPTIONS";
    return r->methods & METHOD_POST ? "GET, HEAD, POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

#define NO_ADAPTERS "adapters are not supported"
#define NO_SLEEP "stop the server instead; it is ready again as fast as weights are read"
#define NO_PAUSE "requests end, or are cancelled by closing their connection"
#define ADMIN "--admin-socket has it"
#define GENERATES "one model is served, and it generates text"
#define MODELS "/v1/models tells the model and its context"
#define RENDER "/tokenize renders the same messages"

/* What clients ask other servers for, at these paths and below them, and what to do here. */
static const struct {
    const char *path, *instead;
} elsewhere[] = {
    {"/v1/load_lora_adapter", NO_ADAPTERS},
    {"/v1/unload_lora_adapter", NO_ADAPTERS},
    {"/props", MODELS},
    {"/api/tags", MODELS},
    {"/slots", "/metrics and /load tell what runs"},
    {"/reset_prefix_cache", ADMIN},
    {"/reset_mm_cache", "messages are text"},
    {"/reset_encoder_cache", "messages are text"},
    {"/sleep", NO_SLEEP},
    {"/wake_up", NO_SLEEP},
    {"/is_sleeping", NO_SLEEP},
    {"/pause", NO_PAUSE},
    {"/resume", NO_PAUSE},
    {"/is_paused", NO_PAUSE},
    {"/abort_request", NO_PAUSE},
    {"/abort_requests", NO_PAUSE},
    {"/inference/v1/abort_requests", NO_PAUSE},
    {"/collective_rpc", "no Python is run"},
    {"/scale_elastic_ep", "start it with other ranks"},
    {"/start_profile", "fathom bench kernels and /metrics tell times"},
    {"/stop_profile", "fathom bench kernels and /metrics tell times"},
    {"/completion", "send prompts to /v1/completions"},
    {"/infill", "send prompt and suffix to /v1/completions"},
    {"/api/generate", "send prompts to /v1/completions"},
    {"/api/chat", "send messages to /v1/chat/completions"},
    {"/v1/chat/completions/render", RENDER},
    {"/v1/completions/render", RENDER},
    {"/v1/chat/completions/batch", "send each conversation by itself; they are computed together"},
    {"/v1/embeddings", GENERATES},
    {"/v1/rerank", GENERATES},
    {"/v1/score", GENERATES},
    {"/rerank", GENERATES},
    {"/score", GENERATES},
    {"/pooling", GENERATES},
    {"/classify", GENERATES},
    {"/v1/moderations", GENERATES},
    {"/v1/audio", GENERATES},
    {"/v1/images", GENERATES},
    {"/v1/realtime", GENERATES},
    {"/v2/rerank", GENERATES},
    {"/v2/embed", GENERATES},
    {"/v1/files", "fathom run-batch answers a file of requests"},
    {"/v1/batches", "fathom run-batch answers a file of requests"},
    {"/v1/conversations", "conversations are kept as responses: previous_response_id"},
};

/* "/chat/completions" and "/v1/v1/models" are common slips of a base URL. */
static const struct route *nearest_route(const char *path)
{
    const char *rest;
    char with_v1[64];
    if (strncmp(path, "/v1/v1/", 7) == 0) return route_find(path + 3, &rest);
    (void)snprintf(with_v1, sizeof with_v1, "/v1%.48s", path);
    return route_find(with_v1, &rest);
}

fathom_err route_refuse_path(const char *method, const char *path, struct api_error *e)
{
    const struct route *near = nearest_route(path);
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++) {
        size_t n = strlen(elsewhere[i].path);
        if (strncmp(path, elsewhere[i].path, n) != 0 || (path[n] && path[n] != '/')) continue;
        return api_error_set(e, 404, "not_found", NULL, "there is no %.16s %s: %s", method, path,
                             elsewhere[i].instead);
    }
    if (near) {
        return api_error_set(e, 404, "not_found", NULL,
                             "there is no %.16s %.200s; did you mean %s?", method, path,
                             near->path);
    }
    return api_error_set(e, 404, "not_found", NULL,
                         "there is no %.16s %.200s; there are /v1/chat/completions, "
                         "/v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens, "
                         "/v1/models, /inference/v1/generate, /generate, /invocations, "
                         "/tokenize, /detokenize, /health, /ready, /metrics, /version, "
                         "/docs",
                         method, path);
}
