/* environment.c - the only reader of environment variables */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/cli.h"

extern char **environ;

/* A variable that is set to nothing counts as unset, unless it is a secret. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* vLLM's names of levels are Python's, in capitals. */
static const char *level_text(char out[ENVIRONMENT_LEVEL_BYTES], const char *value)
{
    size_t n = strlen(value);
    if (n >= ENVIRONMENT_LEVEL_BYTES) n = ENVIRONMENT_LEVEL_BYTES - 1;
    for (size_t i = 0; i < n; i++) out[i] = (char)tolower((unsigned char)value[i]);
    out[n] = '\0';
    return out;
}

/* A secret that is set to nothing was meant: it is passed on to be refused. */
static const char *secret(const char *name)
{
    return getenv(name);
}

static void add(struct environment *e, const char *name, const char *option, const char *value)
{
    if (!value || e->n_variable == ENVIRONMENT_VARIABLES_MAX) return;
    e->variables[e->n_variable++] = (struct option_variable){name, option, value};
}

/* FATHOM_MAX_MODEL_LEN for max-model-len */
static void add_option(struct environment *e, const struct option *o)
{
    char *name = e->names[e->n_variable % ENVIRONMENT_VARIABLES_MAX];
    int n = snprintf(name, ENVIRONMENT_NAME_BYTES, "FATHOM_%s", o->name);
    for (int i = 0; i < n && i < ENVIRONMENT_NAME_BYTES; i++) {
        name[i] = (char)(name[i] == '-' ? '_' : toupper((unsigned char)name[i]));
    }
    if (n < ENVIRONMENT_NAME_BYTES) {
        add(e, name, o->name, o->secret ? secret(name) : variable(name));
    }
}

/* "" when it does not fit. */
static void join(char out[LIMIT_PATH_BYTES], const char *folder, const char *rest)
{
    int n = snprintf(out, LIMIT_PATH_BYTES, "%s%s", folder, rest);
    if (n < 0 || n >= LIMIT_PATH_BYTES) out[0] = '\0';
}

/* Is a variable that is meant for one process meant for this one? */
static bool is_ours(const char *pid)
{
    return !pid || strtoul(pid, NULL, 10) == (unsigned long)getpid();
}

static void read_supervisor(struct supervisor *s)
{
    const char *watchdog = variable("WATCHDOG_USEC"), *sockets = variable("LISTEN_FDS");
    const char *listener = variable("LISTEN_PID");
    s->notify_socket = variable("NOTIFY_SOCKET");
    if (watchdog && is_ours(variable("WATCHDOG_PID"))) {
        s->watchdog_us = strtoull(watchdog, NULL, 10);
    }
    if (sockets && listener && is_ours(listener))
        s->n_socket = (unsigned)strtoul(sockets, NULL, 10);
}

/* Where checkpoints are pulled from. */
static void read_hub(struct environment *e)
{
    const char *modelscope = variable("VLLM_USE_MODELSCOPE"), *endpoint = variable("HF_ENDPOINT");
    const char *domain = variable("MODELSCOPE_DOMAIN");
    e->hub_token = variable("HF_TOKEN");
    if (!e->hub_token) e->hub_token = variable("HUGGING_FACE_HUB_TOKEN");
    e->hub_token_path = variable("HF_TOKEN_PATH");
    e->modelscope =
        modelscope && (strcasecmp(modelscope, "true") == 0 || strcmp(modelscope, "1") == 0);
    if (e->modelscope && domain) {
        join(e->hub_endpoint, strstr(domain, "://") ? "" : "https://", domain);
    } else if (!e->modelscope && endpoint) {
        join(e->hub_endpoint, endpoint, "");
    }
    size_t n = strlen(e->hub_endpoint);
    if (n && e->hub_endpoint[n - 1] == '/') e->hub_endpoint[n - 1] = '\0';
}

/* "TRACES_HEADERS" holds over "HEADERS". */
static const char *exporter_variable(const char *of_traces, const char *of_all)
{
    const char *value = variable(of_traces);
    return value ? value : variable(of_all);
}

static void read_traces(struct trace_words *w)
{
    w->protocol =
        exporter_variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL");
    w->headers =
        exporter_variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS");
    w->certificate = exporter_variable("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                                       "OTEL_EXPORTER_OTLP_CERTIFICATE");
    w->service = variable("OTEL_SERVICE_NAME");
    w->resource = variable("OTEL_RESOURCE_ATTRIBUTES");
    w->sampler = variable("OTEL_TRACES_SAMPLER");
    w->sampler_arg = variable("OTEL_TRACES_SAMPLER_ARG");
}

/* What is told of several hosts stands in for flags. */
static void read_launcher(struct environment *e)
{
    struct launcher *l = &e->launcher;
    launcher_read(l, environ);
    for (enum launcher_flag f = 0; f < LAUNCHER_FLAGS; f++) {
        add(e, l->words[f].variable, launcher_flag_name(f), l->words[f].value);
    }
}

void environment_read(struct environment *e)
{
    memset(e, 0, sizeof *e);
    const char *hf_home = variable("HF_HOME"), *cache = variable("XDG_CACHE_HOME");
    const char *hub = variable("HF_HUB_CACHE");
    const char *state = variable("XDG_STATE_HOME");
    const char *home = variable("HOME");
    if (home) {
        join(e->hf_home, home, "/.cache/huggingface");
        join(e->history, home, "/.local/state/fathom/history");
    }
    if (cache) join(e->hf_home, cache, "/huggingface");
    if (hf_home) join(e->hf_home, hf_home, "");
    if (e->hf_home[0]) join(e->hub_cache, e->hf_home, "/hub");
    if (!hub) hub = variable("HUGGINGFACE_HUB_CACHE");
    if (hub) join(e->hub_cache, hub, "");
    if (state) join(e->history, state, "/fathom/history");
    const char *level = variable("VLLM_LOGGING_LEVEL");
    if (level) add(e, "VLLM_LOGGING_LEVEL", "log-level", level_text(e->level, level));
    add(e, "VLLM_API_KEY", "api-key", secret("VLLM_API_KEY"));
    add(e, "VLLM_NIXL_SIDE_CHANNEL_HOST", "kv-ip", variable("VLLM_NIXL_SIDE_CHANNEL_HOST"));
    add(e, "VLLM_NIXL_SIDE_CHANNEL_PORT", "kv-port", variable("VLLM_NIXL_SIDE_CHANNEL_PORT"));
    add(e, "VLLM_MOONCAKE_BOOTSTRAP_PORT", "kv-port", variable("VLLM_MOONCAKE_BOOTSTRAP_PORT"));
    read_launcher(e);
    for (size_t i = 0; i < option_table_n; i++) add_option(e, &option_table[i]);
    read_hub(e);
    read_supervisor(&e->supervisor);
    read_traces(&e->traces);
    e->port = variable("FATHOM_PORT");
    e->api_key = variable("OPENAI_API_KEY");
    if (!e->api_key) e->api_key = variable("FATHOM_API_KEY");
    if (!e->api_key) e->api_key = variable("VLLM_API_KEY");
}

fathom_err environment_tell(struct buf *notes)
{
    return environment_notes(notes, environ);
}
